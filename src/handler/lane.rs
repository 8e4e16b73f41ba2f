//! The thread of a handler that blocks: jobs come over a bounded channel, answers go back one by one.
//!
//! A panic ends the handler, not the thread: the next job opens a new one (I7). A thread that hangs is left behind,
//! with its handler, and a new one takes its place; at most [`LEFT_BEHIND_MAX`] of one handler are alive at a time.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{Handler, HandlerError, Outcome};
use crate::{
    dispatcher::Notification,
    failures::Failures,
    mutex::lock,
    supervisor::{child::panic_text, fault::SharedFault},
};

#[cfg(any(test, feature = "testing"))]
use crate::supervisor::fault::Harm;

/// Jobs that may wait for the thread; a lane sends one at a time.
const JOBS_MAX: usize = 2;
/// Threads of one handler that hang and have been replaced; while there are so many, the next one is waited for.
pub const LEFT_BEHIND_MAX: usize = 3;

/// Opens a handler: at the start, after a panic, and on the thread that replaces a hung one. A failure is a failed
/// attempt.
pub type OpenHandler = Box<dyn Fn() -> Result<Box<dyn Handler>, HandlerError> + Send + Sync>;

enum Job {
    Deliver(Notification, oneshot::Sender<Outcome>),
    Close(oneshot::Sender<Outcome>),
}

/// The way to a handler's thread, whichever it is now. A thread ends once it has closed its handler, was replaced, or
/// all its senders are gone.
#[derive(Clone)]
pub struct Worker(Arc<Shared>);

struct Shared {
    name: String,
    open: Arc<OpenHandler>,
    hung_after: Duration,
    seats: Mutex<Seats>,
    /// What goes wrong with the next batch, in a test.
    fault: SharedFault,
}

/// The thread that works, if there is one yet, and those that were left behind.
struct Seats {
    taken: Option<Seat>,
    left_behind: Vec<Weak<Desk>>,
}

/// The way to a thread.
#[derive(Clone)]
struct Seat {
    jobs: Sender<Job>,
    desk: Arc<Desk>,
}

/// What a thread and those who watch it share; it lives as long as the thread.
#[derive(Debug, Default)]
struct Desk {
    busy_since: Mutex<Option<Instant>>,
    left_behind: AtomicBool,
}

/// What is heard of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Its end.
    Answer(Outcome),
    /// The thread has hung for so long; it was left behind, and a new one is ready for the batch.
    Replaced(Duration),
    /// The thread has hung for so long, and too many hang: it is waited for.
    Stuck(Duration),
}

impl Worker {
    /// Starts the thread, which opens its handler at once; fails if the system has no thread to give. One that is at
    /// the same work for `hung_after` hangs.
    pub fn spawn(name: &str, hung_after: Duration, open: OpenHandler) -> std::io::Result<Self> {
        let worker = Self::reserve(name, hung_after, open);
        worker.0.seat()?;
        Ok(worker)
    }

    /// As [`Worker::spawn`], but the thread starts with the first batch: for a handler that must not be opened before
    /// the one in whose place it comes is closed.
    pub fn reserve(name: &str, hung_after: Duration, open: OpenHandler) -> Self {
        let seats = Mutex::new(Seats { taken: None, left_behind: Vec::new() });
        Self(Arc::new(Shared {
            name: name.to_owned(),
            open: Arc::new(open),
            hung_after,
            seats,
            fault: SharedFault::default(),
        }))
    }

