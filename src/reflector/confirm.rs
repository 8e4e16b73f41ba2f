//! A list that would delete most of what is known is believed only once a second one says the same (D7).
//!
//! ```text
//! complete list ─▶ Comparing ──few are missing───────────────────────────▶ Replace
//!                     │ more than half of at least 100
//!                     └▶ doubted: the most recent list ─▶ what both lack ─▶ Replace
//! ```
//!
//! There is one confirmation a list: the second is not doubted. If it fails the cycle fails, and nothing is deleted.

use std::{cmp::Ordering, collections::HashSet, sync::Arc};

use super::{
    Reflector, ReflectorAction, ReflectorReport, State, StreamingLists, Then, Turn, WaitReason, stream::Stream,
};
use crate::{
    list_watch::WatchEvent,
    object::{KeyRef, Object, ResourceVersion},
};

/// Fewer known objects are never worth a second list.
const KNOWN_MIN: usize = 100;

/// The objects of a complete list that was not handed on yet. Two are equal if they are the very same list.
#[derive(Clone, Debug)]
pub(crate) struct Listed(pub Arc<Vec<Object>>);

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Listed {}

/// A list held against what is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) known: usize,
    /// Objects of these that the list lacks: it would delete them.
    pub(crate) missing: usize,
}

impl Comparison {
    /// Returns whether the list is to be confirmed: it would delete more than half of at least 100 objects.
    pub(crate) fn is_doubtful(self) -> bool {
        self.known >= KNOWN_MIN && self.missing > self.known / 2
    }
}

/// A complete state that waits for its comparison.
#[derive(Debug)]
pub(super) struct Held {
    items: Arc<Vec<Object>>,
    version: ResourceVersion,
    /// The stream that goes on as the watch, and what came behind the marker (R-33).
    tail: Option<Tail>,
}

/// What follows the marker of a streaming list.
pub(super) type Tail = (Stream, std::vec::IntoIter<WatchEvent>);

/// A list that is being confirmed.
#[derive(Debug)]
pub(super) struct Doubted {
    items: Vec<Object>,
    version: ResourceVersion,
    pub(super) comparison: Comparison,
}

impl Reflector {
    /// Takes a complete state that may be believed by its version.
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
        let items = Arc::new(items);
        self.state = State::Comparing(Held { items: Arc::clone(&items), version, tail });
        ReflectorAction::Compare(Listed(items))
    }

    /// Hands the list on, or asks for a second one.
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
        self.unavailable = true; // the most recent state
        if self.config.streaming_lists == StreamingLists::Always {
            self.begin_streaming(turn)
        } else {
            self.begin_list()
        }
    }

    /// Hands on what two lists say together: the first, at its version, without the deletions that the second does not
    /// know of. What lies between the two comes from the watch.
    fn confirmed(
        &mut self,
        doubted: Doubted,
        second: Vec<Object>,
        second_version: &ResourceVersion,
        turn: &mut Turn,
    ) -> ReflectorAction {
        let Doubted { mut items, version, .. } = doubted;
        if second_version.compare(&version) == Some(Ordering::Less) {
            // It may hold what was deleted before the first.
            self.counters.older_lists += 1;
            turn.reports.push(ReflectorReport::OlderListRefused { version: second_version.clone(), last: version });
            return self.wait(WaitReason::Failed, Then::Cycle, None, turn);
        }
        let first: HashSet<KeyRef<'_>, foldhash::fast::RandomState> = items.iter().map(|item| item.key()).collect();
        let found = second.into_iter().filter(|item| !first.contains(&item.key()));
        // The watch will tell of what changed since the first list: shown now, it would go back in time then.
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
