use std::{cell::Cell, fmt::Write as _, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::{
    list_watch::{Failure, ListPage, PassedOver, Status, WatchEvent},
    object::{
        FieldPath, Object,
        scan::{ScanPlan, testing::Writer},
    },
};

fn pod_type() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

const MAX: usize = 1 << 20;

fn plan() -> Arc<ScanPlan> {
    let drop = [FieldPath::parse("metadata.managedFields").unwrap(), FieldPath::parse("a.*").unwrap()];
    Arc::new(ScanPlan::new(&drop, Some(pod_type())))
}

fn show(event: &WatchEvent) -> String {
    let mut shown = format!("{event:?}");
    if let WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) = event {
        shown.push_str(&String::from_utf8_lossy(&object.json()));
    }
    shown
}

/// Pushes pieces; returns the events and the result.
pub(crate) fn watch<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, max: usize) -> (Vec<String>, Result<(), Failure>) {
    let mut decoder = WatchDecoder::new(pod_type(), plan(), max);
    let mut events = Vec::new();
    let mut result = Ok(());
    for piece in pieces {
        result = result.and(decoder.push(piece, &mut events));
    }
    (events.iter().map(show).collect(), result)
}

pub(crate) fn list<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, max: usize) -> Result<ListPage, Failure> {
    let mut decoder = ListDecoder::new(pod_type(), plan(), max);
    for piece in pieces {
        decoder.push(piece)?;
    }
    decoder.finish()
}

pub(crate) fn show_page(page: &Result<ListPage, Failure>) -> String {
    let mut shown = format!("{page:?}");
    for item in page.iter().flat_map(|page| &page.items) {
        shown.push_str(&String::from_utf8_lossy(&item.json()));
    }
    shown
}

/// Cuts bytes at random positions, sometimes after every byte.
pub(crate) fn pieces<'a>(writer: &mut Writer, bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let longest = [1, 3, 70, 1000][writer.below(4)];
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at((writer.below(longest) + 1).min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces
}

fn space(writer: &mut Writer, out: &mut String) {
    for _ in 0..writer.below(3) {
        out.push(['\n', ' ', '\r', '\t'][writer.below(4)]);
    }
}

fn stream(writer: &mut Writer) -> String {
    let mut out = String::new();
    for _ in 0..writer.below(5) {
        space(writer, &mut out);
        let mut members = Vec::new();
        let mut kind = String::from("\"type\":");
        space(writer, &mut kind);
        let name = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"][writer.below(5)];
        writer.string(name, &mut kind);
        members.push(kind);
        let mut object = String::from("\"object\":");
        if writer.one_in(10) {
            writer.value(3, &mut object);
        } else {
            writer.object(&mut object);
        }
        members.push(object);
        if writer.one_in(5) {
            let mut other = String::from("\"other\":");
            writer.value(3, &mut other);
            members.push(other);
        }
        let turn = writer.below(members.len() * 2).saturating_sub(members.len());
        members.rotate_left(turn);
        write!(out, "{{{}}}", members.join(",")).unwrap();
    }
    out
}

fn list_text(writer: &mut Writer) -> String {
    let mut items = String::from("\"items\":[");
    for index in 0..writer.below(5) {
        if index > 0 {
            items.push(',');
        }
        space(writer, &mut items);
        writer.object(&mut items);
        space(writer, &mut items);
    }
    items.push(']');
    let mut other = String::from("\"other\" :");
    writer.value(3, &mut other);
    let version = format!("\"metadata\":{{\"resourceVersion\": \"{}\",\"continue\":\"\"}}", writer.below(99));
    let mut members = [items, other, "\"kind\" : \"PodList\"".into(), "\"apiVersion\":\"v1\"".into(), version];
    let turn = writer.below(5);
    members.rotate_left(turn);
    format!("{{{}}}", members.join(" , "))
}

/// Returns true if `cut` equals `whole` up to a malformed document that was rejected early: at a line break, before
/// all of it had arrived.
pub(crate) fn refuses_sooner(
    cut: &(Vec<String>, Result<(), Failure>),
    whole: &(Vec<String>, Result<(), Failure>),
) -> bool {
    let Some((last, before)) = cut.0.split_last() else { return false };
    cut.1.is_ok() && last.starts_with("Undecodable(\"malformed JSON") && whole.0.starts_with(before)
}

