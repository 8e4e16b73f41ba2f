//! Random adds, takes, dones, shutdowns and time steps, with takers that sleep until they are woken. The queue is
//! compared with a naive model, and no taker may sleep when there is work.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::any,
    test_runner::{Config, TestRunner},
};

use super::{Intake, Items, Stats, Taken, Wake};

const ITEMS: u8 = 6;
const TAKERS: usize = 3;
const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// The rules Q-1 … Q-7, implemented naively: two sets, a list, and all requested times.
#[derive(Default)]
struct Model {
    /// Dirty items, with the time when each became dirty.
    dirty: BTreeMap<u8, u64>,
    processing: BTreeMap<u8, u64>,
    fifo: Vec<u8>,
    waiting: Vec<(u64, u8)>,
    is_shut_down: bool,
    is_draining: bool,
    adds: u64,
    retries: u64,
    taken: u64,
    done: u64,
    queued_for: u64,
    worked_for: u64,
}

impl Model {
    fn add(&mut self, item: u8, now: u64) {
        if self.is_shut_down || self.dirty.contains_key(&item) {
            return;
        }
        self.adds += 1;
        self.dirty.insert(item, now);
        if !self.processing.contains_key(&item) {
            self.fifo.push(item);
        }
    }

    fn add_after(&mut self, item: u8, delay: u64, now: u64) {
        if self.is_shut_down {
            return;
        }
        self.retries += 1;
        if delay == 0 {
            self.add(item, now);
        } else {
            self.waiting.push((now + delay, item));
        }
    }

    fn advance(&mut self, now: u64) {
        while let Some((at, item)) = self.waiting.iter().copied().min_by_key(|(at, _)| *at).filter(|(at, _)| *at <= now)
        {
            self.waiting.retain(|(_, waiting)| *waiting != item);
            self.add(item, at);
        }
    }

    fn take(&mut self, now: u64) -> u8 {
        let item = self.fifo.remove(0);
        self.taken += 1;
        self.queued_for += now - self.dirty.remove(&item).unwrap();
        assert!(self.processing.insert(item, now).is_none(), "Q-3: two workers have {item}");
        item
    }

    fn done(&mut self, item: u8, now: u64) {
        self.done += 1;
        self.worked_for += now - self.processing.remove(&item).unwrap();
        if self.dirty.contains_key(&item) {
            self.fifo.push(item);
        }
    }

    fn shut_down(&mut self, drain: bool) {
        (self.is_shut_down, self.is_draining) = (true, drain);
        self.waiting.clear();
    }

    fn is_over(&self) -> bool {
        let to_come = self.is_draining && !self.dirty.is_empty();
        self.is_shut_down && self.fifo.is_empty() && !to_come
    }

    fn is_drained(&self) -> bool {
        !self.is_draining || self.fifo.is_empty() && self.processing.is_empty()
    }

    fn stats(&self, now: u64) -> Stats {
        let running = || self.processing.values().map(|since| now - since);
        Stats {
            depth: self.fifo.len(),
            in_work: self.processing.len(),
            waiting: self.waiting.iter().map(|(_, item)| item).collect::<BTreeSet<_>>().len(),
            adds: self.adds,
            retries: self.retries,
            taken: self.taken,
            done: self.done,
            queued_for: MILLIS(self.queued_for),
            worked_for: MILLIS(self.worked_for),
            unfinished: MILLIS(running().sum()),
            longest_running: MILLIS(running().max().unwrap_or(0)),
        }
    }
}

/// Cases that must occur at least once in all runs.
#[derive(Default)]
struct Hits {
    stolen: AtomicU64,
    again: AtomicU64,
    timers: AtomicU64,
    woken_for_an_earlier_time: AtomicU64,
    drains_waited_for: AtomicU64,
    drains_released: AtomicU64,
    seen_at_last: AtomicU64,
}

