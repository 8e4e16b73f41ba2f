//! `deltabus run` on a live cluster while deployments are restarted repeatedly. At the end the replayed stream of the file
//! handler and the cache must equal the API server's lists. `deltabus verify` must confirm that, and then find a difference
//! planted in the cache.
//!
//! `bash .ci/long living` (`DELTABUS_LIVING=full`) runs each scenario for several minutes; by default it takes a minute.
//!
//! The comparison needs an idle cluster, so controller-manager, scheduler and kwok are stopped first. Events and Leases are
//! excluded from it and from the watched types: they change as long as the API server runs.

#![expect(clippy::disallowed_methods, reason = "tests wait by the clock")]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    engine::{Engine, text},
    forger::Forger,
    living::LivingCluster,
    proxy::{Faults, Proxy},
    stream::{Replay, State, replay},
    verify::{Outcome, verify},
};
use serde_json::json;
use tempfile::TempDir;

const NODES: usize = 5;
const NAMESPACE: &str = "shop";
const DEPLOYMENTS: [&str; 4] = ["cart", "search", "orders", "login"];

/// Types in an explicit list: all that the workload changes.
const TYPES: [&str; 17] = [
    "pods",
    "nodes",
    "namespaces",
    "services",
    "endpoints",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "deployments.apps",
    "replicasets.apps",
    "statefulsets.apps",
    "daemonsets.apps",
    "controllerrevisions.apps",
    "jobs.batch",
    "cronjobs.batch",
    "endpointslices.discovery.k8s.io",
    "poddisruptionbudgets.policy",
];

/// Types that change as long as the API server runs, including the second name of the first type.
const RESTLESS: [&str; 3] = ["events", "events.events.k8s.io", "leases.coordination.k8s.io"];

/// Returns one of two lengths, by `DELTABUS_LIVING`.
fn length<T>(short: T, full: T) -> T {
    if std::env::var_os("DELTABUS_LIVING").is_some_and(|value| value == "full") { full } else { short }
}

/// Returns the number of pods per deployment.
fn replicas() -> usize {
    length(12, 50)
}

/// Custom types that are created, filled and removed in turn, repeatedly.
const CUSTOM: [&str; 3] = ["gadgets", "gizmos", "sprockets"];
const CUSTOM_GROUP: &str = "living.deltabus.dev";

/// Watched types, and changes besides the restarts of deployments.
struct Plan {
    /// Resources of the n-th configuration. The last configuration equals the first.
    resources: fn(usize) -> String,
    /// Names of the watched types; `None` = all watchable types except [`RESTLESS`].
    types: Option<&'static [&'static str]>,
    /// Time between two changes of the configuration.
    reload_every: Option<Duration>,
    /// Set when each round creates a custom type and removes the previous one.
    custom_types: bool,
    /// Minimum number of restarts of all four deployments, and minimum duration.
    rounds: usize,
    at_least: Duration,
    /// Set when the engine's connections are cut, delayed, reset and refused.
    faults: bool,
    /// Number of restarts of the API server, in the middle of rollouts.
    server_restarts: u32,
}

impl Plan {
    /// Returns a plan with an explicit list of types.
    fn listed() -> Self {
        Self {
            resources: |_| format!("[resources.all]\nmatch = {TYPES:?}"),
            types: Some(&TYPES),
            reload_every: None,
            custom_types: false,
            rounds: length(3, 5),
            at_least: Duration::ZERO,
            faults: false,
            server_restarts: 0,
        }
    }

    /// Returns a plan with all types, while types are added and removed and the configuration changes.
    fn everything() -> Self {
        Self {
            resources: everything,
            types: None,
            reload_every: Some(length(Duration::from_secs(6), Duration::from_secs(20))),
            custom_types: true,
            at_least: length(Duration::from_secs(24), Duration::from_secs(100)),
            ..Self::listed()
        }
    }
}

/// Returns one of three configurations: all types; pods in a separate entry, with another handler; two types fewer.
fn everything(turn: usize) -> String {
    let less: &[&str] = if turn % 3 == 2 { &["configmaps", "endpointslices.discovery.k8s.io"] } else { &[] };
    let exclude = [&RESTLESS, less].concat();
    let more = if turn % 3 == 1 {
        "[resources.pods]\nmatch = [\"pods\"]\nindex = [\"spec.nodeName\"]\n[handlers.late]\ntype = \"blackhole\"\ninitial = \"send\""
    } else {
        ""
    };
    format!("[resources.all]\nmatch = [\"*\"]\nexclude = {exclude:?}\n{more}")
}