    /// Begins to deliver a batch on the thread. Hear what becomes of it from [`Attempt::hear`].
    pub fn deliver(&self, notification: Notification) -> Attempt<'_> {
        self.submit(|answer| Job::Deliver(notification, answer))
    }

    /// Closes the handler and waits for the end of it, however long that takes; the thread ends.
    pub async fn close(&self) -> Outcome {
        if lock(&self.0.seats).taken.is_none() {
            return Outcome::Delivered;
        }
        let attempt = self.submit(Job::Close);
        attempt.answer.await.unwrap_or_else(|_| ended())
    }

    /// Does harm on the thread, with the next batch.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage(&self, harm: Harm) {
        self.0.fault.put(harm);
    }

    fn submit(&self, job: impl FnOnce(oneshot::Sender<Outcome>) -> Job) -> Attempt<'_> {
        let (answer, answered) = oneshot::channel();
        let refused = |job: Job, error: String| {
            let (Job::Deliver(_, answer) | Job::Close(answer)) = job;
            drop(answer.send(Outcome::Failed(HandlerError::Failed(error))));
        };
        match self.0.seat() {
            Err(error) => refused(job(answer), format!("failed to start the handler's thread: {error}")),
            Ok(seat) => {
                if let Err(job) = seat.jobs.try_send(job(answer)) {
                    refused(job.into_inner(), "the handler's thread is busy or has ended".to_owned());
                }
            }
        }
        Attempt { shared: &self.0, answer: answered }
    }
}

/// A batch that is being delivered.
pub struct Attempt<'a> {
    shared: &'a Shared,
    answer: oneshot::Receiver<Outcome>,
}

impl Attempt<'_> {
    /// Waits until there is something to say of the attempt, without blocking. After [`Heard::Stuck`] there will be
    /// more; otherwise it is over.
    pub async fn hear(&mut self) -> Heard {
        let Shared { hung_after, .. } = *self.shared;
        let look_every = (hung_after / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        loop {
            if let Ok(answer) = timeout(look_every, &mut self.answer).await {
                return Heard::Answer(answer.unwrap_or_else(|_| ended()));
            }
            if let Some(silent) = self.shared.silent_for().filter(|silent| *silent >= hung_after) {
                return if self.shared.replace() { Heard::Replaced(silent) } else { Heard::Stuck(silent) };
            }
        }
    }
}

impl Shared {
    /// Returns the way to the thread, which is started where there is none.
    fn seat(&self) -> std::io::Result<Seat> {
        let mut seats = lock(&self.seats);
        if let Some(seat) = &seats.taken {
            return Ok(seat.clone());
        }
        let seat = seat(&self.name, &self.open, &self.fault)?;
        Ok(seats.taken.insert(seat).clone())
    }

    /// Returns how long the thread has been at what it does; `None` when it does nothing.
    fn silent_for(&self) -> Option<Duration> {
        let desk = lock(&self.seats).taken.as_ref().map(|seat| Arc::clone(&seat.desk))?;
        let since = *lock(&desk.busy_since);
        since.map(|since| since.elapsed())
    }

    /// Puts a new thread in the place of the hung one; `false` if there are too many such, or no thread to be had.
    fn replace(&self) -> bool {
        let mut seats = lock(&self.seats);
        seats.left_behind.retain(|desk| desk.strong_count() > 0);
        if seats.left_behind.len() >= LEFT_BEHIND_MAX {
            return false;
        }
        let Ok(seat) = seat(&self.name, &self.open, &self.fault) else { return false };
        if let Some(hung) = seats.taken.replace(seat) {
            hung.desk.left_behind.store(true, Ordering::Release);
            seats.left_behind.push(Arc::downgrade(&hung.desk));
        }
        true
    }
}

fn ended() -> Outcome {
    Outcome::Panicked("the handler's thread has ended".to_owned())
}

/// Starts a thread.
fn seat(name: &str, open: &Arc<OpenHandler>, fault: &SharedFault) -> std::io::Result<Seat> {
    let (jobs, queue) = bounded(JOBS_MAX);
    let desk = Arc::new(Desk::default());
    let bench = Bench { open: Arc::clone(open), handler: None, desk: Arc::clone(&desk), fault: fault.clone() };
    std::thread::Builder::new().name(format!("handler-{name}")).spawn(move || {
        DESK.set(Some(Arc::clone(&bench.desk)));
        bench.work(&queue);
    })?;
    Ok(Seat { jobs, desk })
}

