//! Error codes of messages that were not stored, and the handler errors that they cause.

use rdkafka::{error::KafkaError, types::RDKafkaErrorCode};

use crate::handler::HandlerError;

/// Returns the code of an error of the client.
pub(super) fn code_of(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)
}

/// Returns true if the client does not know the topic. The client must then ask the brokers for the topic again.
pub(super) fn is_unknown_topic(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{UnknownPartition, UnknownTopic, UnknownTopicOrPartition};
    matches!(code, UnknownTopic | UnknownTopicOrPartition | UnknownPartition)
}

/// Returns the handler's error for a message to this topic that failed with this code.
pub(super) fn meaning(code: RDKafkaErrorCode, topic: &str) -> HandlerError {
    use RDKafkaErrorCode::{
        ClusterAuthorizationFailed, InvalidMessageSize, InvalidRecord, InvalidTopic, MessageSizeTooLarge,
        PurgeInflight, PurgeQueue, TopicAuthorizationFailed,
    };
    let refused = format!("Kafka refused a message to {topic}: {code}");
    HandlerError::Failed(match code {
        PurgeQueue | PurgeInflight => format!("the message to {topic} was dropped because its client was closed"),
        _ if is_unknown_topic(code) => {
            format!("topic {topic} does not exist: create it, or set auto.create.topics.enable on the brokers")
        }
        MessageSizeTooLarge | InvalidMessageSize => {
            let limit = "see `max.message.bytes` of the topic";
            return HandlerError::TooLarge(format!("the message to {topic} is larger than Kafka accepts: {limit}"));
        }
        InvalidRecord | InvalidTopic => return HandlerError::Rejected(refused),
        TopicAuthorizationFailed => format!("{refused}; give the user the right Write on the topic"),
        ClusterAuthorizationFailed => {
            format!("{refused}; give the user the right IdempotentWrite on the cluster, or set idempotent = false")
        }
        _ => format!("Kafka did not store a message to {topic}: {code}"),
    })
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
            let meaning = meaning(code_of(&KafkaError::MessageProduction(code)), "t");
            assert!(format!("{meaning:?}").starts_with(kind), "{meaning:?}");
            assert!(meaning.to_string().contains(text), "{meaning}");
        }
    }
}
