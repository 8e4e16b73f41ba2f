//! Texts of the configuration: rates, paths, patterns, and the check of a text against its format.

use std::{net::SocketAddr, time::Duration};

use super::{FileFsync, Fsync, Permissions, TypePattern};
pub(crate) use crate::text::{Format, Optional, Text, Textual, parse_duration, print_duration};
use crate::{
    delivery::pace::Rate,
    indexer::index_func::NAMESPACE_INDEX,
    lister::selector::{FieldSelector, LabelSelector},
    object::{FieldPath, PathStep},
    rules::{Rules, RulesOptions},
    scope::Namespaces,
    text::parse_size,
};

/// Maximum number of deliveries in a rate: the engine keeps the time of each of these deliveries in memory.
const RATE_MAX: u32 = 100_000;

const RATE_UNITS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_mins(1)), ("h", Duration::from_hours(1))];

impl Textual for Option<Rate> {
    const FORMAT: Format = Format::Rate;

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(None);
        }
        let (count, unit) = text.split_once('/')?;
        let (_, period) = RATE_UNITS.iter().find(|(known, _)| *known == unit.trim())?;
        let count = count.trim();
        let digits = count.bytes().all(|byte| byte.is_ascii_digit()).then_some(count)?;
        let deliveries = digits.parse().ok().filter(|count| (1..=RATE_MAX).contains(count))?;
        Some(Some(Rate { deliveries, period: *period }))
    }

    fn print(&self) -> String {
        let Some(Rate { deliveries, period }) = self else { return String::new() };
        let unit = RATE_UNITS.iter().find(|(_, known)| known == period).map_or("s", |(unit, _)| unit);
        format!("{deliveries}/{unit}")
    }
}

impl Textual for FileFsync {
    const FORMAT: Format = Format::Fsync;

    fn parse(text: &str) -> Option<Self> {
        match text {
            "always" => Some(Self::Always),
            "never" => Some(Self::Never),
            interval => parse_duration(interval).filter(|interval| !interval.is_zero()).map(Self::Interval),
        }
    }

    fn print(&self) -> String {
        match self {
            Self::Always => "always".to_owned(),
            Self::Never => "never".to_owned(),
            Self::Interval(interval) => print_duration(*interval),
        }
    }
}

impl Textual for Fsync {
    const FORMAT: Format = Format::Commit;

    fn parse(text: &str) -> Option<Self> {
        match text {
            "group" => Some(Self::Group),
            interval => parse_duration(interval).filter(|interval| !interval.is_zero()).map(Self::Interval),
        }
    }

    fn print(&self) -> String {
        match self {
            Self::Group => "group".to_owned(),
            Self::Interval(interval) => print_duration(*interval),
        }
    }
}

impl Textual for Permissions {
    const FORMAT: Format = Format::Permissions;

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        if digits.len() != 3 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let bits = u32::from_str_radix(digits, 8).ok()?;
        (bits & OWNER_READS_AND_WRITES == OWNER_READS_AND_WRITES).then_some(Self(bits))
    }

    fn print(&self) -> String {
        format!("{:04o}", self.0)
    }
}

const OWNER_READS_AND_WRITES: u32 = 0o600;

/// Default of options that are on unless they are set.
pub(crate) fn yes() -> bool {
    true
}

/// Default of options that name entries: all entries.
pub(crate) fn all() -> Vec<String> {
    vec!["*".to_owned()]
}

/// Checks a text against its format; the error contains the problem and the expected form.
pub(crate) fn check(format: Format, text: &str) -> Result<(), String> {
    let fine = match format {
        Format::Duration => parse_duration(text).is_some(),
        Format::Size => parse_size(text).is_some(),
        Format::Rate => Option::<Rate>::parse(text).is_some(),
        Format::Fsync => FileFsync::parse(text).is_some(),
        Format::Permissions => Permissions::parse(text).is_some(),
        Format::Commit => Fsync::parse(text).is_some(),
        Format::Address => Option::<SocketAddr>::parse(text).is_some(),
        Format::TypePattern => return said(TypePattern::parse(text)),
        Format::Namespace => return said(Namespaces::parse(&[text])),
        Format::FieldPath => return check_dropped(text),
        Format::Index if text == NAMESPACE_INDEX => true,
        Format::ChangedPath | Format::IgnoredPath | Format::Index => return said(FieldPath::parse(text)),
        Format::LabelSelector => return said(LabelSelector::parse(text)),
        Format::FieldSelector => return said(FieldSelector::parse(text)),
        Format::ResourceNames => return check_glob(text),
        Format::PathTemplate => return check_path_template(text),
        Format::Rule => return check_rule(text),
        Format::Condition if text.is_empty() => true,
        Format::Condition => return said(Rules::condition(text, "")),
        Format::ClusterName => !text.chars().any(|c| c.is_whitespace() || c.is_control()),
    };
    if fine { Ok(()) } else { Err(format.unlike(text)) }
}

