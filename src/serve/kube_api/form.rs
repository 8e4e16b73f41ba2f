//! What `Accept` asks for: whole objects, or their metadata.

use axum::http::{HeaderMap, header};

use super::super::status_object::StatusObject;

/// The form of the objects of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the server sent them.
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
}

impl Form {
    /// Returns the first form of `Accept` that there is; 406 where there is none.
    ///
    /// Tables and protobuf are not made here: clients name JSON behind them.
    pub(super) fn negotiate(headers: &HeaderMap) -> Result<Self, StatusObject> {
        let values = headers.get_all(header::ACCEPT);
        let mut ranges = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let mut asked = ranges.by_ref().map(str::trim).filter(|range| !range.is_empty()).peekable();
        if asked.peek().is_none() {
            return Ok(Self::Whole);
        }
        asked.find_map(Self::of_range).ok_or_else(StatusObject::not_acceptable)
    }

    fn of_range(range: &str) -> Option<Self> {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        if !matches!(&*media_type, "application/json" | "application/*" | "*/*") {
            return None;
        }
        let parameters = || parts.clone().filter_map(|part| part.split_once('='));
        let parameter = |name: &str| parameters().find(|(key, _)| *key == name).map(|(_, value)| value);
        match parameter("as") {
            None => Some(Self::Whole),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList")
                if parameter("g").is_none_or(|group| group == "meta.k8s.io")
                    && parameter("v").is_none_or(|version| version == "v1") =>
            {
                Some(Self::Metadata)
            }
            Some(_) => None,
        }
    }
}
