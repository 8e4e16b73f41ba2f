//! One collection of the API server, with all that ever was in it.

use std::collections::BTreeMap;

use crate::{
    list_watch::WatchEvent,
    object::SharedObject,
    simulator::random::Random,
    testing::{Collection, Cursor},
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// One object, from its creation to its deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) name: String,
    pub(super) versions: Vec<u64>,
    pub(super) is_over: bool,
}

/// The server's side of one unit.
#[derive(Debug, Default)]
pub(super) struct Site {
    pub(super) collection: Collection,
    seen: Cursor,
    /// By uid.
    pub(super) lives: BTreeMap<String, Life>,
}

impl Site {
    pub(super) fn new() -> Self {
        let mut site = Self::default();
        site.seen.version = site.collection.version();
        site
    }

    /// Changes something; returns what.
    pub(super) fn write(&mut self, random: &mut Random) -> String {
        let name = NAMES[random.below(NAMES.len())];
        let what = match random.below(10) {
            0..6 => {
                self.collection.put(name);
                format!("put {name}")
            }
            6..8 => {
                self.collection.delete(name);
                format!("delete {name}")
            }
            8 => {
                self.collection.delete(name);
                self.collection.put(name);
                format!("re-create {name}")
            }
            _ => {
                self.collection.advance();
                "a change elsewhere".to_owned()
            }
        };
        for event in self.collection.poll(&mut self.seen, 10) {
            self.note(&event);
        }
        format!("{what}, now at {}", self.collection.version())
    }

    fn note(&mut self, event: &WatchEvent) {
        let (WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) = event else {
            panic!("the model's own watch is never behind: {event:?}");
        };
        let life = self.lives.entry(object.uid().to_owned()).or_default();
        object.name().clone_into(&mut life.name);
        life.is_over = matches!(event, WatchEvent::Deleted(_));
        if !life.is_over {
            life.versions.push(version_of(object));
        }
    }

    /// Forgets the history.
    pub(super) fn compact(&mut self) {
        self.collection.compact();
        self.seen.version = self.collection.version();
    }

    /// Returns name → (uid, version) of everything there is.
    pub(super) fn state(&self) -> BTreeMap<String, (String, u64)> {
        let there = self.lives.iter().filter(|(_, life)| !life.is_over);
        there.map(|(uid, life)| (life.name.clone(), (uid.clone(), *life.versions.last().expect("it lives")))).collect()
    }
}

/// Returns the version as a number.
pub(super) fn version_of(object: &SharedObject) -> u64 {
    object.resource_version().parse().expect("the model counts")
}
