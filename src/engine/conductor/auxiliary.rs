//! Informers for the engine itself. One watches namespaces, to follow their labels. Another watches CRDs, to notice added and
//! removed types.
//!
//! They are ordinary supervised informers in metadata mode. Each has its own journal in memory, whose only reader reports
//! changes to the conductor. They are in no registry, because no configuration names them.

use std::{borrow::Cow, sync::Arc};

use actix::{Actor, Addr};
use tokio::task::JoinHandle;

use crate::engine::{options, plan::KnownNamespaces};
use crate::{
    informer::{
        Informer, Shared,
        actor::{StopUnit, UnitSupervisor},
    },
    journal::{ChangeSet, Interest, Journal, ReaderOptions, Record, UnitId, UnitInterest},
    object::ResourceType,
    reflector::ReflectorConfig,
    status::UnitState,
};

/// Maximum changes and bytes that are read at once.
const BATCH: (usize, usize) = (1_000, 1 << 20);
/// Id of the only unit in the journal.
const UNIT: UnitId = UnitId(0);

/// Auxiliary informer that runs.
pub(in crate::engine) struct Auxiliary {
    informer: Arc<Informer>,
    supervisor: Addr<UnitSupervisor>,
    pump: JoinHandle<()>,
}

impl Auxiliary {
    /// Starts an informer on the current arbiter. `tell` is called with the changes of objects.
    pub(in crate::engine) fn start(
        resource: ResourceType,
        shared: &Shared,
        reflector: ReflectorConfig,
        tell: impl Fn(&[Record]) + 'static,
    ) -> Self {
        let journal = Journal::in_memory();
        let interest =
            Interest { units: [(UNIT, UnitInterest::default())].into(), changes: ChangeSet::ALL, filter: None };
        let reader = journal
            .open_reader(ReaderOptions { interest, ..ReaderOptions::default() })
            .expect("a reader in memory always opens");
        let shared = Shared { journal: journal.clone(), timings: Arc::default(), ..shared.clone() };
        let options = options::auxiliary(reflector);
        let informer = Arc::new(Informer::new(UNIT, "", Arc::new(resource), options, Arc::default(), None));
        let supervisor = UnitSupervisor::new(Arc::clone(&informer), shared).start();
        let pump = actix_rt::spawn(async move {
            loop {
                journal.readable(reader).await;
                let records = journal.read(reader, BATCH.0, BATCH.1);
                let Some(last) = records.last().map(|record| record.sequence) else { continue };
                tell(&records);
                journal.ack(reader, last);
            }
        });
        Self { informer, supervisor, pump }
    }

    /// Returns true if the first list is complete.
    pub(in crate::engine) fn is_synced(&self) -> bool {
        self.informer.status.view().synced
    }

    /// Returns the objects as namespaces with their labels.
    pub(in crate::engine) fn namespaces(&self) -> KnownNamespaces {
        let view = self.informer.status.view();
        if !view.synced {
            let forbidden = view.state == UnitState::Forbidden;
            return if forbidden { KnownNamespaces::Forbidden } else { KnownNamespaces::Unknown };
        }
        let objects = self.informer.objects();
        let owned = |(key, value): (Cow<'_, str>, Cow<'_, str>)| (key.into_owned(), value.into_owned());
        let known =
            objects.iter().map(|object| (object.name().to_owned(), object.labels().into_iter().map(owned).collect()));
        KnownNamespaces::Known(known.collect())
    }

    /// Stops the informer; returns when its actors have ended.
    pub(in crate::engine) async fn stop(self) {
        self.pump.abort();
        let _ended_by_itself = self.supervisor.send(StopUnit).await;
    }
}

/// Returns the type of namespaces.
pub(in crate::engine) fn namespaces() -> ResourceType {
    cluster_scoped("", "v1", "Namespace", "namespaces")
}

/// Returns the type of CRDs.
pub(in crate::engine) fn definitions() -> ResourceType {
    cluster_scoped("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
}

fn cluster_scoped(group: &str, version: &str, kind: &str, plural: &str) -> ResourceType {
    let [group, version, kind, plural] = [group, version, kind, plural].map(str::to_owned);
    ResourceType { group, version, kind, plural, namespaced: false }
}
