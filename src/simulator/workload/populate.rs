//! Initial objects of the cluster.

use std::collections::VecDeque;

use serde_json::json;

use super::{
    super::{
        ApiError,
        shared::{SharedStore, now},
    },
    APPS, Controller, DEFINITIONS, Deployment, Sizes, WEBSITES, Workload,
    fill::Fill,
    objects,
};

/// Number of pods of each database.
pub(super) const DATABASE_REPLICAS: usize = 3;
const AGENT: &str = "node-agent";
/// Objects of every namespace, with `${NS}` for the namespace's name.
pub(super) const NAMESPACE: &str = include_str!("namespace.yaml");

impl Workload {
    /// Fills the store.
    pub fn populate(&mut self, store: &SharedStore, sizes: Sizes) -> Result<(), ApiError> {
        let time = now();
        store.put(DEFINITIONS, objects::definition("demo.deltabus.dev", "websites"))?;
        store.apply(include_str!("cluster.yaml"))?;
        self.add_nodes(store, sizes.nodes.max(1), &time)?;
        for number in 0..sizes.namespaces.max(1) {
            self.add_namespace(store, format!("shop-{number}"), &time)?;
        }
        for number in 0..sizes.deployments {
            self.add_deployment(store, number, sizes.replicas, &time)?;
        }
        for number in 0..sizes.websites {
            let namespace = self.namespaces[number % self.namespaces.len()].clone();
            let fill = self.new_custom_resource(number, "site", namespace, &time);
            store.ingest(WEBSITES, [fill.custom_resource()])?;
            self.websites.push(fill);
        }
        Ok(())
    }

    /// Adds nodes with their leases and daemonset pods.
    fn add_nodes(&mut self, store: &SharedStore, nodes: usize, time: &str) -> Result<(), ApiError> {
        self.nodes = nodes;
        let agent = self.controller("kube-system", AGENT);
        store.put("daemonsets.apps", objects::daemonset(&agent, nodes))?;
        for node in 0..nodes {
            store.put("nodes", objects::node(node, time))?;
            store.put("leases.coordination.k8s.io", objects::lease(node, time))?;
            let name = format!("{AGENT}-{}", self.random.suffix(5));
            let pod = Fill { node, ready: true, ..self.pod_of(&agent, "DaemonSet", AGENT, name, time) };
            self.write_pod(store, pod)?;
        }
        Ok(())
    }

    /// Adds a namespace with rights, a secret, a database and a cron job.
    fn add_namespace(&mut self, store: &SharedStore, namespace: String, time: &str) -> Result<(), ApiError> {
        let labels = json!({"team": format!("team-{}", self.namespaces.len()), "env": "prod"});
        store.put("namespaces", json!({"metadata": {"name": namespace, "labels": labels}}))?;
        store.apply(&format!("{NAMESPACE}---\n{}", include_str!("shop.yaml")).replace("${NS}", &namespace))?;
        let database = self.controller(&namespace, "postgres");
        store.put("statefulsets.apps", objects::statefulset(&database, DATABASE_REPLICAS, DATABASE_REPLICAS))?;
        for number in 0..DATABASE_REPLICAS {
            let name = format!("postgres-{number}");
            let pod = Fill { ready: true, ..self.pod_of(&database, "StatefulSet", "postgres", name, time) };
            self.write_pod(store, pod)?;
        }
        self.databases.push(database);
        let cron_job = self.controller(&namespace, "report");
        store.put("cronjobs.batch", objects::cron_job(&cron_job, None))?;
        self.cron_jobs.push(cron_job);
        self.namespaces.push(namespace);
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
        let deployment = Deployment {
            namespace: self.namespaces[number % self.namespaces.len()].clone(),
            name: format!("{app}-{}", number / APPS.len()),
            app: app.to_owned(),
            uid: self.random.uuid(),
            replicas,
            revision: 1,
            generation: 1,
            hash: self.random.suffix(9),
            set_uid: self.random.uuid(),
            rollout: None,
            earlier: VecDeque::new(),
        };
        let service_uid = self.random.uuid();
        store.put("configmaps", objects::configmap(&deployment, 0))?;
        store.put("services", objects::service(&deployment, number, &service_uid))?;
        for _ in 0..replicas {
            let pod = Fill { status: String::new(), ready: true, ..self.new_pod(&deployment, time) };
            self.write_pod(store, pod)?;
        }
        self.write_deployment(store, &deployment)?;
        self.deployments.push(deployment);
        Ok(())
    }

    fn controller(&mut self, namespace: &str, name: &str) -> Controller {
        Controller { namespace: namespace.to_owned(), name: name.to_owned(), uid: self.random.uuid() }
    }
}
