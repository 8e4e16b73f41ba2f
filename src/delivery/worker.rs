//! The thread of a handler. Jobs come over a bounded channel, answers go back one by one.
//!
//! A handler that blocks is given one job at a time. One that waits has a runtime on its thread, on which its deliveries are side
//! by side. A panic ends the handler, not the thread: the next job opens a new one, while other deliveries end with the one they
//! began with (I7). A thread that hangs is left behind, with its handler, and a new one takes its place; at most
//! [`LEFT_BEHIND_MAX`] of one handler are alive at a time.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, TrySendError, bounded};
use futures_util::FutureExt as _;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use super::attempts::AttemptOutcome;
#[cfg(any(test, feature = "testing"))]
use crate::supervisor::fault::Harm;
use crate::{
    failures::Failures,
    handler::{AsyncHandler, Form, Handler, HandlerError, left_behind},
    mutex::lock,
    notification::Notification,
    supervisor::{child::panic_text, fault::SharedFault},
};

/// Jobs that may wait for a thread that does one at a time.
const JOBS_MAX: usize = 2;
/// Threads of one handler that hang and have been replaced; while there are so many, the next one is waited for.
pub const LEFT_BEHIND_MAX: usize = 3;
/// What a handler that waits may take to end what it has open, when nobody asked for its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens a handler that blocks. A failure is a failed attempt.
pub type OpenHandler = Arc<dyn Fn() -> Result<Box<dyn Handler>, HandlerError> + Send + Sync>;

/// Opens a handler that waits, within its runtime. It must not wait for anything; a failure is a failed attempt.
pub type OpenAsync = Arc<dyn Fn() -> Result<Arc<dyn AsyncHandler>, HandlerError> + Send + Sync>;

/// Opens a handler on its thread: at the start, after a panic, and on the thread that replaces one that hangs.
#[derive(Clone)]
pub enum Open {
    /// One that blocks.
    Blocking(OpenHandler),
    /// One that waits without blocking.
    Async {
        /// Opens it.
        open: OpenAsync,
        /// Deliveries at a time, at least one.
        concurrency: usize,
        /// What one attempt may take.
        timeout: Duration,
    },
}

/// The way to a handler's thread, whichever it is now. A thread ends once it has closed its handler, was replaced, or
/// all its senders are gone.
#[derive(Clone)]
pub struct Worker(Arc<Shared>);

struct Shared {
    name: String,
    open: Open,
    /// How long an attempt may be silent before its thread hangs.
    patience: Duration,
    threads: Mutex<Threads>,
    /// What goes wrong with the next batch, in a test.
    fault: SharedFault,
}

/// The thread that works, if there is one yet, and those that were left behind.
#[derive(Default)]
struct Threads {
    current: Option<Thread>,
    left_behind: Vec<Weak<AtomicBool>>,
}

/// The way to a thread.
#[derive(Clone)]
struct Thread {
    jobs: Jobs,
    /// Whether it was left behind; it lives as long as the thread.
    left_behind: Arc<AtomicBool>,
}

#[derive(Clone)]
enum Jobs {
    Blocking(crossbeam_channel::Sender<Job>),
    Async(mpsc::Sender<Job>),
}

enum Job {
    Deliver(Notification, Form, oneshot::Sender<AttemptOutcome>),
    Close(oneshot::Sender<AttemptOutcome>),
}

/// What is heard of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Its end.
    Answer(AttemptOutcome),
    /// The thread was silent for so long; it was left behind, and a new one is ready for the batch.
    Replaced(Duration),
    /// The thread has been silent for so long, and too many hang: it is waited for.
    Stuck(Duration),
}

