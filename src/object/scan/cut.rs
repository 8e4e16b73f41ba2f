//! The scan itself: it walks an object once, and records the positions of its identity and of the cuts.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{
    Cow, IGNORE_ANNOTATION, Identity, JsonCursor, JsonText, NotedParts, Object, PathTree, ScanError, ScanPlan,
    TypeJson, TypeMeta, cursor::Member, note, text,
};

/// Result of a scan of one object; holds only positions in the JSON. It can be reused for the next object.
#[derive(Debug, Default)]
pub(crate) struct Scanned<'a> {
    /// Bytes of the object.
    json: &'a [u8],
    /// Offset of the object in the cursor's text. All other offsets count from the start of this text, not of the object.
    from: usize,
    /// Offset after the opening brace.
    inside: usize,
    api_version: Found<'a>,
    kind: Found<'a>,
    namespace: Option<JsonText<'a>>,
    name: Option<JsonText<'a>>,
    uid: Option<JsonText<'a>>,
    resource_version: Option<JsonText<'a>>,
    /// Value of `metadata.annotations`, before any cut.
    annotations: Option<&'a [u8]>,
    /// Value of `metadata.managedFields`, before any cut.
    managed_fields: Option<&'a [u8]>,
    /// Edits in ascending order, without overlap.
    edits: Vec<Edit>,
}

/// A member that may be missing, `null`, or a string.
#[derive(Clone, Copy, Debug, Default)]
enum Found<'a> {
    #[default]
    Missing,
    Null,
    Text(JsonText<'a>),
}

/// Range of bytes that is replaced in the copy.
#[derive(Clone, Copy, Debug)]
struct Edit {
    from: usize,
    to: usize,
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Nothing,
    ApiVersion,
    Kind,
}

impl<'a> Scanned<'a> {
    /// Scans the object at the cursor and leaves the cursor after it.
    pub(crate) fn scan(&mut self, cursor: &mut JsonCursor<'a>, plan: &ScanPlan) -> Result<(), ScanError> {
        let mut edits = std::mem::take(&mut self.edits);
        edits.clear();
        *self = Self { edits, ..Self::default() };
        cursor.peek()?;
        self.from = cursor.at();
        let depth = cursor.set_depth(0);
        self.root(cursor, plan)?;
        cursor.set_depth(depth);
        self.json = cursor.since(self.from);
        Ok(())
    }