fn said<T, E: std::fmt::Display>(read: Result<T, E>) -> Result<(), String> {
    read.map(drop).map_err(|error| error.to_string())
}

/// Checks the rule of a handler.
fn check_rule(text: &str) -> Result<(), String> {
    let when = (!text.trim().is_empty()).then(|| text.to_owned());
    said(Rules::compile(RulesOptions { when, ..RulesOptions::default() }))
}

/// Checks a path whose values will be cut or redacted. It must not cover the identity of objects.
fn check_dropped(text: &str) -> Result<(), String> {
    let path = FieldPath::parse(text).map_err(|error| error.to_string())?;
    if let Some(member) = identity_cut_by(&path) {
        return Err(format!("{text:?} covers {member}, which identifies objects: expected another path"));
    }
    Ok(())
}

/// Returns the member of an object's identity that a path covers, if it covers one.
fn identity_cut_by(path: &FieldPath) -> Option<&'static str> {
    const OF_METADATA: [(&str, &str); 4] = [
        ("name", "metadata.name"),
        ("namespace", "metadata.namespace"),
        ("uid", "metadata.uid"),
        ("resourceVersion", "metadata.resourceVersion"),
    ];
    let is = |step: &PathStep, name: &str| match step {
        PathStep::Member(member) => **member == *name,
        PathStep::Each => true,
    };
    match path.steps() {
        [first] => ["apiVersion", "kind", "metadata"].into_iter().find(|name| is(first, name)),
        [first, second] if is(first, "metadata") => {
            OF_METADATA.into_iter().find(|(name, _)| is(second, name)).map(|(_, member)| member)
        }
        _ => None,
    }
}

/// Returns true if names and globs of `[resources.*]` entries select this entry. `!` before a name or glob excludes,
/// with precedence.
pub(crate) fn means_entry(patterns: &[String], entry: &str) -> bool {
    let matches = |glob: &str| globset::Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(entry));
    let (excludes, includes): (Vec<&String>, Vec<&String>) =
        patterns.iter().partition(|pattern| pattern.starts_with('!'));
    // A list of exclusions alone selects all other entries.
    let is_taken = includes.iter().any(|glob| matches(glob)) || includes.is_empty() && !excludes.is_empty();
    is_taken && !excludes.iter().any(|glob| matches(&glob[1..]))
}

fn check_glob(text: &str) -> Result<(), String> {
    let glob = text.strip_prefix('!').unwrap_or(text);
    if glob.is_empty() {
        return Err(Format::ResourceNames.unlike(text));
    }
    globset::Glob::new(glob).map(drop).map_err(|error| format!("invalid glob {text:?}: {}", error.kind()))
}

