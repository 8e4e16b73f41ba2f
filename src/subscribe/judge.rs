//! Evaluation of the expressions of clients (`when`), on its own thread with the lowest priority.
//!
//! Clients may send slow expressions. The HTTP thread only waits for the result. Handlers and indexers have a higher priority, so
//! they keep their cores. Each evaluation has the limits of [`RuleLimits::CLIENT`](crate::rules::RuleLimits::CLIENT). All streams of
//! one client together get the same CPU time as those of another client.

use std::{io, panic::AssertUnwindSafe, sync::Arc, thread, time::Duration};

use crossbeam_channel::{Sender, unbounded};
use rustix::{process::setpriority_process, thread::gettid};
use tokio::sync::oneshot;

use super::{fair_queue::FairQueue, ring::Entry};
use crate::{
    journal::ChangeKind,
    rules::{RuleVerdict, Rules, cpu_time},
};

/// CPU time of one turn. After this time, the next subscriber has its turn.
const TURN: Duration = Duration::from_millis(5);

/// Priority of the thread: 19 is the lowest (nice(2)).
const NICE: i32 = 19;

type Job = Box<dyn FnOnce() + Send>;

/// Client whose streams share one part of the evaluation's time, and whose paged lists share one part of their store. It is the name
/// of a token, or an address where no tokens are needed. The default is the program that contains the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamClient(pub String);

/// An event that is sent if the subscriber's expression is true.
pub(super) struct Candidate {
    pub(super) entry: Arc<Entry>,
    /// Set if the stream can resume after this event.
    pub(super) is_position: bool,
}

/// Outcome of one turn.
#[derive(Default)]
pub(super) struct Judged {
    /// Events for which the expression is true.
    pub(super) wanted: Vec<Candidate>,
    /// Events that wait for the next turn.
    pub(super) rest: Vec<Candidate>,
    /// Description of the limit that an evaluation has exceeded.
    pub(super) exceeded: Option<String>,
}

/// Handle of the thread. The thread ends when the last handle is dropped.
pub(super) struct Judge(Sender<(StreamClient, Job)>);

impl Judge {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the system cannot start another thread.
    pub(super) fn start() -> io::Result<Self> {
        // Each subscriber has at most one job.
        let (jobs, waiting) = unbounded::<(StreamClient, Job)>();
        thread::Builder::new().name("filters".to_owned()).spawn(move || {
            // Linux accepts a thread id here, and changes only the priority of that thread.
            if let Err(error) = setpriority_process(Some(gettid()), NICE) {
                tracing::debug!(%error, "failed to lower the priority of the filters' thread");
            }
            let mut queue = FairQueue::new();
            while let Ok((client, job)) = waiting.recv() {
                queue.push(client, job);
                while let Some((client, job)) = queue.pop() {
                    let start = cpu_time();
                    // A panic ends only this job: the receiver of the result gets an error.
                    drop(std::panic::catch_unwind(AssertUnwindSafe(job)));
                    waiting.try_iter().for_each(|(client, job)| queue.push(client, job));
                    queue.charge(&client, cpu_time().saturating_sub(start));
                }
            }
        })?;
        Ok(Self(jobs))
    }

    /// Queues a job of a client without waiting. The receiver gets the result of the job, or an error if the job has panicked.
    pub(super) fn run<T: Send + 'static>(
        &self,
        client: &StreamClient,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (result, answer) = oneshot::channel();
        // Sending fails if the subscriber has left, or if the thread has ended. In the second case, the receiver gets an error.
        let job = move || drop(result.send(job()));
        drop(self.0.send((client.clone(), Box::new(job))));
        answer
    }
}

/// Evaluates events in order, until the turn is over or an evaluation exceeds a limit.
pub(super) fn judge(when: &Rules, candidates: Vec<Candidate>) -> Judged {
    let start = cpu_time();
    let mut judged = Judged::default();
    let mut candidates = candidates.into_iter();
    for candidate in candidates.by_ref() {
        let record = &candidate.entry.event.record;
        let verdict = match record.object() {
            Some(object) => when.judge(ChangeKind::of(&record.change), record.old(), object),
            None => RuleVerdict::Match, // `Synced`: the only change without an object
        };
        match verdict {
            RuleVerdict::Match => judged.wanted.push(candidate),
            RuleVerdict::NotChanged | RuleVerdict::NotTrue | RuleVerdict::Error(_) => {}
            RuleVerdict::Exceeded(limit) => {
                judged.exceeded = Some(limit);
                return judged;
            }
        }
        if cpu_time().saturating_sub(start) > TURN {
            break;
        }
    }
    judged.rest = candidates.collect();
    judged
}

