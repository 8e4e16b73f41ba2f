//! Lazy reads of an object: labels, annotations, owners, and the values at configured paths.

use std::borrow::Cow;

use super::{FieldPath, JsonCursor, PathTree, ScanError, text};
use crate::object::{Object, field_path::PathStep};

/// One entry of `metadata.ownerReferences`. Missing fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// `apiVersion` of the owner.
    pub api_version: Cow<'a, str>,
    /// `kind` of the owner.
    pub kind: Cow<'a, str>,
    /// `name` of the owner.
    pub name: Cow<'a, str>,
    /// `uid` of the owner.
    pub uid: Cow<'a, str>,
    /// Set for the managing controller.
    pub controller: bool,
}

/// Several paths whose values are read in one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plucker {
    paths: Vec<FieldPath>,
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

    /// Returns `metadata.ownerReferences`.
    pub fn owners(&self) -> Vec<OwnerReference<'_>> {
        match self.json() {
            Cow::Borrowed(json) => owners(json).unwrap_or_default(),
            Cow::Owned(json) => owners(&json).unwrap_or_default().into_iter().map(OwnerReference::into_owned).collect(),
        }
    }

    /// Returns the scalars at a path as text: unescaped strings, numbers and booleans as written. `null`, objects and arrays
    /// give nothing; a malformed object gives nothing at all.
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

impl OwnerReference<'_> {
    fn into_owned(self) -> OwnerReference<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        OwnerReference {
            api_version: own(self.api_version),
            kind: own(self.kind),
            name: own(self.name),
            uid: own(self.uid),
            controller: self.controller,
        }
    }
}

/// Returns the text of `metadata.<member>`; the last one counts.
fn metadata_member<'a>(json: &'a [u8], member: &[u8]) -> Result<Option<&'a [u8]>, ScanError> {
    let mut cursor = JsonCursor::new(json);
    let mut found = None;
    cursor.enter(b'{', "an object")?;
    let mut first = true;
    while let Some(outer) = cursor.next_member(&mut first)? {
        if *outer.key.bytes()? != *b"metadata" {
            cursor.skip_value()?;
            continue;
        }
        found = None;
        if cursor.peek()? != b'{' {
            cursor.skip_value()?;
            continue;
        }
        cursor.enter(b'{', "an object")?;
        let mut first = true;
        while let Some(inner) = cursor.next_member(&mut first)? {
            let value = cursor.skip_value()?;
            if *inner.key.bytes()? == *member {
                found = Some(value);
            }
        }
    }
    Ok(found)
}

/// Returns `metadata.annotations` of an object's JSON.
pub(crate) fn annotations_of(json: &[u8]) -> Pairs<'_> {
    pairs(json, b"annotations").unwrap_or_default()
}

fn pairs<'a>(json: &'a [u8], member: &[u8]) -> Result<Pairs<'a>, ScanError> {
    let Some(json) = metadata_member(json, member)?.filter(|json| json.starts_with(b"{")) else {
        return Ok(Vec::new());
    };
    let mut cursor = JsonCursor::new(json);
    cursor.enter(b'{', "an object")?;
    let (mut pairs, mut first) = (Vec::new(), true);
    while let Some(member) = cursor.next_member(&mut first)? {
        let value = if cursor.peek()? == b'"' {
            Some(cursor.string("a string")?.decode()?)
        } else {
            cursor.skip_value()?;
            None
        };
        pairs.push((member.key.decode()?, value));
    }
    if has_duplicates(pairs.iter().map(|(key, _)| &**key).collect()) {
        let mut last = std::collections::BTreeMap::new();
        last.extend(pairs.drain(..));
        pairs.extend(last);
    }
    Ok(pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
}

fn owners(json: &[u8]) -> Result<Vec<OwnerReference<'_>>, ScanError> {
    let Some(json) = metadata_member(json, b"ownerReferences")?.filter(|json| json.starts_with(b"[")) else {
        return Ok(Vec::new());
    };
    let mut cursor = JsonCursor::new(json);
    cursor.enter(b'[', "an array")?;
    let (mut owners, mut first) = (Vec::new(), true);
    while cursor.next_element(&mut first)?.is_some() {
        if cursor.peek()? == b'{' {
            owners.push(owner(&mut cursor)?);
        } else {
            cursor.skip_value()?;
        }
    }
    Ok(owners)
}

