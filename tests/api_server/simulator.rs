//! The embedded API server compared with a real one: the same requests get the same answers in all parts that the engine
//! uses.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::support::cluster::Cluster;
use deltabus::internals::{
    lister::FieldSelector,
    object::Object,
    simulator::{Area, Simulator, SimulatorOptions, strategic_merge},
};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOOS: &str = "/apis/x.dev/v1/namespaces/default/foos";
/// Number of attempts, because the real server takes time for steps that the simulator does at once.
const PATIENCE: u32 = 200;

/// Both servers, with the same client.
struct Both {
    cluster: &'static Cluster,
    simulator: Simulator,
    simulated: PathBuf,
    _dir: tempfile::TempDir,
}

impl Both {
    fn start(test: &str) -> Option<Self> {
        let cluster = Cluster::shared_or_skip(test)?;
        let simulator = Simulator::start(SimulatorOptions::default()).expect("loopback");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let simulated = dir.path().join("simulated.kubeconfig");
        fs::write(&simulated, simulator.kubeconfig()).expect("the directory is writable");
        Some(Self { cluster, simulator, simulated, _dir: dir })
    }

    /// Sends a request to both; the real one first, with the credentials `real`.
    fn ask_as(&self, real: &Path, method: &str, path: &str, body: Option<&Value>) -> [(u16, Value); 2] {
        [real, &self.simulated].map(|who| self.cluster.request_as(who, method, path, body))
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> [(u16, Value); 2] {
        self.ask_as(self.cluster.kubeconfig(), method, path, body)
    }

    /// Sends the same request to both, and compares `part` of the answers.
    #[track_caller]
    fn compare(&self, method: &str, path: &str, body: Option<&Value>, part: impl Fn(&Value) -> Value) -> Value {
        let [real, simulated] = self.ask(method, path, body).map(|(code, answer)| (code, part(&answer)));
        assert_eq!(real, simulated, "{method} {path}, the real server's answer first");
        real.1
    }

    /// Waits until both answer with this code.
    fn wait_for(&self, path: &str, code: u16) {
        for _ in 0..PATIENCE {
            if self.ask("GET", path, None).iter().all(|(found, _)| *found == code) {
                return;
            }
            sleep(Duration::from_millis(50));
        }
        panic!("{path} is not answered with {code} by both");
    }

    /// Compares the changes of a collection since the given versions, reduced by `part`.
    fn compare_history(&self, path: &str, since: &[u64; 2], part: impl Fn(&Value) -> Value) {
        let watch = |who: &Path, version: u64| {
            let path = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=3");
            let (_, events) = self.cluster.request_as(who, "GET", &path, None);
            let lines = events.as_str().unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
            let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
            events.map(|event| json!([event["type"], part(&event["object"])])).collect::<Vec<_>>()
        };
        let real = watch(self.cluster.kubeconfig(), since[0]);
        assert!(real.len() > 1, "{real:?}");
        assert_eq!(real, watch(&self.simulated, since[1]), "{path}, the real server's history first");
    }

    fn versions(&self, path: &str) -> [u64; 2] {
        let version =
            |answer: &Value| answer["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        self.ask("GET", path, None).map(|(_, answer)| version(&answer).expect("a list has a version"))
    }
}

fn definition() -> Value {
    let names = json!({"kind": "Foo", "listKind": "FooList", "plural": "foos", "singular": "foo"});
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": schema});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.x.dev"},
        "spec": {"group": "x.dev", "scope": "Namespaced", "names": names, "versions": [version]},
    })
}

/// Returns the life-cycle status of a definition, without times.
fn life(definition: &Value) -> Value {
    let mut status = definition["status"].clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition.as_object_mut().expect("a condition").remove("lastTransitionTime");
    }
    let metadata = &definition["metadata"];
    json!([status, metadata["finalizers"], metadata["deletionTimestamp"].is_string(), metadata["generation"]])
}

fn whole(answer: &Value) -> Value {
    answer.clone()
}

