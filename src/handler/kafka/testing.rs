//! Events for tests of messages.

use std::sync::Arc;

use crate::{
    change::Change,
    journal::{Record, Sequence, UnitId},
    notification::{Event, UnitInfo},
    object::ResourceType,
};

pub(super) use crate::journal::testing::synced;

pub(super) fn unit(group: &str, plural: &str, kind: &str) -> Arc<UnitInfo> {
    let [group, version, plural, kind] = [group, "v1", plural, kind].map(str::to_owned);
    let resource = ResourceType { group, version, kind, plural, namespaced: true };
    Arc::new(UnitInfo { entry: "entry".to_owned(), resource, namespace: None })
}

pub(super) fn event(unit: Arc<UnitInfo>, change: Change) -> Event {
    let record = Record { sequence: Sequence(1), unit: UnitId(0), time_micros: 0, change, old_lost: false };
    Event { unit, record }
}
