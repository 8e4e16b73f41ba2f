//! The order within a batch: the events of one object are a chain, in which each waits for the one before it.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::notification::Event;

/// The events of a batch, by their index in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chains {
    /// For each event the next one of its chain.
    pub(super) followers: Vec<Option<usize>>,
    /// The first event of each chain.
    pub(super) heads: Vec<usize>,
}

impl Chains {
    /// Returns the chains of a batch: one of each object, or a single one for `order = "total"`.
    pub(super) fn of(events: &[Event], total_order: bool) -> Self {
        let mut chains = Self { followers: vec![None; events.len()], heads: Vec::new() };
        let mut last_of_object = HashMap::with_capacity_and_hasher(events.len(), RandomState::default());
        for (index, event) in events.iter().enumerate() {
            let key = (!total_order).then(|| object(event));
            match last_of_object.insert(key, index) {
                Some(before) => chains.followers[before] = Some(index),
                None => chains.heads.push(index),
            }
        }
        chains
    }
}

/// Returns what an event is about: one object, or the state of a type.
fn object(event: &Event) -> (&str, &str, &str, &str) {
    let resource = &event.unit.resource;
    let (namespace, name) = event.record.object().map_or(("", ""), |object| (object.namespace(), object.name()));
    (&resource.group, &resource.plural, namespace, name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        indexer::Change,
        journal::{Record, Sequence, UnitId, testing::*},
        notification::UnitInfo,
        object::ResourceType,
    };

    fn event(plural: &str, change: Change) -> Event {
        let [group, version, kind, plural] = ["", "v1", "Thing", plural].map(str::to_owned);
        let resource = ResourceType { group, version, kind, plural, namespaced: true };
        let unit = Arc::new(UnitInfo { entry: "entry".to_owned(), resource, namespace: None });
        let record = Record { sequence: Sequence(1), unit: UnitId(0), time_micros: 0, change, old_lost: false };
        Event { unit, record }
    }

    #[test]
    fn events_of_one_object_are_a_chain_whatever_its_uid_and_all_are_one_in_total_order() {
        let events = [
            event("pods", added("a", "u1", 1)),
            event("pods", added("b", "u2", 2)),
            event("pods", deleted("a", "u1", 3)),
            event("secrets", added("a", "u3", 4)),
            event("pods", synced(3)),
            event("pods", added("a", "u4", 5)),
        ];
        let chains = Chains::of(&events, false);
        assert_eq!(chains.heads, [0, 1, 3, 4]);
        assert_eq!(chains.followers, [Some(2), None, Some(5), None, None, None]);
        let chains = Chains::of(&events, true);
        assert_eq!(chains.heads, [0]);
        assert_eq!(chains.followers, [Some(1), Some(2), Some(3), Some(4), Some(5), None]);
        assert_eq!(Chains::of(&[], true), Chains::default());
    }
}
