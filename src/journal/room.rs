//! Policy for the room in the state directory: what to do when the records that wait for handlers fill it.
//!
//! Unneeded records are removed first. If that is not enough, the records that wait for slow readers are coalesced, so that the
//! originals can be removed. If the directory is still full some time later, the engine stops reading from the API server, or drops
//! the oldest records.

use std::time::Duration;

use super::{OnFull, Sequence, retention::make_room};

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Interval between two looks while the state directory is full or nearly full.
const LOOK_EVERY_FULL: Duration = Duration::from_millis(100);
/// Time for which the disk may free the space of removed records, before another pass or drop starts.
const GRACE: Duration = Duration::from_secs(2);
/// The same time while a shrink is running.
const GRACE_SHRINKING: Duration = Duration::from_secs(10);
/// Minimum interval between two shrinks, which free the space of removed records.
const SHRINK_EVERY_MIN: Duration = Duration::from_secs(1);
const SHRINK_EVERY_MAX: Duration = Duration::from_secs(64);
/// Number of waiting records in the log from which on a pass is always worth its cost.
const RECORDS_A_PASS: u64 = 32_768;
/// Ratio of coalesced records to waiting records in the log at which a pass is no longer worth its cost: it would scan too many
/// coalesced records. Does not apply from [`RECORDS_A_PASS`] waiting records on.
const MERGED_A_RECORD: u64 = 8;

/// Facts about the state directory, found by one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomFacts {
    pub(super) bytes: u64,
    pub(super) max_bytes: u64,
    /// First record that is kept.
    pub(super) first: Sequence,
    /// First record that a reader needs.
    pub(super) needed: Sequence,
    /// First record that is not older than `retention`.
    pub(super) recent: Sequence,
    pub(super) last: Sequence,
    pub(super) released: Sequence,
    /// Position up to which every reader has handled all records.
    pub(super) passed: Sequence,
    /// Oldest record that waits only in the store.
    pub(super) first_spilled: Option<Sequence>,
    /// Number of waiting records that are in the log.
    pub(super) in_log: u64,
    /// Number of waiting records that are coalesced entries.
    pub(super) merged: u64,
    /// Set while the engine opens or forgets the readers of the last run.
    pub(super) is_opening: bool,
    /// Set while a pass of coalescing is running.
    pub(super) is_compacting: bool,
    /// Set while the disk space of removed records is being freed.
    pub(super) is_shrinking: bool,
}

/// One step of the policy. The steps of a look are taken in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomStep {
    /// Readers forget the records before this position that were given up.
    ForgetGivenUp(Sequence),
    /// The records before this position are removed.
    Remove(Sequence),
    /// A pass coalesces the waiting records.
    Compact,
    /// The records that wait before this position are dropped.
    Drop(Sequence),
    /// The journal takes no appends.
    StopReading,
    /// The journal takes appends again.
    Resume,
    /// The disk space of removed records is freed.
    Shrink,
    /// The next look follows after this time.
    Wait(Duration),
}

/// Progress of the policy. Times are since the start of the journal.
#[derive(Debug)]
pub(super) struct RoomPolicy {
    on_full: OnFull,
    /// Time of the last pass or drop, or of a later removal. `None` if no pass or drop has ended since the state became full.
    tried: Option<Duration>,
    /// Earliest time of the next shrink.
    shrink_at: Duration,
    /// Interval between shrinks. It grows while they do not help.
    shrink_every: Duration,
    /// Size of the state at the last shrink.
    shrunk_bytes: u64,
}

impl RoomPolicy {
    pub(super) fn new(on_full: OnFull) -> Self {
        let (shrink_at, shrink_every) = (Duration::ZERO, SHRINK_EVERY_MIN);
        Self { on_full, tried: None, shrink_at, shrink_every, shrunk_bytes: u64::MAX }
    }

