//! Reception times of the queued deltas.

use std::{collections::VecDeque, time::Duration};

use crate::status::Timings;

/// Deltas that were received together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Reception time, on a monotonic clock of the caller.
    pub(super) at: Duration,
    /// Number of deltas, at least one.
    pub(super) deltas: usize,
    /// Set if the deltas come from a watch, not from a list or a resync.
    pub(super) watched: bool,
}

/// Arrivals of all queued deltas, oldest first. Each entry is a run of deltas that were received together.
///
/// With [`QueueOrder::PerKey`](super::QueueOrder::PerKey), the queue may hand out a newer delta before an older one. The oldest
/// arrival is removed even then, so the arrivals that remain are estimates.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    runs: VecDeque<Arrival>,
    deltas: usize,
}

impl Arrivals {
    /// Adds the arrival of pushed deltas.
    pub(super) fn push(&mut self, arrival: Arrival) {
        self.deltas += arrival.deltas;
        match self.runs.back_mut() {
            Some(last) if (last.at, last.watched) == (arrival.at, arrival.watched) => last.deltas += arrival.deltas,
            _ if arrival.deltas == 0 => {}
            _ => self.runs.push_back(arrival),
        }
    }

    /// Removes and returns the oldest arrivals. The arrivals of the newest `left` deltas remain.
    pub(super) fn take_until(&mut self, left: usize) -> Vec<Arrival> {
        let mut taken = Vec::new();
        while let Some(excess) = self.deltas.checked_sub(left).filter(|excess| *excess > 0)
            && let Some(first) = self.runs.front_mut()
        {
            let deltas = first.deltas.min(excess);
            taken.push(Arrival { deltas, ..*first });
            first.deltas -= deltas;
            self.deltas -= deltas;
            if first.deltas == 0 {
                self.runs.pop_front();
            }
        }
        taken
    }

    /// Returns the reception time of the oldest delta.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.runs.front().map(|first| first.at)
    }
}

/// Records in `timings` the size of an applied batch, and the ages of those deltas that come from a watch.
pub(super) fn observe(applied: Vec<Arrival>, now: Duration, timings: &Timings) {
    let deltas: usize = applied.iter().map(|arrival| arrival.deltas).sum();
    if deltas > 0 {
        timings.batch_events.observe_count(deltas);
    }
    for Arrival { at, deltas, .. } in applied.into_iter().filter(|arrival| arrival.watched) {
        timings.event_age.observe_many(now.saturating_sub(at).as_secs_f64(), deltas as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(at: u64, deltas: usize, watched: bool) -> Arrival {
        Arrival { at: Duration::from_secs(at), deltas, watched }
    }

    #[test]
    fn oldest_arrivals_leave_first_and_runs_are_split() {
        let mut arrivals = Arrivals::default();
        assert_eq!((arrivals.oldest(), arrivals.take_until(0)), (None, vec![]));
        for (at, deltas, watched) in [(1, 2, true), (1, 1, true), (1, 5, false), (2, 0, true), (3, 4, true)] {
            arrivals.push(arrival(at, deltas, watched));
        }
        assert_eq!(arrivals.oldest(), Some(Duration::from_secs(1)));
        assert_eq!(arrivals.take_until(10), [arrival(1, 2, true)]);
        assert_eq!(arrivals.take_until(10), []);
        assert_eq!(arrivals.take_until(3), [arrival(1, 1, true), arrival(1, 5, false), arrival(3, 1, true)]);
        assert_eq!(arrivals.oldest(), Some(Duration::from_secs(3)));
        assert_eq!(arrivals.take_until(0), [arrival(3, 3, true)]);
        assert_eq!(arrivals.oldest(), None);
    }
}
