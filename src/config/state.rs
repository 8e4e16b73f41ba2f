//! `[state]`: what outlives a restart.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    schema,
    text::{self, Format},
};
use crate::journal::{Fsync, JournalOptions, OnFull as WhenFull};

/// What outlives a restart: objects, changes that are not delivered yet, positions of handlers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct State {
    /// The directory, which belongs to one engine and one cluster. Default "": memory only; what happens while the engine
    /// is down is not known after it.
    #[serde(with = "text::optional")]
    #[schemars(with = "String")]
    pub dir: Option<PathBuf>,
    /// When what was written is forced to the disk: `group`, as often as the disk allows, and only that is delivered; or an
    /// interval, within which a power failure may take back what was delivered.
    #[schemars(schema_with = "schema::commit")]
    pub fsync: Commit,
    /// How long delivered changes are kept.
    #[serde(with = "text::duration")]
    #[schemars(schema_with = "schema::duration")]
    pub retention: Duration,
    /// How large the directory may become, about. Changes go before their time then; what waits for a handler is merged,
    /// and never goes.
    #[serde(with = "text::size")]
    #[schemars(schema_with = "schema::size")]
    pub max_bytes: u64,
    /// What happens when it is that large with what waits for handlers, merged: `stop_reading` the API server, or `drop`
    /// the oldest, counted and named.
    pub on_full: OnFull,
}

impl Default for State {
    fn default() -> Self {
        let JournalOptions { retention, max_bytes, .. } = JournalOptions::default();
        Self { dir: None, fsync: Commit::Group, retention, max_bytes, on_full: OnFull::StopReading }
    }
}

impl State {
    /// Returns how the journal is run.
    pub fn journal(&self) -> JournalOptions {
        JournalOptions {
            fsync: match self.fsync {
                Commit::Group => Fsync::Group,
                Commit::Interval(interval) => Fsync::Interval(interval),
            },
            retention: self.retention,
            max_bytes: self.max_bytes,
            on_full: match self.on_full {
                OnFull::StopReading => WhenFull::StopReading,
                OnFull::Drop => WhenFull::Drop,
            },
            ..JournalOptions::default()
        }
    }
}

/// When what was written is forced to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// As often as the disk allows.
    Group,
    /// So often, never zero.
    Interval(Duration),
}

impl Commit {
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == "group" {
            return Some(Self::Group);
        }
        text::parse_duration(text).filter(|interval| !interval.is_zero()).map(Self::Interval)
    }
}

impl Serialize for Commit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Group => "group".serialize(serializer),
            Self::Interval(interval) => text::duration::serialize(interval, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Commit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| text::unreadable(Format::Commit, &text))
    }
}

/// What happens when the directory is as large as it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The API server is not read until handlers have taken what waits for them.
    #[default]
    StopReading,
    /// The oldest changes are dropped, counted and named.
    Drop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsync_is_group_or_an_interval_that_is_not_zero() {
        assert_eq!(Commit::parse("group"), Some(Commit::Group));
        assert_eq!(Commit::parse("1s"), Some(Commit::Interval(Duration::from_secs(1))));
        assert_eq!([Commit::parse("0s"), Commit::parse("always"), Commit::parse("")], [None; 3]);
    }
}
