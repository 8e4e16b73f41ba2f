//! Content of an event's data: the `format` of a handler.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use strum::IntoStaticStr;

use super::{
    ContentMode, DATA_CONTENT_TYPE, Encoder, Form,
    error::{FormatError, decoded},
    template::Template,
    write_changed_by, write_data, write_json,
};
use crate::{
    change::Change,
    notification::Event,
    object::{
        Object,
        difference::{differences, json_patch, merge_patch},
    },
};

/// Content type of a JSON Patch (RFC 6902).
const JSON_PATCH: &str = "application/json-patch+json";
/// Content type of a JSON Merge Patch (RFC 7386).
const MERGE_PATCH: &str = "application/merge-patch+json";
/// Content type of text that is not JSON.
const TEXT: &str = "text/plain; charset=utf-8";
/// Approximate size of an event's attributes in JSON, in bytes.
const ATTRIBUTES_LEN: usize = 768;

/// Data of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "DataFormat")]
#[strum(serialize_all = "snake_case")]
pub enum DataFormat {
    /// Object, and its previous state for an update.
    #[default]
    #[serde(rename = "cloudevents")]
    #[strum(serialize = "cloudevents")]
    CloudEvents,
    /// Object itself.
    Object,
    /// JSON Patch (RFC 6902) of each update.
    Patch,
    /// JSON Merge Patch (RFC 7386) of each update.
    MergePatch,
    /// Changed paths of each update, with the old and the new value.
    Diff,
    /// No data: the attributes identify the object.
    Ref,
    /// Output of `template`, instead of a `CloudEvent`.
    Template,
}

/// Encoder for a handler's format. An [`Encoder`] alone writes [`DataFormat::CloudEvents`]. `docs/formats.md` shows each format.
///
/// - A `synced` event has no object. Its data is the same in all formats, except in [`DataFormat::Template`].
/// - The patch formats send a patch for an update. For a deletion or removal, they send `null`; for an unchanged object, an empty
///   patch.
/// - The patch formats send the new object if no patch can be made. This is so for an added object, for an update whose previous
///   object is not known, and for a merge patch if a member has become `null`.
/// - [`DataFormat::Diff`] has `changed_by` if it is known who changed the object.
#[derive(Clone, Debug)]
pub struct Formatter {
    encoder: Encoder,
    format: DataFormat,
    /// Template of [`DataFormat::Template`]; `None` for all other formats.
    template: Option<Arc<Template>>,
}

/// The body of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBody {
    /// Content type of the body.
    pub content_type: &'static str,
    /// The body.
    pub bytes: Vec<u8>,
}

impl From<Encoder> for Formatter {
    fn from(encoder: Encoder) -> Self {
        Self::new(encoder, DataFormat::default())
    }
}

impl Formatter {
    /// Makes a formatter. For [`DataFormat::Template`], use [`Formatter::of_template`].
    pub fn new(encoder: Encoder, format: DataFormat) -> Self {
        Self { encoder, format, template: None }
    }

    /// Makes a formatter that sends only the output of a template.
    pub fn of_template(encoder: Encoder, template: Template) -> Self {
        Self { template: Some(Arc::new(template)), ..Self::new(encoder, DataFormat::Template) }
    }

    /// Returns the encoder of the attributes.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Returns true if the formatter has a template. Only the output of the template is then sent.
    pub fn is_template(&self) -> bool {
        self.template.is_some()
    }

    /// Appends an event and a line break: a `CloudEvents` JSON object on one line, or the output of the template.
    pub fn line(&self, out: &mut Vec<u8>, event: &Event) -> Result<(), FormatError> {
        if let Some(template) = &self.template {
            let text = template.render(&self.encoder, event)?;
            out.extend_from_slice(text.trim_end_matches(['\r', '\n']).as_bytes());
        } else {
            self.write_structured(out, event, Form::Whole)?;
        }
        out.push(b'\n');
        Ok(())
    }

    /// Returns the body of a message with one event. In binary mode, send the attributes separately, see
    /// [`Encoder::each_attribute`].
    pub fn body(&self, event: &Event, form: Form, mode: ContentMode) -> Result<MessageBody, FormatError> {
        let mut bytes = Vec::new();
        let content_type = self.write_body(&mut bytes, event, form, mode)?;
        Ok(MessageBody { content_type, bytes })
    }