/// Rule: T-6.
#[test]
fn watch_stream_survives_any_chunk_boundaries() {
    let (cases, events, failed) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let at_least = ProptestConfig::default().cases.max(1500);
    proptest!(ProptestConfig { cases: at_least, ..Default::default() }, |(seed in any::<u64>())| {
        cases.set(cases.get() + 1);
        let mut writer = Writer::new(seed);
        let mut bytes = stream(&mut writer).into_bytes();
        let is_damaged = !bytes.is_empty() && writer.one_in(3);
        if is_damaged {
            writer.mutate(&mut bytes);
        }
        let max = if writer.one_in(4) { 300 } else { 1 << 20 };
        let whole = watch([&bytes[..]], max);
        events.set(events.get() + whole.0.len());
        failed.set(failed.get() + usize::from(whole.1.is_err()));
        let cut = watch(pieces(&mut writer, &bytes), max);
        prop_assert!(cut == whole || is_damaged && refuses_sooner(&cut, &whole), "{cut:?}, not {whole:?}");
    });
    let [cases, events, failed] = [cases, events, failed].map(Cell::into_inner);
    assert!(events > cases / 2 && failed > cases / 150, "{events} events, {failed} too long, of {cases} cases");
}

#[test]
fn list_survives_any_chunk_boundaries() {
    let items = Cell::new(0);
    let cases = ProptestConfig::default().cases.max(1000);
    proptest!(ProptestConfig { cases, ..Default::default() }, |(seed in any::<u64>())| {
        let mut writer = Writer::new(seed);
        let mut bytes = list_text(&mut writer).into_bytes();
        let damaged = writer.one_in(3);
        if damaged {
            writer.mutate(&mut bytes);
        }
        let whole = list([&bytes[..]], MAX);
        prop_assert_eq!(show_page(&list(pieces(&mut writer, &bytes), MAX)), show_page(&whole));
        let value = serde_json::from_slice::<serde_json::Value>(&bytes);
        if let (Ok(page), Ok(value), false) = (whole, value, damaged) {
            let total = page.items.len() + usize::try_from(page.rejected).unwrap();
            prop_assert_eq!(total, value["items"].as_array().map_or(0, Vec::len));
            prop_assert_eq!(page.resource_version.as_str(), value["metadata"]["resourceVersion"].as_str().unwrap());
            items.set(items.get() + page.items.len());
        }
    });
    assert!(items.get() > 500, "{}", items.get());
}

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","resourceVersion":"7"}}"#;

fn one(document: &str) -> WatchEvent {
    let mut events = Vec::new();
    let mut decoder = WatchDecoder::new(pod_type(), plan(), 1 << 20);
    decoder.push(document.as_bytes(), &mut events).unwrap();
    let [event] = &events[..] else { panic!("{document}: {events:?}") };
    event.clone()
}

