//! What was given to the client and not yet answered for, or is stored though its batch is not.
//!
//! The client keeps a message until the broker has it, whatever becomes of connections, and so keeps the order of each
//! partition. An attempt that gave up waiting therefore leaves its messages where they are, and the next one waits for the
//! same: sent again, a message could be overtaken by its own past. What is stored of a batch that failed is remembered for
//! as long, and not stored twice for the sake of the rest. Nothing is remembered of a batch that is delivered at once.

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

/// Messages that are remembered before those that nobody asked for again are forgotten.
const REMEMBERED_MAX: usize = 65_536;

/// End of a message: stored, or the reason why not.
pub(super) type Answer = Result<(), Failure>;

/// Receiver of the answer to one message. It is closed once the client is gone.
pub(super) type Report = oneshot::Receiver<Answer>;

/// One message: an event in a form.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageOf<'a>(pub(super) &'a Event, pub(super) Form);

/// What a message is remembered by.
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

/// The event's id is written only where the rest is equal: mostly, nothing is remembered.
impl Equivalent<MessageId> for MessageOf<'_> {
    fn equivalent(&self, key: &MessageId) -> bool {
        let Self(event, form) = *self;
        event.record.sequence.0 == key.sequence && form == key.form && cloud_event::id(event) == key.id
    }
}

/// What is known of a message.
#[derive(Debug)]
pub(super) enum State {
    /// The client has it.
    Sent(Report),
    /// The broker has it.
    Stored,
}

/// Messages of batches that are not delivered as a whole.
#[derive(Debug, Default)]
pub(super) struct Sent(Mutex<HashMap<MessageId, State, RandomState>>);

impl Sent {
    /// Takes out what is known of a message. One that failed while nobody waited is as if it had never been sent.
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

    /// Waits for a report. Dropped before it comes, the message is remembered.
    pub(super) fn wait<'a>(&'a self, message: MessageOf<'a>, report: Report) -> Waiting<'a> {
        Waiting { sent: self, message, report: Some(report) }
    }
}

/// Whether the client still has it. What it has is bounded by what is in delivery.
fn is_open(state: &mut State) -> bool {
    match state {
        State::Sent(report) => matches!(report.try_recv(), Err(TryRecvError::Empty)),
        State::Stored => false,
    }
}

/// Somebody who waits for a report.
pub(super) struct Waiting<'a> {
    sent: &'a Sent,
    message: MessageOf<'a>,
    report: Option<Report>,
}

impl Waiting<'_> {
    /// Returns what became of the message.
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
    async fn d8_who_gives_up_waiting_leaves_the_message_to_the_next_attempt() {
        let (sent, (broker, report)) = (Sent::default(), oneshot::channel());
        let event = numbered(1);
        let message = MessageOf(&event, Form::Whole);
        let mut waiting = Box::pin(sent.wait(message, report).answer());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(waiting);
        let Some(State::Sent(report)) = sent.take(message) else { panic!("it is remembered") };
        broker.send(Ok(())).unwrap();
        assert_eq!(sent.wait(message, report).answer().await, Ok(()));
        assert!(sent.take(message).is_none(), "who was told knows it");
        sent.keep(message, State::Stored);
        assert!(matches!(sent.take(message), Some(State::Stored)));
        assert!(sent.take(message).is_none(), "it is remembered once");
    }

    #[test]
    fn d8_another_event_or_form_is_another_message() {
        let sent = Sent::default();
        let (event, mut other) = (numbered(1), numbered(2));
        sent.keep(MessageOf(&event, Form::Whole), State::Stored);
        other.record.sequence = event.record.sequence;
        assert!(sent.take(MessageOf(&other, Form::Whole)).is_none(), "its id is another one");
        assert!(sent.take(MessageOf(&event, Form::WithoutOld)).is_none());
        other.record.change = event.record.change.clone();
        other.record.sequence = Sequence(3);
        assert!(sent.take(MessageOf(&other, Form::Whole)).is_none());
        assert!(sent.take(MessageOf(&event, Form::Whole)).is_some());
    }

    #[tokio::test]
    async fn i4_what_failed_is_not_remembered_and_is_sent_again() {
        let (sent, (broker, report)) = (Sent::default(), oneshot::channel());
        let event = numbered(1);
        let message = MessageOf(&event, Form::Whole);
        broker.send(Err(Failure::Dropped)).unwrap();
        assert_eq!(sent.wait(message, report).answer().await, Err(Failure::Dropped));
        let (broker, report) = oneshot::channel();
        drop(broker);
        assert_eq!(sent.wait(message, report).answer().await, Err(Failure::Dropped), "the client is gone");
        assert!(sent.take(message).is_none());
        let (broker, report) = oneshot::channel();
        drop(sent.wait(message, report));
        broker.send(Err(Failure::Dropped)).unwrap();
        assert!(sent.take(message).is_none(), "it failed while nobody waited");
    }

    #[tokio::test]
    async fn i5_what_nobody_asks_for_again_is_forgotten_and_what_the_client_has_is_not() {
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
