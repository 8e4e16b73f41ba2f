//! Tests with documents like those of real servers, resolved as in kubectl, and tests of the requests against a scripted
//! server.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{
    documents::{GroupVersion, Root, read_root, read_types},
    *,
};
use crate::{object::ResourceType, scope::Namespaces};

/// `/api` of a 1.36 server, shortened.
const CORE: &str = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
{"metadata":{"creationTimestamp":null},"versions":[{"version":"v1","freshness":"Current","resources":[
{"resource":"bindings","responseKind":{"group":"","version":"v1","kind":"Binding"},"scope":"Namespaced","singularResource":"binding","verbs":["create"]},
{"resource":"events","responseKind":{"group":"","version":"v1","kind":"Event"},"scope":"Namespaced","singularResource":"event","verbs":["create","delete","get","list","patch","update","watch"],"shortNames":["ev"]},
{"resource":"nodes","responseKind":{"group":"","version":"v1","kind":"Node"},"scope":"Cluster","singularResource":"node","verbs":["get","list","watch"],"shortNames":["no"],"subresources":[{"subresource":"status","responseKind":{"group":"","version":"v1","kind":"Node"},"verbs":["get"]}]},
{"resource":"pods","responseKind":{"group":"","version":"v1","kind":"Pod"},"scope":"Namespaced","singularResource":"pod","verbs":["create","get","list","watch"],"shortNames":["po"],"categories":["all"]}]}]}]}"#;

/// `/apis` of the same, with an aggregated API that is down.
const GROUPS: &str = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
{"metadata":{"name":"apps","creationTimestamp":null},"versions":[{"version":"v1","freshness":"Current","resources":[
{"resource":"deployments","responseKind":{"group":"apps","version":"v1","kind":"Deployment"},"scope":"Namespaced","singularResource":"deployment","verbs":["get","list","watch"],"shortNames":["deploy"]},
{"resource":"daemonsets","responseKind":{"group":"apps","version":"v1","kind":"DaemonSet"},"scope":"Namespaced","singularResource":"daemonset","verbs":["get","list","watch"],"shortNames":["ds"]}]}]},
{"metadata":{"name":"events.k8s.io"},"versions":[{"version":"v1","freshness":"Current","resources":[
{"resource":"events","responseKind":{"group":"events.k8s.io","version":"v1","kind":"Event"},"scope":"Namespaced","singularResource":"event","verbs":["get","list","watch"],"shortNames":["ev"]}]}]},
{"metadata":{"name":"autoscaling"},"versions":[
{"version":"v2","resources":[{"resource":"horizontalpodautoscalers","responseKind":{"kind":"HorizontalPodAutoscaler"},"scope":"Namespaced","singularResource":"horizontalpodautoscaler","verbs":["list","watch"],"shortNames":["hpa"]}]},
{"version":"v1","resources":[{"resource":"horizontalpodautoscalers","responseKind":{"kind":"HorizontalPodAutoscaler"},"scope":"Namespaced","singularResource":"horizontalpodautoscaler","verbs":["list","watch"],"shortNames":["hpa"]},
{"resource":"olds","responseKind":{"kind":"Old"},"scope":"Cluster","singularResource":"old","verbs":["list","watch"]},
{"resource":"gadgets","responseKind":{"kind":"Gadget"},"scope":"Namespaced","singularResource":"gadget","verbs":["get","list"]}]}]},
{"metadata":{"name":"cert-manager.io"},"versions":[{"version":"v1","resources":[
{"resource":"certificates","responseKind":{"kind":"Certificate"},"scope":"Namespaced","singularResource":"certificate","verbs":["list","watch"],"shortNames":["cert"]},
{"resource":"pods","responseKind":{"kind":"Pod"},"scope":"Namespaced","singularResource":"pod","verbs":["list","watch"]},
{"resource":"gadgets","responseKind":{"kind":"Gadget"},"scope":"Namespaced","singularResource":"gadget","verbs":["list","watch"]},
{"resource":"kindless","scope":"Namespaced","verbs":["list","watch"]}]}]},
{"metadata":{"name":"metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Stale"}]},
{"metadata":{"name":"up.metrics.k8s.io"},"versions":[{"version":"v1beta1","resources":[
{"resource":"pods","responseKind":{"kind":"PodMetrics"},"scope":"Namespaced","singularResource":"","verbs":["get","list"]}]}]}]}"#;

fn versions(json: &str) -> Vec<GroupVersion> {
    match read_root(json).unwrap() {
        Root::Types(versions) => versions,
        Root::Names(names) => panic!("{names:?}"),
    }
}

