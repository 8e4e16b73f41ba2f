//! Publishing to a stream: the messages of a batch at once, as each is of another object.
//!
//! The next message of an object is in a batch that begins when this one is acknowledged. So whatever a lost connection
//! swallows, nothing of an object is stored before what came before it.

use std::collections::{HashSet, VecDeque};

use async_nats::{
    HeaderValue, PublishErrorKind, Subject,
    header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
    jetstream::{ErrorCode, stream::Stream},
};
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::timeout;

use super::{
    ExpectLast,
    acks::{Ack, Attempt, Receipt, Refusal},
    link::{ANSWER_WAIT, Link, Watch},
    message::Message,
    stored::{Memory, Sought, Stored},
};
use crate::handler::HandlerError;

/// Times that a message is sent because somebody else was faster.
const CONFLICTS_MAX: u32 = 8;

/// Stores the messages of one batch.
pub(super) struct Publisher<'a> {
    expect_last: ExpectLast,
    memory: &'a Memory,
    link: &'a Link,
    stream: &'a Stream<()>,
    /// Makes the message of an event, when it is sent: a batch's messages never are in memory all at once.
    make: &'a (dyn Fn(usize) -> Result<Message, HandlerError> + Sync),
    attempt: Attempt<'a>,
    slots: Vec<Slot>,
    /// What is to be sent now, and the last sequence that it expects, where it was looked up.
    ready: VecDeque<(usize, Option<u64>)>,
    unanswered: usize,
    looks: FuturesUnordered<BoxFuture<'a, (usize, Result<Stored, HandlerError>)>>,
    /// The first failure.
    result: Result<(), HandlerError>,
    refused: Option<Subject>,
}

/// A message and where it is.
struct Slot {
    /// Where it was sent; empty before that.
    subject: Subject,
    /// How often it met with somebody else's.
    conflicts: u32,
    is_awaited: bool,
}

/// What a publisher waited for.
enum Heard {
    Acks(Vec<Ack>),
    Found(usize, Result<Stored, HandlerError>),
    Refused(HashSet<String>),
}

impl<'a> Publisher<'a> {
    pub(super) async fn new(
        expect_last: ExpectLast,
        memory: &'a Memory,
        link: &'a Link,
        stream: &'a Stream<()>,
        make: &'a (dyn Fn(usize) -> Result<Message, HandlerError> + Sync),
    ) -> Result<Self, HandlerError> {
        Ok(Self {
            expect_last,
            memory,
            link,
            stream,
            make,
            attempt: link.inbox().await?.attempt(),
            slots: Vec::new(),
            ready: VecDeque::new(),
            unanswered: 0,
            looks: FuturesUnordered::new(),
            result: Ok(()),
            refused: None,
        })
    }

    /// Stores so many messages side by side. Continues after a failure, and returns the first one; but a message that
    /// the server refuses before all others.
    pub(super) async fn store_all(mut self, messages: usize, mut watch: Watch) -> Result<(), HandlerError> {
        let slot = |_| Slot { subject: Subject::from_static(""), conflicts: 0, is_awaited: false };
        self.slots = (0..messages).map(slot).collect();
        self.ready.extend((0..messages).map(|index| (index, None)));
        loop {
            while let Some((index, expected)) = self.ready.pop_front() {
                if let Err(error) = self.begin(index, expected).await {
                    self.fail(index, error);
                }
            }
            if self.unanswered == 0 && self.looks.is_empty() {
                break;
            }
            match timeout(ANSWER_WAIT, self.hear(&mut watch)).await {
                Ok(Heard::Acks(acks)) => self.take(acks),
                Ok(Heard::Found(index, found)) => self.found(index, found),
                Ok(Heard::Refused(subjects)) => self.take_refusals(&subjects),
                Err(_) => self.take_silence(),
            }
        }
        match self.refused {
            Some(subject) => Err(self.link.refusal(&subject)), // now it is known whether the server has taken others
            None => self.result,
        }
    }

    async fn hear(&mut self, watch: &mut Watch) -> Heard {
        let mut acks = Vec::new();
        tokio::select! {
            biased;
            () = self.attempt.hear(&mut acks) => Heard::Acks(acks),
            Some((index, found)) = self.looks.next() => Heard::Found(index, found),
            subjects = watch.refused() => Heard::Refused(subjects),
        }
    }

    /// Begins with a message: it is sent, or its subject is looked at before.
    async fn begin(&mut self, index: usize, expected: Option<u64>) -> Result<(), HandlerError> {
        let message = (self.make)(index)?;
        self.slots[index].subject = message.subject.clone();
        if self.expect_last == ExpectLast::Off {
            return self.send(index, message, None).await;
        }
        let supposed = || self.memory.last(&message.subject).or(message.is_new.then_some(0));
        let Some(expected) = expected.or_else(supposed) else {
            self.look(index, Sought::of(&message));
            return Ok(());
        };
        self.send(index, message, Some(expected)).await
    }

