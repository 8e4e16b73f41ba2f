//! Who is there: the informers that run, the patterns that wait, and how far start-up has come.
//!
//! Shared by the engine, which writes it, and by reads, which copy an `Arc` out. Changes are rare (a type found, a
//! type gone), so the list is replaced whole.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;

use crate::{
    informer::Informer,
    journal::UnitId,
    status::{UnitState, UnitStatus, UnitView},
};

/// A `match` pattern that names no served type yet.
#[derive(Clone, Debug)]
pub struct WaitingPattern {
    /// Name of the `[resources.*]` entry.
    pub entry: String,
    /// The pattern as written.
    pub pattern: String,
    /// Its row in `/v1/resources`.
    pub status: Arc<UnitStatus>,
}

/// What is watched, and what waits to be.
#[derive(Debug, Default)]
struct Content {
    informers: Vec<Arc<Informer>>,
    waiting: Vec<WaitingPattern>,
}

/// The engine's informers.
#[derive(Debug, Default)]
pub struct Registry {
    content: ArcSwap<Content>,
    discovered: AtomicBool,
}

impl Registry {
    /// Replaces what is there.
    pub fn set(&self, informers: Vec<Arc<Informer>>, waiting: Vec<WaitingPattern>) {
        self.content.store(Arc::new(Content { informers, waiting }));
    }

    /// Says that the server has told which types it serves.
    pub fn set_discovered(&self) {
        self.discovered.store(true, Ordering::Release);
    }

    /// Returns the running informers in the order in which they were found.
    pub fn informers(&self) -> Vec<Arc<Informer>> {
        self.content.load().informers.clone()
    }

    /// Returns the patterns that name no served type yet.
    pub fn waiting(&self) -> Vec<WaitingPattern> {
        self.content.load().waiting.clone()
    }

    /// Returns the informer of a type.
    pub fn find_type(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Informer>> {
        let content = self.content.load();
        let of_type = |informer: &&Arc<Informer>| {
            let resource = &informer.resource;
            resource.plural == plural && resource.group == group && resource.version == version
        };
        content.informers.iter().find(of_type).cloned()
    }

    /// Returns the informer with this id.
    pub fn find_unit(&self, unit: UnitId) -> Option<Arc<Informer>> {
        self.content.load().informers.iter().find(|informer| informer.id == unit).cloned()
    }

    /// Returns every row of `/v1/resources`.
    pub fn views(&self) -> Vec<UnitView> {
        let content = self.content.load();
        let running = content.informers.iter().map(|informer| informer.status.view());
        running.chain(content.waiting.iter().map(|waiting| waiting.status.view())).collect()
    }

    /// Returns whether the server has told which types it serves.
    pub fn is_discovered(&self) -> bool {
        self.discovered.load(Ordering::Acquire)
    }

    /// Returns why a resource keeps the engine from being ready, by row; empty once every configured resource that
    /// exists and is allowed is synced.
    pub fn unready(&self) -> Vec<(String, String)> {
        if !self.is_discovered() {
            return vec![("discovery".to_owned(), UNDISCOVERED.to_owned())];
        }
        let why = |view: UnitView| why_unready(&view).map(|why| (view.plural, why));
        self.views().into_iter().filter_map(why).collect()
    }
}

/// Why nothing can be ready before discovery.
pub const UNDISCOVERED: &str = "the API server has not told its resource types yet";

/// Returns why a row of `/v1/resources` keeps the engine from being ready; `None` where it does not: it is synced, or
/// does not exist, or is not allowed.
pub fn why_unready(view: &UnitView) -> Option<String> {
    let settled = view.synced || matches!(view.state, UnitState::Forbidden | UnitState::Waiting);
    let error = view.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
    (!settled).then(|| format!("not synced, {}{error}", view.state.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ResourceType;

    #[test]
    fn a_type_that_was_found_keeps_the_engine_from_being_ready_before_its_first_list_has_begun() {
        let pods = ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            plural: "pods".to_owned(),
            namespaced: true,
        };
        assert!(why_unready(&UnitStatus::new("all", &pods).view()).is_some());
        assert!(why_unready(&UnitStatus::waiting("all", "bananas").view()).is_none());
    }
}