impl Worker {
    /// Starts the thread, which opens its handler at once. A thread hangs that does not answer for `hung_after`, and where
    /// attempts have a timeout, for so long after it.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn spawn(name: &str, hung_after: Duration, open: Open) -> io::Result<Self> {
        let worker = Self::reserve(name, hung_after, open);
        worker.0.thread()?;
        Ok(worker)
    }

    /// As [`Worker::spawn`], but the thread starts with the first batch: for a handler that must not be opened before
    /// the one in whose place it comes is closed.
    pub fn reserve(name: &str, hung_after: Duration, open: Open) -> Self {
        let patience = match open {
            Open::Blocking(_) => hung_after,
            Open::Async { timeout, .. } => timeout.saturating_add(hung_after),
        };
        let (threads, fault) = (Mutex::default(), SharedFault::default());
        Self(Arc::new(Shared { name: name.to_owned(), open, patience, threads, fault }))
    }

    /// Returns how many deliveries it takes at a time.
    pub fn concurrency(&self) -> usize {
        match self.0.open {
            Open::Blocking(_) => 1,
            Open::Async { concurrency, .. } => concurrency.max(1),
        }
    }

    /// Returns whether a delivery ends when its [`Attempt`] is dropped.
    pub fn can_cancel(&self) -> bool {
        matches!(self.0.open, Open::Async { .. })
    }

    /// Returns how much of an event it can be sent at least.
    pub fn smallest_form(&self) -> Form {
        match self.0.open {
            Open::Blocking(_) => Form::Whole,
            Open::Async { .. } => Form::Reference,
        }
    }

    /// Begins to deliver a batch. Hear what becomes of it from [`Attempt::hear`].
    pub fn deliver(&self, batch: Notification, form: Form) -> Attempt<'_> {
        self.submit(|answer| Job::Deliver(batch, form, answer))
    }

    /// Closes the handler and waits for the end of it, however long that takes; the thread ends.
    pub async fn close(&self) -> AttemptOutcome {
        if lock(&self.0.threads).current.is_none() {
            return AttemptOutcome::Delivered;
        }
        self.submit(Job::Close).answer.await.unwrap_or_else(|_| ended())
    }

    /// Does harm on the thread of a handler that blocks, with the next batch.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage(&self, harm: Harm) {
        self.0.fault.put(harm);
    }

    fn submit(&self, job: impl FnOnce(oneshot::Sender<AttemptOutcome>) -> Job) -> Attempt<'_> {
        let shared = &*self.0;
        let (answer, answered) = oneshot::channel();
        let refuse = |job: Job, error: String| {
            let (Job::Deliver(.., answer) | Job::Close(answer)) = job;
            drop(answer.send(AttemptOutcome::Failed(HandlerError::Failed(error))));
        };
        let thread = shared.thread();
        match &thread {
            Err(error) => refuse(job(answer), format!("failed to start the handler's thread: {error}")),
            Ok(thread) => {
                if let Err((job, is_gone)) = thread.jobs.try_send(job(answer)) {
                    refuse(job, "the handler's thread is busy or has ended".to_owned());
                    if is_gone {
                        lock(&shared.threads).current.take_if(|current| current.is(thread));
                    }
                }
            }
        }
        let wait = shared.patience;
        Attempt { shared, thread: thread.ok(), answer: answered, wait, silent: Duration::ZERO }
    }
}

/// A batch that is being delivered.
pub struct Attempt<'a> {
    shared: &'a Shared,
    /// The thread that it was given to.
    thread: Option<Thread>,
    answer: oneshot::Receiver<AttemptOutcome>,
    /// How long to wait for the next thing to say.
    wait: Duration,
    silent: Duration,
}