    fn look(&mut self, index: usize, sought: Sought) {
        let (memory, stream) = (self.memory, self.stream);
        self.looks.push(Box::pin(async move { (index, memory.look(stream, sought).await) }));
    }

    fn found(&mut self, index: usize, found: Result<Stored, HandlerError>) {
        match found {
            Ok(Stored::This) => {}
            Ok(Stored::Other(last)) => self.ready.push_back((index, Some(last))),
            Err(error) => self.fail(index, error),
        }
    }

    /// Sends a message, on condition that the last sequence of its subject is the expected one.
    async fn send(&mut self, index: usize, message: Message, expected: Option<u64>) -> Result<(), HandlerError> {
        let slot = &mut self.slots[index];
        let reply = self.attempt.reply_to(index, slot.conflicts).await?;
        let Message { subject, mut headers, payload, .. } = message;
        if let Some(expected) = expected {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected));
        }
        let sent = self.link.client.publish_with_reply_and_headers(subject, reply, headers, payload).await;
        sent.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => too_large(&slot.subject, &error),
            _ => HandlerError::Failed(format!("failed to send: {error}")),
        })?;
        slot.is_awaited = true;
        self.unanswered += 1;
        Ok(())
    }

    fn take(&mut self, acks: Vec<Ack>) {
        let mut is_any_stored = false;
        for Ack { message: index, attempt, answer } in acks {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            if !slot.is_awaited || slot.conflicts != attempt {
                continue; // somebody answers twice
            }
            slot.is_awaited = false;
            self.unanswered -= 1;
            let subject = &slot.subject;
            match answer {
                Ok(Receipt { sequence, is_duplicate }) => {
                    is_any_stored = true;
                    match self.expect_last {
                        ExpectLast::Off => {}
                        // A duplicate's sequence is where it is stored, which need not be the last.
                        ExpectLast::PerSubject if is_duplicate => self.memory.forget(subject),
                        ExpectLast::PerSubject => self.memory.remember(subject, sequence),
                    }
                }
                Err(Refusal::Error(error)) if is_conflict(error.error_code()) => self.conflict(index),
                Err(refusal) => {
                    let error = not_stored(subject, refusal);
                    self.fail(index, error);
                }
            }
        }
        if is_any_stored {
            self.link.note_taken();
        }
    }

    /// The last message of the subject is another one than expected.
    fn conflict(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        self.memory.forget(&slot.subject);
        slot.conflicts += 1;
        if slot.conflicts == CONFLICTS_MAX || self.expect_last == ExpectLast::Off {
            let subject = &slot.subject;
            let problem = format!(
                "{subject} got other messages {CONFLICTS_MAX} times in between: does somebody else write to it?"
            );
            return self.fail(index, HandlerError::Failed(problem));
        }
        match (self.make)(index) {
            Ok(message) => self.look(index, Sought::of(&message)),
            Err(error) => self.fail(index, error),
        }
    }

    fn fail(&mut self, index: usize, error: HandlerError) {
        self.memory.forget(&self.slots[index].subject);
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }

    fn take_refusals(&mut self, subjects: &HashSet<String>) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_awaited) {
            if subjects.contains(slot.subject.as_str()) {
                slot.is_awaited = false;
                self.unanswered -= 1;
                self.memory.forget(&slot.subject);
                self.refused = Some(slot.subject.clone());
            }
        }
    }

    /// Nothing was heard for so long that nothing will come of what was sent.
    fn take_silence(&mut self) {
        let silent: Vec<usize> = (0..self.slots.len()).filter(|index| self.slots[*index].is_awaited).collect();
        for index in silent {
            self.slots[index].is_awaited = false;
            self.unanswered -= 1;
            let subject = &self.slots[index].subject;
            let problem = format!("no acknowledgement for {subject} within {ANSWER_WAIT:?}");
            self.fail(index, HandlerError::Failed(problem));
        }
    }
}

fn is_conflict(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}

fn not_stored(subject: &Subject, refusal: Refusal) -> HandlerError {
    let text = match refusal {
        Refusal::NoStream => {
            format!("no stream takes {subject}: nobody answered; is the stream there, and has it this subject?")
        }
        Refusal::Unreadable(problem) => format!("NATS answered something odd to the message to {subject}: {problem}"),
        Refusal::Error(error) => match error.error_code() {
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                return too_large(subject, &error);
            }
            ErrorCode::STREAM_NOT_MATCH => {
                format!("another stream than the configured one takes {subject}: change `stream` or `subject`")
            }
            _ => format!("NATS did not store the message to {subject}: {error}"),
        },
    };
    HandlerError::Failed(text)
}

fn too_large(subject: &Subject, error: &dyn std::fmt::Display) -> HandlerError {
    HandlerError::TooLarge(format!("the message to {subject} is too large: {error}"))
}
