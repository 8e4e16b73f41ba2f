//! Whether the server is as new as what we know: D-5, and the one place where it is given up.
//!
//! A server whose etcd was restored from a backup is at an older version than ours. Lists of our version then fail as
//! too large (504, R-22), but a watch from it is opened and stays silent: the server leaves out what is not newer than
//! asked, bookmarks too, and goes on without a word once its own version has overtaken ours. So the server is asked
//! first where a saved cache begins, and again where a watch ends in which it said nothing for longer than bookmarks
//! take.

use std::cmp::Ordering;

use super::{Reflector, ReflectorAction, ReflectorReport, State, Then, Turn, Verb, WaitReason, retry_after};
use crate::{
    list_watch::{Failure, ListPage, ListRequest},
    object::ResourceVersion,
};

impl Reflector {
    /// Asks for the server's version: that of its most recent list, of which one object is enough.
    pub(super) fn begin_check(&mut self) -> ReflectorAction {
        self.counters.checks += 1;
        self.state = State::Checking;
        ReflectorAction::List(ListRequest {
            resource_version: ResourceVersion::unset(),
            limit: Some(1),
            continue_token: None,
        })
    }

    /// Goes on with the watch, or with a comparison of everything where the server is older than we are.
    pub(super) fn checked(&mut self, answer: Result<ListPage, Failure>, turn: &mut Turn) -> ReflectorAction {
        match answer {
            Err(failure) => {
                self.note(Verb::List, &failure);
                let (reason, after) = (WaitReason::of(&failure), retry_after(&failure));
                turn.reports.push(ReflectorReport::ListFailed(failure));
                self.wait(reason, Then::Check, after, turn)
            }
            Ok(page) if page.resource_version.compare(&self.last) == Some(Ordering::Less) => {
                turn.reports
                    .push(ReflectorReport::ServerOlder { version: page.resource_version, last: self.last.clone() });
                self.unavailable = true; // the most recent state, whatever its version
                self.begin_cycle(turn)
            }
            Ok(page) => {
                turn.server_version = Some(page.resource_version);
                if self.resync_at.is_none() { self.begin_watch(turn) } else { self.open_watch(turn) }
            }
        }
    }

    /// Returns whether a complete state of `version`, asked for as `requested`, is to be refused as older than what is
    /// known (D-5): it may lack objects that were created since, and nothing is deleted because of that.
    ///
    /// The most recent state is believed though it is older. It is a consistent read, which no replica that lags behind
    /// can answer with an older state: the server itself has gone back, and every list that it will give is older.
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
        self.counters.older_lists += 1;
        self.unavailable = true;
        turn.reports.push(ReflectorReport::OlderListRefused { version, last });
        true
    }
}
