//! Initial state by paged lists (R-20 … R-26).

use super::{
    Reflector, ReflectorAction, ReflectorReport, State, Then, Turn, Verb, pager::Pager, refuses_version, retry_after,
    snapshot::deduplicate,
};
use crate::{
    list_watch::{Failure, ListPage},
    object::ResourceVersion,
};

/// Page size where paging is useful (P-1).
const PAGE_SIZE: u32 = 500;

/// A list in progress.
#[derive(Debug)]
pub(super) struct Listing {
    pager: Pager,
    /// Set when this list repeats a refused list, without a version (R-22, D-5). There is at most one repeat.
    repeated: bool,
}

impl Reflector {
    /// Starts a list.
    pub(super) fn begin_list(&mut self) -> ReflectorAction {
        let version = if self.unavailable {
            ResourceVersion::unset()
        } else if self.last.is_unset() {
            ResourceVersion::any()
        } else {
            self.last.clone()
        };
        let limit = self.limit(&version);
        self.list(version, limit, false)
    }

    fn limit(&self, version: &ResourceVersion) -> Option<u32> {
        match self.config.page_size {
            Some(size) => Some(size).filter(|size| *size > 0),
            None if self.force_pages || version.is_unset() || version.is_any() => Some(PAGE_SIZE),
            None => None,
        }
    }

    fn list(&mut self, version: ResourceVersion, limit: Option<u32>, repeated: bool) -> ReflectorAction {
        self.counters.lists += 1;
        self.ask(Listing { pager: Pager::new(version, limit), repeated })
    }

    fn ask(&mut self, listing: Listing) -> ReflectorAction {
        let request = listing.pager.request();
        self.state = State::Listing(listing);
        ReflectorAction::List(request)
    }

    /// Processes the answer to one request: requests the next page, completes the list, or reports the failure.
    pub(super) fn page(
        &mut self,
        mut listing: Listing,
        answer: Result<ListPage, Failure>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        match listing.pager.accept(answer) {
            Ok(None) => self.ask(listing),
            Ok(Some(list)) => self.listed(&listing, list, turn),
            Err(failure) => self.list_failed(&listing, failure, turn),
        }
    }

    fn listed(&mut self, listing: &Listing, mut list: ListPage, turn: &mut Turn) -> ReflectorAction {
        let requested = &listing.pager.first.resource_version;
        let has_pages = listing.pager.token.is_some();
        self.force_pages |= has_pages && requested.is_any();
        if self.refuses_older(&list.resource_version, requested, turn) {
            return self.repeat(listing);
        }
        let duplicates = deduplicate(&mut list.items);
        self.counters.skipped += list.rejected;
        if duplicates > 0 {
            turn.reports.push(ReflectorReport::Duplicates { count: duplicates });
        }
        if list.rejected > 0 {
            turn.reports.push(ReflectorReport::Rejected { count: list.rejected });
        }
        list.items.iter().filter(|item| item.is_unread()).for_each(|item| self.note_unread(item, turn));
        self.complete(list.items, list.resource_version, None, turn)
    }

    /// Requests the list again at once, without a version: the server then returns its most recent state (R-22, D-5).
    fn repeat(&mut self, listing: &Listing) -> ReflectorAction {
        self.unavailable = true;
        self.list(ResourceVersion::unset(), listing.pager.first.limit, true)
    }

    fn list_failed(&mut self, listing: &Listing, failure: Failure, turn: &mut Turn) -> ReflectorAction {
        self.note(Verb::List, &failure);
        if refuses_version(&failure) {
            self.unavailable = true;
            if !listing.repeated {
                let version = listing.pager.first.resource_version.clone();
                turn.reports.push(ReflectorReport::VersionRefused { version, failure });
                return self.repeat(listing);
            }
        }
        let after = retry_after(&failure);
        turn.reports.push(ReflectorReport::ListFailed(failure));
        self.wait(Then::Cycle, after, turn)
    }
}