struct World {
    items: Items<u8>,
    model: Model,
    now: u64,
    /// Time at which each sleeping taker wakes by itself.
    asleep: Vec<Option<Duration>>,
    /// Number of takers that were woken and have not checked yet.
    woken: usize,
    is_drain_waited_for: bool,
    is_idle: bool,
    /// Items added after their last take.
    unseen: BTreeSet<u8>,
}

impl World {
    fn new(is_idle: bool) -> Self {
        Self {
            items: Items::new(),
            model: Model::default(),
            now: 0,
            asleep: Vec::new(),
            woken: 0,
            is_drain_waited_for: false,
            is_idle,
            unseen: BTreeSet::new(),
        }
    }

    fn time(&self) -> Duration {
        MILLIS(self.now)
    }

    /// One check of a taker; it falls asleep if there is nothing.
    fn look(&mut self) {
        match self.items.take(self.time()) {
            Taken::Item(item) => {
                assert_eq!(item, self.model.take(self.now));
                self.unseen.remove(&item);
            }
            Taken::Nothing { until } => {
                assert!(self.model.fifo.is_empty() && !self.model.is_over());
                self.asleep.push(until);
            }
            Taken::End => assert!(self.model.is_over()),
        }
    }

    fn wake(&mut self, wake: Wake) {
        let count = match wake {
            Wake::Nobody => 0,
            Wake::OneTaker => self.asleep.len().min(1),
            Wake::Takers | Wake::All => self.asleep.len(),
        };
        self.asleep.drain(..count);
        self.woken += count;
        if wake == Wake::All && self.is_drain_waited_for {
            self.is_drain_waited_for = !self.items.is_drained();
        }
    }

    fn look_woken(&mut self, hits: &Hits) {
        self.woken -= 1;
        hits.stolen.fetch_add(u64::from(self.model.fifo.is_empty() && !self.model.is_shut_down), Relaxed);
        self.look();
    }

    fn add(&mut self, item: u8, delay: u64, hits: &Hits) {
        if !self.model.is_shut_down && delay == 0 {
            self.unseen.insert(item);
        }
        let time = self.time();
        let wake = if delay == 0 {
            self.model.add(item, self.now);
            self.items.add(item, time)
        } else {
            let delay = delay - 1; // includes a zero delay
            self.model.add_after(item, delay, self.now);
            self.items.add_after(item, MILLIS(delay), time)
        };
        hits.woken_for_an_earlier_time.fetch_add(u64::from(wake == Wake::Takers && !self.asleep.is_empty()), Relaxed);
        self.wake(wake);
    }

    fn done(&mut self, item: u8, hits: &Hits) {
        let present = self.model.processing.keys().copied().find(|present| *present >= item);
        let Some(item) = present.or_else(|| self.model.processing.keys().copied().next()) else { return };
        self.model.done(item, self.now);
        hits.again.fetch_add(u64::from(self.model.fifo.contains(&item)), Relaxed);
        let wake = self.items.done(&item, self.time());
        self.wake(wake);
    }

    fn advance(&mut self, by: u64, hits: &Hits) {
        self.now += by;
        self.model.advance(self.now);
        let now = self.time();
        let before = self.asleep.len();
        self.asleep.retain(|until| until.is_none_or(|until| until > now));
        self.woken += before - self.asleep.len();
        hits.timers.fetch_add((before - self.asleep.len()) as u64, Relaxed);
    }

    fn shut_down(&mut self, drain: bool, hits: &Hits) {
        self.model.shut_down(drain);
        hits.drains_released.fetch_add(u64::from(self.is_drain_waited_for && !drain), Relaxed);
        let intake = if drain { Intake::Draining } else { Intake::ShutDown };
        let wake = self.items.shut_down(intake, self.time());
        self.is_drain_waited_for |= drain;
        self.wake(wake);
        hits.drains_waited_for.fetch_add(u64::from(self.is_drain_waited_for), Relaxed);
    }