    /// Returns `apiVersion` as found; empty if there is none.
    pub(crate) fn api_version(&self) -> Result<Cow<'a, str>, ScanError> {
        self.api_version.decode()
    }

    /// Returns `kind` as found; empty if there is none.
    pub(crate) fn kind(&self) -> Result<Cow<'a, str>, ScanError> {
        self.kind.decode()
    }

    /// Returns true if `apiVersion` and `kind` of the object equal those of `types`. The caller then need not decode either of
    /// them.
    pub(crate) fn is_of(&self, types: &TypeMeta) -> Result<bool, ScanError> {
        Ok(self.api_version.is(&types.api_version)? && self.kind.is(&types.kind)?)
    }

    /// Returns `metadata.resourceVersion`; empty if there is none.
    pub(crate) fn resource_version(&self) -> Result<Cow<'a, str>, ScanError> {
        decode(self.resource_version)
    }

    /// Returns the unchanged bytes of the object.
    pub(crate) fn json(&self) -> &'a [u8] {
        self.json
    }

    /// Copies the bytes that are not cut into an object. If the object opts out and the plan heeds this, returns a placeholder: see
    /// [`Object::opted_out`].
    pub(crate) fn object_to_show(&self, plan: &ScanPlan, parts: NotedParts) -> Result<Object, ScanError> {
        if plan.heeds_opt_out && self.annotations.is_some_and(opts_out) {
            let of_plan = plan.type_meta().cloned();
            let own = || Ok(TypeMeta::new(self.api_version()?, self.kind()?));
            let object = self.object(plan, NotedParts::Nothing)?;
            return Ok(Object::opted_out(object.identity(), &of_plan.map_or_else(own, Ok)?));
        }
        self.object(plan, parts)
    }

    /// Copies the bytes that are not cut into an object. If the plan notes who changed it, `parts` selects what is noted.
    pub(crate) fn object(&self, plan: &ScanPlan, parts: NotedParts) -> Result<Object, ScanError> {
        let name = decode(self.name)?;
        if name.is_empty() {
            return Err(ScanError::Nameless);
        }
        if plan.types.is_none() && !(self.api_version.is_text() && self.kind.is_text()) {
            return Err(ScanError::Typeless);
        }
        let (namespace, uid) = (decode(self.namespace)?, decode(self.uid)?);
        let resource_version = decode(self.resource_version)?;
        let identity = Identity { namespace: &namespace, name: &name, uid: &uid, resource_version: &resource_version };
        let splice = self.splice(plan.types.as_ref());
        let replacement = |by| match (by, &plan.types) {
            (By::ApiVersion, Some(types)) => &*types.api_version,
            (By::Kind, Some(types)) => &*types.kind,
            _ => &[],
        };
        let mut len = self.json.len() + splice.len();
        for edit in &self.edits {
            len = len + replacement(edit.by).len() - (edit.to - edit.from);
        }
        let who = plan.notes_who_changed.then(|| note(self.managed_fields.unwrap_or(b"[]"), parts));
        let assembled = Object::assemble_with(identity, who.as_deref().unwrap_or_default(), len, |room| {
            let mut at = self.inside;
            room.put(&self.json[..at - self.from]);
            room.put(splice);
            for edit in &self.edits {
                room.put(&self.json[at - self.from..edit.from - self.from]);
                room.put(replacement(edit.by));
                at = edit.to;
            }
            room.put(&self.json[at - self.from..]);
        });
        assembled.map_err(|_| {
            let valid = std::str::from_utf8(self.json).map_or_else(|error| error.valid_up_to(), str::len);
            ScanError::Malformed { at: self.from + valid, expected: "UTF-8" }
        })
    }

    /// Returns the missing `apiVersion` and `kind`, to insert after the opening brace. They end with a comma, because a
    /// member always follows: `metadata`.
    fn splice<'p>(&self, types: Option<&'p TypeJson>) -> &'p [u8] {
        let Some(types) = types else { return &[] };
        match (self.api_version.is_missing(), self.kind.is_missing()) {
            (true, true) => &types.both,
            (true, false) => &types.both[..types.kind_from],
            (false, true) => &types.both[types.kind_from..],
            (false, false) => &[],
        }
    }

    fn root(&mut self, cursor: &mut JsonCursor<'a>, plan: &ScanPlan) -> Result<(), ScanError> {
        cursor.enter(b'{', "an object")?;
        self.inside = cursor.at();
        let mut members = Cutter::new(cursor);
        while let Some(member) = members.next_member(cursor)? {
            let key = member.key.bytes()?;
            let below = plan.drop.member(&key);
            match &*key {
                b"metadata" => {
                    members.keep(member.comma, &mut self.edits);
                    self.metadata(cursor, below)?;
                }
                b"apiVersion" => {
                    members.keep(member.comma, &mut self.edits);
                    let meta = plan.types.as_ref().map(|types| &*types.meta.api_version);
                    self.api_version = self.type_member(cursor, meta, By::ApiVersion)?;
                }
                b"kind" => {
                    members.keep(member.comma, &mut self.edits);
                    let meta = plan.types.as_ref().map(|types| &*types.meta.kind);
                    self.kind = self.type_member(cursor, meta, By::Kind)?;
                }
                _ => self.other(cursor, &mut members, member, below)?,
            }
        }
        Ok(())
    }

    /// Reads `apiVersion` or `kind`. If the value differs from `wanted`, the copy gets `wanted` instead.
    fn type_member(
        &mut self,
        cursor: &mut JsonCursor<'a>,
        wanted: Option<&str>,
        by: By,
    ) -> Result<Found<'a>, ScanError> {
        cursor.peek()?;
        let from = cursor.at();
        let text = cursor.string_or_null("a string as apiVersion and as kind")?;
        let found = text.map_or(Found::Null, Found::Text);
        if let Some(wanted) = wanted
            && !found.is(wanted)?
        {
            self.edits.push(Edit { from, to: cursor.at(), by });
        }
        Ok(found)
    }

    /// Reads `metadata`. If an object repeats this member, the last one counts.
    fn metadata(&mut self, cursor: &mut JsonCursor<'a>, drop: Option<&PathTree>) -> Result<(), ScanError> {
        (self.namespace, self.name, self.uid, self.resource_version) = (None, None, None, None);
        (self.annotations, self.managed_fields) = (None, None);
        if cursor.peek()? == b'n' {
            return cursor.scalar().map(drop_value);
        }
        cursor.enter(b'{', "an object as metadata")?;
        let mut members = Cutter::new(cursor);
        while let Some(member) = members.next_member(cursor)? {
            let key = member.key.bytes()?;
            let found = match &*key {
                b"name" => &mut self.name,
                b"namespace" => &mut self.namespace,
                b"uid" => &mut self.uid,
                b"resourceVersion" => &mut self.resource_version,
                _ => {
                    let below = drop.and_then(|drop| drop.member(&key));
                    cursor.peek()?;
                    let from = cursor.at();
                    self.other(cursor, &mut members, member, below)?;
                    match &*key {
                        b"annotations" => self.annotations = Some(cursor.since(from)),
                        b"managedFields" => self.managed_fields = Some(cursor.since(from)),
                        _ => {}
                    }
                    continue;
                }
            };
            *found = cursor.string_or_null("a string as name, namespace, uid and resourceVersion")?;
            members.keep(member.comma, &mut self.edits);
        }
        Ok(())
    }

    /// Walks over a member that is not part of the identity. Cuts the member, or the parts of its value that `drop` selects.
    fn other(
        &mut self,
        cursor: &mut JsonCursor<'a>,
        members: &mut Cutter,
        member: Member<'a>,
        drop: Option<&PathTree>,
    ) -> Result<(), ScanError> {
        match drop {
            Some(drop) if !drop.ends().is_empty() => {
                cursor.skip_cut_value()?;
                members.cut(member.comma, cursor.at(), &mut self.edits);
                Ok(())
            }
            _ => {
                members.keep(member.comma, &mut self.edits);
                self.below(cursor, drop)
            }
        }
    }

    /// Walks over a value and cuts the parts that `drop` selects. The longest path limits the recursion.
    fn below(&mut self, cursor: &mut JsonCursor<'a>, drop: Option<&PathTree>) -> Result<(), ScanError> {
        match (cursor.peek()?, drop) {
            (b'{', Some(drop)) if drop.goes_on() => {
                cursor.enter(b'{', "an object")?;
                let mut members = Cutter::new(cursor);
                while let Some(member) = members.next_member(cursor)? {
                    let below = drop.member(&member.key.bytes()?);
                    self.other(cursor, &mut members, member, below)?;
                }
                Ok(())
            }
            (b'[', Some(drop)) if let Some(each) = drop.each() => {
                cursor.enter(b'[', "an array")?;
                let mut elements = Cutter::new(cursor);
                while let Some(comma) = cursor.next_element(&mut elements.first)? {
                    if each.ends().is_empty() {
                        elements.keep(comma, &mut self.edits);
                        self.below(cursor, Some(each))?;
                    } else {
                        cursor.skip_cut_value()?;
                        elements.cut(comma, cursor.at(), &mut self.edits);
                    }
                }
                Ok(())
            }
            _ => cursor.skip_value().map(drop_value),
        }
    }
}

