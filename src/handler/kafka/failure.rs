//! Reasons why a message is not stored, and the reactions.

use rdkafka::{error::KafkaError, types::RDKafkaErrorCode};

use crate::handler::HandlerError;

/// Reason why a message is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Error of the client or the broker.
    Told(RDKafkaErrorCode),
    /// The client was closed, and its messages were dropped.
    Dropped,
}

impl Failure {
    /// Converts an error of the client.
    pub(super) fn of(error: &KafkaError) -> Self {
        Self::Told(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
    }

    /// Returns true if the client does not know the topic, so that it has to ask for it again.
    pub(super) fn is_unknown_topic(&self) -> bool {
        use RDKafkaErrorCode::{UnknownPartition, UnknownTopic, UnknownTopicOrPartition};
        matches!(self, Self::Told(UnknownTopic | UnknownTopicOrPartition | UnknownPartition))
    }

    /// Returns the handler error for a message to a topic.
    pub(super) fn meaning(&self, topic: &str) -> HandlerError {
        use RDKafkaErrorCode::{
            ClusterAuthorizationFailed, InvalidMessageSize, InvalidRecord, InvalidTopic, MessageSizeTooLarge,
            PurgeInflight, PurgeQueue, TopicAuthorizationFailed,
        };
        let code = match self {
            Self::Dropped | Self::Told(PurgeQueue | PurgeInflight) => {
                return HandlerError::Failed(format!(
                    "the message to {topic} was dropped because its client was closed"
                ));
            }
            Self::Told(code) => code,
        };
        match code {
            _ if self.is_unknown_topic() => HandlerError::Failed(format!(
                "topic {topic} does not exist: create it, or set auto.create.topics.enable on the brokers"
            )),
            MessageSizeTooLarge | InvalidMessageSize => HandlerError::TooLarge(format!(
                "the message to {topic} is larger than Kafka accepts: see `max.message.bytes` of the topic"
            )),
            InvalidRecord | InvalidTopic => {
                HandlerError::Rejected(format!("Kafka refused a message to {topic}: {code}"))
            }
            TopicAuthorizationFailed => HandlerError::Failed(format!(
                "Kafka refused a message to {topic}: {code}; give the user the right Write on the topic"
            )),
            ClusterAuthorizationFailed => HandlerError::Failed(format!(
                "Kafka refused a message to {topic}: {code}; give the user the right IdempotentWrite on the cluster, or set \
                 idempotent = false"
            )),
            _ => HandlerError::Failed(format!("Kafka did not store a message to {topic}: {code}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_answer_means_retry_shrink_or_reject() {
        use RDKafkaErrorCode::{
            ClusterAuthorizationFailed, InvalidRecord, MessageSizeTooLarge, NotEnoughReplicas, PurgeQueue,
            TopicAuthorizationFailed, UnknownTopic, UnknownTopicOrPartition,
        };
        for (code, kind, text) in [
            (UnknownTopic, "Failed", "topic t does not exist: create it"),
            (UnknownTopicOrPartition, "Failed", "topic t does not exist: create it"),
            (TopicAuthorizationFailed, "Failed", "the right Write"),
            (ClusterAuthorizationFailed, "Failed", "idempotent = false"),
            (NotEnoughReplicas, "Failed", "did not store a message to t"),
            (PurgeQueue, "Failed", "its client was closed"),
            (MessageSizeTooLarge, "TooLarge", "larger than Kafka accepts"),
            (InvalidRecord, "Rejected", "refused a message to t"),
        ] {
            let meaning = Failure::of(&KafkaError::MessageProduction(code)).meaning("t");
            assert!(format!("{meaning:?}").starts_with(kind), "{meaning:?}");
            assert!(meaning.to_string().contains(text), "{meaning}");
        }
        assert!(matches!(Failure::Dropped.meaning("t"), HandlerError::Failed(_)));
    }
}