fn check_path_template(text: &str) -> Result<(), String> {
    if text.is_empty() || text.ends_with('/') {
        return Err(Format::PathTemplate.unlike(text));
    }
    let any_day = jiff::Timestamp::UNIX_EPOCH.to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(text, &any_day).map(drop).map_err(|error| format!("invalid path {text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strum::VariantArray as _;

    use super::*;
    use crate::text::print_size;

    #[test]
    fn durations_have_units_and_are_not_negative() {
        let seconds = |text| parse_duration(text).map(|duration| duration.as_secs_f64());
        for (text, expected) in [("0s", 0.0), ("800ms", 0.8), ("5m", 300.0), ("1h30m", 5400.0), ("7d", 604_800.0)] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for text in ["", "5", "m", "-5m", "1mo", "1y", "5 bananas", "PT5M", "5m ago", "99999999999999999999s"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_units_and_are_positive() {
        for (text, expected) in [("1B", 1), ("64MiB", 64 << 20), ("1 GB", 1_000_000_000), ("4TiB", 4 << 40)] {
            assert_eq!(parse_size(text), Some(expected), "{text}");
        }
        for text in ["", "B", "1", "0MiB", "-1B", "1.5GiB", "1mib", "+1B", "99999999TiB", "MiB64"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_per_second_minute_or_hour() {
        for (text, deliveries, seconds) in [("20/s", 20, 1), ("600/m", 600, 60), ("5000 / h", 5_000, 3_600)] {
            let rate = Option::<Rate>::parse(text).unwrap();
            assert_eq!(rate, Some(Rate { deliveries, period: Duration::from_secs(seconds) }), "{text}");
            assert_eq!(Textual::parse(&rate.print()), Some(rate));
        }
        for text in ["20", "/s", "0/s", "-1/s", "1.5/s", "20/d", "20/S", "20/s/s", "999999/s", "+1/s"] {
            assert!(check(Format::Rate, text).is_err(), "{text}");
        }
        assert_eq!(check(Format::Rate, ""), Ok(()));
    }

    proptest! {
        #[test]
        fn printed_values_parse_back(seconds in 0..1_000_000_000_u64, nanos in 0..1_000_000_000_u32, bytes in 1..u64::MAX) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&print_duration(duration)), Some(duration));
            prop_assert_eq!(parse_duration(&print_duration(Duration::from_secs(seconds))), Some(Duration::from_secs(seconds)));
            prop_assert_eq!(parse_size(&print_size(bytes)), Some(bytes));
            prop_assert_eq!(parse_size(&print_size(bytes << 20 >> 20 << 10 | 1 << 10)), Some(bytes << 20 >> 20 << 10 | 1 << 10));
        }

        #[test]
        fn no_text_panics_parser(text in ".{0,40}") {
            for format in Format::VARIANTS {
                drop(check(*format, &text));
            }
        }
    }

    #[test]
    fn addresses_have_ip_and_port() {
        for text in ["", "127.0.0.1:8080", "127.8.8.8:0", "[::1]:80", "0.0.0.0:80", "[2001:db8::1]:80"] {
            assert_eq!(check(Format::Address, text), Ok(()), "{text}");
        }
        for text in ["localhost:80", "127.0.0.1", ":80", "127.0.0.1:99999"] {
            assert!(check(Format::Address, text).is_err(), "{text}");
        }
    }

    #[test]
    fn permissions_are_octal_with_owner_access() {
        for (text, expected) in [
            ("0640", Some(0o640)),
            ("600", Some(0o600)),
            ("0777", Some(0o777)),
            ("0440", None),
            ("0o640", None),
            ("1640", None),
            ("0680", None),
            ("06400", None),
            ("+64", None),
            ("", None),
        ] {
            assert_eq!(Permissions::parse(text).map(|permissions| permissions.0), expected, "{text}");
        }
    }

    #[test]
    fn file_fsync_is_word_or_nonzero_interval() {
        for (text, expected) in [
            ("always", Some(FileFsync::Always)),
            ("never", Some(FileFsync::Never)),
            ("250ms", Some(FileFsync::Interval(Duration::from_millis(250)))),
            ("0s", None),
            ("Always", None),
        ] {
            assert_eq!(FileFsync::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn paths_and_selectors_are_checked_for_shape() {
        #[track_caller]
        fn check_all(format: Format, fine: &[&str], wrong: &[&str]) {
            for text in fine {
                assert_eq!(check(format, text), Ok(()), "{text}");
            }
            for text in wrong {
                assert!(check(format, text).is_err(), "{text}");
            }
        }
        let paths = ["spec", "a.b-c", "a['b.c/d'].e", "a[*].b", "['a']", "a.*.b", "labels['app']", "metadata.labels"];
        check_all(Format::FieldPath, &paths, &["", ".a", "a.", "a..b", "a[0]", "a['b'", "a b", "a['b']c"]);
        check_all(Format::IgnoredPath, &["metadata.resourceVersion", "status.a[*].b"], &["", ".a", "a[0]"]);
        check_all(Format::Index, &["owner", "namespace", "spec.nodeName", "metadata.uid"], &["", "a..b"]);
        let labels = ["", "a=b", "a", "!a", "a in (b,c),d notin (e)", "x.io/a!=b", "a>1"];
        check_all(Format::LabelSelector, &labels, &["a,", ",", "a in (b", "a)", "a in ((b))", "a=ä"]);
        check_all(Format::FieldSelector, &["", "a=b", "a.b!=c,d==e"], &["a", "=b", "a!b"]);
        check_all(Format::ResourceNames, &["*", "pods", "!pod*", "{a,b}"], &["", "!", "[a"]);
        check_all(Format::PathTemplate, &["x", "/a/%Y-%m-%d.jsonl"], &["", "/a/", "/a/%"]);
        check_all(Format::ChangedPath, &["spec", "metadata.name", "spec.a[*].b"], &["", ".a", "a[0]"]);
        check_all(Format::Rule, &["", "object.kind == 'Pod'", "old == null"], &["pod.kind == 'Pod'", "1", "a =="]);
        check_all(Format::Condition, &["", "object.kind == cluster"], &["old == null", "1", " "]);
        check_all(Format::ClusterName, &["", "prod-eu1", "arn:aws:eks:x:1:cluster/y"], &["a b", "a\n"]);
    }

    #[test]
    fn identity_fields_cannot_be_dropped() {
        for (text, member) in [
            ("metadata", "metadata"),
            ("kind", "kind"),
            ("['apiVersion']", "apiVersion"),
            ("*", "apiVersion"),
            ("metadata.name", "metadata.name"),
            ("metadata['uid']", "metadata.uid"),
            ("metadata.resourceVersion", "metadata.resourceVersion"),
            ("metadata.*", "metadata.name"),
            ("*.namespace", "metadata.namespace"),
        ] {
            let error = check(Format::FieldPath, text).unwrap_err();
            assert!(error.contains(&format!("covers {member}, which")), "{text}: {error}");
            assert_eq!(check(Format::Index, text), Ok(()), "{text}");
        }
        for text in ["metadata.name.x", "spec.name", "metadata.ownerReferences[*].uid", "owner", "*.status"] {
            assert_eq!(check(Format::FieldPath, text), Ok(()), "{text}");
        }
    }
}
