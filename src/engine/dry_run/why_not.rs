//! Reasons why a handler is not sent an event.

use std::fmt;

use crate::{journal::ChangeKind, object::IGNORE_ANNOTATION};

/// Reason why a handler is not sent a change, or why two states make no change. Entries are those of `[resources.*]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// No entry selects the type in this version.
    NotWatched(String),
    /// An entry selects the type but excludes it.
    Excluded {
        /// Excluded type.
        resource: String,
        /// Entry that excludes it.
        entry: String,
    },
    /// `namespaces` leaves out the object's namespace.
    Namespaces {
        /// Entries that have the type.
        entries: Vec<String>,
        /// Namespace that none of them includes.
        namespace: String,
    },
    /// `namespace_selector` does not match the labels of the namespace.
    NamespaceSelector {
        /// Entry with the selector.
        entry: String,
        /// Namespace of the object.
        namespace: String,
        /// Set when the labels of the namespace are known.
        known: bool,
    },
    /// `labels` selects the object in neither state.
    Labels(String),
    /// `fields` selects the object in neither state.
    Fields(String),
    /// The object has an annotation that hides it.
    OptedOut,
    /// The object was refused, with the reason.
    Refused(String),
    /// `ignore_changes` covers every difference.
    IgnoreChanges(String),
    /// Both states are the same.
    Unchanged,
    /// `enabled = false`.
    Disabled,
    /// `resources` does not include the entry.
    Resources(String),
    /// `on` does not include the kind of event.
    On(ChangeKind),
    /// `initial = "skip"`: the object existed before.
    Initial,
    /// `catch_up = false`: the change happened while no engine ran.
    CatchUp,
    /// The object is replayed to another reader only.
    Replay,
    /// Result of the rules `changed` and `when`, or the reason why they cannot be evaluated.
    Rules(String),
    /// The event cannot be written in the handler's format.
    Format(String),
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWatched(resource) => write!(f, "no entry of [resources] has {resource}"),
            Self::Excluded { resource, entry } => write!(f, "`exclude` of [resources.{entry}] has {resource}"),
            Self::Namespaces { entries, namespace } => {
                let entries: Vec<_> = entries.iter().map(|entry| format!("[resources.{entry}]")).collect();
                write!(f, "`namespaces` of {} leaves out {namespace}", entries.join(" and of "))
            }
            Self::NamespaceSelector { entry, namespace, known: true } => {
                write!(f, "`namespace_selector` of [resources.{entry}] does not match the labels of {namespace}")
            }
            Self::NamespaceSelector { entry, namespace, known: false } => write!(
                f,
                "[resources.{entry}] has a `namespace_selector`, but the labels of {namespace} are unknown: add the \
                 Namespace itself to the file of the object"
            ),
            Self::Labels(entry) => write!(f, "`labels` of [resources.{entry}] does not select it"),
            Self::Fields(entry) => write!(f, "`fields` of [resources.{entry}] does not select it"),
            Self::OptedOut => write!(f, "the annotation {IGNORE_ANNOTATION} hides it"),
            Self::IgnoreChanges(entry) => write!(f, "`ignore_changes` of [resources.{entry}] covers every difference"),
            Self::Unchanged => f.write_str("both states are the same"),
            Self::Disabled => f.write_str("it is not enabled"),
            Self::Resources(entry) => write!(f, "`resources` does not include {entry:?}"),
            Self::On(kind) => write!(f, "`on` does not include {:?}", kind.as_str()),
            Self::Initial => f.write_str("`initial`: objects that existed before are skipped"),
            Self::CatchUp => f.write_str("`catch_up`: changes from a time without an engine are left out"),
            Self::Replay => f.write_str("existing objects are shown only to this stream"),
            Self::Refused(why) | Self::Rules(why) => f.write_str(why),
            Self::Format(why) => write!(f, "the event is given up: {why}"),
        }
    }
}