fn catalog() -> Catalog {
    // the core group comes first, whatever its position
    Catalog::new([versions(GROUPS), versions(CORE)].concat())
}

/// Returns the types of a pattern, as `plural.version.group`.
fn matching(text: &str) -> Vec<String> {
    let name = |served: &ServedType| {
        let ResourceType { plural, version, group, .. } = &served.resource;
        format!("{plural}.{version}.{group}")
    };
    catalog().matching(&Pattern::parse(text).unwrap()).into_iter().map(name).collect()
}

fn resource(text: &str) -> ResourceType {
    catalog().matching(&Pattern::parse(text).unwrap())[0].resource.clone()
}

fn resolve(text: &str) -> Resolution {
    assert!(matching(text).is_empty(), "{text}");
    catalog().why_unmatched(&Pattern::parse(text).unwrap())
}

#[test]
fn type_names_resolve_as_in_kubectl() {
    for (text, expected) in [
        ("pods", "pods.v1."),
        ("pod", "pods.v1."),
        ("po", "pods.v1."),
        ("Pod", "pods.v1."),
        ("POD", "pods.v1."),
        ("pods.v1.", "pods.v1."),
        ("pods.cert-manager.io", "pods.v1.cert-manager.io"),
        ("deployments", "deployments.v1.apps"),
        ("deploy", "deployments.v1.apps"),
        ("deploy.apps", "deployments.v1.apps"),
        ("Deployment.apps", "deployments.v1.apps"),
        ("deployments.v1.apps", "deployments.v1.apps"),
        // the core group takes precedence
        ("events", "events.v1."),
        ("ev", "events.v1."),
        ("events.events.k8s.io", "events.v1.events.k8s.io"),
        ("events.v1.events.k8s.io", "events.v1.events.k8s.io"),
        // the preferred version takes precedence if it has the type
        ("hpa", "horizontalpodautoscalers.v2.autoscaling"),
        ("hpa.autoscaling", "horizontalpodautoscalers.v2.autoscaling"),
        ("hpa.v1.autoscaling", "horizontalpodautoscalers.v1.autoscaling"),
        ("olds.autoscaling", "olds.v1.autoscaling"),
        // among types with the same name, a watchable one takes precedence
        ("gadgets", "gadgets.v1.cert-manager.io"),
        // two dots do not always mean version and group
        ("certificates.cert-manager.io", "certificates.v1.cert-manager.io"),
        ("certificates.v1.cert-manager.io", "certificates.v1.cert-manager.io"),
    ] {
        assert_eq!(matching(text), [expected], "{text}");
    }
    assert_eq!(
        resource("no"),
        ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: "Node".into(),
            plural: "nodes".into(),
            namespaced: false
        }
    );
}

#[test]
fn unserved_name_gets_nearest_suggestions() {
    for (text, expected) in [
        ("pdos", &["pods", "pods.cert-manager.io"][..]),
        ("deploymnets.apps", &["deployments.apps"]),
        ("deployments.app", &["deployments.apps"]),
        ("deployments.v2.apps", &["deployments.apps"]),
        ("certificate.v1.certmanager.io", &["certificates.cert-manager.io"]),
        ("daemonset.extensions", &["daemonsets.apps"]),
        ("zebras", &[]),
        // unwatchable types are not suggested
        ("bindngs", &[]),
        ("kindless", &[]),
    ] {
        let Resolution::Missing { suggestions, .. } = resolve(text) else { panic!("{text}: {:?}", resolve(text)) };
        assert_eq!(suggestions, expected, "{text}");
    }
}

#[test]
fn unavailable_group_is_named_where_it_matters() {
    assert_eq!(catalog().unavailable().len(), 1);
    for (text, names_it) in [
        ("zebras", true),
        ("pods.v1beta1.metrics.k8s.io", true),
        ("nodes.metrics.k8s.io", true),
        ("zebras.apps", false),
    ] {
        let Resolution::Missing { unavailable, .. } = resolve(text) else { panic!("{text}") };
        assert_eq!(unavailable.first().map(|group| &*group.group), names_it.then_some("metrics.k8s.io"), "{text}");
    }
}

#[test]
fn type_without_list_or_watch_is_unwatchable() {
    let Resolution::Unwatchable { resource, verbs } = resolve("bindings") else { panic!() };
    assert_eq!((&*resource.plural, verbs), ("bindings", vec!["create".to_owned()]));
    assert!(matches!(resolve("pods.up.metrics.k8s.io"), Resolution::Unwatchable { .. }));
    // a watchable kind of that name would have taken precedence
    assert!(matches!(resolve("podmetrics"), Resolution::Unwatchable { .. }));
}

