//! Kubernetes objects as the bytes that the server sent, plus the few fields that every stage needs.
//!
//! An [`Object`] is the JSON of one object without the values at the drop paths, plus its namespace, name, uid and
//! resourceVersion. All other fields are decoded on demand: see [`Object::decode`], [`Object::value`] and
//! [`FieldPath`].
//!
//! Reasons: `docs/decisions/0002-raw-objects.md`.

mod changed_by;
pub(crate) mod codec;
pub(crate) mod difference;
mod field_path;
mod field_use;
mod ignored;
mod keep;
pub(crate) mod merge_key;
pub(crate) mod packer;
pub(crate) mod pod_status;
pub(crate) mod scan;
mod shared;
pub(crate) mod summary;

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    str::Utf8Error,
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use self::{
    codec::{Compression, Dictionary},
    shared::{Room, Shared},
};
pub(crate) use changed_by::ChangedBy;
pub(crate) use changed_by::NotedParts;
pub(crate) use field_path::PathStep;
pub use field_path::{FieldPath, FieldPathError};
pub(crate) use field_use::FieldUse;

pub(crate) use ignored::IgnoredPaths;
pub(crate) use keep::IGNORE_ANNOTATION;
pub use keep::Keep;
pub(crate) use scan::Plucker;

/// One resource type of the API server, such as `deployments.v1.apps` in kubectl's syntax.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ResourceType {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group, `v1`.
    pub version: String,
    /// Kind of one object, `Deployment`.
    pub kind: String,
    /// Lower-case plural used in paths, `deployments`.
    pub plural: String,
    /// Set when objects belong to a namespace.
    pub namespaced: bool,
}

impl ResourceType {
    /// Returns `v1` for the core group, `apps/v1` otherwise.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns kubectl's unambiguous name without the version: `pods`, `deployments.apps`.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Returns the collection's path below the server's root (LW-5), for one namespace or for all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        path
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified_name())
    }
}

/// Identity of an object within its resource type (K-1): `namespace/name`, or `name` without a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    namespace: Box<str>,
    name: Box<str>,
}

/// A borrowed [`ObjectKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyRef<'a> {
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: &'a str,
    /// Name; never empty in an [`Object`] (K-4).
    pub name: &'a str,
}

/// A key that is neither `name` nor `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected key {0:?}, expected `name` or `namespace/name`")]
pub struct KeyError(String);

impl ObjectKey {
    /// Creates a key; an empty `namespace` means a cluster-scoped object.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Splits `namespace/name` or `name` (K-1).
    pub fn parse(key: &str) -> Result<Self, KeyError> {
        match key.split('/').collect::<Vec<_>>()[..] {
            [name] => Ok(Self::new("", name)),
            [namespace, name] => Ok(Self::new(namespace, name)),
            _ => Err(KeyError(key.to_owned())),
        }
    }

    /// Borrows the key.
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { namespace: &self.namespace, name: &self.name }
    }
}

impl KeyRef<'_> {
    /// Copies the borrowed key into an [`ObjectKey`].
    pub fn to_owned(self) -> ObjectKey {
        ObjectKey::new(self.namespace, self.name)
    }
}

impl fmt::Display for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// A `metadata.resourceVersion`: an opaque text that supports equality.
///
/// There is no `Ord`. [`ResourceVersion::compare`] works only for two versions of one resource type, and only where
/// the API promises an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(Box<str>);

impl ResourceVersion {
    /// Returns the unset version `""`. In a list request it means the most recent state. It never means "from now".
    pub fn unset() -> Self {
        Self::default()
    }

    /// Returns the version `"0"`: any state that the server has in its cache.
    pub fn any() -> Self {
        Self("0".into())
    }

    /// Returns true for `""`.
    pub fn is_unset(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true for `"0"`.
    pub fn is_any(&self) -> bool {
        &*self.0 == "0"
    }

    /// Returns the exact text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares two versions of one resource type (A-1, KEP-5504). Decimal numbers above 0 without a leading zero
    /// compare by length, then as text. Returns `None` for any other text.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        self.compare_text(&other.0)
    }

