//! A living cluster: deployments roll, pods come and go, leases renew. One seed, one history.

mod objects;
mod template;

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::json;

use self::template::{Fill, Template};
use super::{
    error::ApiError,
    random::Random,
    shared::{SharedStore, now},
    store::RawObject,
};

static POD: LazyLock<Template> = LazyLock::new(|| Template::compile(include_str!("workload/pod.json")));
static RUNNING: LazyLock<Template> = LazyLock::new(|| Template::compile(include_str!("workload/pod_running.json")));
static WEBSITE: LazyLock<Template> = LazyLock::new(|| Template::compile(include_str!("workload/website.json")));

const APPS: [&str; 10] =
    ["web", "api", "search", "checkout", "cart", "payments", "catalog", "mailer", "reports", "gateway"];

/// When the objects of benches were created: they do not ask the clock.
const BENCH_TIME: &str = "2026-01-01T00:00:00Z";

/// How many objects [`Workload::populate`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Nodes, each with a lease.
    pub nodes: usize,
    /// Namespaces beside those that every cluster has.
    pub namespaces: usize,
    /// Deployments, spread over the namespaces; each with a service and a configmap.
    pub deployments: usize,
    /// Pods of each deployment.
    pub replicas: usize,
    /// Custom resources of type `websites.demo.deltabus.dev`.
    pub websites: usize,
}

impl Default for Sizes {
    /// A cluster of some 150 pods.
    fn default() -> Self {
        Self { nodes: 10, namespaces: 6, deployments: 40, replicas: 4, websites: 12 }
    }
}

/// Makes a cluster live, step by step.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    nodes: usize,
    namespaces: Vec<String>,
    deployments: Vec<Deployment>,
    pods: Vec<Fill>,
    websites: Vec<Fill>,
    serial: usize,
}

#[derive(Clone, Debug)]
struct Deployment {
    namespace: String,
    name: String,
    app: String,
    uid: String,
    replicas: usize,
    revision: usize,
    /// The `ReplicaSet` of the present revision.
    hash: String,
    set_uid: String,
    /// The `ReplicaSet` that is being replaced.
    rolling_from: Option<String>,
}

