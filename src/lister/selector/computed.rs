//! Fields of built-in types that the API server computes for field selectors: their value is not the text at their path.
//!
//! The server fills in the zero value of a field that an object does not have, and a few fields have another name in the object.
//! All other fields are compared as the text at their path, and an absent one as the empty text.

/// Field whose value in a field selector is computed.
#[derive(Debug, PartialEq)]
pub(crate) struct ComputedField {
    /// The `apiVersion` of the objects.
    pub(crate) api_version: &'static str,
    /// The `kind` of the objects.
    pub(crate) kind: &'static str,
    /// Name of the field in a selector.
    name: &'static str,
    /// Paths in the object. The first path with a value that is not empty counts.
    pub(crate) paths: &'static [&'static str],
    /// Value of objects without such a value.
    pub(crate) absent: &'static str,
}

/// Makes a [`ComputedField`].
const fn field(
    [api_version, kind, name]: [&'static str; 3],
    paths: &'static [&'static str],
    absent: &'static str,
) -> ComputedField {
    ComputedField { api_version, kind, name, paths, absent }
}

static FIELDS: [ComputedField; 5] = [
    field(["v1", "Node", "spec.unschedulable"], &["spec.unschedulable"], "false"),
    field(["v1", "Pod", "spec.hostNetwork"], &["spec.hostNetwork"], "false"),
    field(["v1", "Event", "source"], &["source.component", "reportingComponent"], ""),
    field(["v1", "ReplicationController", "status.replicas"], &["status.replicas"], "0"),
    field(["batch/v1", "Job", "status.successful"], &["status.succeeded"], "0"),
];

/// Returns the computed fields with this name, of any type.
pub(crate) fn named(name: &str) -> impl Iterator<Item = &'static ComputedField> {
    FIELDS.iter().filter(move |field| field.name == name)
}