    /// Returns the newest of several versions. Unset versions do not count. If two versions cannot be compared, the later one in the
    /// sequence counts.
    pub(crate) fn newest(versions: impl IntoIterator<Item = Self>) -> Self {
        let newer = |one: Self, other: Self| match one.compare(&other) {
            Some(Ordering::Greater) => one,
            _ if other.is_unset() => one,
            _ => other,
        };
        versions.into_iter().fold(Self::unset(), newer)
    }

    /// Compares with a version given as text; see [`ResourceVersion::compare`].
    pub(crate) fn compare_text(&self, other: &str) -> Option<Ordering> {
        let comparable = |v: &str| !v.is_empty() && !v.starts_with('0') && v.bytes().all(|byte| byte.is_ascii_digit());
        (comparable(&self.0) && comparable(other))
            .then(|| self.0.len().cmp(&other.len()).then_with(|| (*self.0).cmp(other)))
    }
}

impl From<&str> for ResourceVersion {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The metadata that every stage needs, borrowed from its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity<'a> {
    /// `metadata.namespace`; empty for a cluster-scoped object.
    pub namespace: &'a str,
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`; empty for some aggregated APIs.
    pub uid: &'a str,
    /// `metadata.resourceVersion`.
    pub resource_version: &'a str,
}

/// One Kubernetes object: its JSON and its identity, immutable and shared (I-10). A clone is another handle to the same
/// bytes.
///
/// An object from a server holds JSON; a cache may keep the object in packed form, with the same identity. A method that reads more
/// than the identity unpacks a packed object, for instance [`Object::json`].
///
/// **Invariants:** the name is not empty (K-4); the bytes are one JSON object with `apiVersion` and `kind`; the identity matches
/// the bytes. An object is one pointer to one allocation, which holds the header and the bytes. A read therefore follows only this
/// pointer.
///
/// An object does not know its resource type. In a handler, `event.unit.resource` is its type.
#[derive(Clone)]
pub struct Object(Shared<Head>);

/// Header of an object's bytes. The bytes are namespace, name, uid, resourceVersion, body and [`Object::who`], in this
/// order. All except a packed body are UTF-8.
struct Head {
    /// Offsets of name, uid, resourceVersion and body.
    starts: [u32; 4],
    form: Form,
}

/// Format of an object's body, and length of the [`Object::who`] bytes after it.
enum Form {
    /// JSON. After the object was packed once, `packed` holds its packed form. All caches that hold the object share this form.
    Json { packed: OnceLock<Object>, who_bytes: u32 },
    /// Packed body that unpacks to `json_bytes` bytes of JSON. `dictionary` is the dictionary that packed it, if any.
    Packed { compression: Compression, json_bytes: u32, dictionary: Option<Arc<Dictionary>>, who_bytes: u32 },
    /// JSON of the identity only, because the object opts out.
    OptedOut,
    /// Empty JSON, because the content cannot be read.
    Unread,
}

/// Remaining room for the JSON of a new object.
struct JsonRoom<'r, 'a> {
    room: &'r mut Room<'a>,
    /// Set while all bytes so far are ASCII, as in almost all JSON. This check is faster than the UTF-8 check.
    is_ascii: bool,
}

impl JsonRoom<'_, '_> {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]) {
        // check the source: it is in the CPU cache, and the destination may not be
        self.is_ascii = self.is_ascii && scan::is_ascii(bytes);
        self.room.put(bytes);
    }
}

/// A packed body, its compression and its dictionary.
type PackedBody<'a> = (&'a [u8], Compression, Option<&'a Arc<Dictionary>>);

impl Object {
    /// Creates an object without a record of its writer; see [`Object::assemble_with_who`].
    #[cfg(test)]
    pub(crate) fn assemble(identity: Identity<'_>, json: &[&[u8]]) -> Self {
        Self::assemble_with_who(identity, json, &[])
    }

    /// Creates an object from an identity, its JSON, which is given as consecutive pieces, and the encoded [`Object::who`].
    ///
    /// The caller guarantees the invariants; bytes from outside go through [`scan`].
    fn assemble_with_who(identity: Identity<'_>, json: &[&[u8]], who: &[u8]) -> Self {
        let len = json.iter().map(|piece| piece.len()).sum();
        let write = |room: &mut JsonRoom<'_, '_>| json.iter().for_each(|piece| room.put(piece));
        Self::assemble_with(identity, who, len, write).expect("the caller guarantees valid JSON")
    }

    /// Creates an object from an identity, the encoded [`Object::who`], and `len` bytes of JSON that `write` puts into its
    /// argument.
    ///
    /// Fails if the bytes are not UTF-8. They are checked only here, so that later reads need no check.
    fn assemble_with(
        identity: Identity<'_>,
        who: &[u8],
        len: usize,
        write: impl FnOnce(&mut JsonRoom<'_, '_>),
    ) -> Result<Self, Utf8Error> {
        let form = Form::Json { packed: OnceLock::new(), who_bytes: Self::length(who.len()) };
        let mut is_ascii = true;
        let object = Self::lay_out(identity, form, len, who, |room| {
            let mut room = JsonRoom { room, is_ascii };
            write(&mut room);
            is_ascii = room.is_ascii;
        });
        if !is_ascii {
            std::str::from_utf8(object.body())?;
        }
        Ok(object)
    }

    fn lay_out(identity: Identity<'_>, form: Form, len: usize, who: &[u8], write: impl FnOnce(&mut Room<'_>)) -> Self {
        let Identity { namespace, name, uid, resource_version } = identity;
        let head = [namespace, name, uid, resource_version];
        let (mut starts, mut end) = ([0; 4], 0);
        for (start, part) in starts.iter_mut().zip(head) {
            end += part.len();
            *start = Self::length(end);
        }
        Self(Shared::new(Head { starts, form }, end + len + who.len(), |room| {
            for part in head {
                room.put(part.as_bytes());
            }
            write(room);
            room.put(who);
        }))
    }

    fn length(len: usize) -> u32 {
        u32::try_from(len).expect("an object is smaller than 4 GiB, because a frame has at most 2 GiB")
    }

    /// Creates a packed object. `packed` is the output of [`codec::with_packed`] for `json_bytes` bytes of JSON; `who` is the
    /// encoded [`Object::who`].
    fn of_packed(
        identity: Identity<'_>,
        who: &[u8],
        packed: &[u8],
        json_bytes: u32,
        compression: Compression,
        dictionary: Option<Arc<Dictionary>>,
    ) -> Self {
        let form = Form::Packed { compression, json_bytes, dictionary, who_bytes: Self::length(who.len()) };
        Self::lay_out(identity, form, packed.len(), who, |room| room.put(packed))
    }

    /// Returns true if both handles share the same bytes in memory.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Returns the number of handles.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        self.0.holders()
    }

    fn form(&self) -> &Form {
        &self.0.head().form
    }

    fn starts(&self) -> [u32; 4] {
        self.0.head().starts
    }

    /// Returns the packed form: the object itself if it is packed, or its stored packed form.
    fn packed(&self) -> Option<&Self> {
        match self.form() {
            Form::Json { packed, .. } => packed.get(),
            Form::Packed { .. } => Some(self),
            Form::OptedOut | Form::Unread => None,
        }
    }

    /// Returns true if the object is packed with exactly this dictionary.
    pub(crate) fn is_packed_with(&self, dictionary: &Arc<Dictionary>) -> bool {
        matches!(self.form(), Form::Packed { dictionary: Some(own), .. } if Arc::ptr_eq(own, dictionary))
    }

    /// Returns the stored packed form of an object that is not packed itself.
    pub(crate) fn packed_before(&self) -> Option<Object> {
        match self.form() {
            Form::Json { packed, .. } => packed.get().cloned(),
            Form::Packed { .. } | Form::OptedOut | Form::Unread => None,
        }
    }

    /// Returns the packed body with its compression and dictionary, if there is a packed form.
    fn packed_body(&self) -> Option<PackedBody<'_>> {
        let packed = self.packed()?;
        match packed.form() {
            Form::Packed { compression, dictionary, .. } => Some((packed.body(), *compression, dictionary.as_ref())),
            Form::Json { .. } | Form::OptedOut | Form::Unread => None,
        }
    }

    fn body(&self) -> &[u8] {
        let bytes = self.0.bytes();
        &bytes[self.starts()[3] as usize..bytes.len() - self.who_bytes()]
    }

    fn who_bytes(&self) -> usize {
        match *self.form() {
            Form::Json { who_bytes, .. } | Form::Packed { who_bytes, .. } => who_bytes as usize,
            Form::OptedOut | Form::Unread => 0,
        }
    }

    /// Parses one object from JSON without dropping any field.
    pub fn from_json(json: &[u8]) -> Result<Self, scan::ScanError> {
        scan::scan_object(json, &scan::ScanPlan::default())
    }

    /// Returns `metadata.namespace`, empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.head(0, self.starts()[0])
    }

    /// Returns `metadata.name`.
    pub fn name(&self) -> &str {
        self.head(self.starts()[0], self.starts()[1])
    }

    /// Returns `metadata.uid`, empty where the API has none.
    pub fn uid(&self) -> &str {
        self.head(self.starts()[1], self.starts()[2])
    }

    /// Returns `metadata.resourceVersion` as text; [`ResourceVersion::from`] converts it to a version.
    pub fn resource_version(&self) -> &str {
        self.head(self.starts()[2], self.starts()[3])
    }

    /// Returns the key within the resource type (K-1).
    pub fn key(&self) -> KeyRef<'_> {
        KeyRef { namespace: self.namespace(), name: self.name() }
    }

    /// Returns true if this object has the key `key`.
    pub(crate) fn has_key(&self, key: KeyRef<'_>) -> bool {
        // compares the bytes first, with the lengths of `key`: the processor need not wait for the lengths in the header
        let (namespace, name) = (key.namespace.as_bytes(), key.name.as_bytes());
        let bytes = self.0.bytes().strip_prefix(namespace);
        bytes.is_some_and(|bytes| bytes.starts_with(name))
            && self.starts()[0] as usize == namespace.len()
            && self.starts()[1] as usize == namespace.len() + name.len()
    }

    /// Returns namespace, name, uid and resourceVersion.
    pub fn identity(&self) -> Identity<'_> {
        Identity {
            namespace: self.namespace(),
            name: self.name(),
            uid: self.uid(),
            resource_version: self.resource_version(),
        }
    }

    /// Returns the object's JSON. A packed object is unpacked at every call (1 µs for 6 KB), so keep the result.
    pub fn json(&self) -> Cow<'_, [u8]> {
        match self.form() {
            Form::Json { .. } | Form::OptedOut | Form::Unread => Cow::Borrowed(self.body()),
            Form::Packed { compression, json_bytes, dictionary, .. } => {
                let json = codec::unpack_json(self.body(), *json_bytes as usize, *compression, dictionary.as_deref());
                Cow::Owned(json.expect("this process packed it with this dictionary"))
            }
        }
    }

    /// Returns the length of the object's JSON.
    pub fn json_bytes(&self) -> usize {
        match self.form() {
            Form::Json { .. } | Form::OptedOut | Form::Unread => self.body().len(),
            Form::Packed { json_bytes, .. } => *json_bytes as usize,
        }
    }

    /// Returns the object's size in memory with its header, but without a packed form stored elsewhere.
    pub fn size_bytes(&self) -> usize {
        self.0.size_bytes()
    }

    /// Returns true if both are the same state of the same object: uid and resourceVersion are equal.
    pub fn same_version(&self, other: &Self) -> bool {
        self.uid() == other.uid() && self.resource_version() == other.resource_version()
    }

    /// Decodes the object into a type of k8s-openapi or into any other type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.json())
    }

    /// Decodes the object into an untyped JSON value.
    pub fn value(&self) -> Result<serde_json::Value, serde_json::Error> {
        self.decode()
    }

    #[expect(unsafe_code, reason = "names are compared for every event: no repeated UTF-8 checks")]
    fn head(&self, from: u32, to: u32) -> &str {
        let bytes = &self.0.bytes()[from as usize..to as usize];
        // SAFETY: `lay_out` copied each part of the head from a `&str`, between exactly these bounds, and nothing changes them.
        unsafe { std::str::from_utf8_unchecked(bytes) }
    }
}

impl fmt::Debug for Object {
    /// Formats the identity and omits the content, which may be a Secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} uid={} rv={})", self.key(), self.uid(), self.resource_version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule: K-1.
    #[test]
    fn key_has_one_or_two_parts() {
        assert_eq!(ObjectKey::parse("web").expect("one part").as_ref(), KeyRef { namespace: "", name: "web" });
        assert_eq!(ObjectKey::parse("ns/web").expect("two parts").to_string(), "ns/web");
        assert!(ObjectKey::parse("a/b/c").is_err());
    }

    /// Rule: K-1.
    #[test]
    fn object_matches_only_its_own_key() {
        let parts = ["", "a", "ab", "abc", "b", "bc", "c"];
        let keys: Vec<_> = parts.iter().flat_map(|namespace| parts.map(|name| KeyRef { namespace, name })).collect();
        for KeyRef { namespace, name } in &keys {
            let identity = Identity { namespace, name, uid: "c", resource_version: "" };
            let object = Object::assemble(identity, &[b"{}"]);
            let own: Vec<_> = keys.iter().filter(|key| object.has_key(**key)).collect();
            assert_eq!(own, [&object.key()]);
        }
    }

    /// Rule: A-1.
    #[test]
    fn versions_compare_by_length_then_text() {
        let compare = |a: &str, b: &str| ResourceVersion::from(a).compare(&b.into());
        assert_eq!(compare("9", "10"), Some(Ordering::Less));
        assert_eq!(compare("10", "10"), Some(Ordering::Equal));
        assert_eq!(compare("99999999999999999999999", "100"), Some(Ordering::Greater));
        for odd in ["", "0", "01", "1a", "-1", "x"] {
            assert_eq!(compare(odd, "1"), None, "{odd:?}");
            assert_eq!(compare("1", odd), None, "{odd:?}");
        }
    }

    #[test]
    fn newest_version_is_never_unset_one() {
        let newest = |versions: &[&str]| ResourceVersion::newest(versions.iter().map(|version| (*version).into()));
        assert_eq!(newest(&["", "9", "10", "8", ""]).as_str(), "10");
        assert_eq!(newest(&["abc", "7"]).as_str(), "7", "they cannot be compared");
        assert!(newest(&[]).is_unset());
    }

    /// Rule: LW-5.
    #[test]
    fn paths_distinguish_core_and_grouped_types() {
        let pods = ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: "Pod".into(),
            plural: "pods".into(),
            namespaced: true,
        };
        assert_eq!(pods.path(None), "/api/v1/pods");
        assert_eq!(pods.path(Some("a")), "/api/v1/namespaces/a/pods");
        let nodes = ResourceType { group: "x.io".into(), namespaced: false, plural: "nodes".into(), ..pods };
        assert_eq!(nodes.path(Some("a")), "/apis/x.io/v1/nodes");
        assert_eq!(nodes.api_version(), "x.io/v1");
        assert_eq!(nodes.to_string(), "nodes.x.io");
    }
}