impl Workload {
    /// Makes a workload; the same seed does the same to an equal store, times aside.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            nodes: 0,
            namespaces: Vec::new(),
            deployments: Vec::new(),
            pods: Vec::new(),
            websites: Vec::new(),
            serial: 0,
        }
    }

    /// Fills the store.
    pub fn populate(&mut self, store: &SharedStore, sizes: Sizes) -> Result<(), ApiError> {
        let time = now();
        store.put("customresourcedefinitions.apiextensions.k8s.io", objects::website_definition())?;
        self.nodes = sizes.nodes.max(1);
        for node in 0..self.nodes {
            store.put("nodes", objects::node(node, &time))?;
            store.put("leases.coordination.k8s.io", objects::lease(node, &time))?;
        }
        for number in 0..sizes.namespaces.max(1) {
            let name = format!("shop-{number}");
            store.put("namespaces", json!({"metadata": {"name": name}}))?;
            store.put("serviceaccounts", json!({"metadata": {"name": "default", "namespace": name}}))?;
            let secret = json!({
                "metadata": {"name": "credentials", "namespace": name}, "type": "Opaque",
                "data": {"password": "c2ltdWxhdGVk"},
            });
            store.put("secrets", secret)?;
            self.namespaces.push(name);
        }
        for number in 0..sizes.deployments {
            self.add_deployment(store, number, sizes.replicas, &time)?;
        }
        for number in 0..sizes.websites {
            let mut fill = bench_fill(number, "site", None);
            fill.namespace.clone_from(&self.namespaces[number % self.namespaces.len()]);
            fill.uid = self.random.uuid();
            (fill.created, fill.time) = (time.clone(), time.clone());
            store.ingest("websites.demo.deltabus.dev", [WEBSITE.object(&fill, &RUNNING)])?;
            self.websites.push(fill);
        }
        Ok(())
    }

    fn add_deployment(
        &mut self,
        store: &SharedStore,
        number: usize,
        replicas: usize,
        time: &str,
    ) -> Result<(), ApiError> {
        let app = APPS[number % APPS.len()];
        let mut deployment = Deployment {
            namespace: self.namespaces[number % self.namespaces.len()].clone(),
            name: format!("{app}-{}", number / APPS.len()),
            app: app.to_owned(),
            uid: self.random.uuid(),
            replicas,
            revision: 1,
            hash: self.random.suffix(9),
            set_uid: self.random.uuid(),
            rolling_from: None,
        };
        store.put("configmaps", objects::configmap(&deployment, 0))?;
        store.put("services", objects::service(&deployment, number))?;
        store.put("deployments.apps", objects::deployment(&deployment, replicas))?;
        store.put(
            "replicasets.apps",
            objects::replicaset(&deployment, &deployment.hash, &deployment.set_uid, replicas),
        )?;
        deployment.revision = 1;
        for _ in 0..replicas {
            let mut pod = self.new_pod(&deployment, time);
            pod.status = String::new();
            pod.ready = true;
            self.write_pod(store, pod)?;
        }
        self.deployments.push(deployment);
        Ok(())
    }

    /// Does one thing to the cluster: one to some four writes.
    pub fn step(&mut self, store: &SharedStore) -> Result<(), ApiError> {
        let time = now();
        match self.random.below(100) {
            0..40 => self.pod_lives(store, &time),
            40..60 => self.rollout_goes_on(store, &time),
            60..64 => self.rollout_starts(store),
            64..67 => self.job_starts(store, &time),
            67..79 => {
                let node = self.random.below(self.nodes.max(1));
                store.put("leases.coordination.k8s.io", objects::lease(node, &time)).map(drop)
            }
            79..85 => {
                let node = self.random.below(self.nodes.max(1));
                store.put("nodes", objects::node(node, &time)).map(drop)
            }
            85..90 => {
                let Some(deployment) = self.random.pick(&self.deployments) else { return Ok(()) };
                store.put("configmaps", objects::configmap(deployment, self.random.below(1_000_000))).map(drop)
            }
            90..95 => {
                let at = self.random.below(self.websites.len());
                let Some(website) = self.websites.get_mut(at) else { return Ok(()) };
                website.restarts += 1;
                website.time = time;
                store.ingest("websites.demo.deltabus.dev", [WEBSITE.object(website, &RUNNING)])
            }
            _ => self.pod_fails(store, &time),
        }
    }

    /// Runs the steps in a thread, `rate` a second, until the returned value is dropped.
    pub fn run(mut self, store: SharedStore, rate: f64) -> std::io::Result<Running> {
        let stop = Arc::new(AtomicBool::new(false));
        let steps = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&steps));
        let pause = Duration::from_secs_f64(1.0 / rate.clamp(0.01, 1e6));
        let thread = std::thread::Builder::new().name("workload".to_owned()).spawn(move || {
            let mut due = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = self.step(&store) {
                    tracing::debug!(%error, "workload: a step was refused");
                }
                counted.fetch_add(1, Ordering::Relaxed);
                due += pause;
                if due >= Duration::from_millis(1) {
                    // at a high rate several steps share one sleep
                    let nap = due.min(Duration::from_millis(100));
                    std::thread::sleep(nap);
                    due -= nap;
                }
            }
        })?;
        Ok(Running { stop, steps, thread: Some(thread) })
    }

    /// Fills the store with `pods` realistic pods, fast; `diverse` gives each its own values.
    ///
    /// For benches: they are pods `0..pods` of [`realistic_pod`], in 100 namespaces.
    pub fn load(&mut self, store: &SharedStore, pods: usize, diverse: bool) -> Result<(), ApiError> {
        let seed = diverse.then(|| self.random.next_u64());
        self.pods = (0..pods).map(|number| bench_fill(number, "pod", seed)).collect();
        for chunk in self.pods.chunks(64) {
            store.ingest("pods", chunk.iter().map(|fill| POD.object(fill, &RUNNING)))?;
        }
        Ok(())
    }

    /// Updates `events` pods drawn by chance, fast: restarts and readiness change.
    pub fn churn(&mut self, store: &SharedStore, events: usize) -> Result<(), ApiError> {
        let mut left = events;
        while left > 0 && !self.pods.is_empty() {
            let batch = left.min(64);
            let mut changed = Vec::with_capacity(batch);
            for _ in 0..batch {
                let at = self.random.below(self.pods.len());
                let pod = &mut self.pods[at];
                pod.restarts += 1;
                pod.ready = !pod.ready;
                changed.push(POD.object(pod, &RUNNING));
            }
            store.ingest("pods", changed)?;
            left -= batch;
        }
        Ok(())
    }

    fn new_pod(&mut self, deployment: &Deployment, time: &str) -> Fill {
        self.serial += 1;
        let owner = format!("{}-{}", deployment.name, deployment.hash);
        Fill {
            name: format!("{owner}-{}", self.random.suffix(5)),
            namespace: deployment.namespace.clone(),
            uid: self.random.uuid(),
            app: deployment.app.clone(),
            owner,
            owner_kind: "ReplicaSet",
            owner_uid: deployment.set_uid.clone(),
            hash: deployment.hash.clone(),
            node: self.random.below(self.nodes.max(1)),
            image: format!("1.{}.0", deployment.revision),
            number: self.serial,
            created: time.to_owned(),
            time: time.to_owned(),
            status: objects::pending(time),
            ..Fill::default()
        }
    }

    fn write_pod(&mut self, store: &SharedStore, pod: Fill) -> Result<(), ApiError> {
        store.ingest("pods", [POD.object(&pod, &RUNNING)])?;
        match self.pods.iter_mut().find(|known| known.uid == pod.uid) {
            Some(known) => *known = pod,
            None => self.pods.push(pod),
        }
        Ok(())
    }

    fn delete_pod(&mut self, store: &SharedStore, at: usize) -> Result<(), ApiError> {
        let pod = self.pods.swap_remove(at);
        match store.delete("pods", &pod.namespace, &pod.name) {
            Err(error) if error.code != 404 => Err(error),
            _ => Ok(()), // somebody else was faster
        }
    }

    /// A pending pod starts; a job's pod ends, and goes with its job; others become ready or unready.
    fn pod_lives(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let pending: Vec<usize> = (0..self.pods.len()).filter(|at| !self.pods[*at].status.is_empty()).collect();
        let at = self.random.pick(&pending).copied().unwrap_or_else(|| self.random.below(self.pods.len()));
        let Some(mut pod) = self.pods.get(at).cloned() else { return Ok(()) };
        time.clone_into(&mut pod.time);
        if pod.status.contains("\"phase\":\"Pending\"") {
            pod.status = String::new();
            pod.ready = true;
            store.create("events", objects::event(&pod, "Started", "Normal", time, self.random.next_u64()))?;
        } else if !pod.status.is_empty() {
            let gone = store.delete("jobs.batch", &pod.namespace, &pod.owner);
            self.delete_pod(store, at)?;
            return gone.map(drop);
        } else if pod.owner_kind == "Job" {
            let phase = if self.random.chance(0.8) { "Succeeded" } else { "Failed" };
            pod.status = objects::ended(phase, time);
        } else {
            pod.ready = !pod.ready;
        }
        self.write_pod(store, pod)
    }

    fn pod_fails(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let at = self.random.below(self.pods.len());
        let Some(mut pod) = self.pods.get(at).filter(|pod| pod.status.is_empty()).cloned() else { return Ok(()) };
        pod.restarts += 1;
        pod.ready = false;
        time.clone_into(&mut pod.time);
        store.create("events", objects::event(&pod, "BackOff", "Warning", time, self.random.next_u64()))?;
        self.write_pod(store, pod)
    }

    fn rollout_starts(&mut self, store: &SharedStore) -> Result<(), ApiError> {
        let at = self.random.below(self.deployments.len());
        let (hash, uid) = (self.random.suffix(9), self.random.uuid());
        let Some(deployment) = self.deployments.get_mut(at).filter(|found| found.rolling_from.is_none()) else {
            return Ok(());
        };
        deployment.rolling_from = Some(std::mem::replace(&mut deployment.hash, hash));
        deployment.set_uid = uid;
        deployment.revision += 1;
        store.put("deployments.apps", objects::deployment(deployment, deployment.replicas))?;
        let set = objects::replicaset(deployment, &deployment.hash, &deployment.set_uid, deployment.replicas);
        store.put("replicasets.apps", set).map(drop)
    }

    /// Replaces one pod of a deployment that rolls; the last one ends the rollout.
    fn rollout_goes_on(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let rolling = self.deployments.iter().position(|deployment| deployment.rolling_from.is_some());
        let Some(at) = rolling else { return self.rollout_starts(store) };
        let deployment = self.deployments[at].clone();
        let old = deployment.rolling_from.as_deref().unwrap_or_default();
        let belongs = |pod: &Fill| pod.hash == old && pod.namespace == deployment.namespace;
        if let Some(victim) = self.pods.iter().position(belongs) {
            let pod = self.new_pod(&deployment, time);
            self.write_pod(store, pod)?;
            return self.delete_pod(store, victim);
        }
        self.deployments[at].rolling_from = None;
        let gone = store.delete("replicasets.apps", &deployment.namespace, &format!("{}-{old}", deployment.name));
        store.put("deployments.apps", objects::deployment(&deployment, deployment.replicas))?;
        gone.map(drop)
    }

    fn job_starts(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let Some(namespace) = self.random.pick(&self.namespaces).cloned() else { return Ok(()) };
        self.serial += 1;
        let name = format!("import-{}", self.serial);
        let job = store.create("jobs.batch", objects::job(&namespace, &name))?;
        let uid = job.value()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let pod = Fill {
            name: format!("{name}-{}", self.random.suffix(5)),
            namespace,
            uid: self.random.uuid(),
            app: "import".to_owned(),
            owner: name,
            owner_kind: "Job",
            owner_uid: uid,
            hash: "job".to_owned(),
            node: self.random.below(self.nodes.max(1)),
            image: "2.0.1".to_owned(),
            number: self.serial,
            created: time.to_owned(),
            time: time.to_owned(),
            status: objects::pending(time),
            ..Fill::default()
        };
        self.write_pod(store, pod)
    }
}

