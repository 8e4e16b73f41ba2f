//! Parser of a subscriber's request: the query of `/v1/events`.

use std::fmt::Display;

use jiff::Timestamp;

use super::{cursor::Since, filter::SubscriberFilter};
use crate::{
    journal::{ChangeKind, Sequence},
    lister::{LabelSelector, selector::beginning},
    rules::{RuleLimits, Rules, RulesOptions},
    text::parse_duration,
};

/// The known parameters.
const PARAMETERS: &str = "resource, namespace, labelSelector, type, when, since, initial";

/// The kinds of events. In a query, each is named by the last word of its event type.
const KINDS: [ChangeKind; 5] =
    [ChangeKind::Added, ChangeKind::Updated, ChangeKind::Deleted, ChangeKind::Removed, ChangeKind::Synced];

/// Request of one subscriber.
#[derive(Clone, Debug, Default)]
pub struct SubscriberQuery {
    /// Filter of events.
    pub filter: SubscriberFilter,
    /// Start of the stream.
    pub since: Since,
    /// CEL expression; only events for which it is true are sent. It is compiled after the subscriber was admitted.
    pub when: Option<String>,
}

/// Invalid parameter; the message has the found and the expected value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

impl SubscriberQuery {
    /// Parses a query. `Last-Event-ID` takes precedence over `since`: a client that reconnects sends the same URL again, with its
    /// old `since`.
    pub fn parse(query: &str, last_event_id: Option<&str>, now: Timestamp) -> Result<Self, QueryError> {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let filter = &mut parsed.filter;
            match &*name {
                "resource" => filter.resources.extend(listed(&value)),
                "namespace" => filter.namespaces.extend(listed(&value)),
                "labelSelector" => {
                    let labels = LabelSelector::parse(&value);
                    filter.labels = labels.map_err(|error| invalid("labelSelector", &value, error))?;
                }
                "type" => {
                    for word in listed(&value) {
                        filter.kinds.push(kind_or_error(&word)?);
                    }
                }
                "when" => parsed.when = Some(value.into_owned()).filter(|when| !when.trim().is_empty()),
                "since" => parsed.since = since("since", &value, now)?,
                "initial" => filter.initial = truth(&value)?,
                _ => {
                    let name = beginning(&name);
                    return Err(QueryError(format!("unknown parameter {name:?}: expected one of {PARAMETERS}")));
                }
            }
        }
        if let Some(id) = last_event_id.map(str::trim).filter(|id| !id.is_empty()) {
            parsed.since = since("Last-Event-ID", id, now)?;
        }
        Ok(parsed)
    }
}

fn listed(value: &str) -> impl Iterator<Item = String> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned)
}

fn invalid(parameter: &str, found: &str, expected: impl Display) -> QueryError {
    QueryError(format!("{parameter}: Invalid value: {:?}: {expected}", beginning(found)))
}

/// Compiles the expression of a client; `cluster` is the value of its variable `cluster`.
pub(super) fn compile(when: &str, cluster: &str) -> Result<Rules, QueryError> {
    let options = RulesOptions {
        when: Some(when.to_owned()),
        cluster: cluster.to_owned(),
        limits: RuleLimits::CLIENT,
        ..RulesOptions::default()
    };
    Rules::compile(options).map_err(|error| invalid("when", when, error))
}

/// Returns the kind of events with this name.
pub(crate) fn kind(word: &str) -> Option<ChangeKind> {
    KINDS.into_iter().find(|kind| kind.as_str() == word)
}

fn kind_or_error(word: &str) -> Result<ChangeKind, QueryError> {
    let expected = || format!("expected one of {}", KINDS.map(ChangeKind::as_str).join(", "));
    kind(word).ok_or_else(|| invalid("type", word, expected()))
}

fn truth(value: &str) -> Result<bool, QueryError> {
    match value {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(invalid("initial", value, "expected true or false")),
    }
}