thread_local! {
    static DESK: RefCell<Option<Arc<Desk>>> = const { RefCell::new(None) };
}

/// Returns whether this is the thread of a handler that hung and was replaced: what it undoes now, it undoes to its
/// successor.
pub fn is_left_behind() -> bool {
    DESK.with_borrow(|desk| desk.as_ref().is_some_and(|desk| desk.left_behind.load(Ordering::Acquire)))
}

/// Makes this thread one that was replaced.
#[cfg(test)]
pub(super) fn leave_this_thread_behind() {
    DESK.set(Some(Arc::new(Desk { left_behind: AtomicBool::new(true), ..Desk::default() })));
}

/// What lies on the thread.
struct Bench {
    open: Arc<OpenHandler>,
    handler: Option<Box<dyn Handler>>,
    desk: Arc<Desk>,
    fault: SharedFault,
}

impl Bench {
    fn work(mut self, queue: &Receiver<Job>) {
        let thread = std::thread::current(); // named after the handler
        let handler = thread.name().and_then(|name| name.strip_prefix("handler-"));
        let (mut flushes, started) = (Failures::default(), Instant::now());
        if let Outcome::Failed(error) = self.guarded(|_| Ok(())) {
            tracing::warn!(handler, %error, "failed to open the handler, trying again with its first event");
        }
        // What still waits for a thread that was left behind is delivered by its successor.
        while !self.desk.left_behind.load(Ordering::Acquire) {
            let tick = self.handler.as_ref().and_then(|handler| handler.tick_interval());
            // A receiver that is gone has stopped waiting; the work is done all the same.
            match queue.recv_timeout(tick.unwrap_or(Duration::from_hours(1))) {
                Ok(Job::Deliver(notification, answer)) => {
                    let fault = self.fault.clone();
                    drop(answer.send(self.guarded(|handler| {
                        fault.strike("handler");
                        handler.deliver(&notification)
                    })));
                }
                Ok(Job::Close(answer)) => {
                    drop(answer.send(self.close()));
                    return;
                }
                Err(RecvTimeoutError::Timeout) if self.handler.is_some() => match self.guarded(Handler::tick) {
                    Outcome::Failed(error) => {
                        if let Some(suppressed) = flushes.failed(started.elapsed()) {
                            tracing::error!(handler, %error, suppressed, "failed to flush the handler");
                        }
                    }
                    Outcome::Delivered => {
                        if let Some(failures) = flushes.worked() {
                            tracing::info!(handler, failures, "flushes again");
                        }
                    }
                    Outcome::Panicked(_) => {} // logged by the panic hook
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Outcome::Failed(error) = self.close() {
            tracing::error!(handler, %error, "failed to close the handler");
        }
    }

    /// Closes the handler, if it was ever opened.
    fn close(&mut self) -> Outcome {
        if self.handler.is_none() { Outcome::Delivered } else { self.guarded(Handler::close) }
    }

    fn guarded(&mut self, work: impl FnOnce(&mut (dyn Handler + 'static)) -> Result<(), HandlerError>) -> Outcome {
        *lock(&self.desk.busy_since) = Some(Instant::now());
        let Self { open, handler, .. } = self;
        let outcome = guard(|| {
            let handler = match handler {
                Some(handler) => handler,
                None => handler.insert(open()?),
            };
            work(handler.as_mut())
        });
        if matches!(outcome, Outcome::Panicked(_)) {
            let broken = handler.take();
            drop(catch_unwind(AssertUnwindSafe(|| drop(broken))));
        }
        *lock(&self.desk.busy_since) = None;
        outcome
    }
}

/// Runs code of a handler; a panic in it becomes an [`Outcome`].
pub(super) fn guard(work: impl FnOnce() -> Result<(), HandlerError>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Outcome::Delivered,
        Ok(Err(error)) => Outcome::Failed(error),
        Err(panic) => Outcome::Panicked(panic_text(panic.as_ref())),
    }
}
