//! Records of the journal, and their names in reports.

use std::fmt;

use super::{Sequence, UnitId};
use crate::{
    change::{Change, ChangeKind},
    object::{ChangedBy, Object, ObjectKey},
};

/// One numbered change, as the journal emits it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Position of the record.
    pub sequence: Sequence,
    /// Unit whose cache the change applies to.
    pub unit: UnitId,
    /// Time of the append, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The change.
    pub change: Change,
    /// Set when the `old` of a [`Change::Updated`] was discarded to save memory, or was never known. `old` is then a copy of
    /// `object` and must not be shown.
    pub old_lost: bool,
}

impl Record {
    /// Returns the object of the change; `None` for [`Change::Synced`].
    pub fn object(&self) -> Option<&Object> {
        self.change.object()
    }

    /// Returns the previous object, if it is known and may be shown.
    pub fn old(&self) -> Option<&Object> {
        match &self.change {
            Change::Updated { old, .. } if !self.old_lost => Some(old),
            _ => None,
        }
    }

    /// Returns the writer of the change. `None` if the writer is not known, and for a deletion or removal: the API server does not
    /// record who deletes an object.
    pub(crate) fn changed_by(&self) -> Option<ChangedBy<'_>> {
        match &self.change {
            Change::Added { object, .. } => object.changed_by_since(None),
            Change::Updated { object, .. } => match self.old() {
                Some(old) => object.changed_by_since(Some(old)),
                None => object.changed_by(),
            },
            Change::Unchanged { object, .. } | Change::Refreshed { object } => object.changed_by(),
            Change::Deleted { .. } | Change::Removed { .. } | Change::Synced { .. } => None,
        }
    }

    /// Returns the name of this record for reports. The name is displayed as `added default/web (sequence 7, uid …)`.
    pub fn event_name(&self) -> EventName {
        EventName {
            sequence: self.sequence,
            unit: self.unit,
            kind: ChangeKind::of(&self.change),
            key: self.object().map_or_else(|| ObjectKey::new("", ""), |object| object.key().to_owned()),
            uid: self.object().map_or("", |object| object.uid()).into(),
        }
    }

    /// Returns the size of the object and the previous object, in bytes.
    #[inline]
    pub(crate) fn body_bytes(&self) -> usize {
        self.object().map_or(0, Object::size_bytes) + self.old().map_or(0, Object::size_bytes)
    }

    /// Returns a copy of the record with packed objects, which share memory with the cache. An object without a packed form stays
    /// as it is.
    pub(super) fn packed(&self) -> Self {
        Self { change: self.change.packed(), ..self.clone() }
    }

    /// Returns true for a deletion or removal: after it, the object no longer exists for handlers.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.change, Change::Deleted { .. } | Change::Removed { .. })
    }
}

impl ChangeKind {
    /// Returns the kind of a change.
    pub fn of(change: &Change) -> Self {
        change.into()
    }

    /// Returns the last part of an event's `type`, such as `added`. For an unchanged object it is `updated`. A refreshed object is
    /// never delivered.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated | Self::Unchanged | Self::Refreshed => "updated",
            Self::Deleted => "deleted",
            Self::Removed => "removed",
            Self::Synced => "synced",
        }
    }
}

/// Name of an event, for reports of lost, undelivered or poison events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventName {
    /// Position of the event.
    pub sequence: Sequence,
    /// Unit of the event.
    pub unit: UnitId,
    /// Kind of change.
    pub kind: ChangeKind,
    /// Key of the object; both parts are empty for `synced`.
    pub key: ObjectKey,
    /// Uid of the object; empty if it has none.
    pub uid: Box<str>,
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (sequence {}", self.kind.as_str(), self.key, self.sequence.0)?;
        if !self.uid.is_empty() {
            write!(f, ", uid {}", self.uid)?;
        }
        f.write_str(")")
    }
}
