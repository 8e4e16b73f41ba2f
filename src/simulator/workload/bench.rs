//! Objects for benches: many, fast, and always the same.

use super::{
    super::{error::ApiError, random::Random, shared::SharedStore, store::RawObject},
    APPS, DEFINITIONS, POD, RUNNING, WEBSITE, Workload, objects,
    template::Fill,
};

/// When the objects of benches were created: they do not ask the clock.
const BENCH_TIME: &str = "2026-01-01T00:00:00Z";

impl Workload {
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

    /// Defines `types` custom resource types, named as [`bench_type`] says, with so many objects each. For benches.
    pub fn load_types(&mut self, store: &SharedStore, types: usize, objects: usize) -> Result<(), ApiError> {
        for number in 0..types {
            let name = bench_type(number);
            let (plural, group) = name.split_once('.').unwrap_or((&name, ""));
            store.put(DEFINITIONS, objects::definition(group, plural))?;
            let fills = (0..objects).map(|object| bench_fill(object, plural, None));
            store.ingest(&name, fills.map(|fill| WEBSITE.object(&fill, &RUNNING)))?;
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
}

/// Returns the name of type `number` of [`Workload::load_types`], `kind007s.group7.bench.deltabus.dev`: ten groups.
pub fn bench_type(number: usize) -> String {
    format!("kind{number:03}s.group{}.bench.deltabus.dev", number % 10)
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

pub(super) fn bench_fill(number: usize, what: &str, seed: Option<u64>) -> Fill {
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

    use super::*;

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
}
