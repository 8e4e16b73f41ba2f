//! Lazy reads of an object: labels, annotations, owners, and the values at configured paths.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Deserialize;

use super::{FieldPath, JsonCursor, PathTree, ScanError};
use crate::object::Object;

/// Several paths whose values are read in one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plucker {
    paths: usize,
    tree: PathTree,
}

type Pairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

impl Object {
    /// Returns `metadata.labels`. Values that are not strings are left out.
    pub fn labels(&self) -> Pairs<'_> {
        self.pairs(b"labels")
    }

    /// Returns `metadata.annotations`. Values that are not strings are left out.
    pub fn annotations(&self) -> Pairs<'_> {
        self.pairs(b"annotations")
    }

    /// Returns `metadata.ownerReferences`; empty if the metadata cannot be decoded. Decodes the object.
    pub fn owners(&self) -> Vec<OwnerReference> {
        #[derive(Deserialize)]
        struct Owned {
            metadata: ObjectMeta,
        }
        self.decode::<Owned>().ok().and_then(|owned| owned.metadata.owner_references).unwrap_or_default()
    }

    /// Returns the scalars at a path as text: unescaped strings, numbers and booleans as written. Values that are `null`, objects
    /// or arrays are left out. If the JSON of this object is malformed, the result is empty. If an object repeats a key, the result
    /// has the values of all members with this key; API servers write no repeated keys.
    pub fn pluck(&self, path: &FieldPath) -> Vec<String> {
        Plucker::new(std::slice::from_ref(path)).pluck(&self.json()).pop().unwrap_or_default()
    }

    /// Returns the scalars at each of several paths, in one pass; see [`Object::pluck`].
    pub fn pluck_many(&self, plucker: &Plucker) -> Vec<Vec<String>> {
        plucker.pluck(&self.json())
    }

    fn pairs(&self, member: &[u8]) -> Pairs<'_> {
        match self.json() {
            Cow::Borrowed(json) => pairs(json, member).unwrap_or_default(),
            Cow::Owned(json) => {
                let pairs = pairs(&json, member).unwrap_or_default().into_iter();
                pairs.map(|(key, value)| (Cow::Owned(key.into_owned()), Cow::Owned(value.into_owned()))).collect()
            }
        }
    }
}

/// Returns `metadata.annotations` of an object's JSON.
pub(crate) fn annotations_of(json: &[u8]) -> Pairs<'_> {
    pairs(json, b"annotations").unwrap_or_default()
}

/// Returns the strings in `metadata.<member>`.
fn pairs<'a>(json: &'a [u8], member: &[u8]) -> Result<Pairs<'a>, ScanError> {
    let is_object = |json: &&[u8]| json.starts_with(b"{");
    let [metadata] = JsonCursor::new(json).values([b"metadata"])?;
    let Some(metadata) = metadata.filter(is_object) else { return Ok(Vec::new()) };
    let [found] = JsonCursor::new(metadata).values([member])?;
    let Some(found) = found.filter(is_object) else { return Ok(Vec::new()) };
    let mut cursor = JsonCursor::new(found);
    cursor.enter(b'{', "an object")?;
    let (mut pairs, mut first) = (Vec::new(), true);
    while let Some(member) = cursor.next_member(&mut first)? {
        if cursor.peek()? == b'"' {
            pairs.push((member.key.decode()?, cursor.string("a string")?.decode()?));
        } else {
            cursor.skip_value()?;
        }
    }
    Ok(pairs)
}

impl Plucker {
    /// Prepares `paths`.
    pub fn new(paths: &[FieldPath]) -> Self {
        Self { tree: PathTree::new(paths), paths: paths.len() }
    }

    /// Returns true if there is no path.
    pub fn is_empty(&self) -> bool {
        self.paths == 0
    }

    /// Returns the scalars at each path, in the order of the paths.
    fn pluck(&self, json: &[u8]) -> Vec<Vec<String>> {
        let mut found = vec![Vec::new(); self.paths];
        match pluck(&mut JsonCursor::new(json), &self.tree, &mut found) {
            Ok(()) => found,
            Err(_) => vec![Vec::new(); self.paths],
        }
    }
}

/// Reads one value. The recursion is limited by the longest path.
fn pluck(cursor: &mut JsonCursor<'_>, tree: &PathTree, found: &mut [Vec<String>]) -> Result<(), ScanError> {
    let mut first = true;
    match cursor.peek()? {
        b'{' if tree.goes_on() => {
            cursor.enter(b'{', "an object")?;
            while let Some(member) = cursor.next_member(&mut first)? {
                match tree.member(&member.key.bytes()?) {
                    Some(below) => pluck(cursor, below, found)?,
                    None => drop(cursor.skip_value()?),
                }
            }
        }
        b'[' if let Some(each) = tree.each() => {
            cursor.enter(b'[', "an array")?;
            while cursor.next_element(&mut first)?.is_some() {
                pluck(cursor, each, found)?;
            }
        }
        b'"' if !tree.ends().is_empty() => {
            let text = cursor.string("a string")?.decode()?;
            tree.ends().iter().for_each(|path| found[*path].push(text.clone().into_owned()));
        }
        b'{' | b'[' | b'"' => {
            cursor.skip_value()?;
        }
        _ => {
            let scalar = cursor.scalar()?;
            if scalar != b"null" {
                let text = String::from_utf8_lossy(scalar);
                tree.ends().iter().for_each(|path| found[*path].push(text.clone().into_owned()));
            }
        }
    }
    Ok(())
}