/// Rule: R-51.
#[test]
fn each_event_type_decodes_in_either_key_order() {
    for (name, expected) in [("ADDED", "Added"), ("MODIFIED", "Modified"), ("DELETED", "Deleted")] {
        let expected = format!("{expected}(Object(a uid= rv=7)){POD}");
        assert_eq!(show(&one(&format!(r#"{{"type":"{name}","object":{POD}}}"#))), expected);
        assert_eq!(show(&one(&format!(r#"{{"object":{POD},"type":"{name}"}}"#))), expected);
        assert_eq!(show(&one(&format!(r#"{{"type":"ERROR","object":{POD},"type":"{name}"}}"#))), expected);
    }
}

/// Rule: R-32.
#[test]
fn only_exact_true_annotation_ends_initial_events() {
    let bookmark = |annotations: &str| {
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"9"{annotations}}}}}"#);
        one(&format!(r#"{{"type":"BOOKMARK","object":{object}}}"#))
    };
    let is_end = |annotations: &str| match bookmark(annotations) {
        WatchEvent::Bookmark { resource_version, initial_events_end } if resource_version.as_str() == "9" => {
            initial_events_end
        }
        other => panic!("{other:?}"),
    };
    assert!(is_end(r#","annotations":{"k8s.io/initial-events-end":"true"}"#));
    assert!(is_end(r#","annotations":{"x":1,"k8s.io\/initial-events-end":"tru\u0065"}"#));
    for other in ["\"false\"", "\"True\"", "\"true \"", "true", "null", "\"\""] {
        assert!(!is_end(&format!(r#","annotations":{{"k8s.io/initial-events-end":{other}}}"#)), "{other}");
    }
    assert!(!is_end(r#","annotations":null"#));
    assert!(!is_end(""));
}

/// Rules: R-50, R-55.
#[test]
fn foreign_or_nameless_object_is_skipped() {
    let skipped = |object: &str| match one(&format!(r#"{{"type":"MODIFIED","object":{object}}}"#)) {
        WatchEvent::Skipped(reason) => reason,
        other => panic!("{object}: {other:?}"),
    };
    let wrong = |found: &str| SkipReason::WrongType { found: found.into() };
    assert_eq!(skipped(r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}"#), wrong("v1 Secret"));
    assert_eq!(skipped(r#"{"apiVersion":"v2","kind":"Pod","metadata":{"name":"a"}}"#), wrong("v2 Pod"));
    assert_eq!(skipped(r#"{"kind":"Pod","metadata":{"name":"a"}}"#), wrong("? Pod"));
    assert_eq!(skipped(r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}"#), wrong("meta.k8s.io/v1 Table"));
    assert_eq!(skipped(r#"{"apiVersion":"v1","kind":"Pod"}"#), SkipReason::Nameless);
    assert_eq!(skipped(r#"{"apiVersion":"v1","kind":"Pod","metadata":null}"#), SkipReason::Nameless);
    let versionless = one(r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Pod","metadata":{}}}"#);
    assert_eq!(show(&versionless), "Skipped(Nameless)");
}

/// The name of an object is found at any place, also after its deepest part.
///
/// Rule: R-56.
#[test]
fn too_deep_object_becomes_named_placeholder() {
    let nested = |depth: usize| format!("{}1{}", r#"{"a":["#.repeat(depth / 2), "]}".repeat(depth / 2));
    let metadata = r#""metadata":{"namespace":"n","name":"x","uid":"u","resourceVersion":"7"}"#;
    let pod = |spec: &str| {
        [
            format!(r#"{{"apiVersion":"v1","kind":"Pod",{metadata},"spec":{spec}}}"#),
            format!(r#"{{"A":{spec},"apiVersion":"v1","kind":"Pod",{metadata}}}"#),
        ]
    };
    let is_named = |object: &Object| {
        let identity = object.identity();
        (identity.namespace, identity.name, identity.uid, identity.resource_version) == ("n", "x", "u", "7")
    };
    for object in pod(&nested(1_000)).iter().chain(&pod(&nested(100_000))) {
        let event = |word: &str| one(&format!(r#"{{"type":"{word}","object":{object}}}"#));
        for word in ["ADDED", "MODIFIED"] {
            let event = event(word);
            assert!(
                matches!(&event, WatchEvent::PassedOver { object, why: PassedOver::TooDeep } if is_named(object)),
                "{event:?}"
            );
        }
        let event = event("DELETED");
        assert!(matches!(&event, WatchEvent::Deleted(object) if object.is_unread() && is_named(object)), "{event:?}");
        let other = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"y"}}"#;
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{object},{other}]}}"#
        );
        let page = list([json.as_bytes()], 1 << 24).unwrap();
        assert_eq!((page.items.len(), page.rejected), (2, 0));
        assert!(page.items[0].is_unread() && is_named(&page.items[0]) && !page.items[1].is_unread());
    }
    assert!(matches!(one(&format!(r#"{{"type":"ADDED","object":{}}}"#, pod(&nested(126))[0])), WatchEvent::Added(_)));
}

/// A deep part that `drop` cuts does not matter.
#[test]
fn dropped_part_may_be_too_deep() {
    let drop = [FieldPath::parse("spec.deep").unwrap()];
    let plan = Arc::new(ScanPlan::new(&drop, Some(pod_type())));
    let mut decoder = WatchDecoder::new(pod_type(), plan, 1 << 20);
    let (open, close) = ("[".repeat(500), "]".repeat(500));
    let frame = format!(
        r#"{{"type":"ADDED","object":{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"spec":{{"deep":{open}{close},"b":1}}}}}}"#
    );
    let mut events = Vec::new();
    decoder.push(frame.as_bytes(), &mut events).unwrap();
    assert!(
        matches!(&events[..], [WatchEvent::Added(object)] if object.value().unwrap()["spec"] == serde_json::json!({"b": 1}))
    );
}

/// Rule: R-54.
#[test]
fn undecodable_document_ends_the_stream() {
    for document in [
        r#"{"type":"RENAMED","object":{}}"#,
        r#"{"type":5,"object":{}}"#,
        r#"{"type":"ADDED"}"#,
        r#"{"object":{}}"#,
        "{}",
        r#"{"type":"ADDED","object":null}"#,
        r#"{"type":"ADDED","object":[]}"#,
        r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#,
        r#"{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":{}}}}"#,
        r#"{"type":"ERROR","object":{"kind":"Pod"}}"#,
        r#"{"type":"ERROR","object":"text"}"#,
        r#"{"type":"ERROR"}"#,
        r#"{"type" "ADDED"}"#,
        r"{]",
        "null",
        "]",
        "HTTP/1.1 400",
    ] {
        let bytes =
            format!("{{\"type\":\"ADDED\",\"object\":{POD}}}\n{document}\n{{\"type\":\"ADDED\",\"object\":{POD}}}");
        let (events, result) = watch([bytes.as_bytes(), b"{}"], 1 << 20);
        assert_eq!(result, Ok(()));
        assert_eq!(events.len(), 2, "{document}: {events:?}");
        assert!(events[1].starts_with("Undecodable"), "{document}: {events:?}");
    }
}

/// Rules: T-6, R-54.
#[test]
fn malformed_document_is_refused_at_line_break() {
    let good = format!("{{\"type\":\"ADDED\",\"object\":{POD}}}\n");
    for (bad, lines) in [
        (r#"{"type":"MODIFIED","object":{"data":{"a":"no quote}}}"#, 1),
        (r#"{"type":"MODIFIED","object":{"data":{"a":"\q","#, 1),
        (r#"{"type":"MODIFIED","object":{"data":[1,]"#, 1),
        (r#"{"type":"MODIFIED","object":{"data":tru"#, 1),
        (r#"{"type":"MODIFIED","object":{"data":-"#, 1),
        (r#"{"type":"MODIFIED","object":{"data"}"#, 1),
        (r#"{"type" "MODIFIED","#, 1),
        // a document that only lacks brackets may continue until another document begins
        (r#"{"type":"MODIFIED","object":{"metadata":{"name":"a"}"#, 2),
        (r#"{"type":"MODIFIED","object":{"data":[1,2"#, 2),
        (r#"{"type":"MODIFIED""#, 2),
    ] {
        let bytes = format!("{good}{bad}\n{}", good.repeat(lines - 1));
        for size in [1, 9, 4096] {
            let (events, result) = watch(bytes.as_bytes().chunks(size), 1 << 20);
            assert_eq!((events.len(), result), (2, Ok(())), "{bad}: {events:?}");
            assert!(events[1].starts_with("Undecodable(\"malformed JSON: "), "{bad}: {events:?}");
            let (events, _) = watch(bytes.trim_end().as_bytes().chunks(size), 1 << 20);
            assert_eq!(events.len(), 1, "no line break: {bad}: {events:?}");
        }
    }
}

/// Rule: R-45.
#[test]
fn error_event_carries_its_status() {
    let event = one(concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"too old resource version: 1 (2)","reason":"Expired","code":410}}"#
    ));
    let WatchEvent::Error(status) = event else { panic!("{event:?}") };
    let message = "too old resource version: 1 (2)".to_owned();
    assert_eq!(status, Status { code: 410, reason: "Expired".into(), message, too_large: false, retry_after: None });
}

#[test]
fn metadata_only_watch_emits_real_type() {
    let served = TypeMeta::new("meta.k8s.io/v1", "PartialObjectMetadata");
    let mut decoder = WatchDecoder::new(served, plan(), 1 << 20);
    let mut events = Vec::new();
    let partial = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}"#;
    // the server ignored the requested format: a whole object must not be admitted
    let document = format!(r#"{{"type":"ADDED","object":{partial}}}{{"type":"ADDED","object":{POD}}}"#);
    decoder.push(document.as_bytes(), &mut events).unwrap();
    let shown: Vec<_> = events.iter().map(show).collect();
    assert_eq!(
        shown,
        [
            r#"Added(Object(a uid= rv=)){"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#,
            r#"Skipped(WrongType { found: "v1 Pod" })"#
        ]
    );
}

#[test]
fn oversized_frame_ends_stream_whole_or_split() {
    let document = format!(r#"{{"type":"ADDED","object":{POD}}}"#);
    let two = document.repeat(2);
    assert_eq!(watch([two.as_bytes()], document.len()).1, Ok(()));
    for size in [1, 7, two.len()] {
        let (events, result) = watch(two.as_bytes().chunks(size), document.len() - 1);
        let too_long = Failure::FrameTooLong { max_bytes: document.len() - 1, object: Some("a".into()) };
        assert_eq!((events.len(), result), (0, Err(too_long)));
    }
}

#[test]
fn oversized_frame_is_named_when_possible() {
    let namespaced = POD.replace("\"name\"", "\"labels\":{\"name\":\"no\"},\"namespace\":\"n\",\"name\"");
    for (document, max, expected) in [
        (format!(r#"{{"type":"ADDED","object":{namespaced}}}"#), 120, Some("n/a")),
        (format!(r#"{{"type":"ADDED","object":{POD}}}"#), 80, Some("a")),
        (format!(r#"{{"type":"ADDED","object":{POD}}}"#), 60, None),
        (format!(r#"{{"object":{POD},"type":"ADDED"}}"#), 80, Some("a")),
        (format!(r#"{{"type":"ERROR","object":"{}"}}"#, "x".repeat(90)), 60, None),
    ] {
        let failure = watch(document.as_bytes().chunks(1), max).1.unwrap_err();
        let object = expected.map(str::to_owned);
        assert_eq!(failure, Failure::FrameTooLong { max_bytes: max, object }, "{document}");
    }
    let list = format!(r#"{{"kind":"PodList","apiVersion":"v1","items":[{POD},{namespaced}]}}"#);
    let mut decoder = ListDecoder::new(pod_type(), plan(), 100);
    let failure = list.as_bytes().chunks(7).find_map(|piece| decoder.push(piece).err()).unwrap();
    assert_eq!(failure.to_string(), "object longer than 100 bytes, the limit of [kube] max_frame: n/a");
}

#[test]
fn huge_frame_in_pieces_takes_linear_time() {
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a"}},"x":["{}",{}1]}}"#,
        "\\\"{".repeat(1_000_000),
        "[2],\n".repeat(300_000)
    );
    let document = format!("{{\"type\":\"ADDED\",\"object\":{json}}}");
    let (events, result) = watch(document.as_bytes().chunks(50), 1 << 24);
    assert_eq!((events.len(), result), (1, Ok(())));
    let body = format!(r#"{{"kind":"PodList","apiVersion":"v1","rows":{json},"items":[{json}]}}"#);
    let mut decoder = ListDecoder::new(pod_type(), plan(), 1 << 24);
    body.as_bytes().chunks(50).for_each(|piece| decoder.push(piece).unwrap());
    assert_eq!(decoder.finish().unwrap().items.len(), 1);
}

/// Rule: R-43.
#[test]
fn truncated_document_is_no_event() {
    let document = format!(r#"{{"type":"ADDED","object":{POD}}}"#);
    for len in 0..document.len() {
        let mut decoder = WatchDecoder::new(pod_type(), plan(), 1 << 20);
        let mut events = Vec::new();
        decoder.push(&document.as_bytes()[..len], &mut events).unwrap();
        assert!(events.is_empty(), "{len} bytes");
    }
}

/// Rule: A-7.
#[test]
fn items_inherit_type_of_their_list() {
    let page = list([br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12","continue":"next","remainingItemCount":3},
        "items":[{"metadata":{"name":"a"}}, {"metadata":{"name":"b","namespace":"n"},"kind":"Pod"} ]}"#.as_slice()], MAX)
    .unwrap();
    assert_eq!((page.resource_version.as_str(), page.continue_token.as_deref()), ("12", Some("next")));
    assert_eq!(page.items[0].json(), br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#.as_slice());
    assert_eq!(page.items[1].value().unwrap()["apiVersion"], "v1");
}

#[test]
fn foreign_and_nameless_items_are_rejected_and_counted() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let body = format!(
        r#"{{"items":[{{"kind":"Secret","metadata":{{"name":"s"}}}},{{"metadata":{{}}}},{POD},{{"x":{deep}}}],"kind":"PodList","apiVersion":"v1"}}"#
    );
    let page = list([body.as_bytes()], MAX).unwrap();
    assert_eq!((page.items.len(), page.rejected, page.resource_version.is_unset()), (1, 3, true));
}

/// Rule: R-24.
#[test]
fn response_without_matching_list_is_refused() {
    let kind = |body: &str| match list([body.as_bytes()], MAX) {
        Ok(page) => format!("{} items", page.items.len()),
        Err(Failure::NotAList(_)) => "not a list".into(),
        Err(Failure::Undecodable(_)) => "undecodable".into(),
        Err(Failure::Disconnected(_)) => "cut off".into(),
        Err(other) => format!("{other:?}"),
    };
    let check = |body: &str, expected: &str| assert_eq!(kind(body), expected, "{body}");
    check(r#"{"kind":"PodList","apiVersion":"v1","items":null}"#, "0 items");
    check(r#"{"kind":"PodList","apiVersion":"v1","items":[]} "#, "0 items");
    check(r#"{"items":[{}],"items":[],"kind":"Table","kind":"PodList","apiVersion":"v1"}"#, "0 items");
    check(r#"{"kind":"PodList","apiVersion":"v1"}"#, "not a list");
    check(r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{"object":{}}]}"#, "not a list");
    check(r#"{"kind":"ServiceList","apiVersion":"v1","items":[]}"#, "not a list");
    check(r#"{"kind":"PodList","apiVersion":"v2","items":[]}"#, "not a list");
    check(r#"{"apiVersion":"v1","items":[]}"#, "not a list");
    check(r#"{"kind":"PodList","apiVersion":"v1","items":{}}"#, "not a list");
    check(POD, "not a list");
    check("[]", "not a list");
    check("<html>", "not a list");
    check("", "cut off");
    check(r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"na"#, "cut off");
    for body in [
        r#"{"kind":"PodList","apiVersion":"v1","items":[]}x"#,
        r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":1}}]}"#,
        r#"{"kind":"PodList","apiVersion":"v1","items":[1]}"#,
        r#"{"kind":"PodList","apiVersion":"v1","items":[{},]}"#,
        r#"{"kind":"PodList","apiVersion":"v1","items":[,{}]}"#,
        r#"{"kind":"PodList","apiVersion":"v1",}"#,
        r#"{"kind":"PodList" "apiVersion":"v1"}"#,
        r#"{"kind":1}"#,
    ] {
        check(body, "undecodable");
    }
}

#[test]
fn custom_resource_list_may_have_any_kind() {
    let read = |api_version: &str, body: &str| {
        let served = TypeMeta::new(api_version, "Foo");
        let plan = ScanPlan::new(&[], Some(served.clone()));
        let mut decoder = ListDecoder::new(served, Arc::new(plan), 1 << 20);
        decoder.push(body.as_bytes()).unwrap();
        decoder.finish()
    };
    let foo = r#"{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"a"}}"#;
    assert_eq!(
        read("x.io/v1", &format!(r#"{{"items":[{foo}],"kind":"Foos","apiVersion":"x.io/v1"}}"#)).unwrap().items.len(),
        1
    );
    for untyped in ["", r#""apiVersion":"x.io/v1","#, r#""kind":"Foo","#] {
        let item = format!(r#"{{{untyped}"metadata":{{"name":"a"}}}}"#);
        let list = |kind: &str| format!(r#"{{"items":[{item}],"kind":"{kind}","apiVersion":"x.io/v1"}}"#);
        assert_eq!(read("x.io/v1", &list("FooList")).unwrap().items.len(), 1);
        read("x.io/v1", &list("Foos")).unwrap_err();
    }
    read("x.io/v1", r#"{"items":[],"kind":"Status","apiVersion":"x.io/v1"}"#).unwrap_err();
    read("batch/v1", r#"{"items":[],"kind":"Foos","apiVersion":"batch/v1"}"#).unwrap_err();
}

#[test]
fn opted_out_object_is_reduced_to_its_identity() {
    const IGNORED: &str = r#"{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{"b":"c","deltabus.dev/ignore":"true"},"name":"a","uid":"u","resourceVersion":"7"},"spec":{}}}"#;
    const IDENTITY: &str =
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"7"}}"#;
    let read = |plan: ScanPlan, document: &str| {
        let mut events = Vec::new();
        let mut decoder = WatchDecoder::new(pod_type(), Arc::new(plan), 1 << 20);
        decoder.push(document.as_bytes(), &mut events).unwrap();
        match &events[..] {
            [WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)] => object.clone(),
            other => panic!("{document}: {other:?}"),
        }
    };
    let cut = [FieldPath::parse("metadata.annotations").unwrap()];
    for mut plan in [ScanPlan::new(&[], None), ScanPlan::new(&cut, None), ScanPlan::new(&cut, Some(pod_type()))] {
        assert!(!read(plan.clone(), IGNORED).opts_out(), "nobody asked");
        plan.heeds_opt_out = true;
        for event in ["MODIFIED", "ADDED"] {
            let object = read(plan.clone(), &IGNORED.replace("MODIFIED", event));
            assert_eq!((object.opts_out(), &*object.json()), (true, IDENTITY.as_bytes()));
            assert_eq!((object.name(), object.uid(), object.resource_version()), ("a", "u", "7"));
        }
        let deleted = read(plan.clone(), &IGNORED.replace("MODIFIED", "DELETED"));
        assert!(!deleted.opts_out() && deleted.value().unwrap()["spec"].is_object());
        let items = IGNORED.replace(r#"{"type":"MODIFIED","object":"#, "").replace("}}}", "}}");
        let mut list = ListDecoder::new(pod_type(), Arc::new(plan), 1 << 20);
        list.push(format!(r#"{{"items":[{items},{POD}],"kind":"PodList","apiVersion":"v1"}}"#).as_bytes()).unwrap();
        let items = list.finish().unwrap().items;
        assert_eq!(items.iter().map(Object::opts_out).collect::<Vec<_>>(), [true, false]);
    }
}

#[test]
fn only_exact_true_annotation_opts_out() {
    let mut plan = ScanPlan::new(&[], None);
    plan.heeds_opt_out = true;
    let plan = Arc::new(plan);
    let opts_out = |metadata: &str| {
        let mut events = Vec::new();
        let mut decoder = WatchDecoder::new(pod_type(), Arc::clone(&plan), 1 << 20);
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"a"{metadata}}}}}"#);
        decoder.push(format!(r#"{{"type":"ADDED","object":{object}}}"#).as_bytes(), &mut events).unwrap();
        let [WatchEvent::Added(object)] = &events[..] else { panic!("{metadata}: {events:?}") };
        object.opts_out()
    };
    let annotated = |value: &str| format!(r#","annotations":{{"x":{{}},"deltabus.dev/ignore":{value}}}"#);
    for value in [r#""true""#, r#""tru\u0065""#] {
        assert!(opts_out(&annotated(value)), "{value}");
    }
    for value in [r#""false""#, r#""True""#, r#""true ""#, r#""""#, "true", "null", r#""true","deltabus.dev/ignore":1"#]
    {
        assert!(!opts_out(&annotated(value)), "{value}");
    }
    for other in [
        r#","labels":{"deltabus.dev/ignore":"true"}"#,
        r#","annotations":{"x":"\"deltabus.dev/ignore\":\"true\""}"#,
        r#","annotations":{"deltabus.dev/ignore2":"true"}"#,
        r#","annotations":"deltabus.dev/ignore""#,
        r#","annotations":{"deltabus.dev/ignore":"true"},"annotations":{}"#,
        r#","annotations":{"deltabus.dev/ignore":"true" x}"#,
    ] {
        assert!(!opts_out(other), "{other}");
    }
}