impl Attempt<'_> {
    /// Waits until there is something to say of the attempt, without blocking. After [`Heard::Stuck`] there will be
    /// more; otherwise it is over.
    pub async fn hear(&mut self) -> Heard {
        if let Ok(answer) = timeout(self.wait, &mut self.answer).await {
            return Heard::Answer(answer.unwrap_or_else(|_| ended()));
        }
        self.silent += self.wait;
        self.wait = (self.shared.patience / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let Some(thread) = &self.thread else { return Heard::Answer(ended()) };
        match self.shared.replace(thread) {
            Replacement::New => Heard::Replaced(self.silent),
            Replacement::AlreadyThere => Heard::Answer(ended()),
            Replacement::Impossible => Heard::Stuck(self.silent),
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
    fn thread(&self) -> io::Result<Thread> {
        let mut threads = lock(&self.threads);
        match &threads.current {
            Some(thread) => Ok(thread.clone()),
            None => Ok(threads.current.insert(self.start()?).clone()),
        }
    }

    /// Puts a new thread in the place of one that hangs, if nobody did.
    fn replace(&self, hung: &Thread) -> Replacement {
        let mut threads = lock(&self.threads);
        if !threads.current.as_ref().is_some_and(|current| current.is(hung)) {
            return Replacement::AlreadyThere;
        }
        threads.left_behind.retain(|thread| thread.strong_count() > 0);
        if threads.left_behind.len() >= LEFT_BEHIND_MAX {
            return Replacement::Impossible;
        }
        let Ok(thread) = self.start() else { return Replacement::Impossible };
        hung.left_behind.store(true, Ordering::Release);
        threads.left_behind.push(Arc::downgrade(&hung.left_behind));
        threads.current = Some(thread);
        Replacement::New
    }

    fn start(&self) -> io::Result<Thread> {
        let left_behind = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&left_behind);
        let builder = thread::Builder::new().name(format!("handler-{}", self.name));
        let jobs = match self.open.clone() {
            Open::Blocking(open) => {
                let (jobs, queue) = bounded(JOBS_MAX);
                let blocking = Blocking { open, handler: None, left_behind: mark, fault: self.fault.clone() };
                builder.spawn(move || blocking.work(&queue))?;
                Jobs::Blocking(jobs)
            }
            Open::Async { open, concurrency, timeout } => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let (jobs, queue) = mpsc::channel(concurrency.max(1) + 1);
                let waiting = Waiting { open, handler: Arc::default(), timeout, left_behind: mark };
                builder.spawn(move || runtime.block_on(waiting.work(queue)))?;
                Jobs::Async(jobs)
            }
        };
        Ok(Thread { jobs, left_behind })
    }
}

impl Thread {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.left_behind, &other.left_behind)
    }
}

impl Jobs {
    /// Hands a job over; gives it back with whether the thread has ended.
    fn try_send(&self, job: Job) -> Result<(), (Job, bool)> {
        match self {
            Self::Blocking(jobs) => jobs.try_send(job).map_err(|refused| {
                let is_gone = matches!(refused, TrySendError::Disconnected(_));
                (refused.into_inner(), is_gone)
            }),
            Self::Async(jobs) => jobs.try_send(job).map_err(|refused| {
                let is_gone = matches!(refused, mpsc::error::TrySendError::Closed(_));
                (refused.into_inner(), is_gone)
            }),
        }
    }
}

fn ended() -> AttemptOutcome {
    AttemptOutcome::Failed(HandlerError::Failed("the handler's thread has ended".to_owned()))
}

/// A handler that blocks, on its thread.
struct Blocking {
    open: OpenHandler,
    handler: Option<Box<dyn Handler>>,
    left_behind: Arc<AtomicBool>,
    fault: SharedFault,
}

