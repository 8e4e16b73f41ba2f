//! Creation of the stream, and checks of an existing one.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};

use super::{ExpectLast, JetStreamOptions, wildcard};

/// Returns the configuration of the stream to create.
pub(super) fn wanted(options: &JetStreamOptions, wildcard: &str) -> Config {
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
pub(super) fn check(found: &Config, options: &JetStreamOptions, wildcard: &str) -> Result<Vec<String>, String> {
    let mut harmless = Vec::new();
    usable(found, options).map_err(|problem| format!("stream {} {problem}", found.name))?;
    subjects(found, options, wildcard, &mut harmless)?;
    if options.create {
        as_asked(found, options, &mut harmless)?;
    }
    if options.expect_last == ExpectLast::PerSubject && found.max_messages_per_subject > 0 {
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

/// Checks for settings with which no message can be stored reliably.
fn usable(found: &Config, options: &JetStreamOptions) -> Result<(), String> {
    if found.mirror.is_some() {
        return Err("has `mirror`: nothing can be published to it; name the stream that it mirrors".to_owned());
    }
    if found.sealed {
        return Err("has `sealed: true`: nothing can be published to it; name another stream".to_owned());
    }
    if found.no_ack {
        return Err("has `no_ack: true`: stored messages are not acknowledged; set it to false".to_owned());
    }
    if options.expect_last == ExpectLast::PerSubject {
        if found.retention != RetentionPolicy::Limits {
            return Err(format!(
                "has `retention: {:?}`: with expect_last = \"per-subject\" what is stored must stay to be looked up; \
                 use a stream of retention limits, or expect_last = \"off\"",
                found.retention
            ));
        }
        if found.subject_transform.is_some() {
            return Err(
                "has `subject_transform`: with expect_last = \"per-subject\" messages must be found under the \
                        subject they were sent to; remove it, or set expect_last = \"off\""
                    .to_owned(),
            );
        }
    }
    Ok(())
}

fn subjects(
    found: &Config,
    options: &JetStreamOptions,
    wildcard: &str,
    harmless: &mut Vec<String>,
) -> Result<(), String> {
    let missing: Vec<_> = std::iter::once(wildcard)
        .chain(options.subjects.iter().map(String::as_str))
        .filter(|wanted| !found.subjects.iter().any(|there| wildcard::covers(there, wanted)))
        .collect();
    let reaches = |wanted: &&str| found.subjects.iter().any(|there| wildcard::overlap(there, wanted));
    if let Some(wanted) = missing.iter().find(|wanted| !reaches(wanted)) {
        return Err(format!(
            "stream {} has `subjects: {:?}`, none of which takes {wanted}: add it to the stream, or change `subject`",
            found.name, found.subjects
        ));
    }
    if !missing.is_empty() {
        harmless.push(format!("subjects: {:?} cover only a part of {missing:?}", found.subjects));
    }
    Ok(())
}

/// Compares with the stream that would have been created.
fn as_asked(found: &Config, options: &JetStreamOptions, harmless: &mut Vec<String>) -> Result<(), String> {
    let name = &found.name;
    // Zero keeps messages for ever.
    let for_ever = |age: Duration| if age.is_zero() { Duration::MAX } else { age };
    if for_ever(found.max_age) < for_ever(options.max_age) {
        return Err(format!(
            "stream {name} has `max_age: {:?}`, which is less than {:?}: messages would go too early; change the \
             stream or `max_age`",
            found.max_age, options.max_age
        ));
    }
    if found.duplicate_window < options.duplicate_window && options.expect_last == ExpectLast::Off {
        return Err(format!(
            "stream {name} has `duplicate_window: {:?}`, which is less than {:?}: a change may be stored twice; change \
             the stream or `duplicate_window`, or set expect_last = \"per-subject\"",
            found.duplicate_window, options.duplicate_window
        ));
    }
    if found.num_replicas < options.replicas as usize {
        return Err(format!(
            "stream {name} has `num_replicas: {}`, which is less than {}: change the stream or `replicas`",
            found.num_replicas, options.replicas
        ));
    }
    for (field, there, wanted) in [
        ("max_age", found.max_age, options.max_age),
        ("duplicate_window", found.duplicate_window, options.duplicate_window),
    ] {
        if there != wanted {
            harmless.push(format!("{field}: {there:?}, not {wanted:?}"));
        }
    }
    if found.num_replicas != options.replicas as usize {
        harmless.push(format!("num_replicas: {}, not {}", found.num_replicas, options.replicas));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::{Source, SubjectTransform};

    use super::*;

    fn options() -> JetStreamOptions {
        JetStreamOptions { expect_last: ExpectLast::PerSubject, ..JetStreamOptions::new("K8S") }
    }

    /// Checks a stream as it would be created, after `change`.
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

    /// Expected part of a message, and a change of the stream.
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
            assert!(error.starts_with("stream K8S has ") && error.contains(field), "{field}: {error}");
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
}
