//! Rights on types that are refused in the whole cluster: the namespaces in which these types may be watched. The server is asked
//! repeatedly.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    Conductor,
    state::{Inquiry, State},
};
use crate::engine::{
    plan::reconcile::Occasion,
    plan::{Allowed, Plan, TypeName},
};
use crate::{
    config::{Config, ResourceConfig},
    discovery::{self, DiscoveryError, ScopedType, TypeAccess},
};

impl Conductor {
    /// Asks the server about unknown rights. At longer intervals, asks about all rights again, first about the whole cluster.
    pub(in crate::engine) fn ask_for_rights(self: &Arc<Self>, plan: &Plan) {
        let mut state = self.lock();
        let now = Instant::now();
        let askable = |inquiry: &Inquiry| !inquiry.asking && inquiry.not_before.is_none_or(|at| at <= now);
        let State { inquiries, refused, config, .. } = &mut *state;
        for (name, inquiry) in inquiries.iter_mut().filter(|(_, inquiry)| askable(inquiry)) {
            let Some(planned @ [first, ..]) = plan.types.get(name).map(Vec::as_slice) else { continue };
            let resource = first.resource.clone();
            let entries: Vec<_> = planned.iter().filter_map(|planned| config.resources.get(&planned.entry)).collect();
            let collection = |namespace: Option<&str>| ScopedType {
                name: only_name(&entries, namespace),
                ..ScopedType::of(&resource, namespace)
            };
            let again = inquiry.again_at <= now;
            let mut namespaces: BTreeSet<String> =
                planned.iter().flat_map(|planned| planned.unasked.iter().cloned()).collect();
            if again {
                namespaces.extend(refused.get(name).into_iter().flat_map(Allowed::keys).cloned());
            }
            if !again && namespaces.is_empty() {
                continue;
            }
            inquiry.asking = true;
            let (conductor, name, whole) = (Arc::clone(self), name.clone(), again.then(|| collection(None)));
            let asked = namespaces.iter().map(|namespace| collection(Some(namespace))).collect();
            let work = async move { conductor.rights(whole, asked).await };
            self.spawn(work, move |conductor, answer| {
                let mut state = conductor.lock();
                let (again_at, pause) = (ask_again_at(&state.config), state.config.kube.backoff.max);
                if let Some(inquiry) = state.inquiries.get_mut(&name) {
                    inquiry.asking = false;
                    inquiry.not_before = (!matches!(answer, Ok(Ok(_)))).then(|| Instant::now() + pause);
                    if again {
                        inquiry.again_at = again_at;
                    }
                }
                match answer.unwrap_or_else(|panic| Err(panic.to_string())) {
                    Ok(answer) => state.take_rights(&name, answer),
                    Err(error) => warn!(%resource, %error, "cannot check the rights to watch the type"),
                }
            });
        }
    }

    /// Asks the server which of the collections `asked` may be watched, each in its namespace. First asks about the collection in the
    /// whole cluster, if given, and returns `None` if that one may be watched.
    async fn rights(&self, whole: Option<ScopedType>, asked: Vec<ScopedType>) -> Result<Option<Allowed>, String> {
        let client = self.access.client();
        let is_allowed = |access: Result<TypeAccess, DiscoveryError>| {
            access.map(|access| access.list && access.watch).map_err(|error| error.to_string())
        };
        if let Some(whole) = whole
            && is_allowed(discovery::allowed(&client, &whole).await)?
        {
            return Ok(None);
        }
        let answers = discovery::allowed_each(&client, &asked).await.into_iter().map(is_allowed);
        let namespaces = asked.into_iter().filter_map(|asked| asked.namespace);
        let answers = namespaces.zip(answers).map(|(namespace, answer)| Ok((namespace, answer?)));
        answers.collect::<Result<Allowed, String>>().map(Some)
    }
}

/// Returns the name of the only object that the entries of a type watch in a namespace, or in all.
fn only_name(entries: &[&ResourceConfig], namespace: Option<&str>) -> Option<String> {
    let here = entries.iter().filter(|entry| namespace.is_none_or(|namespace| entry.namespaces.matches(namespace)));
    let mut names = here.map(|entry| entry.object_name());
    let first = names.next()??;
    names.all(|name| name.as_ref() == Some(&first)).then_some(first)
}

impl State {
    fn take_rights(&mut self, name: &TypeName, answer: Option<Allowed>) {
        let Some(answer) = answer else {
            info!(resource = %name, "the type is now allowed in the whole cluster");
            return self.allow(name);
        };
        if let Some(known) = self.refused.get_mut(name) {
            known.extend(answer);
        }
        self.due(name, Occasion::Scope);
    }

    /// Marks a type as refused in the whole cluster.
    pub(in crate::engine) fn refuse(&mut self, name: &TypeName) {
        info!(resource = %name, "not allowed in the whole cluster; looking for namespaces that allow it");
        let again_at = ask_again_at(&self.config);
        self.refused.insert(name.clone(), Allowed::new());
        self.inquiries.insert(name.clone(), Inquiry { asking: false, again_at, not_before: None });
        self.due(name, Occasion::Scope);
    }

    /// Marks a type as allowed in the whole cluster.
    pub(in crate::engine) fn allow(&mut self, name: &TypeName) {
        self.refused.remove(name);
        self.inquiries.remove(name);
        self.due(name, Occasion::Scope);
    }
}

/// Returns the time at which all rights are asked for again. The delay is four times the longest backoff, plus a random part: by
/// default 2 to 2.5 minutes.
fn ask_again_at(config: &Config) -> Instant {
    let period = config.kube.backoff.max * 4;
    Instant::now() + period.mul_f64(1.0 + rand::random::<f64>() / 4.0).max(Duration::from_millis(100))
}
