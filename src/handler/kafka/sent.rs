//! Messages that the client has without an answer yet, and stored messages of batches that are not complete.
//!
//! The client keeps a message until the broker has stored it, across connections, and thus keeps the order of each
//! partition. An attempt that times out leaves its messages with the client, and the next attempt waits for the same
//! messages. If it sent a new copy, the old copy could arrive later. Stored messages of a failed batch are remembered
//! too, so that a retry does not store them again. If a batch succeeds at once, nothing is remembered.

use std::{
    hash::{Hash, Hasher},
    sync::Mutex,
};

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::failure::Failure;
use crate::{
    cloud_event::{self, Form},
    mutex::lock,
    notification::Event,
};

/// Number of remembered messages above which those that have an answer are forgotten.
const REMEMBERED_MAX: usize = 65_536;

/// Result of a message: stored, or the reason of the failure.
pub(super) type Answer = Result<(), Failure>;

/// Receiver of a message's result. It is closed when the client is dropped.
pub(super) type Report = oneshot::Receiver<Answer>;

/// One message: an event in a form.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageOf<'a>(pub(super) &'a Event, pub(super) Form);

/// Key of a remembered message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MessageId {
    sequence: u64,
    id: String,
    form: Form,
}

impl From<MessageOf<'_>> for MessageId {
    fn from(MessageOf(event, form): MessageOf<'_>) -> Self {
        Self { sequence: event.record.sequence.0, id: cloud_event::id(event), form }
    }
}

impl Hash for MessageId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sequence.hash(state);
    }
}

impl Hash for MessageOf<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.record.sequence.0.hash(state);
    }
}

/// The event's id is computed only if the other fields are equal, which is rare.
impl Equivalent<MessageId> for MessageOf<'_> {
    fn equivalent(&self, key: &MessageId) -> bool {
        let Self(event, form) = *self;
        event.record.sequence.0 == key.sequence && form == key.form && cloud_event::id(event) == key.id
    }
}

/// State of a message.
#[derive(Debug)]
pub(super) enum State {
    /// The client has it, without an answer yet.
    Sent(Report),
    /// The broker has stored it.
    Stored,
}

/// Remembered messages of batches that are not yet delivered completely.
#[derive(Debug, Default)]
pub(super) struct Sent(Mutex<HashMap<MessageId, State, RandomState>>);

impl Sent {
    /// Removes and returns the state of a message; `None` if it has failed, as if it had never been sent.
    pub(super) fn take(&self, message: MessageOf<'_>) -> Option<State> {
        let State::Sent(mut report) = lock(&self.0).remove(&message)? else { return Some(State::Stored) };
        match report.try_recv() {
            Ok(Ok(())) => Some(State::Stored),
            Err(TryRecvError::Empty) => Some(State::Sent(report)),
            Ok(Err(_)) | Err(TryRecvError::Closed) => None,
        }
    }

    /// Remembers a message.
    pub(super) fn keep(&self, message: MessageOf<'_>, state: State) {
        let mut table = lock(&self.0);
        if table.len() >= REMEMBERED_MAX {
            table.retain(|_, state| is_open(state));
        }
        table.insert(message.into(), state);
    }

    /// Waits for a report. If the future is dropped earlier, the message is remembered.
    pub(super) fn wait<'a>(&'a self, message: MessageOf<'a>, report: Report) -> Waiting<'a> {
        Waiting { sent: self, message, report: Some(report) }
    }
}

/// Returns true if the client still has the message. The deliveries bound the number of such messages.
fn is_open(state: &mut State) -> bool {
    match state {
        State::Sent(report) => matches!(report.try_recv(), Err(TryRecvError::Empty)),
        State::Stored => false,
    }
}

/// Future of a report.
pub(super) struct Waiting<'a> {
    sent: &'a Sent,
    message: MessageOf<'a>,
    report: Option<Report>,
}

impl Waiting<'_> {
    /// Returns the result of the message.
    pub(super) async fn answer(mut self) -> Answer {
        let Some(report) = &mut self.report else { return Err(Failure::Dropped) };
        let answer = report.await.unwrap_or(Err(Failure::Dropped));
        self.report = None;
        answer
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            self.sent.keep(self.message, State::Sent(report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{event, unit},
        *,
    };
    use crate::journal::{Sequence, testing::added};

    fn numbered(number: u64) -> Event {
        let mut event = event(unit("", "pods", "Pod"), added("web", &format!("u{number}"), 1));
        event.record.sequence = Sequence(number);
        event
    }

    #[tokio::test]
    async fn cancelled_attempt_leaves_message_to_next_attempt() {
        let (sent, (broker, report)) = (Sent::default(), oneshot::channel());
        let event = numbered(1);
        let message = MessageOf(&event, Form::Whole);
        let mut waiting = Box::pin(sent.wait(message, report).answer());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(waiting);
        let Some(State::Sent(report)) = sent.take(message) else { panic!("it is remembered") };
        broker.send(Ok(())).unwrap();
        assert_eq!(sent.wait(message, report).answer().await, Ok(()));
        assert!(sent.take(message).is_none(), "an answered message is not remembered");
        sent.keep(message, State::Stored);
        assert!(matches!(sent.take(message), Some(State::Stored)));
        assert!(sent.take(message).is_none(), "taking a message forgets it");
    }

    #[test]
    fn different_event_or_form_is_another_message() {
        let sent = Sent::default();
        let (event, mut other) = (numbered(1), numbered(2));
        sent.keep(MessageOf(&event, Form::Whole), State::Stored);
        other.record.sequence = event.record.sequence;
        assert!(sent.take(MessageOf(&other, Form::Whole)).is_none(), "its id differs");
        assert!(sent.take(MessageOf(&event, Form::WithoutOld)).is_none());
        other.record.change = event.record.change.clone();
        other.record.sequence = Sequence(3);
        assert!(sent.take(MessageOf(&other, Form::Whole)).is_none());
        assert!(sent.take(MessageOf(&event, Form::Whole)).is_some());
    }

    #[tokio::test]
    async fn failed_message_is_forgotten_and_sent_again() {
        let (sent, (broker, report)) = (Sent::default(), oneshot::channel());
        let event = numbered(1);
        let message = MessageOf(&event, Form::Whole);
        broker.send(Err(Failure::Dropped)).unwrap();
        assert_eq!(sent.wait(message, report).answer().await, Err(Failure::Dropped));
        let (broker, report) = oneshot::channel();
        drop(broker);
        assert_eq!(sent.wait(message, report).answer().await, Err(Failure::Dropped), "the client was dropped");
        assert!(sent.take(message).is_none());
        let (broker, report) = oneshot::channel();
        drop(sent.wait(message, report));
        broker.send(Err(Failure::Dropped)).unwrap();
        assert!(sent.take(message).is_none(), "it failed without a waiting attempt");
    }

    #[tokio::test]
    async fn unrequested_results_are_forgotten_and_pending_ones_kept() {
        let sent = Sent::default();
        let (_broker, report) = oneshot::channel();
        let first = numbered(0);
        sent.keep(MessageOf(&first, Form::Whole), State::Sent(report));
        for number in 1..=REMEMBERED_MAX as u64 {
            sent.keep(MessageOf(&numbered(number), Form::Whole), State::Stored);
        }
        assert_eq!(lock(&sent.0).len(), 2);
        assert!(matches!(sent.take(MessageOf(&first, Form::Whole)), Some(State::Sent(_))));
    }
}
