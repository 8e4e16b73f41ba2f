//! Gaps of a stream: what a subscriber is not shown.

use serde_json::{Value, json};
use strum::AsRefStr;

use crate::journal::Sequence;

/// Reason of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub enum GapReason {
    /// The place is one of another journal: the engine was started without the state of then.
    Journal,
    /// The journal has not come as far as the place: it is none of its own.
    Unknown,
    /// The position asked for is no longer kept.
    Expired,
    /// The subscriber was too slow for what is kept.
    Behind,
}

/// Events that a subscriber does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGap {
    /// Why.
    pub reason: GapReason,
    /// The place asked for, as it was written.
    pub asked: Option<String>,
    /// It is missing behind here; not known where the place is none of this journal.
    pub from: Option<Sequence>,
    /// Up to here: the stream goes on behind.
    pub to: Sequence,
    /// Number of events, where that is known.
    pub events: Option<u64>,
}

impl GapReason {
    fn message(self) -> &'static str {
        match self {
            Self::Journal => "the place is one of another journal: what happened since is not known here",
            Self::Unknown => "the journal has not come as far as the place: it is none of its own",
            Self::Expired => "some of what was asked for is not kept any more",
            Self::Behind => "the subscriber was slower than the events, and some are not kept any more",
        }
    }
}

impl StreamGap {
    /// Returns what is known of it: the `data` of its event.
    pub fn data(&self) -> Value {
        let mut data = json!({
            "reason": self.reason.as_ref(),
            "message": self.reason.message(),
            "to": format!("{:020}", self.to.0),
        });
        if let Some(asked) = &self.asked {
            data["asked"] = asked.as_str().into();
        }
        if let Some(from) = self.from {
            data["from"] = format!("{:020}", from.0).into();
        }
        if let Some(events) = self.events {
            data["events"] = events.into();
        }
        data
    }
}