#[test]
fn definitions_come_and_go_like_real_server() {
    let Some(both) = Both::start("definitions_come_and_go_like_real_server") else { return };
    both.compare("GET", "/apis/x.dev/v1/foos", None, whole);
    let before = both.versions(DEFINITIONS);
    both.compare("POST", DEFINITIONS, Some(&definition()), life);
    // discovery follows automatically
    let served = ["/apis/x.dev/v1/foos", "/apis/x.dev", "/apis/x.dev/v1"];
    for path in served {
        both.wait_for(path, 200);
    }
    both.compare("GET", &format!("{DEFINITIONS}/foos.x.dev"), None, life);
    both.compare("GET", "/apis/x.dev", None, whole);
    let discovered = |answer: &Value| {
        let resources = answer["resources"].as_array().into_iter().flatten();
        let facts = |resource: &Value| {
            let verbs = resource["verbs"].clone();
            json!([resource["name"], resource["kind"], resource["namespaced"], resource["singularName"], verbs])
        };
        resources.map(facts).collect()
    };
    both.compare("GET", "/apis/x.dev/v1", None, discovered);
    let objects = both.versions("/apis/x.dev/v1/foos");
    for foo in ["a", "b"] {
        let foo = json!({"apiVersion": "x.dev/v1", "kind": "Foo", "metadata": {"name": foo}});
        both.compare("POST", FOOS, Some(&foo), |answer| answer["metadata"]["generation"].clone());
    }
    both.compare_history("/apis/x.dev/v1/foos", &objects, |foo| foo["metadata"]["name"].clone());
    both.compare("DELETE", &format!("{DEFINITIONS}/foos.x.dev"), None, |answer| answer["kind"].clone());
    for path in served {
        both.wait_for(path, 404);
    }
    for path in ["/apis/x.dev/v1/foos", "/apis/x.dev/v1", "/apis/x.dev", "/nothing", "/apis/apps/v9/things"] {
        both.compare("GET", path, None, whole);
    }
    both.compare_history(DEFINITIONS, &before, life);
}

#[test]
fn missing_rights_are_refused_like_real_server() {
    let Some(both) = Both::start("missing_rights_are_refused_like_real_server") else { return };
    both.simulator.faults().forbid("*", "*", Area::Everywhere);
    let limited = both.cluster.limited_kubeconfig().to_owned();
    let compare = |method: &str, path: &str, body: Option<&Value>, part: fn(&Value) -> Value| {
        let [real, simulated] = both.ask_as(&limited, method, path, body);
        let renamed = simulated.1.to_string().replace("simulator", "limited");
        let renamed: Value = serde_json::from_str(&renamed).expect("it was JSON before");
        assert_eq!((real.0, part(&real.1)), (simulated.0, part(&renamed)), "{method} {path}");
    };
    for path in [
        "/api/v1/pods",
        "/api/v1/pods?watch=1",
        "/api/v1/namespaces/default/pods",
        "/apis/apps/v1/deployments",
        "/apis/apps/v1/namespaces/default/deployments/x",
        "/apis/apps/v1/namespaces/default/deployments/x/status",
        "/apis/nobody.dev/v1/things",
    ] {
        compare("GET", path, None, whole);
    }
    for (group, resource, namespace) in [("", "pods", ""), ("apps", "deployments", "default")] {
        let asked = json!({"verb": "list", "group": group, "resource": resource, "namespace": namespace});
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        compare("POST", path, Some(&review), |answer| answer["status"].clone());
    }
}

#[test]
fn terminating_namespace_refuses_new_objects() {
    let Some(both) = Both::start("terminating_namespace_refuses_new_objects") else { return };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}});
    let state = |answer: &Value| json!([answer["metadata"]["labels"], answer["spec"], answer["status"]]);
    both.compare("POST", "/api/v1/namespaces", Some(&namespace), state);
    let maps = "/api/v1/namespaces/gone/configmaps";
    let map = |name: &str| {
        let metadata = json!({"name": name, "finalizers": ["x.dev/held"]});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    both.compare("POST", maps, Some(&map("held")), |answer| answer["metadata"]["finalizers"].clone());
    let patch = json!({"metadata": {"labels": {"env": "prod", "kubernetes.io/metadata.name": null}}});
    both.compare("PATCH", "/api/v1/namespaces/gone", Some(&patch), state);
    let marked = |answer: &Value| json!([state(answer), answer["metadata"]["deletionTimestamp"].is_string()]);
    both.compare("DELETE", "/api/v1/namespaces/gone", None, marked);
    both.compare("POST", maps, Some(&map("late")), whole);
}

