//! Acknowledgements of messages by the stream.
//!
//! The handler reads acknowledgements itself. The `JetStream` client of `async-nats` has a timer, a channel and a future for each
//! message; together they reduce the throughput.

use std::sync::Arc;

use async_nats::{
    Client, Message, StatusCode, Subject, Subscriber,
    jetstream::{self, ErrorCode},
};
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;

use super::{message::too_large, received::Received};
use crate::handler::HandlerError;

/// Maximum number of acknowledgements that are read at once.
const READ_MAX: usize = 64;

/// An inbox for acknowledgements. One attempt at a time uses it, and later attempts use it again.
pub(super) struct AckInbox {
    /// Beginning of all reply subjects. The number of the message follows.
    prefix: String,
    /// Number of the next message. A number is never used twice, so a late acknowledgement does not count for another message.
    next: u64,
    acks: Subscriber,
    received: Arc<Received>,
}

impl AckInbox {
    pub(super) async fn open(client: &Client, received: Arc<Received>) -> Result<Self, HandlerError> {
        let prefix = format!("{}.", client.new_inbox());
        let opened = client.subscribe(format!("{prefix}*")).await;
        let acks = opened
            .map_err(|error| HandlerError::Failed(format!("failed to subscribe to acknowledgements: {error}")))?;
        Ok(Self { prefix, next: 0, acks, received })
    }

    /// Returns a number for a message, and the subject to which the stream sends the acknowledgement.
    pub(super) fn next_reply(&mut self) -> (u64, Subject) {
        let number = self.next;
        self.next += 1;
        (number, format!("{}{number}", self.prefix).into())
    }

    /// Waits for acknowledgements. Returns each with the number of its message. If the wait is cancelled, none is lost.
    pub(super) async fn read(&mut self) -> impl Iterator<Item = (u64, Result<Receipt, NotStored>)> + use<> {
        let acks = (&mut self.acks).ready_chunks(READ_MAX).next().await;
        let Some(acks) = acks else { return std::future::pending().await }; // the client is closed; the caller has a timeout
        self.received.consume(&acks);
        let prefix_len = self.prefix.len();
        acks.into_iter().filter_map(move |ack| Some((number(&ack, prefix_len)?, receipt(&ack))))
    }

    /// Removes the messages that have arrived.
    pub(super) fn clear(&mut self) {
        while let Some(Some(ack)) = self.acks.next().now_or_never() {
            self.received.consume([&ack]);
        }
    }
}

fn number(ack: &Message, prefix_len: usize) -> Option<u64> {
    ack.subject.get(prefix_len..)?.parse().ok()
}

/// Position of a message in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) sequence: u64,
    /// Set if the stream had the message already. The sequence is then that of the first copy.
    pub(super) is_duplicate: bool,
}

/// Reason why a message is not stored.
#[derive(Debug, PartialEq)]
pub(super) enum NotStored {
    /// The stream refused the message.
    Error(jetstream::Error),
    /// No stream has the subject of the message.
    NoStream,
    /// The acknowledgement cannot be decoded.
    Unreadable(String),
}

impl NotStored {
    /// Returns true if the last sequence of the subject is not the expected one.
    pub(super) fn is_conflict(&self) -> bool {
        use ErrorCode as Code;
        let Self::Error(error) = self else { return false };
        matches!(error.error_code(), Code::STREAM_WRONG_LAST_SEQUENCE | Code::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
    }

    /// Returns the handler's error for a message to `subject`.
    pub(super) fn into_error(self, subject: &Subject) -> HandlerError {
        let text = match self {
            Self::NoStream => format!("no stream takes {subject}: check that the stream exists and has this subject"),
            Self::Unreadable(problem) => format!("failed to read the acknowledgement for {subject}: {problem}"),
            Self::Error(error) => match error.error_code() {
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
}

fn receipt(ack: &Message) -> Result<Receipt, NotStored> {
    /// The used fields of an acknowledgement.
    #[derive(Deserialize)]
    struct Fields {
        seq: Option<u64>,
        #[serde(default)]
        duplicate: bool,
        error: Option<jetstream::Error>,
    }
    if ack.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(NotStored::NoStream);
    }
    match serde_json::from_slice(&ack.payload) {
        Ok(Fields { error: Some(error), .. }) => Err(NotStored::Error(error)),
        Ok(Fields { seq: Some(sequence), duplicate: is_duplicate, .. }) => Ok(Receipt { sequence, is_duplicate }),
        Ok(_) => Err(NotStored::Unreadable("it has no sequence".to_owned())),
        Err(error) => Err(NotStored::Unreadable(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(subject: &str, payload: &'static str, status: Option<StatusCode>) -> Message {
        let (subject, payload) = (subject.into(), payload.into());
        Message { subject, reply: None, payload, headers: None, status, description: None, length: 0 }
    }

    #[test]
    fn acknowledgement_is_receipt_or_reason() {
        let read = |payload, status| receipt(&ack("_INBOX.x.7", payload, status));
        let stored = |sequence, is_duplicate| Ok(Receipt { sequence, is_duplicate });
        assert_eq!(read(r#"{"stream":"K8S","seq":9}"#, None), stored(9, false));
        assert_eq!(read(r#"{"stream":"K8S","domain":"d","seq":8,"duplicate":true}"#, None), stored(8, true));
        assert_eq!(read("", Some(StatusCode::NO_RESPONDERS)), Err(NotStored::NoStream));
        let conflict =
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"K8S","seq":0}"#;
        assert!(read(conflict, None).unwrap_err().is_conflict());
        for payload in ["{}", "", "x"] {
            let Err(refused @ NotStored::Unreadable(_)) = read(payload, None) else { panic!("{payload}") };
            assert!(!refused.is_conflict());
        }
    }

    #[test]
    fn subject_of_acknowledgement_has_number_of_message() {
        for (subject, expected) in
            [("_INBOX.x.7", Some(7)), ("_INBOX.x", None), ("_INBOX.x.", None), ("_INBOX.x.a", None)]
        {
            assert_eq!(number(&ack(subject, "", None), "_INBOX.x.".len()), expected, "{subject}");
        }
    }
}
