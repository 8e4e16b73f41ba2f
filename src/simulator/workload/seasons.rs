//! Types and namespaces that exist for a season: one step adds them, and a later step removes them with their objects.

use serde_json::json;

use super::{
    super::{ApiError, shared::SharedStore},
    DEFINITIONS, Workload,
    fill::Fill,
    life::gone,
    objects,
    populate::NAMESPACE,
};

/// Steps per season: half a minute at ten steps per second.
const SEASON: usize = 300;
/// Types that are added and removed in turn. Each type has its own group.
const TYPES: [&str; 3] = ["backups.ops.deltabus.dev", "canaries.delivery.deltabus.dev", "sales.shop.deltabus.dev"];
const OBJECTS: usize = 16;

/// Number of steps so far, and objects of the current season.
#[derive(Debug, Default)]
pub(super) struct Seasons {
    steps: usize,
    /// Objects of the current type.
    objects: Vec<Fill>,
}

impl Seasons {
    fn number(&self) -> usize {
        self.steps / SEASON
    }
}

impl Workload {
    /// Returns the names of the seasonal types.
    pub fn seasonal_types() -> [&'static str; 3] {
        TYPES
    }

    /// Counts a step, and makes the changes that are due.
    pub(super) fn season_goes_on(&mut self, store: &SharedStore, time: &str) -> Result<(), ApiError> {
        self.seasons.steps += 1;
        let number = self.seasons.number();
        let resource = TYPES[number % TYPES.len()];
        match self.seasons.steps % SEASON {
            30 => {
                let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
                store.put(DEFINITIONS, objects::definition(group, plural))?;
                self.news.push(format!("type {resource} is defined"));
            }
            100 => self.namespace_is_labelled(store)?,
            120 => self.preview_comes(store, number)?,
            210 => {
                let name = preview(number);
                gone(store, "namespaces", "", &name)?;
                self.news.push(format!("namespace {name} is deleted with its objects"));
            }
            240 => {
                gone(store, DEFINITIONS, "", resource)?;
                let objects = self.seasons.objects.len();
                self.seasons.objects.clear();
                self.news.push(format!("type {resource} was deleted with its {objects} objects"));
            }
            step @ 31..70 if step % 2 == 0 && self.seasons.objects.len() < OBJECTS => {
                self.seasonal_object_comes(store, resource, time)?;
            }
            step @ 70..240 if step % 4 == 0 => self.seasonal_object_changes(store, resource, time)?,
            _ => {}
        }
        Ok(())
    }

    fn seasonal_object_comes(&mut self, store: &SharedStore, resource: &str, time: &str) -> Result<(), ApiError> {
        let number = self.seasons.objects.len();
        let namespace = self.namespaces[number % self.namespaces.len()].clone();
        let object = self.new_custom_resource(number, "season", namespace, time);
        let written = store.ingest(resource, [object.custom_resource()]);
        self.seasons.objects.push(object);
        if number + 1 == OBJECTS {
            self.news.push(format!("type {resource} has {OBJECTS} objects"));
        }
        written
    }

    fn seasonal_object_changes(&mut self, store: &SharedStore, resource: &str, time: &str) -> Result<(), ApiError> {
        let at = self.random.below(self.seasons.objects.len());
        let Some(object) = self.seasons.objects.get_mut(at) else { return Ok(()) };
        object.restarts += 1;
        time.clone_into(&mut object.time);
        store.ingest(resource, [object.custom_resource()])
    }

    fn namespace_is_labelled(&mut self, store: &SharedStore) -> Result<(), ApiError> {
        let Some(namespace) = self.random.pick(&self.namespaces) else { return Ok(()) };
        let present = store.get("namespaces", "", namespace).map(|found| found.value());
        let is_prod = present.is_some_and(|found| found["metadata"]["labels"]["env"] == "prod");
        let env = if is_prod { "canary" } else { "prod" };
        store.patch("namespaces", "", namespace, json!({"metadata": {"labels": {"env": env}}}))?;
        self.news.push(format!("namespace {namespace} is labelled env={env}"));
        Ok(())
    }

    /// Adds a namespace for a pull request.
    fn preview_comes(&mut self, store: &SharedStore, number: usize) -> Result<(), ApiError> {
        let name = preview(number);
        store.put("namespaces", json!({"metadata": {"name": name, "labels": {"env": "preview"}}}))?;
        store.apply(&NAMESPACE.replace("${NS}", &name))?;
        for map in ["config", "features", "routes"] {
            let object =
                json!({"metadata": {"name": map, "namespace": name}, "data": {"pull-request": number.to_string()}});
            store.put("configmaps", object)?;
        }
        self.news.push(format!("namespace {name} is created"));
        Ok(())
    }
}

fn preview(number: usize) -> String {
    format!("preview-{number}")
}
