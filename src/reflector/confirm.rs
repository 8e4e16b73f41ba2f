//! Confirmation of a list that would delete most known objects. An object is deleted only if a second list lacks it too.
//!
//! ```text
//! complete list ─▶ Comparing ──few are missing────────────────────────────────▶ Replace
//!                     │ more than half of at least 100 are missing
//!                     └▶ request the most recent list ─▶ delete what both lack ─▶ Replace
//! ```
//!
//! There is no third list: the second list is not compared with the known objects. If the second list fails, or is older than the
//! first, the cycle fails and no object is deleted.

use std::{cmp::Ordering, collections::HashSet, sync::Arc};

use super::{Reflector, ReflectorAction, ReflectorReport, State, StreamingLists, Then, Turn, stream::Stream};
use crate::{
    list_watch::WatchEvent,
    object::{KeyRef, Object, ResourceVersion},
};

/// Smallest number of known objects for which a second list is requested.
const KNOWN_MIN: usize = 100;

/// Result of comparing a list with the known objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) known: usize,
    /// Number of known objects that the list lacks, and would therefore delete.
    pub(crate) missing: usize,
}

impl Comparison {
    /// Returns true if the list needs confirmation: it would delete more than half of at least 100 objects.
    pub(crate) fn is_doubtful(self) -> bool {
        self.known >= KNOWN_MIN && self.missing > self.known / 2
    }
}

/// A complete state that waits for its comparison.
#[derive(Debug)]
pub(super) struct Held {
    items: Arc<Vec<Object>>,
    version: ResourceVersion,
    /// Stream of a streaming list, and its events after the marker. The stream becomes the watch (R-33).
    tail: Option<Tail>,
}

/// Stream and events after the marker of a streaming list.
pub(super) type Tail = (Stream, std::vec::IntoIter<WatchEvent>);

/// A list that waits until a second list confirms it.
#[derive(Debug)]
pub(super) struct Doubted {
    items: Vec<Object>,
    version: ResourceVersion,
    pub(super) comparison: Comparison,
}

impl Reflector {
    /// Requests the comparison of a complete state with the known objects. If the state is a second list, confirms the first list
    /// instead.
    pub(super) fn complete(
        &mut self,
        items: Vec<Object>,
        version: ResourceVersion,
        tail: Option<Tail>,
        turn: &mut Turn,
    ) -> ReflectorAction {
        if let Some(doubted) = self.doubted.take() {
            return self.confirmed(doubted, items, &version, turn);
        }
        self.state = State::Comparing(Held { items: Arc::new(items), version, tail });
        ReflectorAction::Compare
    }

    /// Returns the list to compare; `None` if there is none.
    pub(crate) fn held(&self) -> Option<Arc<Vec<Object>>> {
        match &self.state {
            State::Comparing(held) => Some(Arc::clone(&held.items)),
            _ => None,
        }
    }

    /// Emits the held list. If `comparison` is doubtful, requests a second list instead.
    pub(super) fn compared(&mut self, held: Held, comparison: Comparison, turn: &mut Turn) -> ReflectorAction {
        let Held { items, version, tail } = held;
        let items = Arc::unwrap_or_clone(items);
        if !comparison.is_doubtful() {
            self.replace(items, Vec::new(), version, turn);
            return match tail {
                Some((stream, rest)) => self.go_on(stream, rest, turn),
                None => self.begin_watch(turn),
            };
        }
        self.counters.confirmations += 1;
        turn.reports.push(ReflectorReport::ConfirmingList { version: version.clone(), comparison });
        self.doubted = Some(Doubted { items, version, comparison });
        self.unavailable = true; // requests the most recent state
        if self.config.streaming_lists == StreamingLists::Always {
            self.begin_streaming(turn)
        } else {
            self.begin_list()
        }
    }

    /// Emits the first list, at its version, with the objects that only the second list has. An object of the second list with a
    /// later version is not emitted, and not deleted either: the watch reports it.
    fn confirmed(
        &mut self,
        doubted: Doubted,
        second: Vec<Object>,
        second_version: &ResourceVersion,
        turn: &mut Turn,
    ) -> ReflectorAction {
        let Doubted { mut items, version, .. } = doubted;
        if second_version.compare(&version) == Some(Ordering::Less) {
            // An older second list may contain objects that were deleted before the first list.
            turn.reports.push(ReflectorReport::OlderListRefused { version: second_version.clone(), last: version });
            return self.wait(Then::Cycle, None, turn);
        }
        let first: HashSet<KeyRef<'_>, foldhash::fast::RandomState> = items.iter().map(|item| item.key()).collect();
        let found = second.into_iter().filter(|item| !first.contains(&item.key()));
        // The watch starts at the version of the first list, and replays later changes. So an object with a later version is not
        // emitted: the replay would go back to an earlier state of the object.
        let is_later =
            |item: &Object| ResourceVersion::from(item.resource_version()).compare(&version) == Some(Ordering::Greater);
        let (spared, missed): (Vec<_>, Vec<_>) = found.partition(is_later);
        drop(first);
        turn.reports
            .push(ReflectorReport::ListConfirmed { version: version.clone(), found: spared.len() + missed.len() });
        items.extend(missed);
        self.replace(items, spared, version, turn);
        self.begin_watch(turn)
    }
}
