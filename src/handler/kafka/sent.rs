//! Messages that wait for the broker's answer, and stored messages of incomplete batches.
//!
//! Even after a lost connection, the client keeps a message until the broker has stored it. This keeps the order within each
//! partition. An attempt that times out leaves its messages with the client, and the next attempt waits for the same messages. If
//! the next attempt sent new copies, the old copies could arrive later. Stored messages of a failed batch are remembered too, so
//! that a retry does not store them again. If a batch succeeds at once, nothing is remembered.

use std::{collections::HashMap, sync::Mutex};

use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::{
    cloud_event::{self, Form},
    journal::Sequence,
    mutex::lock,
    notification::Event,
};

/// Maximum number of remembered messages. At this number, all messages with an answer are forgotten.
const REMEMBERED_MAX: usize = 65_536;

/// Result of a message: stored, or the reason of the failure.
pub(super) type Answer = Result<(), RDKafkaErrorCode>;

/// Receiver of a message's result. It is closed when the client is dropped.
pub(super) type Report = oneshot::Receiver<Answer>;

/// State of a message.
#[derive(Debug)]
pub(super) enum State {
    /// The client has the message, and has not reported a result yet.
    Sent(Report),
    /// The broker has stored the message.
    Stored,
}

/// Identity of a message: sequence and id of an event, and its form.
type MessageKey = (Sequence, String, Form);

fn key(event: &Event, form: Form) -> MessageKey {
    (event.record.sequence, cloud_event::id(event), form)
}

/// Remembered messages of batches that are not yet delivered completely.
#[derive(Debug, Default)]
pub(super) struct Sent(Mutex<HashMap<MessageKey, State>>);

impl Sent {
    /// Removes and returns the state of a message; `None` if it was not sent, or has failed.
    pub(super) fn take(&self, event: &Event, form: Form) -> Option<State> {
        let mut table = lock(&self.0);
        if table.is_empty() {
            return None; // the usual case, in which no id is computed
        }
        let State::Sent(mut report) = table.remove(&key(event, form))? else { return Some(State::Stored) };
        match report.try_recv() {
            Ok(Ok(())) => Some(State::Stored),
            Err(TryRecvError::Empty) => Some(State::Sent(report)),
            Ok(Err(_)) | Err(TryRecvError::Closed) => None,
        }
    }

    /// Remembers the state of a message.
    pub(super) fn keep(&self, event: &Event, form: Form, state: State) {
        let mut table = lock(&self.0);
        if table.len() >= REMEMBERED_MAX {
            // The deliveries bound the number of messages that the client still has.
            table.retain(|_, state| match state {
                State::Sent(report) => matches!(report.try_recv(), Err(TryRecvError::Empty)),
                State::Stored => false,
            });
        }
        table.insert(key(event, form), state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cloud_event::tests::{event, unit},
        journal::testing::added,
    };

    fn numbered(number: u64) -> Event {
        let mut event = event(unit("", "pods", "Pod"), added("web", &format!("u{number}"), 1));
        event.record.sequence = Sequence(number);
        event
    }

    #[test]
    fn cancelled_attempt_leaves_message_to_next_attempt() {
        let (sent, (broker, report)) = (Sent::default(), oneshot::channel());
        let event = numbered(1);
        sent.keep(&event, Form::Whole, State::Sent(report));
        let Some(State::Sent(report)) = sent.take(&event, Form::Whole) else { panic!("it has no answer") };
        assert!(sent.take(&event, Form::Whole).is_none(), "taking a message forgets it");
        sent.keep(&event, Form::Whole, State::Sent(report));
        broker.send(Ok(())).unwrap();
        assert!(matches!(sent.take(&event, Form::Whole), Some(State::Stored)));
        sent.keep(&event, Form::Whole, State::Stored);
        assert!(matches!(sent.take(&event, Form::Whole), Some(State::Stored)));
    }

    #[test]
    fn different_event_or_form_is_another_message() {
        let sent = Sent::default();
        let (event, mut other) = (numbered(1), numbered(2));
        sent.keep(&event, Form::Whole, State::Stored);
        other.record.sequence = event.record.sequence;
        assert!(sent.take(&other, Form::Whole).is_none(), "its id differs");
        assert!(sent.take(&event, Form::WithoutOld).is_none());
        other.record.change = event.record.change.clone();
        other.record.sequence = Sequence(3);
        assert!(sent.take(&other, Form::Whole).is_none());
        assert!(sent.take(&event, Form::Whole).is_some());
    }

    #[test]
    fn failed_message_is_forgotten_and_sent_again() {
        let sent = Sent::default();
        let event = numbered(1);
        let (broker, report) = oneshot::channel();
        sent.keep(&event, Form::Whole, State::Sent(report));
        broker.send(Err(RDKafkaErrorCode::NotEnoughReplicas)).unwrap();
        assert!(sent.take(&event, Form::Whole).is_none(), "it failed without a waiting attempt");
        let (broker, report) = oneshot::channel();
        sent.keep(&event, Form::Whole, State::Sent(report));
        drop(broker);
        assert!(sent.take(&event, Form::Whole).is_none(), "the client was dropped");
    }

    #[test]
    fn unrequested_results_are_forgotten_and_pending_ones_kept() {
        let sent = Sent::default();
        let (_broker, report) = oneshot::channel();
        let first = numbered(0);
        sent.keep(&first, Form::Whole, State::Sent(report));
        for number in 1..=REMEMBERED_MAX as u64 {
            sent.keep(&numbered(number), Form::Whole, State::Stored);
        }
        assert_eq!(lock(&sent.0).len(), 2);
        assert!(matches!(sent.take(&first, Form::Whole), Some(State::Sent(_))));
    }
}
