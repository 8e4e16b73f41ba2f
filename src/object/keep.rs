//! What a cache keeps of an object: all of it, packed or not, or only what identifies it (`cache = "none"`).

use std::sync::Arc;

use super::{Identity, Object, packer::Packer, scan::TypeMeta};

/// How much of an object is kept, and how.
#[derive(Clone, Debug, Default)]
pub enum Keep {
    /// The object.
    #[default]
    Whole,
    /// The object, its body packed.
    Packed(Arc<Packer>),
    /// Its `apiVersion` and `kind`, which are given here, and namespace, name, uid and resourceVersion: enough to tell
    /// what changed, and nothing to be read.
    Stub(Arc<TypeMeta>),
}

impl Keep {
    /// Looks at objects of which [`Keep::of`] will be asked.
    pub fn look_at<'a>(&self, objects: impl Iterator<Item = &'a Object>) {
        if let Self::Packed(packer) = self {
            packer.look_at(objects.filter(|object| !object.opts_out()));
        }
    }

    /// Returns what is kept of `object`; the same for the same one, as long as that lives.
    pub fn of(&self, object: &Object) -> Object {
        match self {
            _ if object.opts_out() => object.clone(),
            Self::Whole => object.clone(),
            Self::Packed(packer) => packer.pack(object),
            Self::Stub(type_meta) => stub(object, type_meta),
        }
    }

    /// Returns what packs bodies, if anything does.
    pub fn packer(&self) -> Option<&Arc<Packer>> {
        match self {
            Self::Packed(packer) => Some(packer),
            Self::Whole | Self::Stub(_) => None,
        }
    }

    /// Returns whether bodies are kept.
    pub fn is_whole(&self) -> bool {
        !matches!(self, Self::Stub(_))
    }
}

fn stub(object: &Object, type_meta: &TypeMeta) -> Object {
    let identity = object.identity();
    Object::assemble(identity, &[identity_json(identity, type_meta).as_bytes()])
}

/// Returns an object's JSON that has its type and what identifies it, and nothing else.
pub(super) fn identity_json(identity: Identity<'_>, type_meta: &TypeMeta) -> String {
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
    fn a_stub_is_the_identity_and_nothing_else_and_the_same_state() {
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
