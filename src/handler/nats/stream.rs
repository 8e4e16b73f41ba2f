//! Creation of the stream, and checks of an existing one.

use std::{fmt::Debug, time::Duration};

use async_nats::jetstream::{
    Context, ErrorCode,
    context::{GetStreamError, GetStreamErrorKind},
    stream::{Config, RetentionPolicy, StorageType, Stream},
};

use super::{ExpectLast, JetStreamOptions};
use crate::handler::HandlerError;

/// Creates the stream, or checks the existing one. `wildcard` matches all subjects of the handler.
pub(super) async fn open(
    context: &Context,
    options: &JetStreamOptions,
    wildcard: &str,
) -> Result<Stream, HandlerError> {
    let name = &options.stream;
    let stream = match context.get_stream(name).await {
        Ok(found) => Ok(found),
        Err(error) => match code_of(&error) {
            Some(ErrorCode::STREAM_NOT_FOUND) if options.create => {
                let created = context.create_stream(wanted(options, wildcard)).await;
                let created = created.inspect(|_| tracing::info!(stream = %name, "created the stream"));
                created.map_err(|error| format!("failed to create the stream {name}: {error}"))
            }
            Some(ErrorCode::STREAM_NOT_FOUND) => {
                Err(format!("stream {name} does not exist: create it, or set create = true"))
            }
            Some(ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT) => {
                let advice = "enable it, or remove [handlers.*.jetstream]";
                Err(format!("JetStream is not enabled for this account: {advice}"))
            }
            _ => {
                let advice = "check that JetStream is enabled, and that the user may read streams";
                Err(format!("failed to read stream {name}: {error}; {advice}"))
            }
        },
    };
    let stream = stream.map_err(HandlerError::Failed)?;
    let harmless = check(&stream.cached_info().config, options, wildcard)
        .map_err(|problem| HandlerError::Failed(format!("stream {name} {problem}")))?;
    for difference in harmless {
        tracing::warn!(stream = %name, difference, "the stream differs from the configuration, but can be used");
    }
    Ok(stream)
}

/// Returns the server's error code, if the server gave one.
fn code_of(error: &GetStreamError) -> Option<ErrorCode> {
    if let GetStreamErrorKind::JetStream(answer) = error.kind() { Some(answer.error_code()) } else { None }
}

/// Returns the maximum message size of a stream.
pub(super) fn message_max(stream: &Stream) -> usize {
    usize::try_from(stream.cached_info().config.max_message_size).ok().filter(|max| *max > 0).unwrap_or(usize::MAX)
}

/// Returns the configuration of the stream to create.
fn wanted(options: &JetStreamOptions, wildcard: &str) -> Config {
    let subjects = if options.subjects.is_empty() { vec![wildcard.to_owned()] } else { options.subjects.clone() };
    Config {
        name: options.stream.clone(),
        subjects,
        max_age: options.max_age,
        duplicate_window: options.duplicate_window,
        num_replicas: options.replicas as usize,
        ..Config::default()
    }
}

/// Checks an existing stream. Returns the harmless differences.
///
/// # Errors
/// Returns a harmful difference: the field, both values, and the remedy.
fn check(found: &Config, options: &JetStreamOptions, wildcard: &str) -> Result<Vec<String>, String> {
    let is_conditional = options.expect_last == ExpectLast::PerSubject;
    let retention = format!("retention: {:?}", found.retention);
    // With these settings, no message can be stored reliably.
    let unusable = [
        (found.mirror.is_some(), "mirror", "nothing can be published to it; name the stream that it mirrors"),
        (found.sealed, "sealed: true", "nothing can be published to it; name another stream"),
        (found.no_ack, "no_ack: true", "stored messages are not acknowledged; set it to false"),
        (
            is_conditional && found.retention != RetentionPolicy::Limits,
            retention.as_str(),
            "with expect_last = \"per-subject\" stored messages must be kept for lookups; use a stream of retention \
             limits, or expect_last = \"off\"",
        ),
        (
            is_conditional && found.subject_transform.is_some(),
            "subject_transform",
            "with expect_last = \"per-subject\" messages must be found under the subject they were sent to; remove \
             it, or set expect_last = \"off\"",
        ),
    ];
    if let Some((_, setting, problem)) = unusable.iter().find(|(is_set, ..)| *is_set) {
        return Err(format!("has `{setting}`: {problem}"));
    }
    let mut harmless = Vec::new();
    harmless.extend(subjects(found, options, wildcard)?);
    if options.create {
        harmless.extend(as_asked(found, options)?);
    }
    if is_conditional && found.max_messages_per_subject > 0 {
        harmless.push(format!(
            "max_msgs_per_subject: {}: dropped messages cannot be looked up, so a change may be stored twice",
            found.max_messages_per_subject
        ));
    }
    if found.storage == StorageType::Memory {
        harmless.push("storage: memory: a restart of the server loses acknowledged messages".to_owned());
    }
    Ok(harmless)
}

