//! Decoder of the body of a list.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    FRAME_MAX, JsonCursor, Nesting, Progress, ScanError, Scanned, TypeMeta, check_len, clear, trim_start, type_name,
};
use crate::{
    list_watch::{Failure, ListPage},
    object::{NotedParts, ResourceVersion, scan::ScanPlan},
};

/// A decoder that reads a list item by item as it arrives. It holds at most one undecoded item.
///
/// Keys may come in any order. Items without `apiVersion` and `kind` get those of the plan. The decoder counts an item as
/// rejected if it has another type or no name (K-4). An item that is nested too deeply becomes a placeholder. Any other error
/// fails the whole page: an unreadable list must never cause deletions.
#[derive(Debug)]
pub struct ListDecoder {
    served: TypeMeta,
    plan: Arc<ScanPlan>,
    item_bytes_max: usize,
    place: Place,
    pending: Vec<u8>,
    token: Option<Token>,
    page: ListPage,
    api_version: String,
    kind: String,
    /// Set when the list has the member `items`, as an array or as `null`.
    has_items: bool,
    /// Set when an item lacks `apiVersion` or `kind`.
    has_untyped: bool,
    read_bytes: usize,
}

/// Next expected element.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Start,
    /// A key, or the closing brace if `may_close` is set.
    Key {
        may_close: bool,
    },
    Colon(Key),
    Value(Key),
    /// A comma or the closing brace.
    AfterValue,
    /// An item, or the closing bracket if `may_close` is set.
    Item {
        may_close: bool,
    },
    /// A comma or the closing bracket.
    AfterItem,
    End,
}

/// Key of a member of the list: one that the decoder uses, or any other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    ApiVersion,
    Kind,
    Metadata,
    Items,
    Other,
}

/// A key, a value or an item that is being read; it may span chunks.
#[derive(Clone, Copy, Debug)]
enum Token {
    Container(Nesting),
    String { escaped: bool, opened: bool },
    Scalar,
}

impl Token {
    fn beginning_with(byte: u8) -> Self {
        match byte {
            b'{' | b'[' => Self::Container(Nesting::default()),
            b'"' => Self::String { escaped: false, opened: false },
            _ => Self::Scalar,
        }
    }

    /// Reads `bytes`. Returns the number of bytes up to the end of the token; `None` if the token does not end in `bytes`.
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Container(nesting) => match nesting.advance(bytes, u32::MAX) {
                Progress::Done(len) => Some(len),
                Progress::More | Progress::TooDeep(_) => None,
            },
            Self::Scalar => bytes.iter().position(|byte| b",]}: \t\r\n".contains(byte)),
            Self::String { escaped, opened } => {
                for (offset, byte) in bytes.iter().enumerate() {
                    match byte {
                        _ if std::mem::take(escaped) => {}
                        b'\\' => *escaped = true,
                        b'"' if std::mem::replace(opened, true) => return Some(offset + 1),
                        _ => {}
                    }
                }
                None
            }
        }
    }
}

impl ListDecoder {
    /// Creates a decoder of a list with items of type `served`; `plan` builds the objects. The plan's type may differ from
    /// `served`, see [`WatchDecoder::new`](super::WatchDecoder::new). The list fails if an item, or the metadata of the list, is
    /// longer than `item_bytes_max` (at most 2 GiB).
    pub fn new(served: TypeMeta, plan: Arc<ScanPlan>, item_bytes_max: usize) -> Self {
        Self {
            served,
            plan,
            item_bytes_max: item_bytes_max.min(FRAME_MAX),
            place: Place::Start,
            pending: Vec::new(),
            token: None,
            page: ListPage::default(),
            api_version: String::new(),
            kind: String::new(),
            has_items: false,
            has_untyped: false,
            read_bytes: 0,
        }
    }

