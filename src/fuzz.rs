//! Fuzz targets: code that reads bytes or texts from outside, with properties that hold for any input.
//!
//! `cargo test` runs each target over the inputs in `tests/fuzz/<target>`: seeds, inputs that increased the coverage, and
//! one named input for each past failure. `bash .ci/long fuzz` searches for new inputs.

use std::{str, sync::LazyLock, time::Duration};

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{
    config::Config,
    journal::{ChangeKind, store},
    list_watch::decode::{
        decode_status,
        tests::{list, pieces, refuses_sooner, show_page, watch},
    },
    lister::{FieldSelector, LabelSelector},
    object::{
        FieldPath, Object, Plucker,
        scan::{
            self, ScanPlan, scan_object,
            testing::{Writer, pod},
            tests::{pod_type, values},
        },
    },
    rules::{RuleLimits, Rules, RulesOptions, cpu_time},
    scope::Namespaces,
    serve::kube_api,
    subscribe::{cursor::Since, query::SubscriberQuery},
};

/// Runs a target over its committed inputs. Prints the name of each file before its input runs: if an input fails, its file is the
/// last one printed.
#[cfg(not(fuzzing))]
fn check(name: &str, target: fn(&[u8])) {
    let inputs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(name);
    let mut files = 0;
    for input in std::fs::read_dir(&inputs).expect("a target has inputs") {
        let path = input.expect("the inputs are readable").path();
        println!("{}", path.display());
        target(&std::fs::read(&path).expect("the input is readable"));
        files += 1;
    }
    assert!(files > 0, "no inputs in {}", inputs.display());
}

#[cfg(fuzzing)]
use libfuzzer::check;

#[cfg(fuzzing)]
#[expect(unsafe_code, reason = "libFuzzer has a C interface")]
mod libfuzzer {
    use std::{
        env,
        ffi::{CString, c_char, c_int},
        process, ptr, slice,
        sync::OnceLock,
    };

    use libfuzzer_sys as _;

    unsafe extern "C" {
        fn LLVMFuzzerRunDriver(
            argc: *mut c_int,
            argv: *mut *mut *mut c_char,
            target: extern "C" fn(*const u8, usize) -> c_int,
        ) -> c_int;
    }

    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

    extern "C" fn call_target(input: *const u8, len: usize) -> c_int {
        let target = TARGET.get().expect("it is set before libFuzzer runs");
        // SAFETY: libFuzzer lends `len` bytes for the duration of the call.
        target(unsafe { slice::from_raw_parts(input, len) });
        0
    }

    /// Fuzzes the target and ends the process, if the first word of `DELTABUS_FUZZ` is the target's name. The other words
    /// are arguments of libFuzzer.
    pub(super) fn check(name: &str, target: fn(&[u8])) {
        let words = env::var("DELTABUS_FUZZ").unwrap_or_default();
        if words.split(' ').next() != Some(name) {
            return;
        }
        TARGET.get_or_init(|| target);
        let words: Vec<_> = words.split(' ').map(|word| CString::new(word).expect("no NUL in a variable")).collect();
        let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
        let mut argc = c_int::try_from(argv.len()).expect("some words");
        argv.push(ptr::null_mut());
        // SAFETY: `argv` has `argc` words that end with NUL, then a null pointer. All of them live until the call returns.
        process::exit(unsafe { LLVMFuzzerRunDriver(&raw mut argc, &mut argv.as_mut_ptr(), call_target) });
    }
}

/// A pod before and after an update.
static PODS: LazyLock<[Object; 2]> = LazyLock::new(|| {
    let object = |json: String| Object::from_json(json.as_bytes()).expect("a pod");
    [object(pod().replace("Running", "Pending")), object(pod())]
});

/// The pod after the update, as `serde_json` reads it.
static POD_VALUE: LazyLock<Value> = LazyLock::new(|| PODS[1].value().expect("a pod"));

#[test]
fn scan_agrees_with_serde_json() {
    check("scan", scan);
}

/// Paths that a scan can cut out of an object. Each of the lower seven bits of the input's first byte selects one path.
const DROP: [&str; 7] = ["metadata.managedFields", "metadata.*", "metadata", "spec", "status[*].a", "*", "*.*.a"];

