//! The embedded API server compared with a real one: the same requests get the same answers in all parts that the engine
//! uses.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::support::cluster::Cluster;
use deltabus::internals::{
    lister::FieldSelector,
    object::Object,
    simulator::{Area, Simulator, SimulatorOptions},
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
