//! Creates sources with the kube client, one client per arbiter.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::{
    informer::{Informer, SourceFactory},
    list_watch::{
        ListWatch,
        kube::{ClusterAccess, KubeListWatch, Limits},
    },
};

/// Factory of kube sources.
pub(super) struct KubeSources {
    pub(super) access: ClusterAccess,
    pub(super) limits: Limits,
}

thread_local! {
    /// Client of this arbiter: its connections belong to the arbiter's runtime.
    static CLIENT: RefCell<Option<(String, kube::Client)>> = const { RefCell::new(None) };
}

impl SourceFactory for KubeSources {
    fn source(&self, informer: &Informer) -> Result<Rc<dyn ListWatch>, String> {
        let server = self.access.server_url();
        let client = CLIENT.with_borrow_mut(|kept| match kept {
            Some((of, client)) if *of == server => client.clone(),
            _ => {
                let client = self.access.client();
                *kept = Some((server, client.clone()));
                client
            }
        });
        let (scope, plan) = (informer.options.scope.clone(), informer.options.plan.clone());
        Ok(Rc::new(KubeListWatch::new(client, Arc::clone(&informer.resource), scope, plan, self.limits)))
    }
}
