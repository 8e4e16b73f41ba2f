//! Changes of deployments: rolling updates pod by pod, and scaling.

use super::{
    super::{ApiError, shared::SharedStore},
    Deployment, Workload,
    fill::Fill,
    life::gone,
    objects,
};

/// Number of earlier `ReplicaSet`s that a deployment keeps; they have no pods.
const EARLIER_KEPT: usize = 2;
const REPLICAS_MAX: usize = 8;

/// State of a rolling update. During the update, the deployment always has the wanted number of pods, or one more.
#[derive(Clone, Debug)]
pub(super) struct Rollout {
    /// Hash of the `ReplicaSet` that is being replaced.
    pub(super) from: String,
    /// Uid of the `ReplicaSet` that is being replaced.
    pub(super) from_uid: String,
    /// Number of pods of the old revision.
    pub(super) old: usize,
    /// Number of pods of the new revision.
    pub(super) new: usize,
    /// Number of ready pods of the new revision.
    pub(super) ready: usize,
}

impl Workload {
    /// Starts a rollout of a random deployment: adds a `ReplicaSet` without pods. Does nothing if that deployment is already
    /// rolling out.
    pub(super) fn rollout_starts(&mut self, store: &SharedStore) -> Result<(), ApiError> {
        let at = self.random.below(self.deployments.len());
        let (hash, uid) = (self.random.suffix(9), self.random.uuid());
        let Some(mut deployment) = self.idle_deployment(at) else { return Ok(()) };
        deployment.rollout = Some(Rollout {
            from: std::mem::replace(&mut deployment.hash, hash),
            from_uid: std::mem::replace(&mut deployment.set_uid, uid),
            old: deployment.replicas,
            new: 0,
            ready: 0,
        });
        deployment.revision += 1;
        deployment.generation += 1;
        let Deployment { namespace, name, revision, .. } = &deployment;
        self.news.push(format!("rollout of {namespace}/{name} to 1.{revision}.0"));
        self.write_deployment(store, &deployment)?;
        self.deployments[at] = deployment;
        Ok(())
    }

    /// Returns the deployment at this index, unless it is rolling out.
    fn idle_deployment(&self, at: usize) -> Option<Deployment> {
        self.deployments.get(at).filter(|found| found.rollout.is_none()).cloned()
    }

    /// Advances a rollout by one step: adds a pod, makes a pod ready, or deletes an old pod. The last step ends the rollout.
    /// Starts a rollout if there is none.
    pub(super) fn rollout_goes_on(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let rolling = self.deployments.iter().position(|deployment| deployment.rollout.is_some());
        let Some(at) = rolling else { return self.rollout_starts(store) };
        let mut deployment = self.deployments[at].clone();
        let wanted = deployment.replicas;
        let Some(rollout) = &mut deployment.rollout else { return Ok(()) };
        if rollout.old == 0 && rollout.ready == wanted {
            self.rollout_ends(store, &mut deployment)?;
        } else if rollout.ready < rollout.new {
            rollout.ready += 1;
            self.pod_gets_ready(store, &deployment, time)?;
        } else if rollout.old + rollout.new <= wanted {
            rollout.new += 1;
            let pod = self.new_pod(&deployment, time);
            self.write_pod(store, pod)?;
        } else {
            rollout.old -= 1;
            let (from, left) = (rollout.from.clone(), rollout.old);
            self.delete_pod_of(store, &deployment.namespace, &from)?;
            store.put("replicasets.apps", objects::earlier_replicaset(&deployment, left))?;
        }
        self.write_deployment(store, &deployment)?;
        self.deployments[at] = deployment;
        Ok(())
    }

    /// Deletes a pod of the `ReplicaSet` with this hash.
    fn delete_pod_of(&mut self, store: &SharedStore, namespace: &str, hash: &str) -> Result<(), ApiError> {
        let victim = self.pods.iter().position(|pod| pod.hash == hash && pod.namespace == namespace);
        victim.map_or(Ok(()), |victim| self.delete_pod(store, victim))
    }

    fn rollout_ends(&mut self, store: &SharedStore, deployment: &mut Deployment) -> Result<(), ApiError> {
        let Some(rollout) = deployment.rollout.take() else { return Ok(()) };
        let Deployment { namespace, name, revision, .. } = &*deployment;
        self.news.push(format!("{namespace}/{name} is rolled out to 1.{revision}.0"));
        deployment.earlier.push_back(rollout.from);
        if deployment.earlier.len() > EARLIER_KEPT
            && let Some(hash) = deployment.earlier.pop_front()
        {
            gone(store, "replicasets.apps", &deployment.namespace, &format!("{}-{hash}", deployment.name))?;
        }
        Ok(())
    }

    /// Makes one pod of the current revision ready, unless all are.
    fn pod_gets_ready(&mut self, store: &SharedStore, deployment: &Deployment, time: &str) -> Result<(), ApiError> {
        let is_due = |pod: &&Fill| pod.hash == deployment.hash && !pod.status.is_empty();
        let Some(pod) = self.pods.iter().find(is_due).cloned() else { return Ok(()) };
        let pod = Fill { status: String::new(), ready: true, time: time.to_owned(), ..pod };
        self.write_event(store, &pod, "Started", "Normal")?;
        self.write_pod(store, pod)
    }

    /// Adds or removes a pod, as an autoscaler does.
    pub(super) fn deployment_scales(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        let at = self.random.below(self.deployments.len());
        let grows = self.random.chance(0.5);
        let Some(mut deployment) = self.idle_deployment(at) else { return Ok(()) };
        if grows && deployment.replicas < REPLICAS_MAX {
            let pod = Fill { status: String::new(), ready: true, ..self.new_pod(&deployment, time) };
            self.write_pod(store, pod)?;
            deployment.replicas += 1;
        } else if !grows && deployment.replicas > 1 {
            self.delete_pod_of(store, &deployment.namespace, &deployment.hash)?;
            deployment.replicas -= 1;
        } else {
            return Ok(());
        }
        deployment.generation += 1;
        self.write_deployment(store, &deployment)?;
        self.deployments[at] = deployment;
        Ok(())
    }

    /// Writes a deployment, its current `ReplicaSet`, and the endpoints of its service.
    pub(super) fn write_deployment(&self, store: &SharedStore, deployment: &Deployment) -> Result<(), ApiError> {
        store.put("deployments.apps", objects::deployment(deployment))?;
        store.put("replicasets.apps", objects::replicaset(deployment))?;
        let Some(service) = store.get("services", &deployment.namespace, &deployment.name) else { return Ok(()) };
        let old = deployment.rollout.as_ref().map_or("", |rollout| &rollout.from);
        let is_reached = |pod: &&Fill| {
            pod.namespace == deployment.namespace
                && (pod.hash == deployment.hash || pod.hash == old)
                && pod.status.is_empty()
        };
        let pods: Vec<_> = self.pods.iter().filter(is_reached).collect();
        let uid = service.value()["metadata"]["uid"].clone();
        store.put("endpointslices.discovery.k8s.io", objects::endpoints(deployment, &uid, &pods)).map(drop)
    }
}
