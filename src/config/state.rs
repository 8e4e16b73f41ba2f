//! `[state]`: state that survives a restart.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Optional;
use crate::journal::JournalOptions;

/// State that survives a restart: objects, undelivered changes, positions of handlers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StateConfig {
    /// State directory of one engine and one cluster. A relative path is relative to the working directory. Default "": memory
    /// only; changes that happen while the engine is down are not delivered.
    #[serde(with = "Optional")]
    pub dir: Option<PathBuf>,
    /// Options of the journal in this directory.
    #[serde(flatten)]
    pub journal: JournalOptions,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::text::Textual as _;
    use crate::journal::Fsync;

    #[test]
    fn fsync_is_group_or_nonzero_interval() {
        assert_eq!(Fsync::parse("group"), Some(Fsync::Group));
        assert_eq!(Fsync::parse("1s"), Some(Fsync::Interval(Duration::from_secs(1))));
        assert_eq!([Fsync::parse("0s"), Fsync::parse("always"), Fsync::parse("")], [None; 3]);
    }
}