    /// Reads the next bytes. After an error, drop the decoder.
    pub fn push(&mut self, mut chunk: &[u8]) -> Result<(), Failure> {
        self.read_bytes += chunk.len();
        let mut scanned = Scanned::default();
        loop {
            if self.token.is_none() {
                chunk = trim_start(chunk);
                let Some(byte) = chunk.first() else { return Ok(()) };
                if let Place::Item { may_close } = self.place
                    && !(may_close && *byte == b']')
                {
                    let mut cursor = JsonCursor::new(chunk);
                    if scanned.scan(&mut cursor, &self.plan).is_ok() {
                        check_len(&chunk[..cursor.at()], self.item_bytes_max, &[])?;
                        self.item(&scanned, true)?;
                        chunk = &chunk[cursor.at()..];
                        continue;
                    }
                } else if self.punctuation(*byte)? {
                    chunk = &chunk[1..];
                    continue;
                }
                self.token = Some(Token::beginning_with(*byte));
            }
            let Some(token) = &mut self.token else { return Ok(()) };
            let ends = token.advance(chunk);
            let part = &chunk[..ends.unwrap_or(chunk.len())];
            chunk = &chunk[part.len()..];
            if self.place == Place::Value(Key::Other) {
                // values that are not used are not stored, whatever their length
                self.pending.clear();
            } else {
                self.pending.extend_from_slice(part);
                check_len(&self.pending, self.item_bytes_max, &[])?;
            }
            if ends.is_none() {
                return Ok(());
            }
            self.token = None;
            let mut pending = std::mem::take(&mut self.pending);
            self.complete(&pending)?;
            clear(&mut pending);
            self.pending = pending;
        }
    }

    /// Returns the page. Fails if the body is incomplete, or is not the requested list.
    pub fn finish(self) -> Result<ListPage, Failure> {
        if self.place != Place::End {
            return Err(Failure::Disconnected(format!(
                "the list ended within the document, after {} bytes",
                self.read_bytes
            )));
        }
        self.check_kind()?;
        Ok(self.page)
    }

    /// Consumes a brace, bracket, colon or comma. Returns `false` if the byte begins a key, a value or an item.
    fn punctuation(&mut self, byte: u8) -> Result<bool, Failure> {
        self.place = match (self.place, byte) {
            (Place::Start, b'{') => Place::Key { may_close: true },
            (Place::Start, _) => return Err(Failure::NotAList("the answer is not a JSON object".into())),
            (Place::Key { may_close: true } | Place::AfterValue, b'}') => Place::End,
            (Place::Key { .. }, b'"') | (Place::Value(_), b'"' | b'{' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                return Ok(false);
            }
            (Place::Colon(key), b':') => Place::Value(key),
            (Place::Value(Key::Items), b'[') => {
                (self.page.items, self.page.rejected) = (Vec::new(), 0);
                (self.has_items, self.has_untyped) = (true, false);
                Place::Item { may_close: true }
            }
            (Place::Value(_), b'[') => return Ok(false),
            (Place::AfterValue, b',') => Place::Key { may_close: false },
            (Place::Item { may_close: true } | Place::AfterItem, b']') => Place::AfterValue,
            (Place::AfterItem, b',') => Place::Item { may_close: false },
            (place, byte) => return Err(malformed(format!("unexpected {:?} at {place:?}", char::from(byte)))),
        };
        Ok(true)
    }

