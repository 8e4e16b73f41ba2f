//! Form that `Accept` requests: whole objects, their metadata, or a table.

use axum::http::HeaderMap;
use strum::EnumString;

use super::super::{accept::negotiate, api_error::ApiError};

/// Form of the objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Objects as the server sent them.
    Whole,
    /// `PartialObjectMetadata`, or its list.
    Metadata(MetaVersion),
    /// `Table`: the columns that kubectl prints.
    Table(MetaVersion, Include),
}

/// `apiVersion` of metadata and of tables.
pub(super) type MetaVersion = &'static str;

pub(super) const V1: MetaVersion = "meta.k8s.io/v1";
pub(super) const V1_BETA1: MetaVersion = "meta.k8s.io/v1beta1";

/// Part of the object that a table row contains: `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString)]
pub(super) enum Include {
    None,
    #[strum(serialize = "", serialize = "Metadata")]
    Metadata,
    Object,
}

impl Form {
    /// Returns the first supported form of `Accept`. Like the API server, returns 406 if `Accept` has no supported form, or if the
    /// form does not fit the request.
    ///
    /// Protobuf and YAML are not supported. Clients that prefer them also accept JSON.
    pub(super) fn negotiate(headers: &HeaderMap, is_list: bool, include_object: &str) -> Result<Self, ApiError> {
        let asked = negotiate(headers, ("", V1), of_range);
        let (name, version) = asked.ok_or_else(|| ApiError::not_acceptable("application/json"))?;
        let invalid = |_| {
            ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {include_object:?}: must be \
                 'Metadata', 'Object', 'None', or empty"
            ))
        };
        match name {
            "" => Ok(Self::Whole),
            "Table" => Ok(Self::Table(version, include_object.parse().map_err(invalid)?)),
            "PartialObjectMetadata" if is_list => Err(ApiError::unsuitable(name, "a list")),
            "PartialObjectMetadataList" if !is_list => Err(ApiError::unsuitable(name, "not a list")),
            _ => Ok(Self::Metadata(version)),
        }
    }

    /// Returns true if responses in this form contain whole objects.
    pub(super) fn shows_values(self) -> bool {
        matches!(self, Self::Whole | Self::Table(_, Include::Object))
    }
}

/// Parses the parameters of a media range in `Accept`. Returns the requested kind (empty for whole objects) and its version.
fn of_range([name, group, version]: [Option<&str>; 3]) -> Option<(&str, MetaVersion)> {
    let Some(name) = name else { return Some(("", V1)) };
    let version = match (group, version) {
        (Some("meta.k8s.io"), Some("v1")) => V1,
        (Some("meta.k8s.io"), Some("v1beta1")) => V1_BETA1,
        _ => return None,
    };
    matches!(name, "Table" | "PartialObjectMetadata" | "PartialObjectMetadataList").then_some((name, version))
}