#[cfg(test)]
mod tests {
    use super::{
        super::{query::compile, ring::testing::event},
        *,
    };
    use crate::{
        change::{Cause, Change},
        journal::testing::{synced, updated},
        object::Object,
    };

    fn candidates(changes: impl IntoIterator<Item = Change>) -> Vec<Candidate> {
        let entry = |(position, change)| Arc::new(Entry::new(event(position, change), false));
        (1..).zip(changes).map(|change| Candidate { entry: entry(change), is_position: true }).collect()
    }

    /// Returns a config map with a text of this length.
    fn object_with(bytes: usize) -> Object {
        let text = "x".repeat(bytes);
        let json =
            format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x"}},"data":{{"x":"{text}"}}}}"#);
        Object::from_json(json.as_bytes()).unwrap()
    }

    fn positions(candidates: &[Candidate]) -> Vec<u64> {
        candidates.iter().map(|candidate| candidate.entry.position().0).collect()
    }

    #[test]
    fn expression_judges_changes_but_not_synced() {
        let wanted = |when: &str| {
            let changes = [updated("x", "u", 1, 2), updated("y", "v", 1, 2), synced(2)];
            let judged = judge(&compile(when, "prod").unwrap(), candidates(changes));
            assert!(judged.rest.is_empty() && judged.exceeded.is_none());
            positions(&judged.wanted)
        };
        assert_eq!(wanted("type == 'updated' && object.metadata.name == 'x'"), [1, 3]);
        assert_eq!(wanted("old.metadata.resourceVersion == '2'"), [3]);
        assert_eq!(wanted("object.spec.no.such.field == 1"), [3], "it cannot be evaluated");
        assert_eq!(wanted("cluster == 'prod'"), [1, 2, 3]);
    }

    #[test]
    fn evaluation_beyond_limit_ends_turn() {
        let object = object_with(200_000);
        let change = || Change::Added { object: object.clone(), cause: Cause::Watch };
        let when = compile("object.data.x.split('').all(x, x == 'x')", "prod").unwrap();
        let judged = judge(&when, candidates([updated("y", "v", 1, 2), change(), change()]));
        let exceeded = judged.exceeded.unwrap();
        assert!(exceeded.starts_with("`when`: it took more than "), "{exceeded}"); // 100000 steps, or 50 ms on a slow machine
        assert!(judged.wanted.is_empty() && judged.rest.is_empty());
    }

    #[test]
    fn long_turn_leaves_the_rest_for_later() {
        let when = compile("object.data.x.split('').all(x, x == 'x')", "prod").unwrap();
        let object = object_with(10_000);
        let changes = (0..50).map(|_| Change::Added { object: object.clone(), cause: Cause::Watch });
        let mut left = candidates(changes);
        let (mut turns, mut wanted) = (0, Vec::new());
        while !left.is_empty() {
            let judged = judge(&when, left);
            assert_eq!(judged.exceeded, None);
            wanted.extend(positions(&judged.wanted));
            left = judged.rest;
            turns += 1;
        }
        assert_eq!(wanted, (1..=50).collect::<Vec<_>>());
        assert!(turns > 1, "500,000 steps in 5 ms");
    }

    #[tokio::test]
    async fn panic_ends_only_its_own_job() {
        let judge = Judge::start().unwrap();
        let client = StreamClient::default();
        assert!(judge.run(&client, || panic!("on purpose")).await.is_err());
        assert_eq!(judge.run(&client, || 1).await, Ok(1));
    }

    #[tokio::test]
    async fn expensive_streams_of_one_client_delay_no_other() {
        let judge = Judge::start().unwrap();
        let [hostile, honest] = ["hostile", "honest"].map(|name| StreamClient(name.to_owned()));
        let burn = || {
            let start = cpu_time();
            while cpu_time().saturating_sub(start) < TURN {}
        };
        let slow: Vec<_> = (0..600).map(|_| judge.run(&hostile, burn)).collect();
        for _ in 0..20 {
            judge.run(&honest, || ()).await.unwrap();
        }
        let waiting = slow.into_iter().filter_map(|mut answer| answer.try_recv().err()).count();
        assert!(waiting > 500, "{waiting} of 600 expensive turns were left when the other client had its twenty");
    }
}
