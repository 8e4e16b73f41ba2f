//! Acknowledgements: one inbox of the connection, and who waits for what comes to it.
//!
//! A message asks for its answer at `<inbox>.<attempt>.<message>.<try>`. One task reads the inbox and hands each answer to
//! its attempt; an answer to an attempt that is over is nobody's.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use async_nats::{Client, Message, StatusCode, Subscriber, jetstream};
use foldhash::fast::RandomState;
use futures_util::StreamExt as _;
use hashbrown::HashMap;
use serde::Deserialize;
use tokio::{
    sync::{
        Semaphore, TryAcquireError,
        mpsc::{self, UnboundedReceiver, UnboundedSender},
    },
    task::AbortHandle,
    time::timeout,
};

use super::link::ANSWER_WAIT;
use crate::{handler::HandlerError, mutex::lock};

/// Messages that wait for their acknowledgement at a time, of all batches. The client keeps four times as many answers
/// before it loses one.
const UNACKNOWLEDGED_MAX: usize = 16_384;
/// Answers that are handed out at a time.
const HANDED_OUT_AT_ONCE: usize = 256;

/// Where a message is stored, and whether it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) sequence: u64,
    pub(super) is_duplicate: bool,
}

/// Why a message is not stored.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    /// The stream did not take it.
    Error(jetstream::Error),
    /// Nobody listens to its subject.
    NoStream,
    /// The answer says something else.
    Unreadable(String),
}

/// An answer, and to what.
#[derive(Debug, PartialEq)]
pub(super) struct Ack {
    pub(super) message: usize,
    pub(super) attempt: u32,
    pub(super) answer: Result<Receipt, Refusal>,
}

/// The inbox of a connection. Dropped, nobody reads it any more.
pub(super) struct Inbox {
    prefix: String,
    desk: Arc<Desk>,
    reader: AbortHandle,
}

/// Who waits.
struct Desk {
    attempts: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting, RandomState>>,
    room: Semaphore,
}

struct Waiting {
    answers: UnboundedSender<Ack>,
    unanswered: usize,
}

impl Inbox {
    /// Makes an inbox, and the task that reads it on the runtime of the caller.
    pub(super) async fn open(client: &Client) -> Result<Self, HandlerError> {
        let prefix = format!("{}.", client.new_inbox());
        let failed = |error| HandlerError::Failed(format!("failed to subscribe to acknowledgements: {error}"));
        let subscriber = client.subscribe(format!("{prefix}>")).await.map_err(failed)?;
        let desk = Arc::new(Desk::new());
        let reader = tokio::spawn(read(subscriber, prefix.len(), Arc::clone(&desk))).abort_handle();
        Ok(Self { prefix, desk, reader })
    }

    /// Begins an attempt.
    pub(super) fn attempt(&self) -> Attempt<'_> {
        self.desk.attempt(&self.prefix)
    }
}

impl Desk {
    fn new() -> Self {
        let room = Semaphore::new(UNACKNOWLEDGED_MAX);
        Self { attempts: AtomicU64::new(0), waiting: Mutex::default(), room }
    }

    fn attempt<'a>(&'a self, prefix: &'a str) -> Attempt<'a> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let (answers, acks) = mpsc::unbounded_channel();
        lock(&self.waiting).insert(number, Waiting { answers, unanswered: 0 });
        Attempt { desk: self, prefix, number, acks }
    }

    fn hand_out(&self, messages: Vec<Message>, prefix_len: usize) {
        let mut waiting = lock(&self.waiting);
        let mut answered = 0;
        for message in messages {
            let Some((number, ack)) = address(&message, prefix_len) else { continue };
            let Some(waiting) = waiting.get_mut(&number).filter(|waiting| waiting.unanswered > 0) else { continue };
            waiting.unanswered -= 1;
            answered += 1;
            drop(waiting.answers.send(ack)); // an attempt that is over has left the table
        }
        self.room.add_permits(answered);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The answers to one attempt. Dropped, they are nobody's.
pub(super) struct Attempt<'a> {
    desk: &'a Desk,
    prefix: &'a str,
    number: u64,
    acks: UnboundedReceiver<Ack>,
}

impl Attempt<'_> {
    /// Returns where the answer to a message goes, once not too many others are waited for.
    pub(super) async fn reply_to(&self, message: usize, attempt: u32) -> Result<String, HandlerError> {
        let desk = self.desk;
        let permit = match desk.room.try_acquire() {
            Err(TryAcquireError::NoPermits) => {
                timeout(ANSWER_WAIT, desk.room.acquire()).await.ok().and_then(Result::ok)
            }
            tried => tried.ok(),
        };
        let Some(permit) = permit else {
            let problem = format!("{UNACKNOWLEDGED_MAX} messages wait for their acknowledgement for {ANSWER_WAIT:?}");
            return Err(HandlerError::Failed(problem));
        };
        permit.forget();
        if let Some(waiting) = lock(&desk.waiting).get_mut(&self.number) {
            waiting.unanswered += 1;
        }
        Ok(format!("{}{}.{message}.{attempt}", self.prefix, self.number))
    }

    /// Waits for answers and adds them to `acks`.
    pub(super) async fn hear(&mut self, acks: &mut Vec<Ack>) {
        self.acks.recv_many(acks, HANDED_OUT_AT_ONCE).await;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = lock(&self.desk.waiting).remove(&self.number) {
            self.desk.room.add_permits(waiting.unanswered);
        }
    }
}