impl Blocking {
    fn work(mut self, queue: &crossbeam_channel::Receiver<Job>) {
        left_behind::set(Arc::clone(&self.left_behind));
        let thread = thread::current(); // named after the handler
        let handler = thread.name().and_then(|name| name.strip_prefix("handler-"));
        let (mut flushes, started) = (Failures::default(), Instant::now());
        if let AttemptOutcome::Failed(error) = self.guarded(|_| Ok(())) {
            tracing::warn!(handler, %error, "failed to open the handler, trying again with its first event");
        }
        // What still waits for a thread that was left behind is delivered by its successor.
        while !self.left_behind.load(Ordering::Acquire) {
            let tick = self.handler.as_ref().and_then(|handler| handler.tick_interval());
            // A receiver that is gone has stopped waiting; the work is done all the same.
            match queue.recv_timeout(tick.unwrap_or(Duration::from_hours(1))) {
                Ok(Job::Deliver(batch, _, answer)) => {
                    let fault = self.fault.clone();
                    drop(answer.send(self.guarded(|handler| {
                        fault.strike("handler");
                        handler.deliver(&batch)
                    })));
                }
                Ok(Job::Close(answer)) => {
                    drop(answer.send(self.close()));
                    return;
                }
                Err(RecvTimeoutError::Timeout) if self.handler.is_some() => match self.guarded(Handler::tick) {
                    AttemptOutcome::Failed(error) => {
                        if let Some(suppressed) = flushes.failed(started.elapsed()) {
                            tracing::error!(handler, %error, suppressed, "failed to flush the handler");
                        }
                    }
                    AttemptOutcome::Delivered => {
                        if let Some(failures) = flushes.worked() {
                            tracing::info!(handler, failures, "flushes again");
                        }
                    }
                    AttemptOutcome::Panicked(_) => {} // logged by the panic hook
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let AttemptOutcome::Failed(error) = self.close() {
            tracing::error!(handler, %error, "failed to close the handler");
        }
    }

    /// Closes the handler, if it was ever opened.
    fn close(&mut self) -> AttemptOutcome {
        if self.handler.is_none() { AttemptOutcome::Delivered } else { self.guarded(Handler::close) }
    }

    fn guarded(
        &mut self,
        work: impl FnOnce(&mut (dyn Handler + 'static)) -> Result<(), HandlerError>,
    ) -> AttemptOutcome {
        let Self { open, handler, .. } = self;
        let outcome = guard(|| {
            let handler = match handler {
                Some(handler) => handler,
                None => handler.insert(open()?),
            };
            work(handler.as_mut())
        });
        if matches!(outcome, AttemptOutcome::Panicked(_)) {
            let broken = handler.take();
            drop(catch_unwind(AssertUnwindSafe(|| drop(broken))));
        }
        outcome
    }
}

/// A handler that waits, on its thread and within its runtime.
struct Waiting {
    open: OpenAsync,
    handler: Arc<Mutex<Option<Arc<dyn AsyncHandler>>>>,
    timeout: Duration,
    left_behind: Arc<AtomicBool>,
}

impl Waiting {
    async fn work(self, mut queue: mpsc::Receiver<Job>) {
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
    fn deliver(&self, batch: Notification, form: Form, mut answer: oneshot::Sender<AttemptOutcome>) {
        let handler = match self.handler() {
            Ok(handler) => handler,
            Err(outcome) => {
                drop(answer.send(outcome));
                return;
            }
        };
        let (slot, allowed) = (Arc::clone(&self.handler), self.timeout);
        drop(tokio::spawn(async move {
            let delivery = timeout(allowed, guard_async(async { handler.deliver(&batch, form).await }));
            let outcome = tokio::select! {
                outcome = delivery => outcome.unwrap_or_else(|_| {
                    AttemptOutcome::Failed(HandlerError::Failed(format!("no answer within {allowed:?}")))
                }),
                () = answer.closed() => return,
            };
            if matches!(outcome, AttemptOutcome::Panicked(_)) {
                lock(&slot).take_if(|open| Arc::ptr_eq(open, &handler));
            }
            drop(answer.send(outcome));
        }));
    }

    /// Returns the handler, which is opened where it is not.
    fn handler(&self) -> Result<Arc<dyn AsyncHandler>, AttemptOutcome> {
        let mut handler = lock(&self.handler);
        if let Some(handler) = &*handler {
            return Ok(Arc::clone(handler));
        }
        let mut opened = None;
        match guard(|| (self.open)().map(|handler| opened = Some(handler))) {
            AttemptOutcome::Delivered => Ok(Arc::clone(handler.insert(opened.expect("it was opened")))),
            refused => Err(refused),
        }
    }

    /// Closes the handler, if it was ever opened.
    async fn close(&self) -> AttemptOutcome {
        let handler = lock(&self.handler).take();
        match handler {
            Some(handler) => guard_async(async { handler.close().await }).await,
            None => AttemptOutcome::Delivered,
        }
    }
}

/// Runs code of a handler; a panic in it becomes an [`AttemptOutcome`].
pub(super) fn guard(work: impl FnOnce() -> Result<(), HandlerError>) -> AttemptOutcome {
    outcome(catch_unwind(AssertUnwindSafe(work)))
}

async fn guard_async(work: impl Future<Output = Result<(), HandlerError>>) -> AttemptOutcome {
    outcome(AssertUnwindSafe(work).catch_unwind().await)
}

fn outcome(ended: thread::Result<Result<(), HandlerError>>) -> AttemptOutcome {
    match ended {
        Ok(Ok(())) => AttemptOutcome::Delivered,
        Ok(Err(error)) => AttemptOutcome::Failed(error),
        Err(panic) => AttemptOutcome::Panicked(panic_text(panic.as_ref())),
    }
}
