//! Why a message is not stored, and what is done about it.

use rdkafka::{error::KafkaError, types::RDKafkaErrorCode};

use crate::handler::HandlerError;

/// Why a message is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The client or the broker said so.
    Told(RDKafkaErrorCode),
    /// The client is gone, and its messages with it.
    Dropped,
}

impl Failure {
    /// Reads an error of the client.
    pub(super) fn of(error: &KafkaError) -> Self {
        Self::Told(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
    }

    /// Returns whether the topic is not there, as far as the client knows: it has to look again.
    pub(super) fn is_unknown_topic(&self) -> bool {
        use RDKafkaErrorCode::{UnknownPartition, UnknownTopic, UnknownTopicOrPartition};
        matches!(self, Self::Told(UnknownTopic | UnknownTopicOrPartition | UnknownPartition))
    }

    /// Says what it means for a message to a topic.
    pub(super) fn meaning(&self, topic: &str) -> HandlerError {
        use RDKafkaErrorCode::{
            ClusterAuthorizationFailed, InvalidMessageSize, InvalidRecord, InvalidTopic, MessageSizeTooLarge,
            PurgeInflight, PurgeQueue, TopicAuthorizationFailed,
        };
        let code = match self {
            Self::Dropped | Self::Told(PurgeQueue | PurgeInflight) => {
                return HandlerError::Failed(format!("the message to {topic} was given up with its client"));
            }
            Self::Told(code) => code,
        };
        match code {
            _ if self.is_unknown_topic() => HandlerError::Failed(format!(
                "there is no topic {topic}: make it, or let the brokers, by auto.create.topics.enable"
            )),
            MessageSizeTooLarge | InvalidMessageSize => HandlerError::TooLarge(format!(
                "the message to {topic} is larger than Kafka takes there: `max.message.bytes` of the topic says how large"
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
    fn an_answer_means_again_smaller_or_never() {
        use RDKafkaErrorCode::{
            ClusterAuthorizationFailed, InvalidRecord, MessageSizeTooLarge, NotEnoughReplicas, PurgeQueue,
            TopicAuthorizationFailed, UnknownTopic, UnknownTopicOrPartition,
        };
        for (code, kind, text) in [
            (UnknownTopic, "Failed", "there is no topic t: make it"),
            (UnknownTopicOrPartition, "Failed", "there is no topic t: make it"),
            (TopicAuthorizationFailed, "Failed", "the right Write"),
            (ClusterAuthorizationFailed, "Failed", "idempotent = false"),
            (NotEnoughReplicas, "Failed", "did not store a message to t"),
            (PurgeQueue, "Failed", "given up with its client"),
            (MessageSizeTooLarge, "TooLarge", "larger than Kafka takes"),
            (InvalidRecord, "Rejected", "refused a message to t"),
        ] {
            let meaning = Failure::of(&KafkaError::MessageProduction(code)).meaning("t");
            assert!(format!("{meaning:?}").starts_with(kind), "{meaning:?}");
            assert!(meaning.to_string().contains(text), "{meaning}");
        }
        assert!(matches!(Failure::Dropped.meaning("t"), HandlerError::Failed(_)));
    }
}
