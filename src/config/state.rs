//! `[state]`: what outlives a restart.

use std::{path::PathBuf, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Optional, Text};
use crate::journal::{Fsync, JournalOptions, OnFull};

/// What outlives a restart: objects, changes that are not delivered yet, positions of handlers.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct StateConfig {
    /// The directory, which belongs to one engine and one cluster. Default "": memory only; what happens while the engine
    /// is down is not known after it.
    #[serde(with = "Optional")]
    pub dir: Option<PathBuf>,
    /// When what was written is forced to the disk: `group`, as often as the disk allows, and only that is delivered; or an
    /// interval, within which a power failure may take back what was delivered.
    #[serde(with = "Text::<Fsync>")]
    pub fsync: Fsync,
    /// How long delivered changes are kept.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = JournalOptions::default().retention)]
    pub retention: Duration,
    /// How large the directory may become, about. Changes go before their time then; what waits for a handler is merged,
    /// and never goes.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = JournalOptions::default().max_bytes)]
    pub max_bytes: u64,
    /// What happens when it is that large with what waits for handlers, merged: `stop_reading` the API server, or `drop`
    /// the oldest, counted and named.
    pub on_full: OnFull,
}

impl StateConfig {
    /// Returns how the journal is run.
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
    fn fsync_is_group_or_an_interval_that_is_not_zero() {
        assert_eq!(Fsync::parse("group"), Some(Fsync::Group));
        assert_eq!(Fsync::parse("1s"), Some(Fsync::Interval(Duration::from_secs(1))));
        assert_eq!([Fsync::parse("0s"), Fsync::parse("always"), Fsync::parse("")], [None; 3]);
    }
}