    /// Appends the body of a message with one event, and returns its content type. See [`Formatter::body`].
    pub fn write_body(
        &self,
        out: &mut Vec<u8>,
        event: &Event,
        form: Form,
        mode: ContentMode,
    ) -> Result<&'static str, FormatError> {
        if let Some(template) = &self.template {
            let text = self.text(template, event, form)?;
            let is_json = serde_json::from_str::<IgnoredAny>(&text).is_ok();
            out.extend_from_slice(text.as_bytes());
            return Ok(if is_json { DATA_CONTENT_TYPE } else { TEXT });
        }
        // Reserves no more than the data needs, because the buffer stays allocated with the batch. The data is rarely larger
        // than the object and its previous state.
        let is_reference = form == Form::Reference || self.format == DataFormat::Ref;
        let old = event.record.old().filter(|_| form == Form::Whole && self.format != DataFormat::Object);
        let objects = [event.record.object(), old].into_iter().flatten().filter(|_| !is_reference);
        out.reserve(ATTRIBUTES_LEN + objects.map(Object::json_bytes).sum::<usize>());
        match mode {
            ContentMode::Structured => {
                self.write_structured(out, event, form)?;
                Ok("application/cloudevents+json")
            }
            ContentMode::Binary => {
                let data = self.data(event, form)?;
                data.write(out, event);
                Ok(data.content_type())
            }
        }
    }

    /// Returns the body of a message with several events: a JSON array.
    pub fn batch(&self, events: &[Event], form: Form) -> Result<MessageBody, FormatError> {
        let mut bytes = vec![b'['];
        for (i, event) in events.iter().enumerate() {
            if i > 0 {
                bytes.push(b',');
            }
            if let Some(template) = &self.template {
                let text = self.text(template, event, form)?;
                serde_json::from_str::<IgnoredAny>(&text).map_err(FormatError::NoJson)?;
                bytes.extend_from_slice(text.as_bytes());
            } else {
                self.write_structured(&mut bytes, event, form)?;
            }
        }
        bytes.push(b']');
        let content_type = if self.is_template() { DATA_CONTENT_TYPE } else { "application/cloudevents-batch+json" };
        Ok(MessageBody { content_type, bytes })
    }

    fn write_structured(&self, out: &mut Vec<u8>, event: &Event, form: Form) -> Result<(), FormatError> {
        let data = self.data(event, form)?;
        self.encoder.write_attributes(out, event, data.content_type());
        out.extend_from_slice(br#","data":"#);
        data.write(out, event);
        out.push(b'}');
        Ok(())
    }

    fn text(&self, template: &Template, event: &Event, form: Form) -> Result<String, FormatError> {
        if form != Form::Whole {
            return Err(FormatError::NoSmaller("template"));
        }
        template.render(&self.encoder, event)
    }

    fn data<'a>(&self, event: &'a Event, form: Form) -> Result<Data<'a>, FormatError> {
        let change = &event.record.change;
        let Some(object) = event.record.object().filter(|_| form != Form::Reference) else {
            return Ok(Data::Members(form));
        };
        let is_gone = event.record.is_gone();
        let nothing_new = matches!(change, Change::Unchanged { .. });
        Ok(match (self.format, event.record.old()) {
            (DataFormat::CloudEvents, _) => Data::Members(form),
            (DataFormat::Ref, _) => Data::Members(Form::Reference),
            (DataFormat::Diff, Some(old)) => Data::Changes(diff(old, object, form)?),
            (DataFormat::Diff, None) if nothing_new => Data::Changes(b"[]".to_vec()),
            (DataFormat::Diff, None) => Data::Changed,
            (_, _) if form == Form::WithoutOld => return Err(FormatError::NoSmaller(self.format.into())),
            (DataFormat::Patch, Some(old)) => {
                Data::Made(JSON_PATCH, json(&json_patch(&decoded(old)?, &decoded(object)?)))
            }
            (DataFormat::MergePatch, Some(old)) => match merge_patch(&decoded(old)?, &decoded(object)?) {
                Some(patch) => Data::Made(MERGE_PATCH, json(&patch)),
                None => Data::Object(object),
            },
            (DataFormat::Patch, None) if nothing_new => Data::Made(JSON_PATCH, b"[]".to_vec()),
            (DataFormat::MergePatch, None) if nothing_new => Data::Made(MERGE_PATCH, b"{}".to_vec()),
            (DataFormat::Patch | DataFormat::MergePatch, None) if is_gone => {
                Data::Made(DATA_CONTENT_TYPE, b"null".to_vec())
            }
            (DataFormat::Object | DataFormat::Patch | DataFormat::MergePatch | DataFormat::Template, _) => {
                Data::Object(object)
            }
        })
    }
}

/// Data of one event.
enum Data<'a> {
    /// The members that `write_data` writes in this form.
    Members(Form),
    /// The object, and who changed it.
    Changed,
    /// The encoded list of changes, and who made them.
    Changes(Vec<u8>),
    Object(&'a Object),
    /// Content type and encoded data.
    Made(&'static str, Vec<u8>),
}

impl Data<'_> {
    fn content_type(&self) -> &'static str {
        match self {
            Self::Members(_) | Self::Changed | Self::Changes(_) | Self::Object(_) => DATA_CONTENT_TYPE,
            Self::Made(content_type, _) => content_type,
        }
    }

    fn write(&self, out: &mut Vec<u8>, event: &Event) {
        match self {
            Self::Members(form) => {
                out.push(b'{');
                write_data(out, &event.record, *form);
                out.push(b'}');
            }
            Self::Changed => {
                out.push(b'{');
                write_data(out, &event.record, Form::WithoutOld);
                write_changed_by(out, &event.record);
                out.push(b'}');
            }
            Self::Changes(changes) => {
                out.extend_from_slice(br#"{"changes":"#);
                out.extend_from_slice(changes);
                write_changed_by(out, &event.record);
                out.push(b'}');
            }
            Self::Object(object) => write_json(out, object),
            Self::Made(_, json) => out.extend_from_slice(json),
        }
    }
}

/// Returns the list of changes. In a form smaller than [`Form::Whole`], the changes have no old values.
fn diff(old: &Object, new: &Object, form: Form) -> Result<Vec<u8>, FormatError> {
    let (old_value, new_value) = (decoded(old)?, decoded(new)?);
    let mut changes = differences(&old_value, &new_value);
    if form != Form::Whole {
        for change in &mut changes {
            change.old = None;
        }
    }
    Ok(json(&changes))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("parsed JSON can be encoded")
}
