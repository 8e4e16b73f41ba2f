//! Model of a consumer. It keeps the state after the accepted events, and checks that each event follows the guarantees.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    RecordName,
    configuration::Shape,
    name_of,
    site::{Site, version_of},
};
use crate::{
    change::{Cause, Change},
    cloud_event,
    journal::{ChangeKind, UnitId},
    notification::Event,
    object::Object,
};

/// Name of an object: its type and its name.
pub(super) type Place = (usize, String);

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
    pub(super) homes: &'a BTreeMap<UnitId, Shape>,
    pub(super) journal_id: u64,
    /// Records that a crash has lost.
    pub(super) lost: &'a BTreeSet<RecordName>,
    /// Objects of first lists: type and uid.
    pub(super) listed: &'a BTreeSet<(usize, String)>,
}

/// The sink of one handler, from its addition to its removal. A handler that is added again has another sink.
#[derive(Debug, Default)]
pub(super) struct Sink {
    pub(super) handler: usize,
    /// Set when the handler skips the objects of first lists.
    pub(super) skips: bool,
    /// Set when no handler delivers to the sink any more.
    pub(super) is_over: bool,
    /// Units that were on the handler's route at some time.
    pub(super) allowed: BTreeSet<UnitId>,
    /// Units that append records for the handler now.
    pub(super) attached: BTreeSet<UnitId>,
    /// Objects that a unit had when the handler was attached to it without records: type and uid, with the version.
    pub(super) unseen: BTreeMap<(usize, String), u64>,
    /// Acknowledged records, in order; after a crash only the saved ones.
    pub(super) acknowledged: Vec<RecordName>,
    /// Records that were merged into another record.
    pub(super) merged: BTreeSet<RecordName>,
    /// States that a lost record has shown: type, uid, and the version of the content.
    pub(super) shown_and_lost: BTreeSet<(usize, String, u64)>,
    /// Accepted ids, with their type. An object that is removed, or that comes back when the handler is attached again, may get its
    /// other ids again, so these are forgotten.
    seen: BTreeMap<(usize, String), Meaning>,
    ids: BTreeMap<(usize, Meaning), String>,
    /// Event at each position of a journal.
    places: BTreeMap<(u64, u64), (usize, String)>,
    /// Position and record of the last new event of an object.
    last: BTreeMap<Place, ((u64, u64), RecordName)>,
    /// Objects with an event after a lost record, until they are added or gone. The lost event may be repeated later with its
    /// id, and is then dropped.
    pub(super) disordered: BTreeSet<Place>,
    /// State after dropping repeated events: those with a repeated id, except the objects of an attachment.
    pub(super) objects: BTreeMap<Place, Known>,
    /// State without dropping events.
    pub(super) plain: BTreeMap<Place, Known>,
    pub(super) accepted: BTreeSet<RecordName>,
    /// Number of deliveries, including repeated ones.
    pub(super) deliveries: u64,
}

impl Sink {
    pub(super) fn new(handler: usize, skips: bool) -> Self {
        Self { handler, skips, ..Self::default() }
    }

