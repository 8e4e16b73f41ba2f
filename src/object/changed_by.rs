//! Who changed an object: the newest entry of its `metadata.managedFields`, kept behind its JSON where somebody asks for
//! it, as the field itself is cut by default.

use std::{borrow::Cow, cmp::Ordering};

use jiff::Timestamp;
use serde::Serialize;

use super::{
    Form, Object,
    scan::{JsonCursor, ScanError, text},
};

/// Stands between the parts where they are kept; no part of UTF-8.
const SEPARATOR: u8 = 0xff;

/// Who changed an object last, as its `managedFields` say it.
///
/// It is the entry with the latest time, of several the last one; one of a subresource counts as any other. The server
/// notes no one who deletes an object: of one that is gone it is who changed it before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedBy<'a> {
    /// The program: `kubectl-edit`, `kube-controller-manager`.
    pub manager: Cow<'a, str>,
    /// `Apply` or `Update`.
    pub operation: Cow<'a, str>,
    /// When, as the server wrote it, in RFC 3339; empty where it did not.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub time: Cow<'a, str>,
    /// `status`, `scale`; empty where it is the object itself.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subresource: Cow<'a, str>,
}

impl<'a> ChangedBy<'a> {
    /// Finds the newest entry in the JSON of a `managedFields`; `None` where there is none, or it is malformed.
    pub fn newest(managed_fields: &'a [u8]) -> Option<Self> {
        newest(managed_fields).unwrap_or_default()
    }

    /// Returns its parts by name; what the server did not say is an empty text.
    pub fn parts(&self) -> [(&'static str, &str); 4] {
        let Self { manager, operation, time, subresource } = self;
        [("manager", manager), ("operation", operation), ("time", time), ("subresource", subresource)]
    }

    /// Writes it as it is kept.
    pub(super) fn encode(&self) -> Vec<u8> {
        self.parts().map(|(_, part)| part.as_bytes()).join(&SEPARATOR)
    }

    /// Reads what [`ChangedBy::encode`] wrote.
    pub(crate) fn decode(kept: &'a [u8]) -> Option<Self> {
        let mut parts = kept.split(|byte| *byte == SEPARATOR).map(|part| std::str::from_utf8(part).ok());
        let mut part = || parts.next().flatten().map(Cow::Borrowed);
        let (manager, operation, time, subresource) = (part()?, part()?, part()?, part()?);
        parts.next().is_none().then_some(Self { manager, operation, time, subresource })
    }
}

impl Object {
    /// Returns who changed it last; `None` where that is not known, or nobody had asked for it when the object was read:
    /// see [`ScanPlan::noting_who_changed`](super::scan::ScanPlan::noting_who_changed).
    pub fn changed_by(&self) -> Option<ChangedBy<'_>> {
        ChangedBy::decode(self.who())
    }

    /// Returns it with who changed it last, for one that was read without: as it stands beside an object in an event. What
    /// is noted already stays.
    #[must_use]
    pub fn with_changed_by(self, who: &ChangedBy<'_>) -> Self {
        self.with_who(&who.encode())
    }

    /// Returns [`Object::changed_by`] as it is kept; empty for `None`.
    pub(crate) fn who(&self) -> &[u8] {
        let bytes = self.0.bytes();
        &bytes[bytes.len() - self.who_bytes()..]
    }

    /// Returns it with what [`Object::who`] is of what it was made of, unless it has its own.
    #[must_use]
    pub(crate) fn with_who(self, who: &[u8]) -> Self {
        if who.is_empty() || self.who_bytes() > 0 {
            return self;
        }
        match self.form() {
            Form::Json { .. } => Self::assemble_with_who(self.identity(), &[self.body()], who),
            Form::Packed { codec, json_bytes, dictionary, .. } => {
                Self::of_packed(self.identity(), who, self.body(), *json_bytes, *codec, dictionary.clone())
            }
            Form::OptedOut => self,
        }
    }
}

fn newest(managed_fields: &[u8]) -> Result<Option<ChangedBy<'_>>, ScanError> {
    let mut cursor = JsonCursor::new(managed_fields);
    if cursor.peek()? != b'[' {
        return Ok(None);
    }
    cursor.enter(b'[', "an array")?;
    let (mut newest, mut newest_time, mut first) = (None, Cow::Borrowed(""), true);
    while cursor.next_element(&mut first)?.is_some() {
        if cursor.peek()? != b'{' {
            cursor.skip_value()?;
            continue;
        }
        let [manager, operation, subresource, time] =
            cursor.values([b"manager", b"operation", b"subresource", b"time"])?;
        let time = text(time)?;
        if newest.is_none() || in_order(&newest_time, &time).is_le() {
            (newest, newest_time) = (Some([manager, operation, subresource]), time);
        }
    }
    let Some([manager, operation, subresource]) = newest else { return Ok(None) };
    let (manager, operation, subresource) = (text(manager)?, text(operation)?, text(subresource)?);
    Ok(Some(ChangedBy { manager, operation, time: newest_time, subresource }))
}

/// Says which of two times comes first; what is no time comes before all.
fn in_order(one: &str, other: &str) -> Ordering {
    if is_plain(one) && is_plain(other) {
        return one.cmp(other);
    }
    let parse = |time: &str| time.parse::<Timestamp>().ok();
    parse(one).cmp(&parse(other))
}

/// Returns whether a time is written as API servers do, whole seconds in UTC: the order of texts is that of times then.
fn is_plain(time: &str) -> bool {
    let is_like = |(byte, like): (u8, &u8)| if *like == b'0' { byte.is_ascii_digit() } else { byte == *like };
    time.len() == 20 && time.bytes().zip(b"0000-00-00T00:00:00Z").all(is_like)
}

#[cfg(test)]
mod tests;