fn scan(input: &[u8]) {
    let Some((&choice, json)) = input.split_first() else { return };
    let chosen = |bit: usize| choice >> bit & 1 == 1;
    let drop: Vec<_> = (0..DROP.len()).filter(|bit| chosen(*bit)).map(|bit| path(DROP[bit])).collect();
    let type_meta = chosen(7).then(pod_type);
    scan::tests::check(json, &drop, type_meta.as_ref(), false).unwrap();
    // serde_json writes no repeated keys, so the scan must accept its output.
    if let Ok(value) = serde_json::from_slice::<Value>(json) {
        scan::tests::check(value.to_string().as_bytes(), &drop, type_meta.as_ref(), true).unwrap();
    }
    let mut plan = ScanPlan::new(&drop, type_meta);
    (plan.heeds_opt_out, plan.notes_who_changed) = (true, true);
    let Ok(object) = scan_object(json, &plan) else { return };
    str::from_utf8(&object.json()).unwrap();
    object.labels();
    object.annotations();
    object.owners();
    object.with_writer_since(Some(&object), true).changed_by();
    let paths = ["metadata.labels[*]", "spec", "*.*", "status[*].a"].map(path);
    object.pluck_many(&Plucker::new(&paths));
    let Ok(value) = object.value() else { return };
    // A path plucks all values of a repeated key, but `value` has only the last one.
    let without_repeats = Object::from_json(value.to_string().as_bytes()).unwrap();
    for path in &paths {
        assert_eq!(sorted(without_repeats.pluck(path)), sorted(values(&value, path.steps())), "{path}");
    }
}

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).expect("a valid path")
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

#[test]
fn watch_decoder_survives_any_chunk_boundaries() {
    check("watch", watch_cut);
}

fn watch_cut(input: &[u8]) {
    let Some((mut writer, max, stream)) = chosen(input) else { return };
    let whole = watch([stream], max);
    for cut in [watch(pieces(&mut writer, stream), max), watch(stream.chunks(1), max)] {
        if cut != whole {
            assert!(refuses_sooner(&cut, &whole), "{cut:?}, not {whole:?}");
            assert!(documents(stream) < cut.0.len(), "refused, though serde_json reads it: {cut:?}");
        }
    }
}

/// Splits an input into a random writer, the maximum object size, and the bytes to cut into pieces. The first two bytes of the
/// input are the seed of the writer.
fn chosen(input: &[u8]) -> Option<(Writer, usize, &[u8])> {
    let (seed, bytes) = input.split_first_chunk()?;
    let mut writer = Writer::new(u16::from_le_bytes(*seed).into());
    let max = if writer.one_in(4) { 300 } else { 1 << 20 };
    Some((writer, max, bytes))
}

/// Returns the number of JSON documents at the start of a stream.
fn documents(stream: &[u8]) -> usize {
    serde_json::Deserializer::from_slice(stream).into_iter::<IgnoredAny>().take_while(Result::is_ok).count()
}

#[test]
fn list_decoder_agrees_with_serde_json() {
    check("list", list_cut);
}

fn list_cut(input: &[u8]) {
    let Some((mut writer, max, body)) = chosen(input) else { return };
    let whole = list([body], max);
    for cut in [list(pieces(&mut writer, body), max), list(body.chunks(1), max)] {
        assert_eq!(show_page(&cut), show_page(&whole));
    }
    assert!(decode_status(500, None, body).code > 0);
    let (Ok(page), Ok(value)) = (whole, serde_json::from_slice::<Value>(body)) else { return };
    let items = value["items"].as_array().map_or(0, Vec::len);
    assert_eq!(page.items.len() + usize::try_from(page.rejected).unwrap(), items);
    let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default();
    assert_eq!(page.resource_version.as_str(), text("resourceVersion"));
    assert_eq!(page.continue_token.as_deref().unwrap_or_default(), text("continue"));
}

#[test]
fn record_head_round_trips() {
    check("journal_head", journal_head);
}

/// Checks a journal head; the first eight bytes of the input are the sequence.
fn journal_head(input: &[u8]) {
    if let Some((sequence, value)) = input.split_first_chunk() {
        store::testing::check_head(u64::from_be_bytes(*sequence), value);
    }
}

#[test]
fn record_body_round_trips() {
    check("journal_body", journal_body);
}

fn journal_body(input: &[u8]) {
    store::testing::check_body(input);
    if let Ok(text) = str::from_utf8(input) {
        store::testing::check_text(text);
    }
}

#[test]
fn parsed_selector_round_trips() {
    check("selectors", selectors);
}

fn selectors(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let pod = &PODS[1];
    if let Ok(selector) = LabelSelector::parse(text) {
        let written = selector.to_string();
        assert_eq!(LabelSelector::parse(&written), Ok(selector.clone()), "{written}");
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).map(Some).chain([None]);
        let matched = words.filter(|word| selector.matches_labels(|_| *word)).count();
        assert!(matched == 0 || !selector.is_nothing(), "{text}");
        selector.matches(pod);
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        assert_eq!(FieldSelector::parse(&format!(",{text}, ")), Ok(selector.clone()));
        let twice = FieldSelector::parse(&format!("{text},{text}")).expect("its terms are those of the selector");
        assert_eq!(twice.matches(pod), selector.matches(pod));
    }
    if let Ok(path) = FieldPath::parse(text) {
        assert_eq!(FieldPath::parse(&path.to_string()), Ok(path.clone()));
        assert_eq!(sorted(pod.pluck(&path)), sorted(values(&POD_VALUE, path.steps())));
    }
}

#[test]
fn namespaces_match_their_globs() {
    check("namespaces", namespaces);
}

