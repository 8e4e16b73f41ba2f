//! Cached form of an object: whole, packed, or only its identity (`cache = "none"`, or an object that opts out).

use std::sync::Arc;

use super::{Form, Identity, Object, packer::Packer, scan::TypeMeta};

/// Annotation by which an object opts out of deltabus, if its value is exactly `"true"`. Such an object is neither cached nor
/// sent.
pub(crate) const IGNORE_ANNOTATION: &str = "deltabus.dev/ignore";

/// Form in which a cache keeps objects.
#[derive(Clone, Debug, Default)]
pub enum Keep {
    /// The object as it is.
    #[default]
    Whole,
    /// The object with a packed body.
    Packed(Arc<Packer>),
    /// The given `apiVersion` and `kind`, plus namespace, name, uid and resourceVersion, and the record of the writer. This is
    /// enough to detect changes, but holds no content.
    Stub(Arc<TypeMeta>),
}

impl Keep {
    /// Takes samples of the objects for which [`Keep::of`] will be called.
    pub fn look_at<'a>(&self, objects: impl Iterator<Item = &'a Object>) {
        if let Self::Packed(packer) = self {
            packer.look_at(objects.filter(|object| !object.is_placeholder()));
        }
    }

    /// Returns the form in which the cache keeps `object`. With [`Keep::Packed`], this is the result of [`Packer::pack`].
    pub fn of(&self, object: &Object) -> Object {
        match self {
            _ if object.is_placeholder() => object.clone(),
            Self::Whole => object.clone(),
            Self::Packed(packer) => packer.pack(object),
            Self::Stub(type_meta) => stub(object, type_meta),
        }
    }

    /// Returns the packer of bodies, if any.
    pub fn packer(&self) -> Option<&Arc<Packer>> {
        match self {
            Self::Packed(packer) => Some(packer),
            Self::Whole | Self::Stub(_) => None,
        }
    }

    /// Returns true if bodies are kept.
    pub fn is_whole(&self) -> bool {
        !matches!(self, Self::Stub(_))
    }
}

impl Object {
    /// Creates the placeholder of an object that opts out: only its type, identity and version. The DeltaFIFO gets the placeholder
    /// instead of the object. Consumers that saw the object then see its removal; see `DeltaKind::OptedOut`.
    pub fn opted_out(identity: Identity<'_>, type_meta: &TypeMeta) -> Self {
        let json = identity_json(identity, type_meta);
        Self::lay_out(identity, Form::OptedOut, json.len(), &[], |room| room.put(json.as_bytes()))
    }

    /// Returns true if this is the placeholder of an object that opts out.
    pub fn opts_out(&self) -> bool {
        matches!(self.form(), Form::OptedOut)
    }

    /// Returns the placeholder of an object whose content cannot be read: only its identity and version. It is neither cached nor
    /// sent: the cache keeps the last state of the object, and its deletion is sent with this state.
    #[must_use]
    pub(crate) fn unread(&self) -> Self {
        let json = b"{}";
        Self::lay_out(self.identity(), Form::Unread, json.len(), &[], |room| room.put(json))
    }

    /// Returns true if this is the placeholder of an object whose content cannot be read.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self.form(), Form::Unread)
    }

    /// Returns true if this object holds only an identity: it opts out, or cannot be read.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.opts_out() || self.is_unread()
    }
}

fn stub(object: &Object, type_meta: &TypeMeta) -> Object {
    let identity = object.identity();
    Object::assemble_with_who(identity, &[identity_json(identity, type_meta).as_bytes()], object.who())
}

/// Returns JSON with the type and identity of an object only.
fn identity_json(identity: Identity<'_>, type_meta: &TypeMeta) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut json = format!(
        "{{\"apiVersion\":{},\"kind\":{},\"metadata\":{{\"name\":{}",
        quoted(&type_meta.api_version),
        quoted(&type_meta.kind),
        quoted(identity.name),
    );
    let optional =
        [("namespace", identity.namespace), ("uid", identity.uid), ("resourceVersion", identity.resource_version)];
    for (member, text) in optional.into_iter().filter(|(_, text)| !text.is_empty()) {
        json.extend([",\"", member, "\":", &quoted(text)]);
    }
    json.push_str("}}");
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stub_holds_only_identity_and_version() {
        let pods = Arc::new(TypeMeta::new("v1", "Pod"));
        for (json, expected) in [
            (
                r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"},"name":"x\"y","namespace":"n","uid":"u","resourceVersion":"7"},"spec":{}}"#,
                r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x\"y","namespace":"n","uid":"u","resourceVersion":"7"}}"#,
            ),
            (
                r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{}}"#,
                r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}"#,
            ),
        ] {
            let object = Object::from_json(json.as_bytes()).unwrap();
            let stub = Keep::Stub(Arc::clone(&pods)).of(&object);
            assert_eq!(std::str::from_utf8(&stub.json()).unwrap(), expected);
            assert!(stub.same_version(&object) && stub.key() == object.key());
            let read = Object::from_json(expected.as_bytes()).unwrap();
            assert_eq!((read.key(), read.uid()), (object.key(), object.uid()), "the identity is what the bytes say");
            assert!(Keep::Whole.of(&object).ptr_eq(&object));
        }
    }
}
