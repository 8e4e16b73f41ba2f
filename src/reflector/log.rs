//! Log lines of [`ReflectorReport`]s.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::{Comparison, EndCause, ReflectorReport};
use crate::{failures::Failures, list_watch::Failure, object::ResourceType};

/// Logs one report of the reflector of `resource`. `failures` counts the failures since the last watch was opened.
pub(super) fn log(report: &ReflectorReport, resource: &ResourceType, failures: &mut Failures, now: Duration) {
    let mut failed = |failure: &Failure, what: &str| {
        if let Some(suppressed) = failures.failed(now) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            warn!(%resource, error = %failure, suppressed, "{what}");
        }
    };
    match report {
        // A 404 follows the removal of a definition or a namespace. Discovery confirms the removal and stops the unit.
        ReflectorReport::ListFailed(failure) | ReflectorReport::WatchStartFailed(failure)
            if failure.status().is_some_and(|status| status.code == 404) =>
        {
            info!(%resource, error = %failure, "the API server does not serve this type now");
        }
        ReflectorReport::ListFailed(failure) => failed(failure, "failed to list"),
        ReflectorReport::ListDelayed(failure) => failed(failure, "failed to list, retrying"),
        ReflectorReport::WatchStartFailed(failure) => failed(failure, "failed to open a watch"),
        ReflectorReport::WatchDelayed(failure) => failed(failure, "failed to open a watch, retrying"),
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
            info!(%resource, %version, error = %failure, "version refused, requesting the most recent state");
        }
        ReflectorReport::GaveUpStreaming { cause, retry_at } => {
            info!(%resource, cause = cause.to_string(), retry = retry_at.is_some(), "no streaming list, using paged lists");
        }
        ReflectorReport::MarkerLate { waiting, silent } => {
            warn!(%resource, ?waiting, ?silent, "streaming list is not complete yet");
        }
        ReflectorReport::OlderListRefused { version, last } => {
            warn!(%resource, %version, %last, "refused a list older than the cache, requesting the most recent state");
        }
        ReflectorReport::ServerOlder { version, last } => {
            warn!(
                %resource, %version, %last,
                "the server's state is older than the cache: was etcd restored from a backup? Comparing it with its \
                 most recent list"
            );
        }
        ReflectorReport::ServerWentBack { version, last } => {
            warn!(
                %resource, %version, %last,
                "the server's state is older than the cache: applying its most recent list, deletions included"
            );
        }
        ReflectorReport::ConfirmingList { version, comparison: Comparison { known, missing } } => {
            warn!(
                %resource, %version, known, missing,
                "a list lacks most cached objects; requesting a second list before any object is deleted"
            );
        }
        ReflectorReport::ListConfirmed { version, found } => {
            info!(%resource, %version, found, "the second list arrived: deleting objects that both lists lack");
        }
        _ => log_objects(report, resource),
    }
}

/// Logs a report about single objects.
fn log_objects(report: &ReflectorReport, resource: &ResourceType) {
    match report {
        ReflectorReport::Duplicates { count } => {
            warn!(%resource, count, "a list contained objects twice; kept the last of each");
        }
        ReflectorReport::Rejected { count } => {
            warn!(%resource, count, "skipped objects of a list: of another type, or without a name");
        }
        ReflectorReport::Unread { count, first } => {
            warn!(
                %resource, count, first,
                "objects are nested more than 127 levels deep and cannot be read: keeping their last states"
            );
        }
        ReflectorReport::TransformFailed { count, first } => {
            warn!(%resource, count, error = first, "the transform failed, dropped events of the watch");
        }
        ReflectorReport::Skipped { count, first } => warn!(%resource, count, ?first, "skipped unusable watch events"),
        _ => {}
    }
}
