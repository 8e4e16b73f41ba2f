//! Queue of jobs that shares the time of one worker between clients, whatever the number and the cost of their jobs.
//!
//! This is start-time fair queueing. The next job belongs to the client with the earliest start. A client's next start is its last
//! start, plus the time that its job has taken. A client that was idle starts at the start of the job that ran last, so it has
//! neither an advantage nor a debt from its idle time.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Queue of the jobs `J` of clients `C`. The jobs of one client keep their order.
///
/// **Invariant:** a client without jobs is stored only while other clients have jobs, and its next start is later than `now`.
#[derive(Debug)]
pub(super) struct FairQueue<C, J> {
    clients: BTreeMap<C, Share<J>>,
    /// Start of the job that was taken last.
    now: Duration,
}

#[derive(Debug)]
struct Share<J> {
    start: Duration,
    jobs: VecDeque<J>,
}

impl<C: Clone + Ord, J> FairQueue<C, J> {
    pub(super) fn new() -> Self {
        Self { clients: BTreeMap::new(), now: Duration::ZERO }
    }

    /// Adds a job of a client.
    pub(super) fn push(&mut self, client: C, job: J) {
        let share = self.clients.entry(client).or_insert_with(|| Share { start: self.now, jobs: VecDeque::new() });
        if share.jobs.is_empty() {
            share.start = share.start.max(self.now);
        }
        share.jobs.push_back(job);
    }

    /// Takes the next job. Report its cost with [`FairQueue::charge`] before the next call.
    pub(super) fn pop(&mut self) -> Option<(C, J)> {
        let busy = self.clients.iter_mut().filter(|(_, share)| !share.jobs.is_empty());
        let (client, share) = busy.min_by_key(|(_, share)| share.start)?;
        self.now = share.start;
        Some((client.clone(), share.jobs.pop_front()?))
    }

    /// Adds the cost of the job that was taken last to its client. Forgets the clients whose cost no longer matters.
    pub(super) fn charge(&mut self, client: &C, cost: Duration) {
        if let Some(share) = self.clients.get_mut(client) {
            share.start += cost;
        }
        let now = self.now;
        self.clients.retain(|_, share| !share.jobs.is_empty() || share.start > now);
        if self.clients.values().all(|share| share.jobs.is_empty()) {
            self.clients.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Runs jobs until the worker has spent `until`. Each job is its cost, and its client adds it again at once. Returns the time
    /// that each client got.
    fn run(queue: &mut FairQueue<&'static str, u64>, until: u64) -> BTreeMap<&'static str, u64> {
        let (mut spent, mut got) = (0, BTreeMap::new());
        while spent < until {
            let (client, cost) = queue.pop().unwrap();
            queue.charge(&client, millis(cost));
            queue.push(client, cost);
            *got.entry(client).or_default() += cost;
            spent += cost;
        }
        got
    }

    #[test]
    fn many_expensive_jobs_get_no_more_time() {
        let mut queue = FairQueue::new();
        (0..600).for_each(|_| queue.push("hostile", 50));
        queue.push("honest", 1);
        let got = run(&mut queue, 1_000);
        assert!(got["honest"] >= 450 && got["hostile"] >= 450, "{got:?}");
    }

    #[test]
    fn light_job_waits_for_one_job_at_most() {
        let mut queue = FairQueue::new();
        (0..600).for_each(|_| queue.push("hostile", 50));
        run(&mut queue, 2_000);
        for _ in 0..100 {
            let (client, cost) = queue.pop().unwrap();
            assert_eq!(client, "hostile");
            queue.push("honest", 1); // arrives while the other job runs
            queue.charge(&client, millis(cost));
            queue.push(client, cost);
            assert_eq!(queue.pop().unwrap().0, "honest");
            queue.charge(&"honest", millis(1));
        }
    }

    #[test]
    fn idle_client_saves_no_time() {
        let mut queue = FairQueue::new();
        queue.push("sleeper", 10);
        queue.pop();
        queue.charge(&"sleeper", millis(10));
        queue.push("busy", 10);
        run(&mut queue, 10_000);
        queue.push("sleeper", 10);
        let got = run(&mut queue, 1_000);
        assert!(got["busy"] >= 480, "{got:?}");
    }

    #[test]
    fn clients_without_jobs_are_forgotten() {
        let mut queue = FairQueue::new();
        for client in 0..1_000 {
            queue.push(client, ());
            assert_eq!(queue.pop(), Some((client, ())));
            queue.charge(&client, millis(5));
        }
        assert!(queue.clients.is_empty());
        (0..1_000).for_each(|client| queue.push(client, ()));
        (0..3).for_each(|_| queue.push(5_000, ()));
        while let Some((client, ())) = queue.pop() {
            queue.charge(&client, millis(5));
            assert!(queue.clients.len() <= 1_001);
        }
        assert!(queue.clients.is_empty());
    }
}
