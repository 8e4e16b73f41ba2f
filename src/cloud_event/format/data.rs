//! The data of one event, before it is written.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{
    super::{DATA_CONTENT_TYPE, Form, write_changed_by, write_data, write_json},
    FormatError,
};
use crate::{
    notification::Event,
    object::{Object, difference::differences},
};

/// The data of one event.
pub(super) enum Data<'a> {
    /// As [`Encoder`] writes it.
    Members(Form),
    /// The object and who changed it.
    Changed(&'a Object),
    Object(&'a Object),
    Made(&'static str, Bytes),
}

impl Data<'_> {
    pub(super) fn content_type(&self) -> &'static str {
        match self {
            Self::Members(_) | Self::Changed(_) | Self::Object(_) => DATA_CONTENT_TYPE,
            Self::Made(content_type, _) => content_type,
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, event: &Event) {
        match self {
            Self::Members(form) => {
                out.push(b'{');
                write_data(out, &event.record, *form);
                out.push(b'}');
            }
            Self::Changed(object) => {
                out.push(b'{');
                write_data(out, &event.record, Form::WithoutOld);
                write_changed_by(out, object);
                out.push(b'}');
            }
            Self::Object(object) => write_json(out, object),
            Self::Made(_, json) => out.extend_from_slice(json),
        }
    }
}

pub(super) fn made(content_type: &'static str, json: &'static [u8]) -> Data<'static> {
    Data::Made(content_type, Bytes::from_static(json))
}

/// The list of changes, and who made the last of them; without the old values where there is to be less.
pub(super) fn diff(old: &Object, new: &Object, form: Form) -> Result<Bytes, FormatError> {
    let (old_value, new_value) = (decoded(old)?, decoded(new)?);
    let mut changes = differences(&old_value, &new_value);
    if form != Form::Whole {
        for change in &mut changes {
            change.old = None;
        }
    }
    Ok(listed(&json(&changes), new))
}

/// The empty list of changes, and who changed the object.
pub(super) fn no_diff(object: &Object) -> Data<'static> {
    Data::Made(DATA_CONTENT_TYPE, listed(b"[]", object))
}

fn listed(changes: &[u8], object: &Object) -> Bytes {
    let mut out = br#"{"changes":"#.to_vec();
    out.extend_from_slice(changes);
    write_changed_by(&mut out, object);
    out.push(b'}');
    out.into()
}

pub(in crate::cloud_event) fn decoded(object: &Object) -> Result<Value, FormatError> {
    object.value().map_err(FormatError::Undecodable)
}

pub(super) fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("what was read as JSON can be written").into()
}
