//! Frequent changes: pods start, fail and end; jobs run; nodes report.

use super::{
    super::{ApiError, shared::SharedStore},
    Controller, Deployment, WEBSITES, Workload,
    fill::Fill,
    objects,
    populate::DATABASE_REPLICAS,
    types::custom_resource,
};

/// Number of events that are kept; a real server deletes them after an hour.
const EVENTS_KEPT: usize = 300;
/// Maximum number of jobs at a time.
const JOBS_MAX: usize = 20;

impl Workload {
    /// Creates a pending pod of the current revision.
    pub(super) fn new_pod(&mut self, deployment: &Deployment, time: &str) -> Fill {
        let owner = Controller {
            namespace: deployment.namespace.clone(),
            name: format!("{}-{}", deployment.name, deployment.hash),
            uid: deployment.set_uid.clone(),
        };
        let name = format!("{}-{}", owner.name, self.random.suffix(5));
        Fill {
            hash: deployment.hash.clone(),
            image: format!("1.{}.0", deployment.revision),
            status: objects::pending(time),
            ..self.pod_of(&owner, "ReplicaSet", &deployment.app, name, time)
        }
    }

    /// Creates a running pod for any owner.
    pub(super) fn pod_of(
        &mut self,
        owner: &Controller,
        owner_kind: &'static str,
        app: &str,
        name: String,
        time: &str,
    ) -> Fill {
        self.serial += 1;
        Fill {
            name,
            namespace: owner.namespace.clone(),
            uid: self.random.uuid(),
            app: app.to_owned(),
            owner: owner.name.clone(),
            owner_kind,
            owner_uid: owner.uid.clone(),
            hash: app.to_owned(),
            node: self.random.below(self.nodes.max(1)),
            image: "2.0.1".to_owned(),
            number: self.serial,
            created: time.to_owned(),
            time: time.to_owned(),
            ..Fill::default()
        }
    }

    pub(super) fn new_custom_resource(&mut self, number: usize, what: &str, namespace: String, time: &str) -> Fill {
        let (created, time) = (time.to_owned(), time.to_owned());
        Fill { namespace, uid: self.random.uuid(), created, time, ..custom_resource(number, what) }
    }

    pub(super) fn write_pod(&mut self, store: &SharedStore, pod: Fill) -> Result<(), ApiError> {
        store.ingest("pods", [pod.pod()])?;
        match self.pods.iter_mut().find(|known| known.uid == pod.uid) {
            Some(known) => *known = pod,
            None => self.pods.push(pod),
        }
        Ok(())
    }

    pub(super) fn delete_pod(&mut self, store: &SharedStore, at: usize) -> Result<(), ApiError> {
        let pod = self.pods.swap_remove(at);
        gone(store, "pods", &pod.namespace, &pod.name)
    }

    /// Writes an Event about a pod. Deletes the oldest Event if there are more than `EVENTS_KEPT`.
    pub(super) fn write_event(
        &mut self,
        store: &SharedStore,
        pod: &Fill,
        reason: &str,
        kind: &str,
    ) -> Result<(), ApiError> {
        let event = objects::event(pod, reason, kind, &pod.time, self.random.next_u64());
        let written = store.create("events", event)?;
        let key = written.key().as_ref();
        self.events.push_back((key.namespace.to_owned(), key.name.to_owned()));
        if self.events.len() > EVENTS_KEPT
            && let Some((namespace, name)) = self.events.pop_front()
        {
            return gone(store, "events", &namespace, &name);
        }
        Ok(())
    }

    /// Changes one pod: starts a pending pod, ends a job's pod, deletes an ended pod with its job, or changes a pod's
    /// readiness.
    pub(super) fn pod_lives(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let is_busy = |pod: &Fill| pod.owner_kind == "Job" || !pod.status.is_empty();
        let busy: Vec<usize> = (0..self.pods.len()).filter(|at| is_busy(&self.pods[*at])).collect();
        let any = self.random.below(self.pods.len());
        let at = if self.random.chance(0.7) { self.random.pick(&busy).copied().unwrap_or(any) } else { any };
        let Some(mut pod) = self.pods.get(at).cloned() else { return Ok(()) };
        time.clone_into(&mut pod.time);
        if pod.status.contains("\"phase\":\"Pending\"") {
            pod.status = String::new();
            pod.ready = true;
            self.write_event(store, &pod, "Started", "Normal")?;
        } else if !pod.status.is_empty() {
            self.delete_pod(store, at)?;
            return gone(store, "jobs.batch", &pod.namespace, &pod.owner);
        } else if pod.owner_kind == "Job" {
            let succeeded = self.random.chance(0.8);
            pod.status = objects::ended(if succeeded { "Succeeded" } else { "Failed" }, time);
            store.patch("jobs.batch", &pod.namespace, &pod.owner, objects::job_ended(succeeded, time)).map(drop)?;
        } else {
            pod.ready = !pod.ready;
        }
        self.write_pod(store, pod)
    }

