//! User-visible state, message and counters of a reflector.

use super::{Availability, Comparison, Reflector, State};
use crate::{
    object::ResourceType,
    status::{UnitState, UnitView},
};

/// Message for a 401.
const UNAUTHORIZED: &str =
    "the API server does not accept the credentials (401): check the kubeconfig or the service account's token";

/// Message while the reflector checks the server's version.
const CHECKING: &str = "checking that the API server is not older than the cache";

/// Describes a list that must be confirmed by a second one.
fn confirming(Comparison { known, missing }: Comparison) -> String {
    format!("confirming a list that lacks {} of {} objects", grouped(missing), grouped(known))
}

/// Writes a number with thousands separators.
fn grouped(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1_000), number % 1_000),
    }
}

/// Describes the missing right, and how to grant it.
fn forbidden(verb: &str, resource: &ResourceType, namespace: Option<&str>) -> String {
    let grant = format!("grant the verbs list and watch on {resource}");
    match namespace {
        _ if !resource.namespaced => format!("not allowed to {verb} {resource} (403): {grant}, with a ClusterRole"),
        Some(namespace) => {
            format!(
                "not allowed to {verb} {resource} in namespace {namespace} (403): {grant}, with a Role in {namespace}"
            )
        }
        None => format!(
            "not allowed to {verb} {resource} in all namespaces (403): {grant}, with a ClusterRole, or name the namespaces \
             that may be read"
        ),
    }
}

/// Describes a type that the server does not have.
fn missing(resource: &ResourceType, namespace: Option<&str>) -> String {
    let place = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    format!("the API server serves no {resource}{place} (404): cached objects are kept, and the request is retried")
}

impl Reflector {
    /// Writes state, message and counters into the view of the unit.
    pub(super) fn show(&self, view: &mut UnitView, resource: &ResourceType) {
        let namespace = view.namespace.as_deref();
        (view.state, view.message) = match (self.availability, &self.state) {
            (_, State::Stopped) => (UnitState::Stopped, None),
            (Availability::Forbidden(verb), _) => {
                (UnitState::Forbidden, Some(forbidden(verb.as_ref(), resource, namespace)))
            }
            (Availability::Unauthorized, _) => (UnitState::Forbidden, Some(UNAUTHORIZED.to_owned())),
            (Availability::Missing, _) => (UnitState::Waiting, Some(missing(resource, namespace))),
            (_, State::Watching(_)) => (UnitState::Watching, None),
            (_, State::Waiting { .. }) => (UnitState::BackingOff, None),
            (_, State::Checking) => (UnitState::Listing, Some(CHECKING.to_owned())),
            (_, State::Listing(_) | State::Streaming(_)) => {
                (UnitState::Listing, self.doubted.as_ref().map(|doubted| confirming(doubted.comparison)))
            }
            (_, State::Idle { .. } | State::Comparing(_)) => (UnitState::Listing, None),
        };
        let counters = &self.counters;
        view.lists = counters.lists + counters.streaming_lists + counters.checks;
        view.confirmations = counters.confirmations;
        view.watches = counters.watches;
        view.skipped = counters.skipped;
        view.transform_failures = counters.transform_failures;
        view.stalls = counters.stalls;
        view.unreadable = counters.unreadable;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubtful_list_is_shown_with_its_numbers() {
        assert_eq!(
            confirming(Comparison { known: 1_000, missing: 812 }),
            "confirming a list that lacks 812 of 1,000 objects"
        );
        let comparison = Comparison { known: 1_300_000, missing: 1_234_567 };
        assert_eq!(confirming(comparison), "confirming a list that lacks 1,234,567 of 1,300,000 objects");
    }
}
