//! Event as one short line for a terminal: `12:04:31 ~ prod/pod/web  Pending → Running`.

use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use jiff::{Timestamp, tz::TimeZone};

use crate::{
    change::{Cause, Change},
    journal::ChangeKind,
    notification::Event,
    object::summary::summary,
    printable::printable,
};

/// Parts of the line of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Time in microseconds since the Unix epoch.
    pub micros: i64,
    pub kind: ChangeKind,
    /// Object, as `namespace/kind/name`; for `synced`, the type.
    pub what: String,
    /// Changes of an update. They may have colours, and must be printable otherwise.
    pub change: String,
    /// Further details of the event.
    pub note: String,
}

impl Line {
    /// Makes the line of an event.
    pub(crate) fn of(event: &Event) -> Self {
        let (record, resource) = (&event.record, &event.unit.resource);
        let what = match record.object() {
            None => resource.qualified_name(),
            Some(object) => whom(&resource.kind, object.namespace(), object.name()),
        };
        let change = summary_of(event).unwrap_or_default();
        let note = match &record.change {
            _ if !change.is_empty() => String::new(),
            Change::Synced { objects, .. } => synced(*objects),
            Change::Removed { .. } => REMOVED.to_owned(),
            Change::Deleted { tombstone: true, .. } => TOMBSTONE.to_owned(),
            Change::Added { cause: Cause::Initial, .. } => "initial".to_owned(),
            Change::Unchanged { .. } => "unchanged".to_owned(),
            _ => record.object().map_or_else(String::new, |object| format!("v{}", object.resource_version())),
        };
        Self { micros: record.time_micros, kind: ChangeKind::of(&record.change), what, change, note }
    }

    /// Appends the line and a line break; the time is in `zone`.
    pub(crate) fn write(&self, out: &mut Vec<u8>, colour: bool, zone: &TimeZone) {
        let (sign, sign_colour) = match self.kind {
            ChangeKind::Added => ('+', AnsiColor::Green),
            ChangeKind::Updated | ChangeKind::Unchanged | ChangeKind::Refreshed => ('~', AnsiColor::Yellow),
            ChangeKind::Deleted | ChangeKind::Removed => ('-', AnsiColor::Red),
            ChangeKind::Synced => ('=', AnsiColor::Cyan),
        };
        let (style, dim) = (Style::new().fg_color(colour.then(|| sign_colour.into())), dim(colour));
        let time = Timestamp::from_microsecond(self.micros).unwrap_or_default().to_zoned(zone.clone());
        let (time, what) = (time.strftime("%H:%M:%S"), printable(&self.what));
        let note =
            Some(&self.note).filter(|note| !note.is_empty()).map(|note| format!("{dim}{}{dim:#}", printable(note)));
        let details = [Some(self.change.clone()).filter(|change| !change.is_empty()), note];
        let details = details.into_iter().flatten().collect::<Vec<_>>().join("  ");
        // Writing into memory does not fail.
        drop(writeln!(out, "{dim}{time}{dim:#} {style}{sign} {what}{style:#}  {details}"));
    }
}

/// Returns the [`summary`] of an update; `None` for other events, and if the previous object is not known.
fn summary_of(event: &Event) -> Option<String> {
    let (old, new) = (event.record.old()?, event.record.object()?);
    summary(&old.value().ok()?, &new.value().ok()?)
}

fn dim(colour: bool) -> Style {
    if colour { Style::new().dimmed() } else { Style::new() }
}

/// Note of the removal of an object that is no longer in the selection.
pub(crate) const REMOVED: &str = "no longer selected";
/// Note of a deletion for which the object's final state was not received.
pub(crate) const TOMBSTONE: &str = "final state unknown";

/// Returns the note of a type whose initial state is complete.
pub(crate) fn synced(objects: u64) -> String {
    format!("synced, {objects} objects")
}

/// Formats an object: `shop/pod/web`.
pub(crate) fn whom(kind: &str, namespace: &str, name: &str) -> String {
    let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!("{prefix}{}/{name}", kind.to_lowercase())
}
