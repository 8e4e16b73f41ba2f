//! The thread of a handler that waits without blocking: a runtime of its own, on which its deliveries are side by side.
//!
//! A panic ends the handler, not the thread: the next delivery opens a new one, while others end with the one they
//! began with (I7). A thread that blocks all the same is left behind as in [`lane`](super::lane), at most
//! [`LEFT_BEHIND_MAX`] of them.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{
        mpsc::{self, Receiver, Sender},
        oneshot,
    },
    time::timeout,
};

use super::{
    AsyncHandler, Form, HandlerError, Outcome,
    lane::{Heard, LEFT_BEHIND_MAX},
};
use crate::{dispatcher::Notification, mutex::lock, supervisor::child::panic_text};

/// What a handler may take to end what it has open, when nobody asked for its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens a handler, on its thread and within its runtime: at the start, after a panic, and on the thread that replaces
/// one that hangs. A failure is a failed attempt. It must not wait for anything.
pub type OpenAsync = Box<dyn Fn() -> Result<Arc<dyn AsyncHandler>, HandlerError> + Send + Sync>;

/// How an [`AsyncHandler`] is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncOptions {
    /// Deliveries at a time.
    pub concurrency: usize,
    /// What one attempt may take.
    pub timeout: Duration,
    /// A thread that says nothing for so long after that hangs.
    pub hung_after: Duration,
}

enum Job {
    Deliver(Notification, Form, oneshot::Sender<Outcome>),
    Close(oneshot::Sender<Outcome>),
}

/// The way to a handler's thread, whichever it is now. A thread ends once it has closed its handler, was replaced, or
/// all its senders are gone.
#[derive(Clone)]
pub struct AsyncWorker(Arc<Shared>);

struct Shared {
    name: String,
    open: Arc<OpenAsync>,
    options: AsyncOptions,
    seats: Mutex<Seats>,
}

/// The thread that works, if there is one yet, and those that were left behind.
#[derive(Default)]
struct Seats {
    taken: Option<Seat>,
    left_behind: Vec<Weak<AtomicBool>>,
    started: u64,
}

/// The way to a thread.
#[derive(Clone)]
struct Seat {
    jobs: Sender<Job>,
    number: u64,
    /// Whether it was left behind; it lives as long as the thread.
    left_behind: Arc<AtomicBool>,
}

impl AsyncWorker {
    /// Starts the thread, which opens its handler at once; fails if the system has no thread to give.
    pub fn spawn(name: &str, options: AsyncOptions, open: OpenAsync) -> std::io::Result<Self> {
        let worker = Self::reserve(name, options, open);
        worker.0.seat()?;
        Ok(worker)
    }

    /// As [`AsyncWorker::spawn`], but the thread starts with the first delivery: for a handler that must not be opened
    /// before the one in whose place it comes is closed.
    pub fn reserve(name: &str, options: AsyncOptions, open: OpenAsync) -> Self {
        Self(Arc::new(Shared { name: name.to_owned(), open: Arc::new(open), options, seats: Mutex::default() }))
    }

    /// Returns how many deliveries it takes at a time.
    pub fn concurrency(&self) -> usize {
        self.0.options.concurrency.max(1)
    }

