//! What `Accept` asks for: whole objects, their metadata, or a table.

use axum::http::HeaderMap;

use super::super::{accept::negotiate, status_object::StatusObject};

/// The form of the objects of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the server sent them.
    Whole,
    /// `PartialObjectMetadata`, or its list.
    Metadata(MetaVersion),
    /// `Table`: what kubectl prints.
    Table(MetaVersion, Include),
}

/// Version of the group `meta.k8s.io` that an answer is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    /// Returns `meta.k8s.io/v1`.
    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// What of its object a row of a table carries: `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    /// Reads `includeObject`; 400 for what is none.
    fn parse(text: &str) -> Result<Self, StatusObject> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(StatusObject::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

impl Form {
    /// Returns the first form of `Accept` that there is; 406 where there is none, or where it does not suit what is asked
    /// for, as the API server answers.
    ///
    /// Protobuf and YAML are not made here: clients name JSON behind them.
    pub(super) fn negotiate(headers: &HeaderMap, is_list: bool, include_object: &str) -> Result<Self, StatusObject> {
        let asked = negotiate(headers, ("", MetaVersion::V1), of_range);
        let (name, version) = asked.ok_or_else(|| StatusObject::not_acceptable("application/json"))?;
        match name {
            "" => Ok(Self::Whole),
            "Table" => Ok(Self::Table(version, Include::parse(include_object)?)),
            "PartialObjectMetadata" if is_list => Err(StatusObject::unsuitable(name, "a list")),
            "PartialObjectMetadataList" if !is_list => Err(StatusObject::unsuitable(name, "not a list")),
            _ => Ok(Self::Metadata(version)),
        }
    }

    /// Returns whether more of an object goes out than its metadata.
    pub(super) fn shows_values(self) -> bool {
        matches!(self, Self::Whole | Self::Table(_, Include::Object))
    }
}

/// Reads the parameters of a range: the kind to convert to, empty for none, and its version.
fn of_range([name, group, version]: [Option<&str>; 3]) -> Option<(&str, MetaVersion)> {
    let Some(name) = name else { return Some(("", MetaVersion::V1)) };
    let version = match (group, version) {
        (Some("meta.k8s.io"), Some("v1")) => MetaVersion::V1,
        (Some("meta.k8s.io"), Some("v1beta1")) => MetaVersion::V1Beta1,
        _ => return None,
    };
    matches!(name, "Table" | "PartialObjectMetadata" | "PartialObjectMetadataList").then_some((name, version))
}
