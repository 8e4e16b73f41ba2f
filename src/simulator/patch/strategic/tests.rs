//! Merges of small objects. `tests/api_server/simulator.rs` compares more of them with a real API server.

use serde_json::json;

use super::*;

/// Expects an object, or the status code of an error.
#[expect(clippy::needless_pass_by_value, reason = "a case is a literal")]
#[track_caller]
fn check(live: Value, patch: Value, expected: Result<Value, u16>) {
    let text = format!("{live} {patch}");
    let merged = strategic_merge("Pod", live, patch).map_err(|error| error.code);
    assert_eq!(merged, expected, "{text}");
}

/// Checks a patch of the member `containers` in `spec`, and other members of `spec`.
#[expect(clippy::needless_pass_by_value, reason = "a case is a literal")]
#[track_caller]
fn check_spec(live: Value, patch: Value, expected: Result<Value, u16>) {
    check(json!({"spec": live}), json!({"spec": patch}), expected.map(|spec| json!({"spec": spec})));
}

#[test]
fn objects_are_merged_and_other_values_replaced() {
    check(
        json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"tolerations": [{"key": "a"}]}}),
        json!({"metadata": {"labels": {"a": null, "c": "3"}}, "spec": {"tolerations": [{"key": "b", "value": null}]}}),
        Ok(json!({"metadata": {"labels": {"b": "2", "c": "3"}}, "spec": {"tolerations": [{"key": "b"}]}})),
    );
    check(json!({"a": [1]}), json!({"a": {"b": null, "c": 1}}), Ok(json!({"a": {"c": 1}})));
    check(json!({"a": {"b": 1}}), json!({"a": 1}), Ok(json!({"a": 1})));
    check(json!([]), json!({}), Err(400));
    check(json!({}), json!([]), Err(400));
}

#[test]
fn elements_with_same_merge_key_are_merged() {
    let ports = json!([{"containerPort": 80}]);
    check_spec(
        json!({"containers": [{"name": "a", "image": "a:1", "ports": ports}, {"name": "b", "image": "b:1"}]}),
        json!({"containers": [{"name": "a", "image": "a:2"}, {"name": "c", "image": "c:1"}]}),
        Ok(json!({"containers": [
            {"name": "a", "image": "a:2", "ports": ports}, {"name": "c", "image": "c:1"}, {"name": "b", "image": "b:1"},
        ]})),
    );
    // only the first element with a key is merged
    check_spec(
        json!({"ports": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}),
        json!({"ports": [{"port": 53, "name": "dns"}]}),
        Ok(json!({"ports": [{"port": 53, "protocol": "TCP", "name": "dns"}, {"port": 53, "protocol": "UDP"}]})),
    );
    check_spec(json!({"containers": [{"name": "a"}]}), json!({"containers": [{"image": "a"}]}), Err(500));
    check_spec(json!({"containers": [{"name": "a"}]}), json!({"containers": ["a"]}), Err(500));
    check_spec(json!({"containers": [{"name": "a"}]}), json!({"containers": [["a"]]}), Err(500));
    check_spec(json!({}), json!({"containers": []}), Ok(json!({"containers": []})));
}

#[test]
fn patch_directive_deletes_and_replaces() {
    let two = json!([{"name": "a"}, {"name": "b"}]);
    let list = |patch: Value, expected: Result<Value, u16>| {
        let (live, patch) = (json!({"containers": two}), json!({"containers": patch}));
        check_spec(live, patch, expected.map(|list| json!({"containers": list})));
    };
    list(json!([{"name": "a", "$patch": "delete"}, {"name": "x", "$patch": "delete"}]), Ok(json!([{"name": "b"}])));
    list(json!([{"$patch": "replace"}, {"name": "c", "x": null}]), Ok(json!([{"name": "c"}])));
    list(json!([{"$patch": "delete"}]), Err(500));
    list(json!([{"name": "a", "$patch": "merge"}]), Err(500));
    let labels = |patch: Value, expected: Result<Value, u16>| {
        let live = json!({"metadata": {"labels": {"a": "1"}}});
        check(
            live,
            json!({"metadata": {"labels": patch}}),
            expected.map(|labels| json!({"metadata": {"labels": labels}})),
        );
    };
    labels(json!({"$patch": "replace", "b": "2"}), Ok(json!({"b": "2"})));
    labels(json!({"$patch": "delete", "b": "2"}), Ok(json!({})));
    labels(json!({"$patch": "merge", "b": "2"}), Err(500));
    // a value with a directive is no value of its own
    check(
        json!({}),
        json!({"a": {"$patch": "replace", "b": 1}, "c": {"d": [{"$patch": "delete"}]}}),
        Ok(json!({"c": {"d": []}})),
    );
}