async fn read(subscriber: Subscriber, prefix_len: usize, desk: Arc<Desk>) {
    let mut chunks = subscriber.ready_chunks(HANDED_OUT_AT_ONCE);
    while let Some(messages) = chunks.next().await {
        desk.hand_out(messages, prefix_len);
    }
}

/// Reads whose answer it is, and what it says.
fn address(message: &Message, prefix_len: usize) -> Option<(u64, Ack)> {
    let mut parts = message.subject.get(prefix_len..)?.split('.');
    let number = parts.next()?.parse().ok()?;
    let (index, attempt) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((number, Ack { message: index, attempt, answer: answer(message) }))
}

/// An answer of `JetStream`: what it means, not all that it says.
#[derive(Deserialize)]
struct Text {
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    error: Option<jetstream::Error>,
}

fn answer(message: &Message) -> Result<Receipt, Refusal> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Refusal::NoStream);
    }
    match serde_json::from_slice(&message.payload) {
        Ok(Text { error: Some(error), .. }) => Err(Refusal::Error(error)),
        Ok(Text { seq: Some(sequence), duplicate, .. }) => Ok(Receipt { sequence, is_duplicate: duplicate }),
        Ok(_) => Err(Refusal::Unreadable("neither a sequence nor an error".to_owned())),
        Err(error) => Err(Refusal::Unreadable(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(subject: &str, payload: &'static str, status: Option<StatusCode>) -> Message {
        let (subject, payload) = (subject.into(), payload.into());
        Message { subject, reply: None, payload, headers: None, status, description: None, length: 0 }
    }

    #[test]
    fn an_answer_says_what_it_is_to_and_what_became_of_it() {
        let read = |payload, status| address(&message("_INBOX.x.7.42.1", payload, status), "_INBOX.x.".len());
        let ack = |answer| Some((7, Ack { message: 42, attempt: 1, answer }));
        let stored = |sequence, is_duplicate| ack(Ok(Receipt { sequence, is_duplicate }));
        assert_eq!(read(r#"{"stream":"K8S","seq":9}"#, None), stored(9, false));
        assert_eq!(read(r#"{"stream":"K8S","domain":"d","seq":8,"duplicate":true}"#, None), stored(8, true));
        assert_eq!(read("", Some(StatusCode::NO_RESPONDERS)), ack(Err(Refusal::NoStream)));
        let refused =
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"K8S","seq":0}"#;
        let Some((7, Ack { answer: Err(Refusal::Error(error)), .. })) = read(refused, None) else { panic!("an error") };
        assert_eq!(error.error_code(), jetstream::ErrorCode::STREAM_WRONG_LAST_SEQUENCE);
        for payload in ["{}", "", "x"] {
            let Some((7, Ack { answer: Err(Refusal::Unreadable(_)), .. })) = read(payload, None) else {
                panic!("{payload}")
            };
        }
    }

    #[tokio::test]
    async fn i5_what_waits_has_a_bound_and_an_attempt_that_is_over_waits_for_nothing() {
        const PREFIX: &str = "_INBOX.x.";
        let desk = Desk::new();
        let (mut one, other) = (desk.attempt(PREFIX), desk.attempt(PREFIX));
        let mut replies = Vec::new();
        for index in 0..3 {
            replies.push(one.reply_to(index, 0).await.unwrap());
            other.reply_to(index, 0).await.unwrap();
        }
        assert_eq!(desk.room.available_permits(), UNACKNOWLEDGED_MAX - 6);
        desk.hand_out(vec![message(&replies[1], r#"{"seq":5}"#, None)], PREFIX.len());
        let mut acks = Vec::new();
        one.hear(&mut acks).await;
        assert_eq!(acks, [Ack { message: 1, attempt: 0, answer: Ok(Receipt { sequence: 5, is_duplicate: false }) }]);
        assert_eq!(desk.room.available_permits(), UNACKNOWLEDGED_MAX - 5);
        drop(one);
        desk.hand_out(vec![message(&replies[2], r#"{"seq":6}"#, None)], PREFIX.len());
        assert_eq!(desk.room.available_permits(), UNACKNOWLEDGED_MAX - 3);
        drop(other);
        assert_eq!(desk.room.available_permits(), UNACKNOWLEDGED_MAX);
        assert!(lock(&desk.waiting).is_empty());
    }

    #[test]
    fn what_is_no_answer_of_ours_is_nobodys() {
        for subject in ["_INBOX.x", "_INBOX.x.", "_INBOX.x.7", "_INBOX.x.7.42", "_INBOX.x.a.b.c"] {
            assert_eq!(address(&message(subject, r#"{"seq":1}"#, None), "_INBOX.x.".len()), None, "{subject}");
        }
    }
}