    /// Decides what to do.
    pub(super) fn look(&mut self, facts: &RoomFacts, now: Duration) -> Vec<RoomStep> {
        let (is_full, is_nearly) = (facts.bytes > facts.max_bytes, facts.bytes > facts.max_bytes / 4 * 3);
        let mut keep_from = facts.recent.min(facts.needed);
        if is_full {
            // After a pass, all unneeded records are removed, not only a part of them. Coalesced entries have replaced these
            // records, and the disk frees space slowly.
            let room = if self.tried.is_some() { facts.needed } else { make_room(facts.first, facts.needed) };
            keep_from = keep_from.max(room);
        }
        let mut steps = Vec::new();
        let waits = facts.needed.min(Sequence(facts.passed.0 + 1)) <= facts.last;
        if is_full && keep_from <= facts.first && waits {
            for step in self.be_full(facts, now) {
                if let RoomStep::Drop(before) = step {
                    keep_from = before;
                }
                steps.push(step);
            }
            let is_compacting = facts.is_compacting || steps.contains(&RoomStep::Compact);
            if !is_compacting && self.shrinks(facts, now) {
                steps.push(RoomStep::Shrink);
            }
        } else {
            steps.push(RoomStep::Resume);
            self.tried = self.tried.filter(|_| is_full).map(|_| now);
        }
        if !is_full {
            self.shrink_every = SHRINK_EVERY_MIN;
        }
        steps.push(RoomStep::ForgetGivenUp(if is_full { facts.needed } else { facts.recent }));
        if keep_from > facts.first {
            steps.push(RoomStep::Remove(keep_from));
        }
        steps.push(RoomStep::Wait(if is_nearly { LOOK_EVERY_FULL } else { LOOK_EVERY }));
        steps
    }

    /// Decides what to do when records that wait fill the state, and nothing else can be removed.
    fn be_full(&mut self, facts: &RoomFacts, now: Duration) -> Vec<RoomStep> {
        let grace = if facts.is_shrinking { GRACE_SHRINKING } else { GRACE };
        let is_too_early = self.tried.is_some_and(|tried| now < tried + grace);
        if facts.is_compacting || is_too_early || facts.is_opening {
            return Vec::new();
        }
        if facts.in_log >= RECORDS_A_PASS || facts.in_log * MERGED_A_RECORD > facts.merged {
            // If a pass has been tried, more records arrive than it can coalesce.
            return if self.tried.is_some() {
                vec![RoomStep::Compact, RoomStep::StopReading]
            } else {
                vec![RoomStep::Compact]
            };
        }
        match self.on_full {
            OnFull::Drop => {
                let oldest = facts.first_spilled.map_or(facts.first, |spilled| spilled.min(facts.first));
                self.tried = Some(now);
                vec![RoomStep::Drop(make_room(oldest, Sequence(facts.released.0 + 1))), RoomStep::Resume]
            }
            OnFull::StopReading => vec![RoomStep::StopReading],
        }
    }

    /// Decides whether to free disk space. Notes that this begins.
    fn shrinks(&mut self, facts: &RoomFacts, now: Duration) -> bool {
        if facts.is_shrinking || now < self.shrink_at {
            return false;
        }
        let helped = facts.bytes < self.shrunk_bytes - self.shrunk_bytes / 64;
        self.shrink_every = if helped { SHRINK_EVERY_MIN } else { (self.shrink_every * 2).min(SHRINK_EVERY_MAX) };
        (self.shrink_at, self.shrunk_bytes) = (now + self.shrink_every, facts.bytes);
        true
    }