fn drop_value(_: &[u8]) {}

/// Returns the JSON of an object without the values at the paths of a tree, even if they are part of its identity.
pub(crate) fn without(json: &[u8], paths: &PathTree) -> Result<Vec<u8>, ScanError> {
    let mut scanned = Scanned::default();
    scanned.below(&mut JsonCursor::new(json), Some(paths))?;
    let (mut left, mut at) = (Vec::with_capacity(json.len()), 0);
    for Edit { from, to, .. } in scanned.edits {
        left.extend_from_slice(&json[at..from]);
        at = to;
    }
    left.extend_from_slice(&json[at..]);
    Ok(left)
}

/// Returns true if the object opts out by these annotations. The annotation's name must contain no JSON escapes; API servers write
/// none. Malformed annotations do not opt out.
fn opts_out(annotations: &[u8]) -> bool {
    static NAME: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(IGNORE_ANNOTATION));
    let read = || JsonCursor::new(annotations).values([IGNORE_ANNOTATION.as_bytes()]).and_then(|[value]| text(value));
    NAME.find(annotations).is_some() && read().is_ok_and(|value| value == "true")
}

fn decode(text: Option<JsonText<'_>>) -> Result<Cow<'_, str>, ScanError> {
    text.map_or(Ok(Cow::Borrowed("")), |text| text.decode())
}

impl<'a> Found<'a> {
    fn decode(self) -> Result<Cow<'a, str>, ScanError> {
        match self {
            Self::Text(text) => text.decode(),
            Self::Missing | Self::Null => Ok(Cow::Borrowed("")),
        }
    }

    /// Returns true if the member is this text.
    fn is(self, wanted: &str) -> Result<bool, ScanError> {
        match self {
            Self::Text(text) => Ok(*text.bytes()? == *wanted.as_bytes()),
            Self::Missing | Self::Null => Ok(false),
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Text(_))
    }

    fn is_missing(self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// Cutter for the members of one container. It keeps the commas correct for any set of cut members.
///
/// A member is cut together with the comma before it. If all members before it are cut too, the cut begins after the opening
/// bracket. The first remaining member then loses its comma.
struct Cutter {
    /// Offset after the opening bracket.
    inside: usize,
    first: bool,
    kept_any: bool,
    cut_head: bool,
}

impl Cutter {
    fn new(cursor: &JsonCursor<'_>) -> Self {
        Self { inside: cursor.at(), first: true, kept_any: false, cut_head: false }
    }

    fn next_member<'a>(&mut self, cursor: &mut JsonCursor<'a>) -> Result<Option<Member<'a>>, ScanError> {
        cursor.next_member(&mut self.first)
    }

    /// Keeps a member. Must be called before any edit within it.
    fn keep(&mut self, comma: Option<usize>, edits: &mut [Edit]) {
        if !self.kept_any {
            self.kept_any = true;
            if let (true, Some(comma), Some(last)) = (self.cut_head, comma, edits.last_mut()) {
                last.to = comma + 1;
            }
        }
    }

    /// Cuts a member whose value ends at `to`.
    fn cut(&mut self, comma: Option<usize>, to: usize, edits: &mut Vec<Edit>) {
        match (self.kept_any, self.cut_head, comma, edits.last_mut()) {
            (true, _, Some(comma), _) => edits.push(Edit { from: comma, to, by: By::Nothing }),
            (false, true, _, Some(last)) => last.to = to,
            _ => {
                self.cut_head = true;
                edits.push(Edit { from: self.inside, to, by: By::Nothing });
            }
        }
    }
}
