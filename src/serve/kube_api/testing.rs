//! Checks of requests with arbitrary text: see `crate::fuzz`.

use serde_json::Value;

use super::{
    pages::Token,
    query::{ListQuery, Target, VersionQuery},
    table::JsonPath,
};

/// Checks that a query means the same in every encoding, and that accepted values are within their limits.
pub(crate) fn check_query(query: &str) {
    let encoded =
        form_urlencoded::Serializer::new(String::new()).extend_pairs(form_urlencoded::parse(query.as_bytes())).finish();
    let (parsed, again) = (ListQuery::parse(query), ListQuery::parse(&encoded));
    assert_eq!(format!("{again:?}"), format!("{parsed:?}"));
    let Ok(parsed) = parsed else { return };
    assert_ne!(parsed.limit, Some(0));
    assert!(parsed.continue_token.is_none() || parsed.version == VersionQuery::Any);
    if let VersionQuery::NotOlderThan(version) | VersionQuery::Exact(version) = &parsed.version {
        assert!(!version.is_unset() && !version.is_any());
    }
    if let Some(token) = parsed.continue_token {
        assert_eq!(Token::parse(&token.to_string()).expect("a token that was printed"), token);
    }
}

/// Checks that the parts of a parsed path make up the path.
pub(crate) fn check_path(path: &str) {
    let Some(Target { group, version, plural, namespace, name, subresource }) = Target::parse(path) else { return };
    let root = if path.trim_matches('/').starts_with("api/") {
        ["api", version].join("/")
    } else {
        ["apis", group, version].join("/")
    };
    let namespaced = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    let [named, sub] = [name, subresource].map(|name| name.map(|name| format!("/{name}")).unwrap_or_default());
    assert_eq!(format!("{root}{namespaced}/{plural}{named}{sub}"), path.trim_matches('/'));
}

/// Checks that a path visits no more values than it may, and that its error is short.
pub(crate) fn check_json_path(path: &str, object: &Value) {
    const VISITS: usize = 10_000;
    match JsonPath::parse_action(path) {
        Ok(path) => match path.find(object, VISITS) {
            Ok(found) => assert!(found.len() <= VISITS),
            Err(error) => assert!(error.to_string().len() < 4000),
        },
        Err(error) => assert!(error.to_string().len() < 8000, "{error}"),
    }
}