    /// Notes the end of a pass.
    pub(super) fn pass_ended(&mut self, now: Duration) {
        self.tried = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Sequence = Sequence(100);

    /// A full state with a thousand waiting records from [`FIRST`] on. Nothing is coalesced yet, and nothing can be removed.
    fn full() -> RoomFacts {
        RoomFacts {
            bytes: 2_000,
            max_bytes: 1_000,
            first: FIRST,
            needed: FIRST,
            recent: Sequence(0),
            last: Sequence(1_099),
            released: Sequence(1_099),
            passed: Sequence(99),
            first_spilled: Some(FIRST),
            in_log: 1_000,
            merged: 0,
            is_opening: false,
            is_compacting: false,
            is_shrinking: false,
        }
    }

    /// The same after a pass: it coalesced nearly all records.
    fn coalesced() -> RoomFacts {
        RoomFacts { in_log: 10, merged: 990, ..full() }
    }

    fn policy(on_full: OnFull) -> RoomPolicy {
        let mut policy = RoomPolicy::new(on_full);
        policy.shrink_at = Duration::from_hours(1);
        policy
    }

    /// Returns the steps of a look, without those of every look.
    fn look(policy: &mut RoomPolicy, facts: RoomFacts, seconds: u64) -> Vec<RoomStep> {
        let mut steps = policy.look(&facts, Duration::from_secs(seconds));
        steps.retain(|step| !matches!(step, RoomStep::ForgetGivenUp(_) | RoomStep::Wait(_)));
        steps
    }

    #[test]
    fn old_unneeded_records_are_removed_without_pressure() {
        let facts = RoomFacts { bytes: 10, needed: Sequence(500), recent: Sequence(300), ..full() };
        let mut policy = policy(OnFull::StopReading);
        let steps = policy.look(&facts, Duration::ZERO);
        let (forget, wait) = (RoomStep::ForgetGivenUp(Sequence(300)), RoomStep::Wait(Duration::from_secs(2)));
        assert_eq!(steps, [RoomStep::Resume, forget, RoomStep::Remove(Sequence(300)), wait]);
    }

    #[test]
    fn full_state_removes_part_of_unneeded_records_and_looks_again_soon() {
        let facts = RoomFacts { needed: Sequence(900), ..full() };
        let mut policy = policy(OnFull::StopReading);
        let steps = policy.look(&facts, Duration::ZERO);
        let (forget, wait) = (RoomStep::ForgetGivenUp(Sequence(900)), RoomStep::Wait(Duration::from_millis(100)));
        assert_eq!(steps, [RoomStep::Resume, forget, RoomStep::Remove(Sequence(200)), wait]);
        policy.pass_ended(Duration::ZERO);
        assert!(look(&mut policy, facts, 0).contains(&RoomStep::Remove(Sequence(900))), "after a pass, all of them");
    }

    #[test]
    fn waiting_records_are_coalesced_before_reading_stops() {
        let mut policy = policy(OnFull::StopReading);
        assert_eq!(look(&mut policy, full(), 0), [RoomStep::Compact]);
        assert_eq!(look(&mut policy, RoomFacts { is_compacting: true, ..full() }, 1), []);
        policy.pass_ended(Duration::from_secs(1));
        assert_eq!(look(&mut policy, coalesced(), 2), [], "the disk gets time to free the space");
        assert_eq!(look(&mut policy, RoomFacts { is_shrinking: true, ..coalesced() }, 10), []);
        assert_eq!(look(&mut policy, coalesced(), 3), [RoomStep::StopReading]);
        assert_eq!(look(&mut policy, RoomFacts { bytes: 10, ..coalesced() }, 4), [RoomStep::Resume]);
    }

    #[test]
    fn reading_stops_while_more_arrives_than_a_pass_coalesces() {
        let mut policy = policy(OnFull::Drop);
        policy.pass_ended(Duration::ZERO);
        let many = RoomFacts { in_log: RECORDS_A_PASS, merged: u64::MAX / 16, ..full() };
        assert_eq!(look(&mut policy, many, 2), [RoomStep::Compact, RoomStep::StopReading]);
    }

    #[test]
    fn drop_policy_drops_oldest_part_and_removes_it() {
        let mut policy = policy(OnFull::Drop);
        let before = Sequence(225);
        let steps = [RoomStep::Drop(before), RoomStep::Resume, RoomStep::Remove(before)];
        assert_eq!(look(&mut policy, coalesced(), 5), steps);
        assert_eq!(look(&mut policy, coalesced(), 6), [], "the disk gets time to free the space");
        assert_eq!(look(&mut policy, coalesced(), 7), steps);
    }

    #[test]
    fn nothing_is_dropped_before_all_readers_are_open() {
        let mut policy = policy(OnFull::Drop);
        assert_eq!(look(&mut policy, RoomFacts { is_opening: true, ..coalesced() }, 5), []);
    }

    #[test]
    fn shrinks_become_rare_while_they_do_not_help() {
        let mut policy = RoomPolicy::new(OnFull::StopReading);
        let shrinks = |policy: &mut RoomPolicy, seconds: u64, bytes: u64| {
            look(policy, RoomFacts { bytes, ..coalesced() }, seconds).contains(&RoomStep::Shrink)
        };
        let times: Vec<u64> = (0..100).filter(|at| shrinks(&mut policy, *at, 2_000)).collect();
        assert_eq!(times, [0, 1, 3, 7, 15, 31, 63], "each interval is twice the last one");
        assert!(shrinks(&mut policy, 127, 1_900), "the last one helped");
        assert!(shrinks(&mut policy, 128, 1_800));
        assert!(shrinks(&mut policy, 129, 1_790));
        assert!(
            !shrinks(&mut policy, 130, 1_790) && shrinks(&mut policy, 131, 1_790),
            "less than a sixty-fourth is no help"
        );
    }
}