    /// Begins to deliver a batch. Hear what becomes of it from [`AsyncAttempt::hear`]; dropped, it is given up.
    pub fn deliver(&self, batch: Notification, form: Form) -> AsyncAttempt<'_> {
        self.submit(|answer| Job::Deliver(batch, form, answer))
    }

    /// Closes the handler and waits for the end of it, however long that takes; the thread ends.
    pub async fn close(&self) -> Outcome {
        if lock(&self.0.seats).taken.is_none() {
            return Outcome::Delivered;
        }
        self.submit(Job::Close).answer.await.unwrap_or_else(|_| ended())
    }

    fn submit(&self, job: impl FnOnce(oneshot::Sender<Outcome>) -> Job) -> AsyncAttempt<'_> {
        let (answer, answered) = oneshot::channel();
        let refuse = |job: Job, error: String| {
            let (Job::Deliver(.., answer) | Job::Close(answer)) = job;
            drop(answer.send(Outcome::Failed(HandlerError::Failed(error))));
        };
        let mut seat_number = 0;
        match self.0.seat() {
            Err(error) => refuse(job(answer), format!("failed to start the handler's thread: {error}")),
            Ok(seat) => {
                seat_number = seat.number;
                if let Err(refused) = seat.jobs.try_send(job(answer)) {
                    let is_gone = seat.jobs.is_closed();
                    refuse(refused.into_inner(), "the handler's thread is busy or has ended".to_owned());
                    if is_gone {
                        self.0.vacate(seat_number);
                    }
                }
            }
        }
        AsyncAttempt { shared: &self.0, seat: seat_number, answer: answered }
    }
}

/// A batch that is being delivered.
pub struct AsyncAttempt<'a> {
    shared: &'a Shared,
    /// The thread that it was given to.
    seat: u64,
    answer: oneshot::Receiver<Outcome>,
}

impl AsyncAttempt<'_> {
    /// Waits until there is something to say of the attempt. After [`Heard::Stuck`] there will be more; otherwise it
    /// is over.
    pub async fn hear(&mut self) -> Heard {
        let AsyncOptions { timeout: allowed, hung_after, .. } = self.shared.options;
        let patience = allowed.saturating_add(hung_after);
        match timeout(patience, &mut self.answer).await {
            Ok(answer) => Heard::Answer(answer.unwrap_or_else(|_| ended())),
            Err(_) => match self.shared.replace(self.seat) {
                Replacement::New => Heard::Replaced(patience),
                Replacement::AlreadyThere => Heard::Answer(ended()),
                Replacement::Impossible => Heard::Stuck(patience),
            },
        }
    }
}

/// What becomes of a thread that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replacement {
    /// There is a new one.
    New,
    /// Another attempt has seen to it.
    AlreadyThere,
    /// Too many hang, or there is no thread to be had.
    Impossible,
}

impl Shared {
    /// Returns the way to the thread, which is started where there is none.
    fn seat(&self) -> std::io::Result<Seat> {
        let mut seats = lock(&self.seats);
        if let Some(seat) = &seats.taken {
            return Ok(seat.clone());
        }
        self.start(&mut seats)
    }

    fn start(&self, seats: &mut Seats) -> std::io::Result<Seat> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (jobs, queue) = mpsc::channel(self.options.concurrency.max(1) + 1);
        let left_behind = Arc::new(AtomicBool::new(false));
        let bench = Bench {
            open: Arc::clone(&self.open),
            handler: Arc::default(),
            timeout: self.options.timeout,
            left_behind: Arc::clone(&left_behind),
        };
        let name = format!("handler-{}", self.name);
        std::thread::Builder::new().name(name).spawn(move || bench.work(&runtime, queue))?;
        seats.started += 1;
        let seat = Seat { jobs, number: seats.started, left_behind };
        Ok(seats.taken.insert(seat).clone())
    }

    /// Forgets a thread that has ended by itself.
    fn vacate(&self, number: u64) {
        lock(&self.seats).taken.take_if(|seat| seat.number == number);
    }

    /// Puts a new thread in the place of the one of that number, if nobody did.
    fn replace(&self, number: u64) -> Replacement {
        let mut seats = lock(&self.seats);
        let Some(hung) = seats.taken.clone().filter(|seat| seat.number == number) else {
            return Replacement::AlreadyThere;
        };
        seats.left_behind.retain(|thread| thread.strong_count() > 0);
        if seats.left_behind.len() >= LEFT_BEHIND_MAX || self.start(&mut seats).is_err() {
            return Replacement::Impossible;
        }
        hung.left_behind.store(true, Ordering::Release);
        seats.left_behind.push(Arc::downgrade(&hung.left_behind));
        Replacement::New
    }
}

