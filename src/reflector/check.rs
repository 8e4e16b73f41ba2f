//! Check that the server is not older than the known state (D-5). Exception: after a restore of etcd from a backup, the older state
//! is accepted.
//!
//! After a restore of etcd from a backup, the server's version is lower than the known one. Lists at the known version then fail as
//! too large (504, R-22). A watch from the known version opens but stays silent: the server omits all events and bookmarks up to
//! that version. Once the server's own version is higher, it sends events again, without any notice. The reflector therefore
//! requests the server's version in two cases: before it resumes from a saved cache, and after a watch was silent for longer than
//! the bookmark interval.

use std::cmp::Ordering;

use super::{Reflector, ReflectorAction, ReflectorReport, State, Then, Turn, Verb, retry_after};
use crate::{
    list_watch::{Failure, ListPage, ListRequest},
    object::ResourceVersion,
};

impl Reflector {
    /// Requests the server's version: a most recent list limited to one object.
    pub(super) fn begin_check(&mut self) -> ReflectorAction {
        self.counters.checks += 1;
        self.state = State::Checking;
        ReflectorAction::List(ListRequest {
            resource_version: ResourceVersion::unset(),
            limit: Some(1),
            continue_token: None,
        })
    }

    /// Resumes the watch. If the server is older than the known state, compares that state with a new list instead.
    pub(super) fn checked(&mut self, answer: Result<ListPage, Failure>, turn: &mut Turn) -> ReflectorAction {
        match answer {
            Err(failure) => {
                self.note(Verb::List, &failure);
                let after = retry_after(&failure);
                turn.reports.push(ReflectorReport::ListFailed(failure));
                self.wait(Then::Check, after, turn)
            }
            Ok(page) if page.resource_version.compare(&self.last) == Some(Ordering::Less) => {
                turn.reports
                    .push(ReflectorReport::ServerOlder { version: page.resource_version, last: self.last.clone() });
                self.unavailable = true; // requests the most recent state, whatever its version
                self.begin_cycle(turn)
            }
            Ok(page) => {
                turn.server_version = Some(page.resource_version);
                if self.resync_at.is_none() { self.begin_watch(turn) } else { self.open_watch(turn) }
            }
        }
    }

    /// Returns true if a complete state must be rejected because it is older than the known state (D-5). `version` is the version
    /// of the complete state, `requested` the version in the request. An older state may lack objects that were created later.
    /// Those objects must not be deleted.
    ///
    /// If the request had no version, the answer is accepted even if it is older. Such a request is a consistent read: even a
    /// lagging replica answers it with the most recent state. So an older answer means that the server itself was set back. All
    /// later lists will then be older too.
    pub(super) fn refuses_older(
        &mut self,
        version: &ResourceVersion,
        requested: &ResourceVersion,
        turn: &mut Turn,
    ) -> bool {
        if version.compare(&self.last) != Some(Ordering::Less) {
            return false;
        }
        let (version, last) = (version.clone(), self.last.clone());
        if requested.is_unset() {
            turn.reports.push(ReflectorReport::ServerWentBack { version, last });
            return false;
        }
        self.unavailable = true;
        turn.reports.push(ReflectorReport::OlderListRefused { version, last });
        true
    }
}