/// A workload that runs in its thread; dropping it stops it.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Returns how many steps were done.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the workload's thread has panicked");
        }
    }
}

/// Returns pod `i` of the benches: some 9 KB of JSON with three managers' `managedFields`; version `1000 + i`.
///
/// All share one shape and most values, as pods of few applications do.
pub fn realistic_pod(i: usize) -> String {
    typed("Pod", &POD.object(&bench_fill(i, "pod", None), &RUNNING), i)
}

/// As [`realistic_pod`], with values of its own drawn by `seed`: harder to compress.
pub fn diverse_pod(seed: u64, i: usize) -> String {
    typed("Pod", &POD.object(&bench_fill(i, "pod", Some(seed)), &RUNNING), i)
}

/// Returns custom resource `i`: keys sorted, so that `managedFields` stands before `name`.
pub fn realistic_custom_resource(i: usize) -> String {
    let raw = WEBSITE.object(&bench_fill(i, "site", None), &RUNNING);
    let head = r#"{"apiVersion":"demo.deltabus.dev/v1","kind":"Website","#;
    format!("{head}{}{}{}", String::from_utf8_lossy(&raw.before), 1000 + i, String::from_utf8_lossy(&raw.after))
}

fn typed(kind: &str, raw: &RawObject, i: usize) -> String {
    let (before, after) = (String::from_utf8_lossy(&raw.before), String::from_utf8_lossy(&raw.after));
    format!(r#"{{"kind":"{kind}","apiVersion":"v1",{before}{}{after}"#, 1000 + i)
}

fn bench_fill(number: usize, what: &str, seed: Option<u64>) -> Fill {
    let app = APPS[number % APPS.len()];
    let set = number / 20;
    let mut random = Random::new(set as u64);
    let (hash, owner_uid) = (random.suffix(9), random.uuid());
    let mut own = Random::new(0x5eed ^ ((number as u64) << 8));
    Fill {
        name: format!("{app}-{what}-{number:06}"),
        namespace: format!("team-{:02}", set % 100),
        uid: own.uuid(),
        app: app.to_owned(),
        owner: format!("{app}-{hash}"),
        owner_kind: "ReplicaSet",
        owner_uid,
        hash,
        node: number / 30,
        image: "1.4.2".to_owned(),
        number,
        ready: true,
        created: BENCH_TIME.to_owned(),
        time: BENCH_TIME.to_owned(),
        diverse: seed.map(|seed| seed ^ own.next_u64()),
        ..Fill::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::store::HistoryLimits, *};

    #[test]
    fn realistic_objects_are_json_of_the_promised_size_and_shape() {
        for (text, kind) in
            [(realistic_pod(7), "Pod"), (diverse_pod(3, 7), "Pod"), (realistic_custom_resource(7), "Website")]
        {
            let object: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(object["kind"], kind);
            assert_eq!(object["metadata"]["resourceVersion"], "1007");
            assert!(object["metadata"]["managedFields"].as_array().unwrap().len() >= 2);
            println!("{kind}: {} bytes", text.len());
        }
        assert!((8_000..11_000).contains(&realistic_pod(1).len()), "{}", realistic_pod(1).len());
        assert_ne!(diverse_pod(1, 1), diverse_pod(2, 1));
        let website = realistic_custom_resource(1);
        assert!(website.find("managedFields") < website.find(r#""name":"api-site"#));
    }

    #[test]
    fn one_seed_does_the_same_things() {
        let run = || {
            let store = SharedStore::new(5, HistoryLimits::default());
            let mut workload = Workload::new(9);
            workload.populate(&store, Sizes::default()).unwrap();
            for step in 0..2_000 {
                workload.step(&store).unwrap_or_else(|error| panic!("step {step}: {error}"));
            }
            let names = |resource| store.list(resource).iter().map(|pod| pod.key().to_string()).collect::<Vec<_>>();
            (store.version(), names("pods"), names("replicasets.apps"), names("jobs.batch"))
        };
        let (version, pods, sets, jobs) = run();
        assert_eq!((version, pods.clone(), sets, jobs), run());
        assert!(version > 2_000, "{version}");
        assert!((160..300).contains(&pods.len()), "{}", pods.len());
    }
}
