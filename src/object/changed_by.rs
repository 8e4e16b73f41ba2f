//! Last modifier of an object: the newest entry of `metadata.managedFields`. By default, objects are stored without this field. If
//! a consumer needs the modifier, the modifier is therefore stored after the object's JSON.

use std::borrow::Cow;

use serde::Serialize;

use super::{
    Form, Object,
    scan::{JsonCursor, ScanError, text},
};

/// Separator between the encoded parts; this byte does not occur in UTF-8.
const SEPARATOR: u8 = 0xff;

/// Last modifier of an object according to its `managedFields`.
///
/// It is the entry with the latest time; among equal times, the last entry. Entries of subresources count too. The server
/// does not record who deletes an object: for a deleted object it is the last modifier before the deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedBy<'a> {
    /// Name of the program: `kubectl-edit`, `kube-controller-manager`.
    pub manager: Cow<'a, str>,
    /// `Apply` or `Update`.
    pub operation: Cow<'a, str>,
    /// Time in RFC 3339, as the server wrote it; empty if it wrote none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub time: Cow<'a, str>,
    /// Subresource, such as `status` or `scale`; empty for the object itself.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subresource: Cow<'a, str>,
}

impl<'a> ChangedBy<'a> {
    /// Finds the newest entry in the JSON of `managedFields`; `None` if there is no entry or the JSON is malformed.
    pub fn newest(managed_fields: &'a [u8]) -> Option<Self> {
        newest(managed_fields).unwrap_or_default()
    }

    /// Returns each part of the modifier with the part's name; a missing part is an empty text.
    pub fn parts(&self) -> [(&'static str, &str); 4] {
        let Self { manager, operation, time, subresource } = self;
        [("manager", manager), ("operation", operation), ("time", time), ("subresource", subresource)]
    }

    /// Encodes the modifier for storage.
    pub(super) fn encode(&self) -> Vec<u8> {
        self.parts().map(|(_, part)| part.as_bytes()).join(&SEPARATOR)
    }

    /// Decodes the output of [`ChangedBy::encode`].
    pub(crate) fn decode(kept: &'a [u8]) -> Option<Self> {
        let mut parts = kept.split(|byte| *byte == SEPARATOR).map(|part| std::str::from_utf8(part).ok());
        let mut part = || parts.next().flatten().map(Cow::Borrowed);
        let (manager, operation, time, subresource) = (part()?, part()?, part()?, part()?);
        parts.next().is_none().then_some(Self { manager, operation, time, subresource })
    }
}

impl Object {
    /// Returns the last modifier. `None` if it is unknown, or if the scan did not record it: see
    /// `ScanPlan::notes_who_changed`.
    pub fn changed_by(&self) -> Option<ChangedBy<'_>> {
        ChangedBy::decode(self.who())
    }

    /// Sets `who` as the last modifier, unless one is recorded already. Use this function for objects whose modifier is
    /// known from another source, for example from the fields of an event.
    #[must_use]
    pub fn with_changed_by(self, who: &ChangedBy<'_>) -> Self {
        self.with_who(&who.encode())
    }

    /// Returns [`Object::changed_by`] in encoded form; empty for `None`.
    pub(crate) fn who(&self) -> &[u8] {
        let bytes = self.0.bytes();
        &bytes[bytes.len() - self.who_bytes()..]
    }

    /// Adds the encoded modifier `who` to the object. An object that already has a modifier stays unchanged.
    #[must_use]
    pub(crate) fn with_who(self, who: &[u8]) -> Self {
        if who.is_empty() || self.who_bytes() > 0 {
            return self;
        }
        match self.form() {
            Form::Json { .. } => Self::assemble_with_who(self.identity(), &[self.body()], who),
            Form::Packed { compression, json_bytes, dictionary, .. } => {
                Self::of_packed(self.identity(), who, self.body(), *json_bytes, *compression, dictionary.clone())
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
        // API servers write all times in one format, whose texts sort like the times
        if newest.is_none() || newest_time <= time {
            (newest, newest_time) = (Some([manager, operation, subresource]), time);
        }
    }
    let Some([manager, operation, subresource]) = newest else { return Ok(None) };
    let (manager, operation, subresource) = (text(manager)?, text(operation)?, text(subresource)?);
    Ok(Some(ChangedBy { manager, operation, time: newest_time, subresource }))
}

#[cfg(test)]
mod tests;