#[test]
fn wildcards_match_watchable_types_in_one_version() {
    assert_eq!(matching("*.apps"), ["deployments.v1.apps", "daemonsets.v1.apps"]);
    assert_eq!(matching("*.autoscaling"), ["horizontalpodautoscalers.v2.autoscaling", "olds.v1.autoscaling"]);
    assert_eq!(matching("*.events.k8s.io"), ["events.v1.events.k8s.io"]);
    let all = matching("*");
    assert_eq!(all.iter().filter(|name| name.starts_with("events.")).collect::<Vec<_>>(), ["events.v1."]);
    assert!(all.iter().any(|name| name == "pods.v1.cert-manager.io") && all.len() == 10, "{all:?}");
}

#[test]
fn empty_wildcard_waits_and_names_unavailable_group() {
    for (text, why) in [
        ("*.acme.io", "the server serves no type in the group acme.io that can be listed and watched"),
        (
            "*.metrics.k8s.io",
            "the server serves no type in the group metrics.k8s.io that can be listed and watched; \
             discovery of metrics.k8s.io/v1beta1 failed: ",
        ),
        // the group has one type, without watch
        ("*.up.metrics.k8s.io", "the server serves no type in the group up.metrics.k8s.io"),
    ] {
        assert!(resolve(text).why_not().starts_with(why), "{text}: {}", resolve(text).why_not());
    }
}

#[test]
fn incomplete_and_extended_documents_are_read() {
    assert_eq!(read_root(r#"{"kind":"APIGroupDiscoveryList","items":null,"new":{}}"#), Ok(Root::Types(vec![])));
    assert_eq!(read_root(r#"{"kind":"APIGroupDiscoveryList","items":[{}]}"#), Ok(Root::Types(vec![])));
    assert_eq!(read_root(r#"{"kind":"APIGroupList"}"#), Ok(Root::Names(vec![])));
    assert!(read_root(r#"{"kind":"Status","message":"x"}"#).is_err());
    for text in ["", "[]", "<html>", "{}", r#"{"kind":7}"#] {
        assert!(read_root(text).is_err(), "{text}");
        assert!(read_types(text, "", "v1").is_err(), "{text}");
    }
    assert_eq!(read_types(r#"{"kind":"APIResourceList","resources":null}"#, "", "v1"), Ok(vec![]));
}

#[test]
fn preferred_version_of_legacy_group_goes_first() {
    let json = r#"{"kind":"APIGroupList","groups":[{"name":"x.io","versions":[
        {"groupVersion":"x.io/v1","version":"v1"},{"version":"v3"},{"version":"v2"}],"preferredVersion":{"version":"v2"}}]}"#;
    let Ok(Root::Names(versions)) = read_root(json) else { panic!() };
    let names: Vec<&str> = versions.iter().map(|served| &*served.version).collect();
    assert_eq!(names, ["v2", "v1", "v3"]);
}

/// Answers each path (after `METHOD`) from a table, otherwise with 404. Returns the client and the list of requests.
async fn serve(answers: &'static [(&'static str, u16, &'static str)]) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let requests = seen.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let requests = requests.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 << 10];
                let mut len = 0;
                let is_whole = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request);
                    text.split_once("\r\n\r\n")
                        .is_some_and(|(head, body)| !head.starts_with("POST") || body.ends_with('}'))
                };
                while !is_whole(&buffer[..len]) {
                    match socket.read(&mut buffer[len..]).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => len += read,
                    }
                }
                let request = String::from_utf8_lossy(&buffer[..len]).into_owned();
                let path = request.split(" HTTP").next().unwrap_or_default().to_owned();
                // an answer may depend on the text of the request
                let (code, body) = answers
                    .iter()
                    .find(|(key, ..)| match key.split_once(" if ") {
                        Some((key, part)) => key == path && request.contains(part),
                        None => *key == path,
                    })
                    .map_or((404, "404 page not found"), |(_, code, body)| (*code, *body));
                requests.lock().unwrap().push(request);
                let head = format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                socket.write_all(format!("{head}{body}").as_bytes()).await.ok();
            });
        }
    });
    let mut config = kube::Config::new(url.parse().unwrap());
    config.default_retry = false;
    (kube::Client::try_from(config).unwrap(), seen)
}

