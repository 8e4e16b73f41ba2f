//! What a [`ReflectorReport`] says in the log.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::{Comparison, EndCause, ReflectorReport};
use crate::{failures::Failures, list_watch::Failure, object::ResourceType};

/// Logs one report of the reflector of `resource`. `failures` are those since its last watch.
pub(super) fn log(report: &ReflectorReport, resource: &ResourceType, failures: &mut Failures, now: Duration) {
    let mut failed = |failure: &Failure, what: &str| {
        if let Some(suppressed) = failures.failed(now) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            warn!(%resource, error = %failure, suppressed, "{what}");
        }
    };
    match report {
        // A definition that is removed, or a namespace: what runs is drained once that is sure.
        ReflectorReport::ListFailed(failure) | ReflectorReport::WatchStartFailed(failure)
            if failure.status().is_some_and(|status| status.code == 404) =>
        {
            info!(%resource, error = %failure, "the API server does not serve this now");
        }
        ReflectorReport::ListFailed(failure) => failed(failure, "failed to list"),
        ReflectorReport::WatchStartFailed(failure) => failed(failure, "failed to open a watch"),
        ReflectorReport::WatchDelayed(failure) => failed(failure, "no watch for now, trying again"),
        ReflectorReport::WatchEnded { cause: EndCause::Closed, relist: false } => {
            debug!(%resource, "watch ended, resuming");
        }
        ReflectorReport::WatchEnded { cause: EndCause::Broken(failure), .. } => {
            failed(failure, "failed to read a watch, listing again");
        }
        ReflectorReport::WatchEnded { cause, relist } => {
            info!(%resource, cause = cause.to_string(), relist, "watch ended");
        }
        ReflectorReport::VersionRefused { version, failure } => {
            info!(%resource, %version, error = %failure, "version refused, asking for the most recent state");
        }
        ReflectorReport::GaveUpStreaming { cause, retry_at } => {
            info!(%resource, cause = cause.to_string(), retry = retry_at.is_some(), "no streaming list, using paged lists");
        }
        ReflectorReport::MarkerLate { waiting, silent } => {
            warn!(%resource, ?waiting, ?silent, "streaming list is not complete yet");
        }
        ReflectorReport::OlderListRefused { version, last } => {
            warn!(%resource, %version, %last, "refused a list older than the cache, asking for the most recent state");
        }
        ReflectorReport::ServerOlder { version, last } => {
            warn!(
                %resource, %version, %last,
                "the server's state is older than ours: was etcd restored from a backup? Everything is compared with its \
                 most recent list"
            );
        }
        ReflectorReport::ServerWentBack { version, last } => {
            warn!(
                %resource, %version, %last,
                "the server's state is older than ours: its most recent list is believed, and what it lacks is deleted"
            );
        }
        ReflectorReport::ConfirmingList { version, comparison: Comparison { known, missing } } => {
            warn!(
                %resource, %version, known, missing,
                "a list lacks most of what is known, asking for a second one before anything is deleted"
            );
        }
        ReflectorReport::ListConfirmed { version, found } => {
            info!(%resource, %version, found, "the second list came: what both lack is deleted");
        }
        ReflectorReport::Duplicates { count } => {
            warn!(%resource, count, "list named objects twice, kept the last of each");
        }
        ReflectorReport::Rejected { count } => {
            warn!(%resource, count, "list held objects of another type or without a name");
        }
        ReflectorReport::TransformFailed { count, first } => {
            warn!(%resource, count, error = first, "the transform failed, dropped events of the watch");
        }
        ReflectorReport::Skipped { count, first } => warn!(%resource, count, ?first, "skipped documents of the watch"),
    }
}