/// A config map created at the end, and the forged name that the engine receives for it.
const PLANTED: [&str; 2] = ["planted-true", "planted-lies"];

/// A live cluster under load, and an engine that watches it.
struct Scene {
    plan: Plan,
    engine: Engine,
    cluster: LivingCluster,
    forger: Forger,
    proxy: Option<Proxy>,
    dir: TempDir,
    started: Instant,
    restarts: usize,
    server_restarts: u32,
    reloads: usize,
}

impl Scene {
    /// Starts both, executes the plan, and compares cache and stream with the final state of the cluster.
    fn play(name: &str, plan: Plan) -> Option<Replay> {
        let mut scene = Self::start(name, plan)?;
        for round in 0.. {
            let restarted = scene.server_restarts == scene.plan.server_restarts;
            let reloaded = scene.plan.reload_every.is_none() || scene.reloads > 1;
            let harmed = scene.proxy.as_ref().is_none_or(|proxy| proxy.injected() > 20);
            let lived = round >= scene.plan.rounds && scene.started.elapsed() >= scene.plan.at_least;
            if lived && restarted && reloaded && harmed {
                break;
            }
            scene.restart_deployments(round);
        }
        Some(scene.finish())
    }

    fn start(name: &str, plan: Plan) -> Option<Self> {
        let cluster = LivingCluster::start_or_skip(name, NODES)?;
        for deployment in DEPLOYMENTS {
            cluster.deployment(deployment, NAMESPACE, replicas());
        }
        for deployment in DEPLOYMENTS {
            cluster.wait_rollout(deployment, NAMESPACE); // a restart of all its pods
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = dir.path().join("kubeconfig");
        let forger = cluster.forger();
        let proxy = plan.faults.then(|| Proxy::start(forger.address, 7));
        cluster.write_kubeconfig(proxy.as_ref().map_or(forger.address, |proxy| proxy.address), &kubeconfig);
        let engine = Engine::run(dir.path(), &config(dir.path(), &(plan.resources)(0)));
        engine.wait_ready(Duration::from_mins(3));
        if let Some(proxy) = &proxy {
            proxy.set(Faults { cut_one_in: 150, reset_one_in: 200, delay_one_in: 60, refuse_one_in: 12 });
        }
        let started = Instant::now();
        Some(Self { plan, engine, cluster, forger, proxy, dir, started, restarts: 0, server_restarts: 0, reloads: 0 })
    }

    /// Restarts all deployments at once, runs a job meanwhile, injects the due faults, and waits until all
    /// pods are new.
    fn restart_deployments(&mut self, round: usize) {
        for deployment in DEPLOYMENTS {
            self.cluster.rollout_restart(deployment, NAMESPACE);
        }
        self.restarts += DEPLOYMENTS.len();
        self.cluster.kubectl(&["create", "job", &format!("job-{round}"), "-n", NAMESPACE, "--image=job"]);
        self.change_custom_types(round);
        self.reload();
        self.restart_server(round);
        for deployment in DEPLOYMENTS {
            self.cluster.wait_rollout(deployment, NAMESPACE);
        }
    }

    /// Creates a custom type, changes its objects, and removes the previous round's type.
    fn change_custom_types(&self, round: usize) {
        if !self.plan.custom_types {
            return;
        }
        let name = CUSTOM[round % CUSTOM.len()];
        self.cluster.crd_create(name, CUSTOM_GROUP);
        self.cluster.crd_fill(name, CUSTOM_GROUP, 20);
        self.cluster.crd_fill(name, CUSTOM_GROUP, 30);
        if round > 0 {
            self.cluster.crd_remove(CUSTOM[(round - 1) % CUSTOM.len()], CUSTOM_GROUP);
        }
    }

    /// Changes the configuration when it is due.
    fn reload(&mut self) {
        let Some(every) = self.plan.reload_every else { return };
        let due = u32::try_from(self.reloads + 1).expect("few reloads");
        if self.started.elapsed() >= every * due {
            self.reloads += 1;
            self.configure(self.reloads);
        }
    }

    fn configure(&self, turn: usize) {
        Engine::configure(self.dir.path(), &config(self.dir.path(), &(self.plan.resources)(turn)));
    }

    /// Restarts the API server when it is due: the restarts are spread evenly over the plan's minimum length.
    fn restart_server(&mut self, round: usize) {
        let (done, all) = (self.server_restarts, self.plan.server_restarts);
        let due = self.started.elapsed() >= self.plan.at_least * (done + 1) / (all + 1);
        if done < all && due && round > 0 {
            self.cluster.restart_api_server();
            self.server_restarts += 1;
        }
    }

    /// Makes the cluster idle, and compares cache and stream with it.
    fn finish(mut self) -> Replay {
        let lived = self.started.elapsed();
        self.wait_for_the_end_of_pods();
        self.cluster.stop_controllers();
        self.configure(0);
        let injected = self.proxy.as_ref().map_or(0, |proxy| {
            proxy.set(Faults::default());
            proxy.injected()
        });
        let mut server = self.settle();
        self.verify_equal();
        assert!(self.plan.server_restarts == 0 || self.relists() > 0, "lists were made again");
        server.extend(self.verify_what_is_planted());
        let status = self.engine.terminate();
        assert_eq!(status.code(), Some(0), "a stop that was asked for is success");
        let replay = replay(&self.dir.path().join("out.jsonl"));
        let unequal = differences(&replay.state, &server);
        assert!(unequal.is_empty(), "the stream's end and the cluster differ:\n{unequal}");
        assert!(!self.plan.faults || injected > 20, "the proxy did harm: {injected}");
        let Replay { events, duplicates, counts, .. } = &replay;
        eprintln!(
            "{events} events ({duplicates} duplicates) within {lived:.0?}; {} restarts of {} replicas, {} of the \
             API server, {} reloads, {injected} faults; {} objects at the end; {counts:?}",
            self.restarts,
            replicas(),
            self.server_restarts,
            self.reloads,
            server.len(),
        );
        replay
    }

    /// Returns the number of types that were listed more than once.
    fn relists(&self) -> usize {
        let (_, metrics) = self.engine.get("/metrics").expect("the engine answers");
        let counts = metrics.lines().filter(|line| line.starts_with("deltabus_lists_total{"));
        counts.filter(|line| !line.ends_with(" 1") && !line.ends_with(" 0")).count()
    }

    /// Verifies the running engine against the API server by the command.
    fn verify(&self) -> Outcome {
        verify(&format!("http://{}", self.engine.http), self.cluster.server.kubeconfig(), &["-o", "json"])
    }

    fn verify_equal(&self) {
        let deadline = Instant::now() + Duration::from_mins(2);
        let mut outcome = self.verify();
        // a unit replaced by the last reload is not compared: the command reports that, so run it again
        while outcome.json()["verdict"] == "unproven" && Instant::now() < deadline {
            outcome = self.verify();
        }
        assert_eq!(outcome.code, 0, "{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(outcome.json()["verdict"], "equal");
        let units = outcome.json()["units"].as_array().expect("units").len();
        assert!(units >= TYPES.len(), "{units} units were compared");
    }

    /// Makes the engine receive an object under another name; returns the engine's state with it.
    fn verify_what_is_planted(&self) -> State {
        let [truth, lie] = PLANTED;
        self.forger.tell(truth, lie);
        let planted =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": truth, "namespace": "default"}});
        self.cluster.server.apply(&planted);
        let key = format!("configmaps/default/{lie}");
        let cached = || self.engine.cached().ok()?.remove_entry(&key);
        self.engine.wait_for("cached", Duration::from_mins(1), || cached().is_some());
        let outcome = self.verify();
        assert_eq!(outcome.code, 1, "{}{}", outcome.stdout, outcome.stderr);
        let units = outcome.json()["units"].as_array().expect("units").clone();
        let differences = units.iter().flat_map(|unit| unit["differences"].as_array().expect("a list").clone());
        let found: Vec<_> = differences.map(|found| json!([found["kind"], found["key"]])).collect();
        let expected = [json!(["extra", format!("default/{lie}")]), json!(["missing", format!("default/{truth}")])];
        assert_eq!(found, expected);
        cached().into_iter().collect()
    }

    /// Waits until no pod is terminating: a rollout completes before its last old pods are gone.
    fn wait_for_the_end_of_pods(&self) {
        let deadline = Instant::now() + Duration::from_mins(5);
        let leaving = "jsonpath={.items[*].metadata.deletionTimestamp}";
        while !self.cluster.kubectl(&["get", "pods", "-A", "-o", leaving]).trim().is_empty() {
            assert!(Instant::now() < deadline, "pods that were deleted do not go");
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// Waits until all types are watched and the cache equals the server's lists; returns this state.
    fn settle(&self) -> State {
        let deadline = Instant::now() + Duration::from_mins(3);
        loop {
            let (types, server) = self.on_the_server();
            let watched: BTreeSet<String> = self.engine.watched().into_keys().collect();
            let cached = self.engine.cached();
            if watched == types && cached.as_ref() == Ok(&server) {
                return server;
            }
            let unequal = cached.map_or_else(|error| error, |cached| differences(&cached, &server));
            let types: Vec<&String> = watched.symmetric_difference(&types).collect();
            let log = self.engine.log();
            assert!(Instant::now() < deadline, "cache and cluster differ, in types {types:?}:\n{unequal}\n{log}");
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// Returns the types that must be watched, and their objects.
    fn on_the_server(&self) -> (BTreeSet<String>, State) {
        let (mut types, mut objects) = self.cluster.dump_all(&RESTLESS);
        if let Some(named) = self.plan.types {
            types.retain(|resource| named.contains(&resource.as_str()));
            objects.retain(|key, _| key.split('/').next().is_some_and(|resource| types.contains(resource)));
        }
        (types, objects)
    }
}

fn config(dir: &Path, resources: &str) -> String {
    format!(
        r#"
        shutdown_timeout = "60s"
        [cluster]
        name = "living"
        [kube]
        kubeconfig = "{kubeconfig}"
        backoff = {{ initial = "100ms", max = "2s" }}
        {resources}
        [handlers.out]
        type = "file"
        path = "{out}"
        rotate = {{ max_bytes = "32MiB", keep = 1000 }}
        initial = "send"
        on = ["added", "updated", "deleted", "removed", "synced"]
        "#,
        kubeconfig = text(dir, "kubeconfig"),
        out = text(dir, "out.jsonl"),
    )
}

/// Returns the first few objects that differ between both sides.
fn differences(ours: &State, server: &State) -> String {
    let mut text = String::new();
    let keys = ours.keys().chain(server.keys().filter(|key| !ours.contains_key(*key)));
    for key in keys.filter(|key| ours.get(*key) != server.get(*key)).take(20) {
        writeln!(text, "{key}: ours {:?}, the server's {:?}", ours.get(key), server.get(key)).expect("a string grows");
    }
    text
}

#[test]
fn rolling_restarts_end_in_server_state() {
    let Some(replay) = Scene::play("rolling_restarts_end_in_server_state", Plan::listed()) else { return };
    assert_eq!(replay.duplicates, 0, "nothing was sent twice without a restart");
    let all_pods = Plan::listed().rounds * DEPLOYMENTS.len() * replicas();
    let deleted = replay.counts[&("deleted".to_owned(), "watch".to_owned())];
    assert!(deleted >= all_pods, "every pod was replaced, not {deleted} of {all_pods}");
}

#[test]
fn bad_network_and_server_restarts_lose_nothing() {
    let plan = Plan {
        rounds: 2,
        at_least: length(Duration::from_secs(24), Duration::from_mins(5)),
        faults: true,
        server_restarts: 2,
        ..Plan::listed()
    };
    Scene::play("bad_network_and_server_restarts_lose_nothing", plan);
}

#[test]
fn full_watch_survives_type_and_config_changes() {
    let Some(replay) = Scene::play("full_watch_survives_type_and_config_changes", Plan::everything()) else { return };
    let came = |kind: &str, cause: &str| replay.counts.contains_key(&(kind.to_owned(), cause.to_owned()));
    assert!(came("removed", "reload"), "two types were not watched for a while: {:?}", replay.counts);
}

#[test]
fn full_watch_survives_bad_network_and_server_restarts() {
    let plan = Plan {
        at_least: length(Duration::from_secs(24), Duration::from_mins(5)),
        faults: true,
        server_restarts: 2,
        ..Plan::everything()
    };
    Scene::play("full_watch_survives_bad_network_and_server_restarts", plan);
}