fn ended() -> Outcome {
    Outcome::Failed(HandlerError::Failed("the handler's thread has ended".to_owned()))
}

/// What lies on the thread.
struct Bench {
    open: Arc<OpenAsync>,
    handler: Arc<Mutex<Option<Arc<dyn AsyncHandler>>>>,
    timeout: Duration,
    left_behind: Arc<AtomicBool>,
}

impl Bench {
    fn work(self, runtime: &Runtime, queue: Receiver<Job>) {
        runtime.block_on(self.serve(queue));
    }

    async fn serve(self, mut queue: Receiver<Job>) {
        if let Err(outcome) = self.handler() {
            tracing::warn!(?outcome, "failed to open the handler, trying again with its first event");
        }
        while let Some(job) = queue.recv().await {
            match job {
                // What still waits for a thread that was left behind is delivered by its successor.
                Job::Deliver(_, _, answer) if answer.is_closed() => {}
                Job::Deliver(batch, form, answer) => self.deliver(batch, form, answer),
                Job::Close(answer) => {
                    // A receiver that is gone has stopped waiting.
                    drop(answer.send(self.close().await));
                    return;
                }
            }
        }
        if !self.left_behind.load(Ordering::Acquire) && timeout(CLOSE_TIMEOUT, self.close()).await.is_err() {
            tracing::error!("the handler did not close in time");
        }
    }

    /// Begins a delivery; it ends with its answer, or when nobody waits for that any more.
    fn deliver(&self, batch: Notification, form: Form, mut answer: oneshot::Sender<Outcome>) {
        let handler = match self.handler() {
            Ok(handler) => handler,
            Err(outcome) => {
                drop(answer.send(outcome));
                return;
            }
        };
        let (slot, allowed) = (Arc::clone(&self.handler), self.timeout);
        drop(tokio::spawn(async move {
            let outcome = tokio::select! {
                outcome = attempt(handler.as_ref(), &batch, form, allowed) => outcome,
                () = answer.closed() => return,
            };
            if matches!(outcome, Outcome::Panicked(_)) {
                lock(&slot).take_if(|open| Arc::ptr_eq(open, &handler));
            }
            drop(answer.send(outcome));
        }));
    }

    /// Returns the handler, which is opened where it is not.
    fn handler(&self) -> Result<Arc<dyn AsyncHandler>, Outcome> {
        if let Some(handler) = &*lock(&self.handler) {
            return Ok(Arc::clone(handler));
        }
        match std::panic::catch_unwind(AssertUnwindSafe(|| (self.open)())) {
            Ok(Ok(handler)) => Ok(Arc::clone(lock(&self.handler).insert(handler))),
            Ok(Err(error)) => Err(Outcome::Failed(error)),
            Err(panic) => Err(Outcome::Panicked(panic_text(panic.as_ref()))),
        }
    }

    /// Closes the handler, if it was ever opened.
    async fn close(&self) -> Outcome {
        let handler = lock(&self.handler).take();
        let Some(handler) = handler else { return Outcome::Delivered };
        guard(async { handler.close().await }).await
    }
}

async fn attempt(handler: &dyn AsyncHandler, batch: &Notification, form: Form, allowed: Duration) -> Outcome {
    let delivery = guard(async { handler.deliver(batch, form).await });
    let silent = |_| Outcome::Failed(HandlerError::Failed(format!("no answer within {allowed:?}")));
    timeout(allowed, delivery).await.unwrap_or_else(silent)
}

/// Runs code of a handler; a panic in it becomes an [`Outcome`].
async fn guard(work: impl Future<Output = Result<(), HandlerError>>) -> Outcome {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(())) => Outcome::Delivered,
        Ok(Err(error)) => Outcome::Failed(error),
        Err(panic) => Outcome::Panicked(panic_text(panic.as_ref())),
    }
}