#[tokio::test]
async fn new_server_is_asked_twice() {
    let (client, seen) = serve(&[("GET /api", 200, CORE), ("GET /apis", 200, GROUPS)]).await;
    let catalog = discover(&client).await.unwrap();
    assert_eq!(catalog.matching(&Pattern::parse("deploy").unwrap()).len(), 1);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(
        seen[0]
            .contains("accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;"),
        "{}",
        seen[0]
    );
}

const VERSIONS: &str = r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}"#;
const NAMES: &str = r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[
{"name":"metrics.k8s.io","versions":[{"groupVersion":"metrics.k8s.io/v1beta1","version":"v1beta1"}],"preferredVersion":{"version":"v1beta1"}},
{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"version":"v1"}}]}"#;
const CORE_TYPES: &str = r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[
{"name":"pods","singularName":"","namespaced":true,"kind":"Pod","verbs":["list","watch"],"shortNames":["po"]},
{"name":"pods/log","singularName":"","namespaced":true,"kind":"Pod","verbs":["get"]}]}"#;
const APPS_TYPES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[
{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["list","watch"],"shortNames":["deploy"]}]}"#;

#[tokio::test]
async fn old_server_is_asked_for_each_group() {
    let (client, seen) = serve(&[
        ("GET /api", 200, VERSIONS),
        ("GET /apis", 200, NAMES),
        ("GET /api/v1", 200, CORE_TYPES),
        ("GET /apis/apps/v1", 200, APPS_TYPES),
        ("GET /apis/metrics.k8s.io/v1beta1", 503, "service unavailable"),
    ])
    .await;
    let catalog = discover(&client).await.unwrap();
    let names: Vec<String> = catalog.types().iter().map(|served| served.resource.qualified_name()).collect();
    assert_eq!(names, ["pods", "deployments.apps"]);
    let [down] = catalog.unavailable() else { panic!("{:?}", catalog.unavailable()) };
    assert_eq!((&*down.group, &*down.version), ("metrics.k8s.io", "v1beta1"));
    assert!(down.error.contains("/apis/metrics.k8s.io/v1beta1"), "{}", down.error);
    assert_eq!(seen.lock().unwrap().len(), 5);
}

