use axum::http::{HeaderMap, HeaderValue, header};

use super::{
    form::{Form, Include, V1, V1_BETA1},
    query::*,
};
use crate::object::{KeyRef, ResourceVersion};

/// Rule: LW-5.
#[test]
fn paths_name_collections_and_objects() {
    let parts = |path| Target::parse(path).map(|t| (t.group, t.version, t.plural, t.namespace, t.name));
    let status = |path| Target::parse(path).is_some_and(|t| t.name.is_some() && t.subresource == Some("status"));
    assert!(status("/api/v1/namespaces/a/status") && status("/apis/apps/v1/namespaces/a/deployments/b/status"));
    assert_eq!(parts("/api/v1/pods"), Some(("", "v1", "pods", None, None)));
    assert_eq!(parts("/api/v1/namespaces/a"), Some(("", "v1", "namespaces", None, Some("a"))));
    assert_eq!(parts("/api/v1/namespaces/a/pods/"), Some(("", "v1", "pods", Some("a"), None)));
    assert_eq!(
        parts("/apis/apps/v1/namespaces/a/deployments/b"),
        Some(("apps", "v1", "deployments", Some("a"), Some("b")))
    );
    for other in ["/api", "/api/v1", "/apis/apps/v1", "/api/v1/namespaces/a/pods/b/log/c", "/v1/resources", "//", ""] {
        assert_eq!(parts(other), None, "{other}");
    }
}

#[test]
fn lists_follow_server_key_order() {
    let mut keys = [("a", "x"), ("a-b", "x"), ("a", "b"), ("", "z"), ("b", "")];
    keys.sort_by(|a, b| server_order(KeyRef { namespace: a.0, name: a.1 }, KeyRef { namespace: b.0, name: b.1 }));
    assert_eq!(keys, [("", "z"), ("a-b", "x"), ("a", "b"), ("a", "x"), ("b", "")]);
}

#[test]
fn first_acceptable_form_is_chosen() {
    let form = |accept: &str, is_list| {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
        Form::negotiate(&headers, is_list, "").ok()
    };
    assert_eq!(Form::negotiate(&HeaderMap::new(), true, "Some").ok(), Some(Form::Whole));
    let whole = Some(Form::Whole);
    let metadata = Some(Form::Metadata(V1));
    let table = Some(Form::Table(V1, Include::Metadata));
    for (accept, of_object, of_list) in [
        ("", whole, whole),
        ("*/*", whole, whole),
        ("application/json", whole, whole),
        ("application/vnd.kubernetes.protobuf, application/json", whole, whole),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", table, table),
        ("application/json;as=Table;g=meta.k8s.io;v=v1", table, table),
        ("application/json;as=Table;g=meta.k8s.io;v=v2,application/json", whole, whole),
        ("application/json;as=Table;g=meta.k8s.io;v=v2", None, None),
        ("application/json;as=Table", None, None),
        ("application/json;as=Banana;g=meta.k8s.io;v=v1", None, None),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json", metadata, None),
        ("application/json; as=PartialObjectMetadataList; g=meta.k8s.io; v=v1, application/json", None, metadata),
        ("application/vnd.kubernetes.protobuf", None, None),
        ("text/html", None, None),
    ] {
        assert_eq!(form(accept, false), of_object, "an object: {accept}");
        assert_eq!(form(accept, true), of_list, "a list: {accept}");
    }
    let old = "application/json;as=Table;g=meta.k8s.io;v=v1beta1";
    assert_eq!(form(old, true), Some(Form::Table(V1_BETA1, Include::Metadata)));
}

/// Rule: A-2.
#[test]
fn list_query_versions_are_matched() {
    let parse = |query| ListQuery::parse(query).ok().map(|query| query.version);
    let version = || ResourceVersion::from("7");
    assert_eq!(parse(""), Some(VersionQuery::Any));
    assert_eq!(parse("resourceVersion=0&resourceVersionMatch=NotOlderThan"), Some(VersionQuery::Any));
    assert_eq!(parse("resourceVersion=7"), Some(VersionQuery::NotOlderThan(version())));
    assert_eq!(
        parse("resourceVersion=7&resourceVersionMatch=NotOlderThan"),
        Some(VersionQuery::NotOlderThan(version()))
    );
    assert_eq!(parse("resourceVersion=7&resourceVersionMatch=Exact"), Some(VersionQuery::Exact(version())));
    for bad in [
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=7&resourceVersionMatch=Newest",
        "resourceVersion=7&continue=1.2",
        "continue=1.2.3",
        "continue=banana",
        "limit=-1",
        "index=spec.nodeName",
        "watch=true",
        "labelSelector=a%20b",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}