/// The local selector, which `deltabus test` and reads of the cache use, agrees too.
#[test]
fn field_selectors_compute_fields_like_real_server() {
    let Some(both) = Both::start("field_selectors_compute_fields_like_real_server") else { return };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "computed"}});
    both.ask("POST", "/api/v1/namespaces", Some(&namespace));
    let container = json!({"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"});
    let involved = json!({"kind": "Pod", "namespace": "computed", "name": "x"});
    let in_namespace = |base: &str, plural: &str| format!("{base}/namespaces/computed/{plural}");
    let pods = in_namespace("/api/v1", "pods");
    let events = in_namespace("/api/v1", "events");
    let jobs = in_namespace("/apis/batch/v1", "jobs");
    for (path, object) in [
        ("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "spec": {}})),
        (&pods, json!({"apiVersion": "v1", "kind": "Pod", "spec": container})),
        (
            &events,
            json!({"apiVersion": "v1", "kind": "Event", "involvedObject": involved, "source": {"component": "kubelet"}}),
        ),
        (&jobs, json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": container}}})),
    ] {
        let mut object = object;
        object["metadata"] = json!({"name": "computed"});
        for (code, answer) in both.ask("POST", path, Some(&object)) {
            assert_eq!(code, 201, "{path}: {answer}");
        }
    }
    for (path, selector, expected) in [
        ("/api/v1/nodes", "spec.unschedulable=false", 1),
        ("/api/v1/nodes", "spec.unschedulable!=false", 0),
        ("/api/v1/nodes", "spec.unschedulable=", 0),
        (&pods, "spec.hostNetwork=false", 1),
        (&pods, "spec.hostNetwork=true", 0),
        (&pods, "spec.nodeName=", 1),
        (&events, "source=kubelet", 1),
        (&events, "source!=kubelet", 0),
        (&events, "reportingComponent=", 1),
        (&jobs, "status.successful=0", 1),
        (&jobs, "status.successful=", 0),
    ] {
        let asked = format!(
            "{path}?fieldSelector={},metadata.name%3Dcomputed",
            selector.replace('=', "%3D").replace('!', "%21")
        );
        let found = both.compare("GET", &asked, None, |answer| answer["items"].as_array().map_or(9, Vec::len).into());
        assert_eq!(found, expected, "{asked}");
        let (_, object) = both.cluster.request_as(both.cluster.kubeconfig(), "GET", &format!("{path}/computed"), None);
        let object = Object::from_json(object.to_string().as_bytes()).expect("an object");
        let local = FieldSelector::parse(selector).expect("a selector").matches(&object);
        assert_eq!(local, expected == 1, "{selector} of {object:?}");
    }
    for (selector, expected) in [("a%20in%20()", 0), ("a%20notin%20()", 1)] {
        let asked = format!("{pods}?labelSelector={selector}");
        let found = both.compare("GET", &asked, None, |answer| answer["items"].as_array().map_or(9, Vec::len).into());
        assert_eq!(found, expected, "{selector}");
    }
}

/// A deployment with lists that patches merge and lists that they replace, without fields that the server defaults.
fn patched_deployment() -> Value {
    let probe = json!({"exec": {"command": ["true"]}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
    let container = |name: &str| {
        json!({
            "name": name, "image": format!("{name}:1"), "livenessProbe": probe,
            "ports": [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "envFrom": [{"configMapRef": {"name": "x"}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        })
    };
    let spec = json!({
        "containers": [container("a"), container("b"), container("c")],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}],
        "tolerations": [{"key": "x", "operator": "Exists"}], "imagePullSecrets": [{"name": "p"}],
    });
    let labels = json!({"app": "web"});
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web", "tier": "a"}, "finalizers": ["x.dev/a", "x.dev/b"]},
        "spec": {
            "replicas": 2, "strategy": strategy, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    })
}

/// Returns the fields of a deployment that the patches change, without defaults.
fn patched_fields(deployment: &Value) -> Value {
    let spec = &deployment["spec"]["template"]["spec"];
    let each = |list: &Value, fields: &[&str]| -> Value {
        let of = |element: &Value| fields.iter().map(|field| element[*field].clone()).collect::<Value>();
        list.as_array().into_iter().flatten().map(of).collect()
    };
    let metadata = &deployment["metadata"];
    let labels = metadata["labels"].as_object().filter(|labels| !labels.is_empty());
    json!([
        [labels, metadata["finalizers"], deployment["spec"]["replicas"], deployment["spec"]["strategy"]],
        each(&spec["containers"], &["name", "image", "env", "envFrom", "livenessProbe", "volumeMounts"]),
        spec["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| each(&one["ports"], &["containerPort", "name"]))
            .collect::<Value>(),
        each(&spec["volumes"], &["name", "emptyDir", "secret"]),
        [spec["tolerations"], spec["imagePullSecrets"]],
    ])
}

#[test]
fn strategic_patches_merge_like_real_server() {
    let Some(both) = Both::start("strategic_patches_merge_like_real_server") else { return };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "patched"}});
    both.ask("POST", "/api/v1/namespaces", Some(&namespace));
    let path = "/apis/apps/v1/namespaces/patched/deployments";
    let [(code, live), _] = both.ask("POST", path, Some(&patched_deployment()));
    assert_eq!(code, 201, "{live}");
    let path = format!("{path}/web?dryRun=All");
    let spec = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
    let named = |names: &str| -> Value { names.chars().map(|name| json!({"name": name})).collect() };
    let mut wrong = Vec::new();
    for patch in [
        spec(json!({"containers": [{"name": "b", "image": "b:2"}]})),
        spec(json!({"$setElementOrder/containers": named("abc"), "containers": [{"name": "b", "image": "b:2"}]})),
        spec(json!({"$setElementOrder/containers": named("cba")})),
        spec(json!({"$setElementOrder/containers": named("ca")})),
        spec(json!({"$setElementOrder/containers": named("cd"), "containers": [{"name": "d", "image": "d:1"}]})),
        spec(json!({"containers": [{"name": "d", "image": "d:1", "env": null}, {"name": "a", "env": null}]})),
        spec(json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "b", "livenessProbe": null}]})),
        spec(json!({"containers": [{"$patch": "replace"}, {"name": "d", "image": "d:1"}], "volumes": null})),
        spec(
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}, {"containerPort": 81}]}]}),
        ),
        spec(json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "$patch": "delete"}]}]})),
        spec(
            json!({"containers": [{"name": "a", "env": [{"name": "C", "value": "3"}, {"name": "A", "value": "9"}], "envFrom": [{"secretRef": {"name": "y"}}]}]}),
        ),
        spec(
            json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/v", "name": "w"}, {"mountPath": "/w", "name": "w"}]}]}),
        ),
        spec(
            json!({"volumes": [{"name": "w", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s", "defaultMode": 420}}]}),
        ),
        spec(json!({"tolerations": [{"key": "y", "operator": "Exists"}], "imagePullSecrets": [{"name": "q"}]})),
        json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}, "replicas": 0}}),
        json!({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}}),
        json!({"metadata": {"labels": {"tier": null, "new": "x"}, "finalizers": ["x.dev/c", "x.dev/a"]}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.dev/a"]}}),
        json!({"metadata": {"$setElementOrder/finalizers": ["x.dev/c", "x.dev/b"], "finalizers": ["x.dev/c"]}}),
        json!({"metadata": {"labels": {"$patch": "replace", "only": "x"}}}),
        json!({"metadata": {"labels": {"$patch": "delete", "only": "x"}}}),
        // refused
        spec(json!({"containers": [{"image": "a:2"}]})),
        spec(json!({"containers": ["a"]})),
        spec(json!({"containers": [["a"]]})),
        spec(json!({"containers": [{"name": "a", "$patch": "merge"}]})),
        spec(json!({"containers": [{"$patch": "delete"}]})),
        spec(json!({"$setElementOrder/containers": named("ab"), "containers": named("ba")})),
        spec(json!({"$setElementOrder/containers": {}})),
        spec(json!({"$setElementOrder": []})),
        spec(json!({"volumes": [{"name": "w", "$retainKeys": ["name"], "secret": {"secretName": "s"}}]})),
        json!({"metadata": {"labels": {"$patch": "merge"}}}),
        json!({"metadata": {"$deleteFromPrimitiveList": ["x.dev/a"]}}),
        json!([]),
    ] {
        let (code, answer) =
            both.cluster.patch_as(both.cluster.kubeconfig(), "strategic-merge-patch+json", &path, &patch);
        let real = if code == 200 { Ok(patched_fields(&answer)) } else { Err(code) };
        let merged = strategic_merge("Deployment", live.clone(), patch.clone());
        let merged = merged.map(|merged| patched_fields(&merged)).map_err(|error| {
            let text = error.to_string();
            text.split(' ').next().and_then(|code| code.parse().ok()).expect("an error begins with its code")
        });
        if merged != real {
            wrong.push(format!("{patch}: {merged:?}, but the real server: {real:?} {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// One step from an object to a member: its name, and the merge key if the member is a list of merged elements.
type Step = (String, Option<String>);

/// Schemas of one group and version.
struct Schemas<'a> {
    all: &'a Value,
    kind: &'a str,
    seen: HashSet<(String, String)>,
    compared: usize,
}

impl Schemas<'_> {
    /// Returns the name of a referenced schema, and the schema.
    fn resolve<'b>(&'b self, schema: &'b Value) -> (String, &'b Value) {
        let inner = if schema["allOf"].is_array() { &schema["allOf"][0] } else { schema };
        match inner["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            Some(name) => (name.to_owned(), &self.all[name]),
            None => (String::new(), inner),
        }
    }

    /// Compares the strategy of all members of a schema with that of the simulator.
    fn compare(&mut self, schema: &Value, path: &[Step]) {
        let (name, resolved) = self.resolve(schema);
        let members = resolved["properties"].as_object().cloned().unwrap_or_default();
        let parent = path.last().map(|(name, _)| name.clone()).unwrap_or_default();
        if !name.is_empty() && !self.seen.insert((name, parent)) {
            return;
        }
        for (name, member) in members {
            let resolved = self.resolve(&member).1.clone();
            let strategy = member["x-kubernetes-patch-strategy"].as_str().unwrap_or_default();
            let merge_key = member["x-kubernetes-patch-merge-key"].as_str().map(str::to_owned);
            let with = |key: Option<String>| [path, &[(name.clone(), key)]].concat();
            match resolved["type"].as_str().unwrap_or_default() {
                "array" if strategy.contains("merge") => {
                    self.compare_list(path, &name, true, merge_key.as_deref());
                    if merge_key.is_some() {
                        self.compare(&resolved["items"], &with(merge_key));
                    }
                }
                "array" => self.compare_list(path, &name, false, None),
                "object" => {
                    let is_replaced = strategy.contains("replace");
                    let expected = if is_replaced { json!({"b": "2"}) } else { json!({"a": "1", "b": "2"}) };
                    self.check(path, &name, &[json!({"a": "1"}), json!({"b": "2"}), expected]);
                    if !is_replaced {
                        self.compare(&member, &with(None));
                    }
                }
                _ => {}
            }
        }
    }

    fn compare_list(&mut self, path: &[Step], name: &str, is_merged: bool, merge_key: Option<&str>) {
        let keys =
            ["containerPort", "devicePath", "ip", "key", "mountPath", "name", "port", "topologyKey", "type", "uid"];
        let element = |value: &str| -> Value { keys.iter().map(|key| ((*key).to_owned(), json!(value))).collect() };
        let lists = match merge_key {
            Some(key) => {
                assert!(keys.contains(&key), "{key}");
                let mut same = element("2");
                same[key] = json!("1");
                [json!([element("1")]), json!([same]), json!([same])]
            }
            None if is_merged => [json!(["1"]), json!(["2"]), json!(["2", "1"])],
            None => [json!([element("1")]), json!([element("2")]), json!([element("2")])],
        };
        self.check(path, name, &lists);
    }

    /// Checks the result of a patch of one member.
    fn check(&mut self, path: &[Step], name: &str, [live, change, expected]: &[Value; 3]) {
        let object = |value: &Value| {
            path.iter().rev().fold(json!({name: value}), |mut below, (name, key)| match key {
                None => json!({name: below}),
                Some(key) => {
                    below[key] = json!("p");
                    json!({name: [below]})
                }
            })
        };
        let merged = strategic_merge(self.kind, object(live), object(change)).expect("a valid patch");
        assert_eq!(merged, object(expected), "{} {path:?} {name}", self.kind);
        self.compared += 1;
    }
}

#[test]
fn every_merge_key_is_that_of_real_server() {
    let Some(both) = Both::start("every_merge_key_is_that_of_real_server") else { return };
    let get = |who: &Path, path: &str| both.cluster.request_as(who, "GET", path, None).1;
    let groups = get(&both.simulated, "/apis");
    let groups = groups["groups"].as_array().expect("groups").iter();
    let versions = groups.filter_map(|group| group["preferredVersion"]["groupVersion"].as_str());
    let mut compared = 0;
    for root in std::iter::once("api/v1".to_owned()).chain(versions.map(|version| format!("apis/{version}"))) {
        let served = get(&both.simulated, &format!("/{root}"));
        let all = get(both.cluster.kubeconfig(), &format!("/openapi/v3/{root}"))["components"]["schemas"].take();
        for resource in served["resources"].as_array().expect("resources") {
            let kind = resource["kind"].as_str().expect("a kind");
            let is_patched = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("patch")));
            if !is_patched || resource["name"].as_str().is_none_or(|name| name.contains('/')) {
                continue;
            }
            let (group, version) = root.trim_start_matches("apis/").rsplit_once('/').expect("a version");
            let group = if group == "api" { "" } else { group };
            let of = json!({"group": group, "version": version, "kind": kind});
            let is_it = |schema: &&Value| {
                schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.contains(&of))
            };
            let schema = all.as_object().expect("schemas").values().find(is_it).unwrap_or_else(|| panic!("{of}"));
            let mut schemas = Schemas { all: &all, kind, seen: HashSet::new(), compared: 0 };
            schemas.compare(schema, &[]);
            compared += schemas.compared;
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn subresources_and_formats_are_those_of_real_server() {
    let Some(both) = Both::start("subresources_and_formats_are_those_of_real_server") else { return };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "scaled"}});
    both.ask("POST", "/api/v1/namespaces", Some(&namespace));
    let discovered = |answer: &Value| {
        let resources = answer["resources"].as_array().into_iter().flatten();
        let is_scale = |resource: &&Value| resource["name"].as_str().is_some_and(|name| name.ends_with("/scale"));
        resources.filter(is_scale).cloned().collect()
    };
    both.compare("GET", "/apis/apps/v1", None, discovered);
    let base = "/apis/apps/v1/namespaces/scaled/deployments";
    for (code, answer) in both.ask("POST", base, Some(&patched_deployment())) {
        assert_eq!(code, 201, "{answer}");
    }
    let scale_path = format!("{base}/web/scale");
    let scale = |answer: &Value| {
        json!([answer["apiVersion"], answer["kind"], answer["metadata"]["name"], answer["spec"], answer["status"]])
    };
    let code_only = |_: &Value| Value::Null;
    both.compare("GET", &scale_path, None, scale);
    both.compare("PATCH", &scale_path, Some(&json!({"spec": {"replicas": 3}})), scale);
    both.compare("PATCH", &scale_path, Some(&json!({"spec": {"replicas": 0}})), scale);
    both.compare("PATCH", &scale_path, Some(&json!({"spec": {"replicas": -1}})), code_only);
    let written = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "namespace": "scaled"}, "spec": {"replicas": 4},
    });
    both.compare("PUT", &scale_path, Some(&written), scale);
    let mut outdated = written.clone();
    outdated["metadata"]["resourceVersion"] = json!("1");
    both.compare("PUT", &scale_path, Some(&outdated), code_only);
    both.compare("GET", &format!("{base}/web"), None, |answer| {
        json!([answer["spec"]["replicas"], answer["metadata"]["generation"]])
    });
    both.compare("DELETE", &scale_path, None, code_only);
    both.compare("GET", &format!("{base}/none/scale"), None, whole);
    both.compare("GET", "/api/v1/namespaces/scaled/configmaps/x/scale", None, code_only);

    let patch = |format: &str, path: &str, patch: &Value| {
        let [real, simulated] =
            [both.cluster.kubeconfig(), &both.simulated].map(|who| both.cluster.patch_as(who, format, path, patch).0);
        assert_eq!(simulated, real, "{format} {patch} {path}");
    };
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let unfitting = json!([{"op": "test", "path": "/metadata/name", "value": "x"}]);
    let fitting = json!([{"op": "test", "path": "/metadata/name", "value": "web"}]);
    let web = format!("{base}/web");
    for (format, path, of) in [
        ("merge-patch+json", &web, &labels),
        ("merge-patch+json", &web, &fitting),
        ("strategic-merge-patch+json", &web, &fitting),
        ("json-patch+json", &web, &fitting),
        ("json-patch+json", &web, &unfitting),
        ("json-patch+json", &web, &labels),
        ("json", &web, &labels),
        ("strategic-merge-patch+json", &scale_path, &labels),
        ("json-patch+json", &scale_path, &fitting),
    ] {
        patch(format, path, of);
    }
}