#[tokio::test]
async fn empty_aggregated_document_is_ignored() {
    let (client, _) = serve(&[
        ("GET /api if APIGroupDiscoveryList", 200, r#"{"kind":"APIGroupDiscoveryList","items":[]}"#),
        ("GET /api", 200, VERSIONS),
        ("GET /api/v1", 200, CORE_TYPES),
    ])
    .await;
    let catalog = discover(&client).await.unwrap();
    assert_eq!(catalog.types().len(), 1);
}

#[tokio::test]
async fn refused_aggregated_form_is_retried_unaggregated() {
    macro_rules! refusing {
        ($code:literal) => {
            &[
                ("GET /api if APIGroupDiscoveryList", $code, "refused"),
                ("GET /apis if APIGroupDiscoveryList", $code, "refused"),
                ("GET /api", 200, VERSIONS),
                ("GET /apis", 200, NAMES),
                ("GET /api/v1", 200, CORE_TYPES),
                ("GET /apis/apps/v1", 200, APPS_TYPES),
            ]
        };
    }
    let servers: [&'static [_]; 6] =
        [refusing!(404), refusing!(406), refusing!(415), refusing!(500), refusing!(501), refusing!(503)];
    for server in servers {
        let (client, seen) = serve(server).await;
        let catalog = discover(&client).await.unwrap_or_else(|error| panic!("{server:?}: {error}"));
        let names: Vec<String> = catalog.types().iter().map(|served| served.resource.qualified_name()).collect();
        assert_eq!(names, ["pods", "deployments.apps"], "{server:?}");
        assert_eq!(seen.lock().unwrap().len(), 7, "{server:?}: each root twice, each version once");
    }
}

#[tokio::test]
async fn discovery_fails_only_when_both_forms_are_refused() {
    let (client, seen) = serve(&[("GET /api", 503, "down")]).await;
    assert_eq!(discover(&client).await.unwrap_err().code, Some(503));
    assert_eq!(seen.lock().unwrap().len(), 2);
    let (client, _) = serve(&[("GET /apis", 200, GROUPS)]).await;
    assert!(discover(&client).await.unwrap().types().iter().all(|served| !served.resource.group.is_empty()));
    for code in [401, 403, 429] {
        let answers: &'static [_] = match code {
            401 => &[("GET /api", 401, "no")],
            403 => &[("GET /api", 403, "no")],
            _ => &[("GET /api", 429, "later")],
        };
        let (client, seen) = serve(answers).await;
        assert_eq!(discover(&client).await.unwrap_err().code, Some(code));
        assert_eq!(seen.lock().unwrap().len(), 1, "{code} says nothing of the form");
    }
}

#[tokio::test]
async fn discovery_error_names_path() {
    let (client, _) = serve(&[(
        "GET /api",
        401,
        r#"{"kind":"Status","code":401,"reason":"Unauthorized","message":"no","status":"Failure"}"#,
    )])
    .await;
    let error = discover(&client).await.unwrap_err();
    assert_eq!((error.code, &*error.to_string()), (Some(401), "failed to get /api: HTTP 401 Unauthorized: no"));
    let (client, _) = serve(&[("GET /api", 200, "<html>")]).await;
    assert!(discover(&client).await.unwrap_err().to_string().starts_with("unexpected answer to "));
    assert!(cluster_uid(&client).await.unwrap().is_none());
}

#[tokio::test]
async fn cluster_is_identified_by_kube_system_uid() {
    let (client, _) = serve(&[(
        "GET /api/v1/namespaces/kube-system",
        200,
        r#"{"kind":"Namespace","metadata":{"name":"kube-system","uid":"u-1"}}"#,
    )])
    .await;
    assert_eq!(cluster_uid(&client).await.unwrap().as_deref(), Some("u-1"));
    let (client, _) = serve(&[("GET /api/v1/namespaces/kube-system", 500, "x")]).await;
    assert_eq!(cluster_uid(&client).await.unwrap_err().code, Some(500));
}

#[tokio::test]
async fn definitions_are_requested_only_if_needed() {
    const PATH: &str = "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const ROOT: &str = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"acme.io"},"versions":[{"version":"v1","freshness":"Current","resources":[
        {"resource":"widgets","responseKind":{"kind":"Widget"},"scope":"Namespaced","verbs":["list","watch"]},
        {"resource":"reports","responseKind":{"kind":"Report"},"scope":"Namespaced","verbs":["list","watch"]}]}]}]}"#;
    const CRDS: &str = r#"{"metadata":{},"items":[{"metadata":{"name":"widgets.acme.io"}}]}"#;
    let selected = async |answer: (&'static str, u16, &'static str), pattern: &str| {
        let answers = Box::leak(Box::new([("GET /apis", 200, ROOT), answer]));
        let (client, seen) = serve(answers).await;
        let patterns = vec![Pattern::parse(pattern).unwrap()];
        let (exclude, namespaces) = (Vec::new(), Namespaces::default());
        let wanted = [WantedEntry { entry: "a".into(), patterns, exclude, namespaces }];
        let catalog = discover_for(&client, &wanted).await.map_err(|error| error.code)?;
        let asked = seen.lock().unwrap().iter().any(|request| request.starts_with(PATH));
        let plurals = select(&catalog, &wanted).owned.into_iter().map(|owned| owned.resource.plural);
        Ok::<_, Option<u16>>((asked, plurals.collect::<Vec<_>>().join(" ")))
    };
    assert_eq!(selected((PATH, 200, CRDS), "*.acme.io").await, Ok((false, "widgets reports".into())));
    assert_eq!(selected((PATH, 200, CRDS), "crd:*").await, Ok((true, "widgets".into())));
    assert_eq!(selected((PATH, 403, "x"), "crd:*").await, Ok((true, "widgets reports".into())));
    assert_eq!(selected((PATH, 500, "x"), "crd:*").await, Err(Some(500)));
}

#[tokio::test]
async fn access_is_reviewed_per_verb() {
    const PATH_LIST: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews if \"verb\":\"list\"";
    const PATH_WATCH: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews if \"verb\":\"watch\"";
    let (client, seen) = serve(&[
        (
            PATH_LIST,
            201,
            r#"{"kind":"SelfSubjectAccessReview","status":{"allowed":true,"reason":"RBAC: allowed by x"}}"#,
        ),
        (PATH_WATCH, 201, r#"{"kind":"SelfSubjectAccessReview","status":{"allowed":false,"reason":"no rule"}}"#),
    ])
    .await;
    let asked = ScopedType { name: Some("x".into()), ..ScopedType::of(&resource("pods"), Some("a")) };
    let access = allowed(&client, &asked).await.unwrap();
    assert_eq!(access, TypeAccess { list: true, watch: false, reason: "no rule".into() });
    let carries = |request: &String| request.contains(r#""namespace":"a""#) && request.contains(r#""name":"x""#);
    assert!(seen.lock().unwrap().iter().all(carries));
}