/// Compares the subjects of the existing stream with the wanted subjects. Returns a harmless difference, if there is one.
fn subjects(found: &Config, options: &JetStreamOptions, wildcard: &str) -> Result<Option<String>, String> {
    let wanted = std::iter::once(wildcard).chain(options.subjects.iter().map(String::as_str));
    let is_missing = |wanted: &&str| !found.subjects.iter().any(|there| covers(there, wanted));
    let missing: Vec<_> = wanted.filter(is_missing).collect();
    let is_out_of_reach = |wanted: &&&str| !found.subjects.iter().any(|there| overlap(there, wanted));
    if let Some(wanted) = missing.iter().find(is_out_of_reach) {
        return Err(format!(
            "has `subjects: {:?}`, none of which takes {wanted}: add it to the stream, or change `subject`",
            found.subjects
        ));
    }
    Ok((!missing.is_empty()).then(|| format!("subjects: {:?} cover only a part of {missing:?}", found.subjects)))
}

/// Returns true if `wildcard` matches `subject`. If `subject` is a wildcard too, all its subjects must match.
fn covers(wildcard: &str, subject: &str) -> bool {
    let (mut wildcard, mut subject) = (wildcard.split('.'), subject.split('.'));
    loop {
        match (wildcard.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Returns true if at least one subject matches both wildcards.
fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

/// Compares the existing stream with the options. Returns the harmless differences.
fn as_asked(found: &Config, options: &JetStreamOptions) -> Result<Vec<String>, String> {
    // Zero keeps messages for ever.
    let for_ever = |age: Duration| if age.is_zero() { Duration::MAX } else { age };
    let mut harmless = Vec::new();
    let mut compare = |field: &str, [there, wanted]: [&dyn Debug; 2], is_harmful: bool, remedy: &str| {
        let [there, wanted] = [there, wanted].map(|value| format!("{value:?}"));
        if is_harmful {
            return Err(format!("has `{field}: {there}`, which is less than {wanted}: {remedy}"));
        }
        if there != wanted {
            harmless.push(format!("{field}: {there}, not {wanted}"));
        }
        Ok(())
    };
    compare(
        "max_age",
        [&found.max_age, &options.max_age],
        for_ever(found.max_age) < for_ever(options.max_age),
        "messages would be removed too early; change the stream or `max_age`",
    )?;
    compare(
        "duplicate_window",
        [&found.duplicate_window, &options.duplicate_window],
        options.expect_last == ExpectLast::Off && found.duplicate_window < options.duplicate_window,
        "a change may be stored twice; change the stream or `duplicate_window`, or set expect_last = \"per-subject\"",
    )?;
    compare(
        "num_replicas",
        [&found.num_replicas, &options.replicas],
        found.num_replicas < options.replicas as usize,
        "change the stream or `replicas`",
    )?;
    Ok(harmless)
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::{Source, SubjectTransform};

    use super::*;

    fn options() -> JetStreamOptions {
        let stream = "K8S".to_owned();
        JetStreamOptions { stream, expect_last: ExpectLast::PerSubject, ..JetStreamOptions::default() }
    }

    /// Checks the stream that these options create, after `change` has changed it.
    fn look(options: &JetStreamOptions, change: impl FnOnce(&mut Config)) -> Result<Vec<String>, String> {
        let mut found = wanted(options, "k8s.*.*");
        change(&mut found);
        check(&found, options, "k8s.*.*")
    }

    #[test]
    fn created_stream_passes_its_own_check() {
        assert_eq!(look(&options(), |_| {}), Ok(vec![]));
        let own = JetStreamOptions { subjects: vec!["k8s.>".to_owned()], ..options() };
        assert_eq!(look(&own, |_| {}), Ok(vec![]));
    }

    /// Expected part of the error text, and a change of the stream.
    type Case = (&'static str, Box<dyn FnOnce(&mut Config)>);

    #[test]
    fn harmful_difference_is_error_naming_field() {
        let transform = SubjectTransform { source: ">".to_owned(), destination: "x.>".to_owned() };
        let cases: Vec<Case> = vec![
            ("`mirror`", Box::new(|found| found.mirror = Some(Source::default()))),
            ("`sealed: true`", Box::new(|found| found.sealed = true)),
            ("`no_ack: true`", Box::new(|found| found.no_ack = true)),
            ("`retention: WorkQueue`", Box::new(|found| found.retention = RetentionPolicy::WorkQueue)),
            ("`subject_transform`", Box::new(|found| found.subject_transform = Some(transform))),
            ("`subjects: [\"other.>\"]`", Box::new(|found| found.subjects = vec!["other.>".to_owned()])),
            ("`max_age: 3600s`", Box::new(|found| found.max_age = Duration::from_hours(1))),
        ];
        for (field, change) in cases {
            let error = look(&options(), change).unwrap_err();
            assert!(error.starts_with("has ") && error.contains(field), "{field}: {error}");
        }
        let three = JetStreamOptions { replicas: 3, ..options() };
        assert!(look(&three, |found| found.num_replicas = 1).unwrap_err().contains("`num_replicas: 1`"));
        let off = JetStreamOptions { expect_last: ExpectLast::Off, ..options() };
        let short = |found: &mut Config| found.duplicate_window = Duration::from_secs(1);
        assert!(look(&off, short).unwrap_err().contains("`duplicate_window: 1s`"));
    }

    #[test]
    fn harmless_difference_is_reported() {
        let cases: Vec<Case> = vec![
            ("max_age: 0ns", Box::new(|found| found.max_age = Duration::ZERO)),
            ("duplicate_window: 1s", Box::new(|found| found.duplicate_window = Duration::from_secs(1))),
            ("num_replicas: 3", Box::new(|found| found.num_replicas = 3)),
            ("storage: memory", Box::new(|found| found.storage = StorageType::Memory)),
            ("max_msgs_per_subject: 1", Box::new(|found| found.max_messages_per_subject = 1)),
            ("subjects: [\"k8s.x.*\"]", Box::new(|found| found.subjects = vec!["k8s.x.*".to_owned()])),
        ];
        for (field, change) in cases {
            let harmless = look(&options(), change).unwrap();
            assert!(harmless.len() == 1 && harmless[0].starts_with(field), "{field}: {harmless:?}");
        }
    }

    #[test]
    fn foreign_stream_is_not_compared_with_defaults() {
        let given = JetStreamOptions { create: false, ..options() };
        assert_eq!(look(&given, |found| found.max_age = Duration::from_secs(1)), Ok(vec![]));
    }

    #[test]
    fn wildcards_cover_and_overlap_like_server() {
        for (wildcard, subject, is_covered, overlaps) in [
            ("k8s.>", "k8s.*.*", true, true),
            ("k8s.*.*", "k8s.>", false, true),
            ("k8s.*", "k8s.*.*", false, false),
            ("k8s.*.apps", "k8s.*.*", false, true),
            ("k8s.>", "k8s", false, false),
            ("other.>", "k8s.*", false, false),
            (">", "k8s.*", true, true),
        ] {
            assert_eq!(covers(wildcard, subject), is_covered, "{wildcard} {subject}");
            assert_eq!(overlap(wildcard, subject), overlaps, "{wildcard} {subject}");
        }
    }
}
