use axum::http::{HeaderMap, HeaderValue, header};

use super::{form::Form, query::*};
use crate::object::{KeyRef, ResourceVersion};

#[test]
fn lw5_paths_name_collections_and_objects() {
    let parts = |path| Target::parse(path).map(|t| (t.group, t.version, t.plural, t.namespace, t.name));
    assert_eq!(parts("/api/v1/pods"), Some(("", "v1", "pods", None, None)));
    assert_eq!(parts("/api/v1/namespaces/a"), Some(("", "v1", "namespaces", None, Some("a"))));
    assert_eq!(parts("/api/v1/namespaces/a/pods/"), Some(("", "v1", "pods", Some("a"), None)));
    assert_eq!(
        parts("/apis/apps/v1/namespaces/a/deployments/b"),
        Some(("apps", "v1", "deployments", Some("a"), Some("b")))
    );
    for other in ["/api", "/api/v1", "/apis/apps/v1", "/api/v1/namespaces/a/pods/b/log", "/v1/resources", "//", ""] {
        assert_eq!(parts(other), None, "{other}");
    }
}

#[test]
fn lists_are_in_the_order_of_the_server_s_keys() {
    let mut keys = [("a", "x"), ("a-b", "x"), ("a", "b"), ("", "z"), ("b", "")];
    keys.sort_by(|a, b| server_order(KeyRef { namespace: a.0, name: a.1 }, KeyRef { namespace: b.0, name: b.1 }));
    assert_eq!(keys, [("", "z"), ("a-b", "x"), ("a", "b"), ("a", "x"), ("b", "")]);
}

#[test]
fn the_first_acceptable_form_is_given() {
    let form = |accept: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
        Form::negotiate(&headers).ok()
    };
    assert_eq!(Form::negotiate(&HeaderMap::new()).ok(), Some(Form::Whole));
    for (accept, expected) in [
        ("", Some(Form::Whole)),
        ("*/*", Some(Form::Whole)),
        ("application/json", Some(Form::Whole)),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Some(Form::Whole)),
        ("application/vnd.kubernetes.protobuf, application/json", Some(Form::Whole)),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Some(Form::Metadata)),
        ("application/json; as=PartialObjectMetadataList; g=meta.k8s.io; v=v1, application/json", Some(Form::Metadata)),
        ("application/vnd.kubernetes.protobuf", None),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", None),
        ("text/html", None),
    ] {
        assert_eq!(form(accept), expected, "{accept}");
    }
}

#[test]
fn a2_versions_and_how_they_match() {
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
        "resourceVersion=7&continue=1.2.3",
        "continue=banana",
        "limit=-1",
        "index=spec.nodeName",
        "watch=true",
        "labelSelector=a%20b",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}
