//! One collection of the API server, with all objects that ever existed.

use std::collections::BTreeMap;

use super::configuration::NAMESPACES;
use crate::{
    list_watch::WatchEvent,
    object::Object,
    simulator::random::Random,
    testing::{Collection, Cursor, changed_at},
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Names of the objects in the second namespace.
const OTHER_NAMES: [&str; 2] = ["c", "d"];

/// One object, from its creation to its deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) name: String,
    /// Versions of the object. The value is the version that last changed the content; a touch changes no content.
    pub(super) versions: BTreeMap<u64, u64>,
    pub(super) is_over: bool,
}

impl Life {
    fn last(&self) -> u64 {
        *self.versions.last_key_value().expect("it has lived").0
    }

    /// Returns the version at which this version's content was created; a deletion has its own version.
    fn content(&self, version: u64) -> u64 {
        self.versions.get(&version).copied().unwrap_or(version)
    }
}

/// The server's state for one type.
#[derive(Debug, Default)]
pub(super) struct Site {
    pub(super) collection: Collection,
    seen: Cursor,
    /// Lives by uid.
    pub(super) lives: BTreeMap<String, Life>,
}

impl Site {
    pub(super) fn new() -> Self {
        let collection = Collection::default().with_namespace(NAMESPACES[1], &OTHER_NAMES);
        let mut site = Self { collection, ..Self::default() };
        site.seen.version = site.collection.version();
        site
    }

    /// Makes a change; returns its description.
    pub(super) fn write(&mut self, random: &mut Random) -> String {
        let name = NAMES[random.below(NAMES.len())];
        let what = match random.below(12) {
            0..6 => {
                self.collection.put(name);
                format!("put {name}")
            }
            6..8 => {
                self.collection.delete(name);
                format!("delete {name}")
            }
            8..10 => {
                self.collection.touch(name);
                format!("touch {name}")
            }
            10 => {
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
            life.versions.insert(version_of(object), changed_at(object));
        }
    }

    /// Drops the history.
    pub(super) fn compact(&mut self) {
        self.collection.compact();
        self.seen.version = self.collection.version();
    }

    /// Returns the version at which the content of an object's version was created.
    pub(super) fn content(&self, uid: &str, version: u64) -> u64 {
        self.lives[uid].content(version)
    }

    /// Returns the current state: name → (uid, version).
    pub(super) fn state(&self) -> BTreeMap<String, (String, u64)> {
        let there = self.lives.iter().filter(|(_, life)| !life.is_over);
        there.map(|(uid, life)| (life.name.clone(), (uid.clone(), life.last()))).collect()
    }
}

/// Returns the version as a number.
pub(super) fn version_of(object: &Object) -> u64 {
    object.resource_version().parse().expect("the model counts")
}
