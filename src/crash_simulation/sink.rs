//! Model of a consumer. It keeps the state after the accepted events, and checks that each event follows the guarantees.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    RecordName, name_of,
    site::{Site, version_of},
};
use crate::{change::Change, cloud_event, journal::ChangeKind, notification::Event, object::Object};

/// Name of an object: its unit and its name.
pub(super) type Place = (u32, String);

/// Meaning of an event, independent of its id: the uid, the version, and the kind of change.
type Meaning = (String, Option<u64>, ChangeKind);

/// Known state of an object, with the record that reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) uid: String,
    pub(super) version: u64,
    pub(super) by: RecordName,
}

/// State of the world while an event is accepted.
pub(super) struct Surroundings<'a> {
    pub(super) sites: &'a [Site],
    pub(super) journal_id: u64,
    /// Records that were acknowledged, and saved before a crash or a stop.
    pub(super) settled: &'a [RecordName],
    /// Records that a crash has lost.
    pub(super) lost: &'a BTreeSet<RecordName>,
    /// Objects of first lists: unit and uid.
    pub(super) listed: &'a BTreeSet<(u32, String)>,
}

/// The sink of one handler.
#[derive(Debug, Default)]
pub(super) struct Sink {
    /// Set when the handler skips the objects of first lists.
    pub(super) skips: bool,
    /// Accepted ids, with their unit.
    seen: BTreeMap<(u32, String), Meaning>,
    ids: BTreeMap<(u32, Meaning), String>,
    /// Event at each position of a journal.
    places: BTreeMap<(u64, u64), (u32, String)>,
    /// Position and record of the last new event of an object.
    last: BTreeMap<Place, ((u64, u64), RecordName)>,
    /// Objects with an event after a lost record, until they are added or deleted. The lost event may be repeated later with its
    /// id, and is then dropped.
    pub(super) disordered: BTreeSet<Place>,
    /// State after dropping events with a repeated id.
    pub(super) objects: BTreeMap<Place, Known>,
    /// State without dropping events.
    pub(super) plain: BTreeMap<Place, Known>,
    pub(super) accepted: BTreeSet<RecordName>,
    /// Number of deliveries, including repeated ones.
    pub(super) deliveries: u64,
}

impl Sink {
    /// Accepts an event; returns true if it is a repetition.
    pub(super) fn accept(&mut self, event: &Event, around: &Surroundings<'_>) -> bool {
        let (unit, name, sequence) = (event.record.unit.0, name_of(&event.record), event.record.sequence.0);
        let id = (unit, cloud_event::id(event));
        self.deliveries += 1;
        assert!(!around.settled.contains(&name), "I4: {id:?} was acknowledged and saved, and comes again");
        let is_again = !self.accepted.insert(name);
        let at_place = self.places.entry((around.journal_id, sequence)).or_insert_with(|| id.clone());
        assert_eq!(*at_place, id, "I3: two events at one place {sequence} of journal {}", around.journal_id);
        let Some(object) = event.record.object() else { return is_again };
        let is_repeated = self.note_id(&id, event, object);
        check_truth(event, object, &around.sites[unit as usize]);
        let place = (unit, object.name().to_owned());
        apply(&mut self.plain, &place, event, object);
        if is_repeated {
            return true;
        }
        let position = (around.journal_id, sequence);
        let last = self.last.insert(place.clone(), (position, name));
        let is_later = last.is_none_or(|(last, _)| last < position);
        assert!(is_later, "I3: {id:?} at {sequence} came after what is at {last:?}");
        if last.is_some_and(|(_, record)| around.lost.contains(&record)) {
            self.disordered.insert(place.clone());
        }
        if !self.disordered.contains(&place) {
            self.check_kind(&place, event, object, around);
        } else if matches!(event.record.change, Change::Added { .. } | Change::Deleted { .. }) {
            self.disordered.remove(&place);
        }
        apply(&mut self.objects, &place, event, object);
        false
    }

    /// Returns true if the id is a repetition. It must then have the same meaning.
    fn note_id(&mut self, id: &(u32, String), event: &Event, object: &Object) -> bool {
        let kind = match ChangeKind::of(&event.record.change) {
            ChangeKind::Added | ChangeKind::Updated => ChangeKind::Updated,
            kind => kind,
        };
        let version = (kind != ChangeKind::Deleted).then(|| version_of(object));
        let meaning = (object.uid().to_owned(), version, kind);
        let called = self.ids.entry((id.0, meaning.clone())).or_insert_with(|| id.1.clone());
        assert_eq!(*called, id.1, "the same change has another id");
        let before = self.seen.insert(id.clone(), meaning.clone());
        assert!(before.is_none() || before == Some(meaning), "{id:?} meant {before:?}");
        before.is_some()
    }

    /// Checks the order of event kinds (I2).
    fn check_kind(&self, place: &Place, event: &Event, object: &Object, around: &Surroundings<'_>) {
        let known = self.objects.get(place);
        let listed = self.skips && around.listed.contains(&(place.0, object.uid().to_owned()));
        match (&event.record.change, known) {
            (Change::Added { .. }, known) => assert_eq!(known, None, "I2: {place:?} is added twice"),
            (Change::Updated { .. }, Some(known)) => {
                assert_eq!(known.uid, object.uid(), "I2: another object is updated");
                assert!(known.version < version_of(object), "I2: {place:?} goes back in time from {known:?}");
            }
            (Change::Deleted { .. }, Some(known)) => {
                assert_eq!(known.uid, object.uid(), "I2: another object is deleted");
            }
            (change, None) => assert!(listed, "I2: {place:?} was not added: {change:?}"),
            (change, _) => panic!("unexpected change {change:?}"),
        }
    }
}

/// Checks an event against the history of the server (I1). A shown version must have existed. An object shown as deleted must
/// not exist any more.
fn check_truth(event: &Event, object: &Object, site: &Site) {
    let life = &site.lives[object.uid()];
    assert_eq!(life.name, object.name());
    if matches!(event.record.change, Change::Deleted { .. }) {
        assert!(life.is_over, "I1: {} exists, but was reported as deleted", object.uid());
    } else {
        assert!(life.versions.contains_key(&version_of(object)), "I1: {object:?} never was");
    }
}

fn apply(objects: &mut BTreeMap<Place, Known>, place: &Place, event: &Event, object: &Object) {
    if matches!(event.record.change, Change::Deleted { .. }) {
        objects.remove(place);
    } else {
        let by = name_of(&event.record);
        objects.insert(place.clone(), Known { uid: object.uid().to_owned(), version: version_of(object), by });
    }
}
