//! A cookbook configuration as a reader copies it, and a cluster for it.

use std::{fs, path::PathBuf};

use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use crate::support::told::{events, stories, wait_events};
use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
};

const PAGE: &str = include_str!("../../../docs/cookbook.md");

/// Returns the configurations of the page: the name in the first line, and the text.
pub(crate) fn recipes() -> Vec<(&'static str, &'static str)> {
    blocks("toml")
}

/// Returns the blocks of the page in a language, each with the name in its first line.
fn blocks(language: &str) -> Vec<(&'static str, &'static str)> {
    let begin = format!("```{language}\n");
    let blocks = PAGE.split(&*begin).skip(1).filter_map(|rest| rest.split_once("\n```"));
    blocks.map(|(block, _)| (block.lines().next().unwrap_or_default().trim_start_matches("# "), block)).collect()
}

/// A recipe, a cluster, and the environment variables that replace addresses and paths.
pub(crate) struct Kitchen {
    pub(crate) cluster: Simulator,
    dir: TempDir,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Kitchen {
    /// Writes a recipe into a file, and starts an empty cluster with these namespaces.
    pub(crate) fn with(recipe: &str, namespaces: &[&str]) -> Self {
        let (_, config) = recipes().into_iter().find(|(name, _)| *name == recipe).expect("the page has it");
        let cluster = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("config.toml"), config).expect("the directory is writable");
        fs::write(dir.path().join("kubeconfig"), cluster.kubeconfig()).expect("the directory is writable");
        for (name, state) in blocks("yaml") {
            fs::write(dir.path().join(name), state).expect("the directory is writable");
        }
        let environment = vec![
            ("KUBECONFIG", dir.path().join("kubeconfig")),
            ("DELTABUS__HTTP__LISTEN", "127.0.0.1:0".into()),
            ("TZ", "UTC".into()),
        ];
        let kitchen = Self { cluster, dir, environment };
        for namespace in namespaces {
            kitchen.put("namespaces", "", namespace, json!({}));
        }
        kitchen
    }

    /// Replaces a value of the recipe.
    pub(crate) fn replace(&mut self, variable: &'static str, value: impl Into<PathBuf>) {
        self.environment.push((variable, value.into()));
    }

    /// Replaces a path of the recipe by one of this name.
    pub(crate) fn replace_path(&mut self, variable: &'static str, name: &str) {
        self.replace(variable, self.dir.path().join(name));
    }

    pub(crate) fn config(&self) -> String {
        text(self.dir.path(), "config.toml")
    }

    pub(crate) fn environment(&self) -> &[(&'static str, PathBuf)] {
        &self.environment
    }

    /// Runs the recipe until it is ready; stdout is appended to a file of that name.
    pub(crate) fn run(&self) -> Engine {
        let config = fs::read_to_string(self.config()).expect("the recipe is there");
        let engine = if config.contains("type = \"exec\"") {
            Engine::run_allowing_programs(self.dir.path(), &self.environment)
        } else {
            Engine::run_again_to(self.dir.path(), &self.environment, &self.file("stdout"))
        };
        engine.wait_ready(PATIENCE);
        engine
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates an object, or merges `object` into it.
    pub(crate) fn put(&self, resource: &str, namespace: &str, name: &str, mut object: Value) -> Value {
        let store = self.cluster.store();
        let stored = if store.get(resource, namespace, name).is_some() {
            store.patch(resource, namespace, name, object)
        } else {
            object["metadata"]["name"] = name.into();
            if !namespace.is_empty() {
                object["metadata"]["namespace"] = namespace.into();
            }
            store.create(resource, object)
        };
        stored.expect("a valid object").value()
    }

    /// Creates a deployment, or sets its image.
    pub(crate) fn deploy(&self, namespace: &str, name: &str, image: &str) -> Value {
        let containers = json!([{ "name": "web", "image": image }]);
        let spec = json!({ "replicas": 1, "template": { "spec": { "containers": containers } } });
        self.put("deployments.apps", namespace, name, json!({ "spec": spec }))
    }

    /// Defines a namespaced type, as a CRD.
    pub(crate) fn define(&self, group: &str, kind: &str) {
        let singular = kind.to_lowercase();
        let name = format!("{singular}s.{group}");
        let names = json!({ "kind": kind, "plural": format!("{singular}s"), "singular": singular });
        let versions = json!([{ "name": "v1", "served": true, "storage": true }]);
        let spec = json!({ "group": group, "scope": "Namespaced", "names": names, "versions": versions });
        self.put("customresourcedefinitions.apiextensions.k8s.io", "", &name, json!({ "spec": spec }));
    }

    pub(crate) fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.cluster.store().delete(resource, namespace, name).expect("it is there");
    }
}