/// Checks two lists of patterns. Each line is a pattern, and an empty line separates the lists.
fn namespaces(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let (one, other) = text.split_once("\n\n").unwrap_or((text, "*"));
    let [one, other] = [one, other].map(|list| Namespaces::parse(&list.lines().collect::<Vec<_>>()));
    let (Ok(one), Ok(other)) = (one, other) else { return };
    assert_eq!(Namespaces::parse(one.patterns()).as_ref(), Ok(&one));
    let (names, selector) = (one.names(), one.field_selector());
    let excluded: Option<Vec<&str>> = selector.as_deref().map(|terms| terms.split(',').collect());
    let is_disjoint = one.is_disjoint_from(&other);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    for name in words.chain(["a", "kube-system", "team-a"]) {
        let is_meant = one.matches(name);
        assert!(is_meant || !one.is_all(), "{name}");
        assert!(!is_meant || !one.is_nothing(), "{name}");
        assert!(!is_meant || !is_disjoint || !other.matches(name), "{name}");
        assert!(names.as_ref().is_none_or(|names| names.contains(&name) == is_meant), "{name}");
        let term = format!("metadata.namespace!={name}");
        assert!(excluded.as_ref().is_none_or(|terms| terms.contains(&&*term) != is_meant), "{name}");
    }
}

#[test]
fn list_query_round_trips() {
    check("list_query", list_query);
}

fn list_query(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let (path, query) = text.split_once('?').unwrap_or(("", text));
    kube_api::testing::check_path(path);
    kube_api::testing::check_query(query);
}

#[test]
fn json_path_ends_within_its_visits() {
    check("json_path", json_path);
}

fn json_path(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    kube_api::testing::check_json_path(text, &POD_VALUE);
}

#[test]
fn event_query_round_trips() {
    check("event_query", event_query);
}

/// Maximum length of an error answer to an invalid query, in bytes.
const ANSWER_BYTES_MAX: usize = 8 << 10;

/// Checks a query: the first line of the input. The rest of the input, if any, is the header `Last-Event-ID`.
fn event_query(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let (query, id) = text.split_once('\n').map_or((text, None), |(query, id)| (query, Some(id)));
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let parsed = match SubscriberQuery::parse(query, id, now) {
        Ok(parsed) => parsed,
        Err(error) => return assert!(error.to_string().len() <= ANSWER_BYTES_MAX, "{error}"),
    };
    let mut again = form_urlencoded::Serializer::new(String::new());
    again.extend_pairs(parsed.filter.resources.iter().map(|resource| ("resource", resource)));
    again.extend_pairs(parsed.filter.namespaces.iter().map(|namespace| ("namespace", namespace)));
    again.extend_pairs(parsed.filter.kinds.iter().map(|kind| ("type", kind.as_str())));
    again.append_pair("labelSelector", &parsed.filter.labels.to_string());
    again.extend_pairs(parsed.when.iter().map(|when| ("when", when)));
    if let Since::Place { text, .. } | Since::Time { text, .. } = &parsed.since {
        again.append_pair("since", text);
    }
    again.append_pair("initial", &parsed.filter.initial.to_string());
    let again = SubscriberQuery::parse(&again.finish(), None, now).expect("it was understood before");
    assert_eq!(format!("{again:?}"), format!("{parsed:?}"));
}

#[test]
fn accepted_expression_ends_within_its_bounds() {
    check("cel", cel);
}

/// Limit for the CPU time of one evaluation, far above the limit for clients, because test builds are slow.
const EVALUATION_MAX: Duration = Duration::from_secs(1);

fn cel(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let compile = |limits: RuleLimits| {
        let (when, cluster) = (Some(text.to_owned()), "prod".to_owned());
        Rules::compile(RulesOptions { when, cluster, limits, ..RulesOptions::default() })
    };
    let client = compile(RuleLimits::CLIENT);
    let configured = compile(RuleLimits { steps: 10_000, ..RuleLimits::CONFIGURATION });
    assert!(client.is_err() || configured.is_ok(), "clients accept an expression that the configuration rejects");
    let [before, pod] = &*PODS;
    for rules in [client, configured].iter().flatten() {
        for (kind, old) in [(ChangeKind::Added, None), (ChangeKind::Updated, Some(before))] {
            let started = cpu_time();
            let verdict = rules.judge(kind, old, pod);
            let took = cpu_time().saturating_sub(started);
            assert!(took < EVALUATION_MAX, "{took:?}, {verdict:?}");
            assert_ne!(format!("{verdict:?}"), "Error(\"`when`: the evaluation has panicked\")");
        }
    }
}

#[test]
fn loaded_configuration_round_trips() {
    check("config", config);
}

fn config(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match Config::from_toml_str(text) {
        Err(errors) => assert!(!errors.to_string().is_empty()),
        Ok(config) => {
            let written = config.to_toml();
            let again = Config::from_toml_str(&written).unwrap_or_else(|errors| panic!("{errors}\n{written}"));
            assert_eq!(again, config);
            config.show();
        }
    }
}
