//! `[state]`: state that survives a restart.

use std::{path::PathBuf, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Optional, Text};
use crate::journal::{Fsync, JournalOptions, OnFull};

/// State that survives a restart: objects, undelivered changes, positions of handlers.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct StateConfig {
    /// State directory of one engine and one cluster. Default "": memory only; changes that happen while the engine is down
    /// are not delivered.
    #[serde(with = "Optional")]
    pub dir: Option<PathBuf>,
    /// Policy for forcing writes to the disk. `group` forces them as often as the disk allows; only changes on the disk are
    /// delivered. With an interval, a power failure may lose the stored changes of the last interval, although they
    /// were delivered.
    #[serde(with = "Text::<Fsync>")]
    pub fsync: Fsync,
    /// Time for which delivered changes are kept.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = JournalOptions::default().retention)]
    pub retention: Duration,
    /// Approximate maximum size of the directory. At this size, delivered changes are removed early. Changes that wait for a
    /// handler are coalesced, and never removed.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = JournalOptions::default().max_bytes)]
    pub max_bytes: u64,
    /// Behaviour if waiting changes fill the directory although they are coalesced. `stop_reading` stops reading from
    /// the API server. `drop` drops the oldest changes, and counts and names them.
    pub on_full: OnFull,
}

impl StateConfig {
    /// Returns the options of the journal.
    pub fn journal(&self) -> JournalOptions {
        JournalOptions {
            fsync: self.fsync,
            retention: self.retention,
            max_bytes: self.max_bytes,
            on_full: self.on_full,
            ..JournalOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::text::Textual as _, *};

    #[test]
    fn fsync_is_group_or_nonzero_interval() {
        assert_eq!(Fsync::parse("group"), Some(Fsync::Group));
        assert_eq!(Fsync::parse("1s"), Some(Fsync::Interval(Duration::from_secs(1))));
        assert_eq!([Fsync::parse("0s"), Fsync::parse("always"), Fsync::parse("")], [None; 3]);
    }
}