    /// Accepts an event; returns true if it is a repetition.
    pub(super) fn accept(&mut self, event: &Event, around: &Surroundings<'_>) -> bool {
        let (name, sequence) = (name_of(&event.record), event.record.sequence.0);
        let site = around.homes[&event.record.unit].site;
        let id = (site, cloud_event::id(event));
        self.deliveries += 1;
        assert!(!self.is_over, "the handler was removed: {id:?}");
        assert!(!self.acknowledged.contains(&name), "E4: {id:?} was acknowledged and saved, and comes again");
        let is_of_type = |unit: &UnitId| around.homes.get(unit).is_some_and(|shape| shape.site == site);
        let is_allowed = match event.record.change {
            Change::Synced { .. } => self.allowed.iter().any(is_of_type),
            _ => self.allowed.contains(&event.record.unit),
        };
        assert!(is_allowed, "{id:?} is of {:?}, which was never on the route", event.record.unit);
        let is_again = !self.accepted.insert(name);
        let at_place = self.places.entry((around.journal_id, sequence)).or_insert_with(|| id.clone());
        assert_eq!(*at_place, id, "E3: two events at one place {sequence} of journal {}", around.journal_id);
        let Some(object) = event.record.object() else { return is_again };
        let is_known_id = self.note_id(&id, event, object);
        check_truth(event, object, &around.sites[site]);
        let place = (site, object.name().to_owned());
        apply(&mut self.plain, &place, event, object);
        let is_removal = matches!(event.record.change, Change::Removed { .. });
        // A compaction may merge a removal that was sent already with a later addition and removal.
        let is_merged = is_removal && !self.objects.contains_key(&place);
        let is_of_attachment = matches!(event.record.change.cause(), Some(Cause::Reload | Cause::Replay)) && !is_merged;
        let comes_back = is_of_attachment && !event.record.is_gone() && !self.objects.contains_key(&place);
        if is_removal || comes_back {
            self.seen.retain(|known, (uid, ..)| *known == id || (known.0, uid.as_str()) != (site, object.uid()));
        }
        if is_again || is_known_id && !is_of_attachment {
            return true;
        }
        let position = (around.journal_id, sequence);
        let last = self.last.insert(place.clone(), (position, name));
        let is_later = last.is_none_or(|(last, _)| last < position);
        assert!(is_later, "E3: {id:?} at {sequence} came after what is at {last:?}");
        if last.is_some_and(|(_, record)| around.lost.contains(&record)) {
            self.disordered.insert(place.clone());
        }
        if !self.disordered.contains(&place) {
            self.check_kind(&place, event, object, around);
        } else if event.record.is_gone() || matches!(event.record.change, Change::Added { .. }) {
            self.disordered.remove(&place);
        }
        apply(&mut self.objects, &place, event, object);
        false
    }

    /// Returns true if the id is a repetition. It must then have the same meaning.
    fn note_id(&mut self, id: &(usize, String), event: &Event, object: &Object) -> bool {
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

    /// Checks the order of event kinds (E2).
    fn check_kind(&self, place: &Place, event: &Event, object: &Object, around: &Surroundings<'_>) {
        let of_object = (place.0, object.uid().to_owned());
        let is_unseen = self.unseen.contains_key(&of_object) || self.skips && around.listed.contains(&of_object);
        match (&event.record.change, self.objects.get(place)) {
            (Change::Added { .. }, known) => assert_eq!(known, None, "E2: {place:?} is added twice: {event:?}"),
            (Change::Updated { .. }, Some(known)) => {
                assert_eq!(known.uid, object.uid(), "E2: another object is updated");
                assert!(known.version < version_of(object), "E2: {place:?} goes back in time from {known:?}");
            }
            (Change::Deleted { .. } | Change::Removed { cause: Cause::Reload, .. }, Some(known)) => {
                assert_eq!(known.uid, object.uid(), "E2: another object is deleted or removed");
            }
            (change, None) => assert!(is_unseen, "E2: {place:?} was not added: {change:?}"),
            (change, _) => panic!("unexpected change {change:?}"),
        }
    }

    /// Returns true if the last event of an object was of a record that a crash has lost.
    pub(super) fn is_last_lost(&self, place: &Place, lost: &BTreeSet<RecordName>) -> bool {
        self.last.get(place).is_some_and(|(_, record)| lost.contains(record))
    }
}

/// Checks an event against the history of the server (E1). A shown version must have existed. An object shown as deleted must
/// not exist any more.
fn check_truth(event: &Event, object: &Object, site: &Site) {
    let life = &site.lives[object.uid()];
    assert_eq!(life.name, object.name());
    if matches!(event.record.change, Change::Deleted { .. }) {
        assert!(life.is_over, "E1: {} exists, but was reported as deleted", object.uid());
    } else {
        assert!(life.versions.contains_key(&version_of(object)), "E1: {object:?} never was");
    }
}

fn apply(objects: &mut BTreeMap<Place, Known>, place: &Place, event: &Event, object: &Object) {
    if event.record.is_gone() {
        objects.remove(place);
    } else {
        let by = name_of(&event.record);
        objects.insert(place.clone(), Known { uid: object.uid().to_owned(), version: version_of(object), by });
    }
}