#[test]
fn element_order_sorts_patched_elements() {
    let order = |names: &str| -> Value { names.chars().map(|name| json!({"name": name})).collect() };
    let list = |live: &str, patch: &str, wanted: &str, expected: Result<&str, u16>| {
        let patch = json!({"$setElementOrder/containers": order(wanted), "containers": order(patch)});
        let expected = expected.map(|names| json!({"containers": order(names)}));
        check_spec(json!({"containers": order(live)}), patch, expected);
    };
    list("abc", "", "cba", Ok("cba"));
    list("abc", "d", "cad", Ok("bcad"));
    list("abcd", "", "ca", Ok("bcad"));
    list("abc", "b", "b", Ok("abc"));
    list("ab", "ba", "ab", Err(500));
    list("ab", "c", "ab", Err(500));
    let order_only = json!({"$setElementOrder/containers": order("ba")});
    check_spec(json!({"containers": order("ab")}), order_only.clone(), Ok(json!({"containers": order("ba")})));
    check_spec(json!({}), order_only, Ok(json!({})));
    check_spec(json!({}), json!({"$setElementOrder": []}), Err(400));
    check_spec(json!({}), json!({"$setElementOrder/containers": {}}), Err(500));
    check_spec(json!({"containers": []}), json!({"$setElementOrder/containers": [], "containers": {}}), Err(500));
    check_spec(json!({"containers": 1}), json!({"$setElementOrder/containers": [], "containers": []}), Err(500));
    // a list that is replaced keeps the order of the patch
    let replaced = json!({"$setElementOrder/tolerations": order("ba"), "tolerations": order("ab")});
    check_spec(json!({"tolerations": []}), replaced, Ok(json!({"tolerations": order("ab")})));
}

#[test]
fn texts_are_added_and_deleted() {
    let check = |live: Value, patch: Value, expected: Result<Value, u16>| {
        let live = json!({"metadata": {"finalizers": live}});
        check(live, json!({"metadata": patch}), expected.map(|list| json!({"metadata": {"finalizers": list}})));
    };
    check(json!(["a", "b"]), json!({"finalizers": ["c", "a"]}), Ok(json!(["c", "a", "b"])));
    check(json!(["a", "b"]), json!({"$deleteFromPrimitiveList/finalizers": ["a", "x"]}), Ok(json!(["b"])));
    let both = json!({
        "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"],
    });
    check(json!(["a", "b"]), both, Ok(json!(["c", "b"])));
    check(json!(["a"]), json!({"$deleteFromPrimitiveList/nothing": ["a"]}), Ok(json!(["a"])));
    check(json!(["a"]), json!({"$deleteFromPrimitiveList": ["a"]}), Err(400));
    check(json!(["a"]), json!({"finalizers": [["b"]]}), Err(500));
    check(json!(["a"]), json!({"finalizers": [{"$patch": "replace"}]}), Err(500));
}

#[test]
fn retain_keys_removes_other_members() {
    let live = json!({"volumes": [{"name": "a", "emptyDir": {}}]});
    let patch = |keys: Value| json!({"volumes": [{"name": "a", "$retainKeys": keys, "configMap": {"name": "x"}, "emptyDir": null}]});
    let expected = json!({"volumes": [{"name": "a", "configMap": {"name": "x"}}]});
    check_spec(live.clone(), patch(json!(["name", "configMap"])), Ok(expected));
    check_spec(live.clone(), patch(json!(["name"])), Err(400));
    check_spec(live, patch(json!("name")), Err(400));
}

#[test]
fn kind_decides_where_names_mean_other_lists() {
    let conditions = |kind: &str| {
        let (live, patch) = (json!([{"type": "A"}]), json!([{"type": "B"}]));
        let merged =
            strategic_merge(kind, json!({"status": {"conditions": live}}), json!({"status": {"conditions": patch}}));
        merged.unwrap()["status"]["conditions"].as_array().map(Vec::len)
    };
    assert_eq!([conditions("Node"), conditions("CustomResourceDefinition")], [Some(2), Some(1)]);
    let selector = |kind: &str| {
        let of = |label: &str| json!({"spec": {"selector": {"matchLabels": {label: "x"}}}});
        let merged = strategic_merge(kind, of("a"), of("b")).unwrap();
        merged["spec"]["selector"]["matchLabels"].as_object().map(Map::len)
    };
    assert_eq!([selector("Deployment"), selector("PodDisruptionBudget")], [Some(2), Some(1)]);
}