fn owner<'a>(cursor: &mut JsonCursor<'a>) -> Result<OwnerReference<'a>, ScanError> {
    let [api_version, kind, name, uid, controller] =
        cursor.values([b"apiVersion", b"kind", b"name", b"uid", b"controller"])?;
    let (api_version, kind, name, uid) = (text(api_version)?, text(kind)?, text(name)?, text(uid)?);
    Ok(OwnerReference { api_version, kind, name, uid, controller: controller == Some(b"true") })
}

fn has_duplicates<T: Ord>(mut keys: Vec<T>) -> bool {
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// Reason why a pass was aborted.
enum GivenUp {
    Malformed,
    /// Two members have the same key; only the end decides which one counts.
    Duplicate,
}

impl From<ScanError> for GivenUp {
    fn from(_: ScanError) -> Self {
        Self::Malformed
    }
}

impl Plucker {
    /// Prepares `paths`.
    pub fn new(paths: &[FieldPath]) -> Self {
        Self { tree: PathTree::new(paths), paths: paths.to_vec() }
    }

    /// Returns true if there is no path.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the scalars at each path, in the order of the paths.
    fn pluck(&self, json: &[u8]) -> Vec<Vec<String>> {
        let mut found = vec![Vec::new(); self.paths.len()];
        match pluck(&mut JsonCursor::new(json), &self.tree, &mut found) {
            Ok(()) => found,
            Err(GivenUp::Malformed) => vec![Vec::new(); self.paths.len()],
            Err(GivenUp::Duplicate) => {
                let value = serde_json::from_slice(json).unwrap_or_default();
                self.paths.iter().map(|path| pluck_value(&value, path.steps())).collect()
            }
        }
    }
}

/// Reads one value. The recursion is limited by the longest path.
fn pluck(cursor: &mut JsonCursor<'_>, tree: &PathTree, found: &mut [Vec<String>]) -> Result<(), GivenUp> {
    match cursor.peek()? {
        b'{' if tree.goes_on() => pluck_object(cursor, tree, found),
        b'[' if let Some(each) = tree.each() => {
            cursor.enter(b'[', "an array")?;
            let mut first = true;
            while cursor.next_element(&mut first)?.is_some() {
                pluck(cursor, each, found)?;
            }
            Ok(())
        }
        b'"' if !tree.ends().is_empty() => {
            let text = cursor.string("a string")?.decode()?;
            tree.ends().iter().for_each(|path| found[*path].push(text.clone().into_owned()));
            Ok(())
        }
        b'{' | b'[' | b'"' => Ok(cursor.skip_value().map(|_| ())?),
        _ => {
            let scalar = cursor.scalar()?;
            if scalar != b"null" {
                let text = String::from_utf8_lossy(scalar);
                tree.ends().iter().for_each(|path| found[*path].push(text.clone().into_owned()));
            }
            Ok(())
        }
    }
}

fn pluck_object(cursor: &mut JsonCursor<'_>, tree: &PathTree, found: &mut [Vec<String>]) -> Result<(), GivenUp> {
    cursor.enter(b'{', "an object")?;
    let (mut named, mut others, mut first) = (0_u64, Vec::new(), true);
    while let Some(member) = cursor.next_member(&mut first)? {
        let key = member.key.bytes()?;
        let Some((index, below)) = tree.member(&key) else {
            cursor.skip_value()?;
            continue;
        };
        match index {
            Some(index @ 0..64) if named >> index & 1 == 1 => return Err(GivenUp::Duplicate),
            Some(index @ 0..64) => named |= 1 << index,
            _ => others.push(key),
        }
        pluck(cursor, below, found)?;
    }
    if has_duplicates(others) { Err(GivenUp::Duplicate) } else { Ok(()) }
}

fn pluck_value(value: &serde_json::Value, steps: &[PathStep]) -> Vec<String> {
    use serde_json::Value;
    let Some((step, rest)) = steps.split_first() else {
        return match value {
            Value::String(text) => vec![text.clone()],
            Value::Bool(_) | Value::Number(_) => vec![value.to_string()],
            Value::Null | Value::Array(_) | Value::Object(_) => Vec::new(),
        };
    };
    match (step, value) {
        (PathStep::Member(name), Value::Object(members)) => {
            members.get(&**name).map_or_else(Vec::new, |value| pluck_value(value, rest))
        }
        (PathStep::Each, Value::Object(members)) => {
            members.values().flat_map(|value| pluck_value(value, rest)).collect()
        }
        (PathStep::Each, Value::Array(elements)) => {
            elements.iter().flat_map(|value| pluck_value(value, rest)).collect()
        }
        _ => Vec::new(),
    }
}
