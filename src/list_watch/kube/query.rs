//! Path and query of each request. A query contains only the parameters that the rules name, in alphabetical order.

use form_urlencoded::Serializer;

use super::Scope;
use crate::{
    list_watch::{ListRequest, WatchRequest},
    object::ResourceType,
};

/// Returns the `Accept` header of a list or a watch.
pub(super) fn accept(scope: &Scope, is_list: bool) -> &'static str {
    match (scope.metadata_only, is_list) {
        (false, _) => "application/json",
        (true, true) => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        (true, false) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    }
}

/// Returns path and query of one page (A-2, P-2).
pub(super) fn list_uri(resource: &ResourceType, scope: &Scope, request: &ListRequest) -> String {
    let query = [
        ("continue", request.continue_token.as_deref().unwrap_or_default()),
        ("fieldSelector", &fields(scope)),
        ("labelSelector", &scope.labels),
        ("limit", &request.limit.map(|limit| limit.to_string()).unwrap_or_default()),
        ("resourceVersion", request.resource_version.as_str()),
    ];
    uri(&resource.path(scope.namespace.as_deref()), &query)
}

/// Returns path and query of a watch.
pub(super) fn watch_uri(resource: &ResourceType, scope: &Scope, request: &WatchRequest) -> String {
    let if_streamed = |value| if request.initial_events { value } else { "" };
    let query = [
        ("allowWatchBookmarks", "true"),
        ("fieldSelector", &fields(scope)),
        ("labelSelector", &scope.labels),
        ("resourceVersion", request.resource_version.as_str()),
        ("resourceVersionMatch", if_streamed("NotOlderThan")),
        ("sendInitialEvents", if_streamed("true")),
        ("timeoutSeconds", &request.timeout_seconds.to_string()),
        ("watch", "true"),
    ];
    uri(&resource.path(scope.namespace.as_deref()), &query)
}

fn fields(scope: &Scope) -> String {
    let mut fields = vec![scope.fields.as_str(), scope.namespace_fields.as_str()];
    fields.retain(|selector| !selector.is_empty());
    fields.join(",")
}

/// Appends a query to a path; empty values are omitted.
fn uri(path: &str, query: &[(&str, &str)]) -> String {
    let mut serializer = Serializer::new(String::new());
    serializer.extend_pairs(query.iter().filter(|(_, value)| !value.is_empty()));
    // a space becomes `%20`, because some parsers do not decode `+`
    let query = serializer.finish().replace('+', "%20");
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ResourceVersion;

    fn pods() -> ResourceType {
        ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: "Pod".into(),
            plural: "pods".into(),
            namespaced: true,
        }
    }

    fn list(rv: &str, limit: Option<u32>, continue_token: Option<&str>) -> ListRequest {
        ListRequest { resource_version: rv.into(), limit, continue_token: continue_token.map(Into::into) }
    }

    /// Rules: A-2, LW-2, P-2.
    #[test]
    fn list_query_names_only_set_options() {
        for (request, expected) in [
            (list("", None, None), "/api/v1/pods"),
            (list("0", Some(500), None), "/api/v1/pods?limit=500&resourceVersion=0"),
            (list("7", None, None), "/api/v1/pods?resourceVersion=7"),
            (list("", Some(500), Some("a+/=&b c")), "/api/v1/pods?continue=a%2B%2F%3D%26b%20c&limit=500"),
            (list("", None, Some("")), "/api/v1/pods"),
        ] {
            assert_eq!(list_uri(&pods(), &Scope::default(), &request), expected);
        }
    }

    /// Rules: A-3, LW-2, R-30, R-41.
    #[test]
    fn watch_query_names_only_set_options() {
        let watch = |rv: &str, initial_events| WatchRequest {
            resource_version: ResourceVersion::from(rv),
            initial_events,
            timeout_seconds: 300,
        };
        for (request, expected) in [
            (watch("", false), "allowWatchBookmarks=true&timeoutSeconds=300&watch=true"),
            (watch("7", false), "allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=300&watch=true"),
            (
                watch("", true),
                "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=300&watch=true",
            ),
            (
                watch("7", true),
                "allowWatchBookmarks=true&resourceVersion=7&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=300&watch=true",
            ),
        ] {
            assert_eq!(watch_uri(&pods(), &Scope::default(), &request), format!("/api/v1/pods?{expected}"));
        }
    }

    /// Rule: LW-1.
    #[test]
    fn namespace_exclusion_joins_field_selector() {
        let uri = |fields: &str, namespaces: &str| {
            let scope = Scope { fields: fields.into(), namespace_fields: namespaces.into(), ..Scope::default() };
            list_uri(&pods(), &scope, &list("", None, None))
        };
        assert_eq!(uri("", "metadata.namespace!=a"), "/api/v1/pods?fieldSelector=metadata.namespace%21%3Da");
        assert_eq!(uri("a=b", "c!=d"), "/api/v1/pods?fieldSelector=a%3Db%2Cc%21%3Dd");
    }

    /// Rule: LW-1.
    #[test]
    fn list_and_watch_carry_the_same_scope() {
        let scope = Scope {
            namespace: Some("a".into()),
            labels: "app in (web,api),!legacy".into(),
            fields: "status.phase!=Succeeded".into(),
            namespace_fields: String::new(),
            metadata_only: true,
        };
        let selectors =
            "fieldSelector=status.phase%21%3DSucceeded&labelSelector=app%20in%20%28web%2Capi%29%2C%21legacy";
        assert_eq!(list_uri(&pods(), &scope, &list("", None, None)), format!("/api/v1/namespaces/a/pods?{selectors}"));
        let request = WatchRequest { resource_version: "7".into(), initial_events: false, timeout_seconds: 9 };
        assert_eq!(
            watch_uri(&pods(), &scope, &request),
            format!(
                "/api/v1/namespaces/a/pods?allowWatchBookmarks=true&{selectors}&resourceVersion=7&timeoutSeconds=9&watch=true"
            )
        );
        assert!(accept(&scope, true).starts_with("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"));
        assert!(accept(&scope, false).starts_with("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"));
        assert_eq!(accept(&Scope::default(), false), "application/json");
    }
}
