//! Shapes of the objects of a measurement.

use strum::{AsRefStr, Display};

use crate::{object::ResourceType, simulator::bench_type};

/// Shape of the objects of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, AsRefStr, Display)]
#[strum(serialize_all = "lowercase")]
pub enum Shape {
    /// Pods of 9 KB that share most values, like the pods of a few applications.
    Pods,
    /// Pods of 9 KB with individual values, which are harder to compress.
    Diverse,
    /// Custom resources of 2 KB with sorted keys, so that `managedFields` precedes `name`.
    Custom,
    /// Config maps of 200 KB.
    Configmaps,
    /// Events (core/v1) of 1 KB.
    Events,
}

impl Shape {
    /// All shapes, in order of measurement.
    pub const ALL: [Self; 5] = [Self::Pods, Self::Diverse, Self::Custom, Self::Configmaps, Self::Events];

    /// Returns the displayed name of the shape.
    pub fn title(self) -> &'static str {
        match self {
            Self::Pods => "pods of one shape, 9 KB",
            Self::Diverse => "diverse pods, 9 KB",
            Self::Custom => "custom resources, 2 KB",
            Self::Configmaps => "config maps, 200 KB",
            Self::Events => "events, 1 KB",
        }
    }

    /// Returns the resource type.
    pub fn resource(self) -> ResourceType {
        let core = |kind: &str, plural: &str| ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
        };
        match self {
            Self::Pods | Self::Diverse => core("Pod", "pods"),
            Self::Configmaps => core("ConfigMap", "configmaps"),
            Self::Events => core("Event", "events"),
            Self::Custom => {
                let name = bench_type(0);
                let (plural, group) = name.split_once('.').unwrap_or((&name, ""));
                ResourceType { group: group.to_owned(), ..core("Kind000", plural) }
            }
        }
    }

    /// Returns two typical indexes for objects of this shape, in addition to the index of namespaces.
    pub fn indexes(self) -> [&'static str; 2] {
        match self {
            Self::Pods | Self::Diverse => ["spec.nodeName", "owner"],
            Self::Custom => ["labels['team']", "spec.image"],
            Self::Configmaps => ["labels['app.kubernetes.io/name']", "labels['team']"],
            Self::Events => ["involvedObject.name", "source.host"],
        }
    }

    /// Converts a number of pods, or of their changes, to a number for this shape. For config maps, which are 20 times larger, the
    /// number is a twentieth, but at least 1. For other shapes, it stays the same.
    pub fn scaled(self, pods: u64) -> u64 {
        match self {
            Self::Configmaps => (pods / 20).max(1),
            _ => pods,
        }
    }
}
