//! Gaps of a stream: events that a subscriber does not receive.

use serde_json::{Value, json};
use strum::{AsRefStr, EnumMessage};

use crate::journal::Sequence;

/// Advice for an engine without a state directory.
const SET_STATE: &str = "this engine keeps only the newest events, in memory; set `[state] dir` to keep more";

/// Reason of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr, EnumMessage)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum GapReason {
    /// The requested position belongs to another journal, because the engine was started without its earlier state.
    #[strum(message = "the position belongs to another journal; events since then are not known")]
    Journal,
    /// The requested position is beyond the end of the journal, so it is not from this journal.
    #[strum(message = "the position is beyond the end of this journal")]
    Unknown,
    /// Some events after the requested position are no longer kept.
    #[strum(message = "some of the requested events are no longer kept")]
    Expired,
    /// The subscriber was too slow, and the events are no longer kept.
    #[strum(message = "the subscriber was too slow, and some events are no longer kept")]
    Behind,
}

/// Events that a subscriber does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamGap {
    pub reason: GapReason,
    /// The requested position as the client wrote it.
    pub asked: Option<String>,
    /// The events after this position are missing; `None` if the position is not from this journal.
    pub from: Option<Sequence>,
    /// The events up to this position are missing; the stream continues after it.
    pub to: Sequence,
    /// Number of missing events, if known.
    pub events: Option<u64>,
}

impl StreamGap {
    /// Returns the `data` of the gap's event. `has_store` means that the engine has a state directory.
    pub(crate) fn data(&self, has_store: bool) -> Value {
        let position = |position: Sequence| format!("{:020}", position.0);
        let reason = self.reason.get_message().unwrap_or_default();
        let message = match self.reason {
            GapReason::Journal | GapReason::Expired | GapReason::Behind if !has_store => {
                format!("{reason}: {SET_STATE}")
            }
            _ => reason.to_owned(),
        };
        let mut data = json!({
            "reason": self.reason.as_ref(),
            "message": message,
            "to": position(self.to),
            "asked": self.asked,
            "from": self.from.map(position),
            "events": self.events,
        });
        if let Value::Object(members) = &mut data {
            members.retain(|_, value| !value.is_null());
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_without_state_directory_says_what_to_set() {
        let message = |reason, has_store| {
            let gap = StreamGap { reason, asked: None, from: None, to: Sequence(7), events: None };
            gap.data(has_store)["message"].as_str().unwrap().to_owned()
        };
        for reason in [GapReason::Journal, GapReason::Expired, GapReason::Behind] {
            assert!(message(reason, false).ends_with("set `[state] dir` to keep more"));
            assert!(!message(reason, true).contains("[state]"));
        }
        assert!(!message(GapReason::Unknown, false).contains("[state]"), "no such event was ever kept");
    }
}