    pub(super) fn pod_fails(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let at = self.random.below(self.pods.len());
        let Some(mut pod) = self.pods.get(at).filter(|pod| pod.status.is_empty()).cloned() else { return Ok(()) };
        pod.restarts += 1;
        pod.ready = false;
        time.clone_into(&mut pod.time);
        self.write_event(store, &pod, "BackOff", "Warning")?;
        self.write_pod(store, pod)
    }

    pub(super) fn cron_job_fires(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let Some(cron_job) = self.random.pick(&self.cron_jobs).cloned() else { return Ok(()) };
        if self.pods.iter().filter(|pod| pod.owner_kind == "Job").count() >= JOBS_MAX {
            return Ok(());
        }
        let job = Controller {
            namespace: cron_job.namespace.clone(),
            name: format!("{}-{}", cron_job.name, self.serial),
            uid: self.random.uuid(),
        };
        store.create("jobs.batch", objects::job(&job, &cron_job))?;
        store.put("cronjobs.batch", objects::cron_job(&cron_job, Some((&job, time))))?;
        let name = format!("{}-{}", job.name, self.random.suffix(5));
        let pod = Fill { status: objects::pending(time), ..self.pod_of(&job, "Job", "report", name, time) };
        self.write_pod(store, pod)
    }

    /// Replaces a database pod by one with the same name.
    pub(super) fn database_fails_over(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let Some(database) = self.random.pick(&self.databases).cloned() else { return Ok(()) };
        let name = format!("{}-{}", database.name, self.random.below(DATABASE_REPLICAS));
        let is_it = |pod: &Fill| pod.name == name && pod.namespace == database.namespace;
        let Some(at) = self.pods.iter().position(is_it) else { return Ok(()) };
        self.delete_pod(store, at)?;
        let ready = DATABASE_REPLICAS - 1;
        store.put("statefulsets.apps", objects::statefulset(&database, DATABASE_REPLICAS, ready))?;
        let pod = Fill { ready: true, ..self.pod_of(&database, "StatefulSet", "postgres", name, time) };
        self.write_event(store, &pod, "Started", "Normal")?;
        self.write_pod(store, pod)?;
        store.put("statefulsets.apps", objects::statefulset(&database, DATABASE_REPLICAS, DATABASE_REPLICAS)).map(drop)
    }

    pub(super) fn lease_is_renewed(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let node = self.random.below(self.nodes.max(1));
        store.put("leases.coordination.k8s.io", objects::lease(node, time)).map(drop)
    }

    pub(super) fn node_reports(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let node = self.random.below(self.nodes.max(1));
        store.put("nodes", objects::node(node, time)).map(drop)
    }

    pub(super) fn configmap_changes(&mut self, store: &SharedStore) -> Result<(), ApiError> {
        let Some(deployment) = self.random.pick(&self.deployments) else { return Ok(()) };
        store.put("configmaps", objects::configmap(deployment, self.random.below(1_000_000))).map(drop)
    }

    pub(super) fn website_changes(&mut self, store: &SharedStore, time: String) -> Result<(), ApiError> {
        let at = self.random.below(self.websites.len());
        let Some(website) = self.websites.get_mut(at) else { return Ok(()) };
        website.restarts += 1;
        website.time = time;
        store.ingest(WEBSITES, [website.custom_resource()])
    }
}

/// Deletes an object; a missing object is not an error.
pub(super) fn gone(store: &SharedStore, resource: &str, namespace: &str, name: &str) -> Result<(), ApiError> {
    match store.delete(resource, namespace, name) {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}