    /// Decodes a complete key, value or item.
    fn complete(&mut self, token: &[u8]) -> Result<(), Failure> {
        let mut cursor = JsonCursor::new(token);
        match self.place {
            Place::Key { .. } => {
                let key = cursor.string("a key").and_then(|key| key.bytes()).map_err(malformed)?;
                self.place = Place::Colon(match &*key {
                    b"apiVersion" => Key::ApiVersion,
                    b"kind" => Key::Kind,
                    b"metadata" => Key::Metadata,
                    b"items" => Key::Items,
                    _ => Key::Other,
                });
            }
            Place::Item { .. } => {
                let mut scanned = Scanned::default();
                let read = scanned.scan(&mut cursor, &self.plan);
                let is_too_deep = matches!(read, Err(ScanError::TooDeep(_)));
                if is_too_deep {
                    scanned.scan(&mut JsonCursor::of_any_depth(token), &self.plan).map_err(malformed)?;
                } else {
                    read.map_err(malformed)?;
                }
                self.item(&scanned, !is_too_deep)?;
            }
            Place::Value(key) => {
                let parsed = || serde_json::from_slice::<Value>(token).map_err(malformed);
                match key {
                    Key::ApiVersion => self.api_version = text(Some(&parsed()?))?,
                    Key::Kind => self.kind = text(Some(&parsed()?))?,
                    Key::Metadata => self.metadata(token)?,
                    Key::Items if token == b"null" => {
                        (self.page.items, self.page.rejected) = (Vec::new(), 0);
                        (self.has_items, self.has_untyped) = (true, false);
                    }
                    Key::Items => return Err(Failure::NotAList("items is not an array".into())),
                    Key::Other => {}
                }
                self.place = Place::AfterValue;
            }
            place => return Err(malformed(format!("unexpected value at {place:?}"))),
        }
        Ok(())
    }

    /// Adds an item to the page: as a placeholder, unless `is_readable` is set.
    fn item(&mut self, scanned: &Scanned<'_>, is_readable: bool) -> Result<(), Failure> {
        self.place = Place::AfterItem;
        if !scanned.is_of(&self.served).map_err(malformed)? {
            let (api_version, kind) = (scanned.api_version().map_err(malformed)?, scanned.kind().map_err(malformed)?);
            self.has_untyped |= api_version.is_empty() || kind.is_empty();
            let fits = |found: &str, served: &str| found.is_empty() || found == served;
            if !fits(&api_version, &self.served.api_version) || !fits(&kind, &self.served.kind) {
                self.page.rejected += 1;
                return Ok(());
            }
        }
        match scanned.object_to_show(&self.plan, NotedParts::Writers) {
            Ok(object) if is_readable || object.is_placeholder() => self.page.items.push(object),
            Ok(object) => self.page.items.push(object.unread()),
            Err(ScanError::Nameless) => self.page.rejected += 1,
            Err(other) => return Err(malformed(other)),
        }
        Ok(())
    }

    fn metadata(&mut self, json: &[u8]) -> Result<(), Failure> {
        let metadata: Option<Map<String, Value>> = serde_json::from_slice(json).map_err(malformed)?;
        let metadata = metadata.unwrap_or_default();
        self.page.resource_version = ResourceVersion::from(&*text(metadata.get("resourceVersion"))?);
        self.page.continue_token = Some(text(metadata.get("continue"))?).filter(|token| !token.is_empty());
        Ok(())
    }

    /// Checks that this is the requested list.
    ///
    /// The list's kind must be the items' kind followed by `List`. A list of custom resources may have another kind, if every item
    /// has `apiVersion` and `kind`.
    fn check_kind(&self) -> Result<(), Failure> {
        let group = self.served.api_version.split_once('/').map_or("", |(group, _)| group);
        let may_be_custom = group.contains('.') && !group.ends_with(".k8s.io");
        let fits = self.kind.strip_suffix("List") == Some(&*self.served.kind)
            || may_be_custom && !self.kind.is_empty() && self.kind != "Status" && !self.has_untyped;
        if self.has_items && self.api_version == self.served.api_version && fits {
            return Ok(());
        }
        let found = type_name(&self.api_version, &self.kind);
        Err(Failure::NotAList(format!(
            "{found}, expected {}List",
            type_name(&self.served.api_version, &self.served.kind)
        )))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn malformed(what: impl ToString) -> Failure {
    Failure::Undecodable(what.to_string())
}

/// Returns the text of a JSON string; an empty text for `null` or a missing value.
fn text(value: Option<&Value>) -> Result<String, Failure> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(malformed("expected a string as apiVersion, kind, resourceVersion and continue")),
    }
}
