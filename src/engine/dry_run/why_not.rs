//! Why a handler is not sent something.

use std::fmt;

use crate::{journal::ChangeKind, object::IGNORE_ANNOTATION};

/// Why a handler is not sent a change, or why two states make none. Entries are those of `[resources.*]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// No entry means the type, in this version.
    NotWatched(String),
    /// An entry means the type and excludes it.
    Excluded {
        /// The type.
        resource: String,
        /// The entry.
        entry: String,
    },
    /// `namespaces` leaves out that of the object.
    Namespaces {
        /// The entries that have the type.
        entries: Vec<String>,
        /// The namespace, which none of them means.
        namespace: String,
    },
    /// `namespace_selector` does not match the labels of the namespace.
    NamespaceSelector {
        /// The entry.
        entry: String,
        /// The namespace.
        namespace: String,
        /// Its labels are known.
        known: bool,
    },
    /// `labels` does not select the object, in neither state.
    Labels(String),
    /// `fields` does not select the object, in neither state.
    Fields(String),
    /// The object opts out.
    OptedOut,
    /// It cannot be taken in: what was said of it.
    Refused(String),
    /// `ignore_changes` covers all that differs.
    IgnoreChanges(String),
    /// Both states are the same one.
    Unchanged,
    /// `enabled = false`.
    Disabled,
    /// `resources` has not the entry.
    Resources(String),
    /// `on` has no such event.
    On(ChangeKind),
    /// `initial = "skip"`: it existed before.
    Initial,
    /// `catch_up = false`: it happened while no engine ran.
    CatchUp,
    /// It is shown again to others alone.
    Replay,
    /// The rules: `changed`, `when`, or why they cannot be asked.
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
                "[resources.{entry}] has a `namespace_selector`, and the labels of {namespace} are not known: the Namespace \
                 itself can stand beside the object"
            ),
            Self::Labels(entry) => write!(f, "`labels` of [resources.{entry}] does not select it"),
            Self::Fields(entry) => write!(f, "`fields` of [resources.{entry}] does not select it"),
            Self::OptedOut => write!(f, "the annotation {IGNORE_ANNOTATION} hides it"),
            Self::IgnoreChanges(entry) => write!(f, "`ignore_changes` of [resources.{entry}] covers all that differs"),
            Self::Unchanged => f.write_str("both states are the same"),
            Self::Disabled => f.write_str("it is not enabled"),
            Self::Resources(entry) => write!(f, "`resources` has not {entry:?}"),
            Self::On(kind) => write!(f, "`on` has no {:?}", kind.as_str()),
            Self::Initial => f.write_str("`initial`: what existed before is skipped"),
            Self::CatchUp => f.write_str("`catch_up`: what happened while no engine ran is left out"),
            Self::Replay => f.write_str("what exists already is shown to this stream alone"),
            Self::Refused(why) | Self::Rules(why) => f.write_str(why),
            Self::Format(why) => write!(f, "it is given up: {why}"),
        }
    }
}