/// Parses `<journal>.<sequence>`, a sequence, a duration before now, or a time.
fn since(parameter: &str, value: &str, now: Timestamp) -> Result<Since, QueryError> {
    let value = value.trim();
    let text = value.to_owned();
    let (journal, digits) = match value.split_once('.') {
        Some((journal, digits)) if !journal.is_empty() && journal.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            (Some(journal.to_owned()), digits)
        }
        _ => (None, value),
    };
    if digits.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(sequence) = digits.parse()
    {
        return Ok(Since::Place { journal, sequence: Sequence(sequence), text });
    }
    let ago = || now.checked_sub(parse_duration(value)?).ok();
    let time = value.parse::<Timestamp>().ok().or_else(ago).ok_or_else(|| {
        let expected = "expected JOURNAL.SEQUENCE as `id:` has it, a sequence, a duration such as 5m or 1d, or a time such as \
                        2026-11-21T06:40:03Z";
        invalid(parameter, value, expected)
    })?;
    Ok(Since::Time { micros: time.as_microsecond(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-21T06:40:00Z".parse().unwrap()
    }

    fn parse(query: &str) -> Result<SubscriberQuery, String> {
        SubscriberQuery::parse(query, None, now()).map_err(|error| error.to_string())
    }

    fn since_of(value: &str) -> Result<Since, String> {
        parse(&format!("since={value}")).map(|query| query.since)
    }

    #[test]
    fn list_parameters_are_repeated_or_comma_separated() {
        let query =
            parse("resource=pods,deployments.apps&resource=nodes&namespace=a&namespace=b&type=added,deleted").unwrap();
        assert_eq!(query.filter.resources, ["pods", "deployments.apps", "nodes"]);
        assert_eq!(query.filter.namespaces, ["a", "b"]);
        assert_eq!(query.filter.kinds, [ChangeKind::Added, ChangeKind::Deleted]);
        assert!(!query.filter.initial && query.since == Since::Now);
        assert!(parse("initial=true").unwrap().filter.initial);
        let labels = |query: &str| parse(query).unwrap().filter.labels;
        assert_eq!(labels("labelSelector=app%3Dweb"), LabelSelector::parse("app=web").unwrap());
        assert_eq!(labels("labelSelector=%20"), LabelSelector::default());
        let when = "type == 'added' && cluster == 'prod'";
        let query = parse("when=type%20%3D%3D%20'added'%20%26%26%20cluster%20%3D%3D%20'prod'").unwrap();
        assert_eq!(query.when.as_deref(), Some(when));
        assert!(compile(when, "prod").is_ok());
        assert_eq!(parse("when=%20").unwrap().when, None);
    }

    #[test]
    fn invalid_query_is_refused_with_expectation() {
        for (query, expected) in [
            ("resources=pods", "unknown parameter \"resources\": expected one of resource, namespace"),
            (
                "type=modified",
                "type: Invalid value: \"modified\": expected one of added, updated, deleted, removed, synced",
            ),
            ("initial=yes", "initial: Invalid value: \"yes\": expected true or false"),
            ("since=yesterday", "since: Invalid value: \"yesterday\": expected JOURNAL.SEQUENCE"),
            ("since=-5m", "since: Invalid value: \"-5m\""),
            ("since=1mo", "since: Invalid value: \"1mo\": expected JOURNAL.SEQUENCE"),
            ("since=99999999d", "since: Invalid value: \"99999999d\""),
            ("since=a.b", "since: Invalid value: \"a.b\""),
            ("since=99999999999999999999999", "since: Invalid value"),
            ("labelSelector=a%20in", "labelSelector: Invalid value: \"a in\""),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.starts_with(expected), "{query}: {error}");
        }
        let long = "x".repeat(60_000);
        for (query, expected) in [
            (format!("type={long}"), "x…\": expected one of added"),
            (format!("{long}=1"), "x…\": expected one of resource"),
            (format!("labelSelector={long}+in"), "x…\" at byte 0: not a label key: \"xxx"),
        ] {
            let error = parse(&query).unwrap_err();
            assert!(error.len() < 800 && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn client_expression_has_narrow_limits() {
        let refused = |when: &str| compile(when, "prod").unwrap_err().to_string();
        assert!(refused("objct.kind").starts_with("when: Invalid value: \"objct.kind\": line 1, column 1: "));
        for (when, expected) in [
            ("object.a.all(x, x.all(y, y > 1))", "macros are nested too deeply, expected a depth of 1 at most"),
            ("'x'.matches(object.a)", "`matches` takes only a literal pattern here"),
            ("'x'.matches('(a{1000}){1000}')", "`matches`: Compiled regex exceeds size limit of 262144 bytes"),
        ] {
            assert!(refused(when).contains(expected), "{when}: {}", refused(when));
        }
        let patterns = |count: usize| {
            let patterns: Vec<_> = (0..count).map(|number| format!("'x'.matches('{number}')")).collect();
            compile(&patterns.join("||"), "prod")
        };
        assert!(patterns(8).is_ok());
        assert!(patterns(9).unwrap_err().to_string().contains("too many patterns, expected 8 at most"));
        assert!(compile("object.a.filter(x, x > 1).exists(x, x > 2)", "prod").is_ok());
    }

    #[test]
    fn since_is_position_duration_or_time() {
        let position = |journal: Option<&str>, sequence, text: &str| {
            let journal = journal.map(str::to_owned);
            Ok(Since::Place { journal, sequence: Sequence(sequence), text: text.to_owned() })
        };
        assert_eq!(since_of("00000000000000000042"), position(None, 42, "00000000000000000042"));
        assert_eq!(since_of("9f2c41d07b6e.00042"), position(Some("9f2c41d07b6e"), 42, "9f2c41d07b6e.00042"));
        let time = |text: &str, at: &str| {
            let micros = at.parse::<Timestamp>().unwrap().as_microsecond();
            Ok(Since::Time { micros, text: text.to_owned() })
        };
        assert_eq!(since_of("5m"), time("5m", "2026-11-21T06:35:00Z"));
        assert_eq!(since_of("1.5h"), time("1.5h", "2026-11-21T05:10:00Z"));
        assert_eq!(since_of("1d"), time("1d", "2026-11-20T06:40:00Z"));
        assert_eq!(since_of("1w 12h"), time("1w 12h", "2026-11-13T18:40:00Z"));
        assert_eq!(since_of("2026-11-21T06:00:00Z"), time("2026-11-21T06:00:00Z", "2026-11-21T06:00:00Z"));
    }

    #[test]
    fn last_event_id_overrides_since() {
        let query = SubscriberQuery::parse("since=5m", Some("ab12.7"), now()).unwrap();
        let Since::Place { sequence, .. } = query.since else { panic!("{query:?}") };
        assert_eq!(sequence, Sequence(7));
        let error = SubscriberQuery::parse("", Some("nonsense"), now()).unwrap_err().to_string();
        assert!(error.starts_with("Last-Event-ID: Invalid value"), "{error}");
    }
}