    fn step(&mut self, (action, item, amount): (u8, u8, u64), hits: &Hits) {
        let is_taker_free = self.asleep.len() + self.woken < TAKERS;
        match action {
            // With few adds, takers sleep; after a shutdown there are none.
            0..=29 if (self.is_idle || self.model.is_shut_down) && is_taker_free => self.look(),
            0..=29 if self.is_idle => self.done(item, hits),
            90..=99 if self.is_drain_waited_for => self.shut_down(false, hits),
            0..=34 => self.add(item, 0, hits),
            35..=49 => self.add(item, amount + 1, hits),
            50..=59 if is_taker_free => self.look(),
            60..=69 if self.woken > 0 => self.look_woken(hits),
            50..=84 => self.done(item, hits),
            85..=97 => self.advance(amount, hits),
            // A queue runs for some hundred steps before it is shut down.
            98 if amount < 2 => self.shut_down(true, hits),
            99 if amount < 2 => self.shut_down(false, hits),
            _ => {}
        }
        self.check();
    }

    fn check(&mut self) {
        assert_eq!(self.items.stats(self.time()), self.model.stats(self.now));
        assert_eq!(self.items.len(self.time()), self.model.fifo.len());
        assert_eq!(self.items.is_shutting_down(), self.model.is_shut_down);
        assert_eq!(self.items.is_drained(), self.model.is_drained());
        if !self.asleep.is_empty() && self.woken == 0 {
            assert!(self.model.fifo.is_empty(), "a taker sleeps although there is work");
            let is_drained_later = self.model.is_draining && !self.model.processing.is_empty();
            assert!(!self.model.is_over() || is_drained_later, "a taker sleeps for ever");
        }
        let next = self.model.waiting.iter().map(|(at, _)| MILLIS(*at)).min();
        assert!(self.asleep.iter().all(|until| *until == next), "{:?} is not {next:?}", self.asleep);
        assert!(!self.is_drain_waited_for || !self.model.is_drained(), "a finished drain is still waited for");
    }

    /// Lets all delayed items become due, and works until nothing is left.
    fn finish(&mut self, hits: &Hits) {
        self.advance(1000, hits);
        if self.is_idle && !self.model.is_shut_down {
            // Drains a queue whose items in work are all added again.
            while !self.model.fifo.is_empty() {
                self.look();
            }
            for item in self.model.processing.keys().copied().collect::<Vec<_>>() {
                self.add(item, 0, hits);
            }
            self.shut_down(true, hits);
        }
        for _ in 0..TAKERS {
            if self.asleep.len() + self.woken < TAKERS {
                self.look();
            }
        }
        while self.woken > 0 {
            self.look_woken(hits);
        }
        self.check();
        while !self.model.fifo.is_empty() || !self.model.processing.is_empty() {
            if !self.model.fifo.is_empty() {
                self.look();
            }
            self.done(0, hits);
            while self.woken > 0 {
                self.look_woken(hits);
            }
            self.check();
        }
        if self.model.is_shut_down {
            assert!(self.asleep.is_empty(), "a worker was never notified of the end");
        }
        assert!(self.unseen.is_empty(), "Q-11: {:?} were added and not taken afterwards", self.unseen);
        hits.seen_at_last.fetch_add(1, Relaxed);
    }
}

#[test]
fn queue_equals_its_model_without_lost_wakeups() {
    let hits = Hits::default();
    let config = Config { failure_persistence: None, ..Config::default() };
    let steps = (any::<bool>(), vec((0..100_u8, 0..ITEMS, 0..8_u64), 200..240));
    let outcome = TestRunner::new(config).run(&steps, |(is_idle, steps)| {
        let mut world = World::new(is_idle);
        for step in steps {
            world.step(step, &hits);
        }
        world.finish(&hits);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    for (name, count) in [
        ("stolen items", &hits.stolen),
        ("items again", &hits.again),
        ("timers", &hits.timers),
        ("wakes for an earlier time", &hits.woken_for_an_earlier_time),
        ("drains that were waited for", &hits.drains_waited_for),
        ("drains that were released", &hits.drains_released),
        ("runs to the end", &hits.seen_at_last),
    ] {
        let count = count.load(Relaxed);
        println!("{name}: {count}");
        assert!(count > 0, "no case had {name}");
    }
}
