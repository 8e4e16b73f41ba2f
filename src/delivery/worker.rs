//! Thread of a handler. It receives jobs over a bounded channel and answers each one.
//!
//! A handler that blocks receives one job at a time. An asynchronous handler has a runtime on its thread, which runs
//! its deliveries concurrently. A panic ends the handler, not the thread: the next job opens a new handler, while other
//! deliveries end with the old one (I7). A hung thread is abandoned with its handler, and a new thread replaces it. At
//! most [`LEFT_BEHIND_MAX`] abandoned threads of one handler exist at a time.

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
    handler::{AsyncHandler, Form, Handler, HandlerError, replaced},
    mutex::lock,
    notification::Notification,
    supervisor::{child::panic_text, fault::SharedFault},
};

/// Capacity of the queue of a thread that does one job at a time.
const JOBS_MAX: usize = 2;
/// Maximum number of replaced threads of one handler that still hang. At this limit, a hung thread is not replaced but
/// waited for.
pub const LEFT_BEHIND_MAX: usize = 3;
/// Time for an asynchronous handler to close if it ends without a request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Function that opens a handler that blocks. A failure counts as a failed attempt.
pub type OpenHandler = Arc<dyn Fn() -> Result<Box<dyn Handler>, HandlerError> + Send + Sync>;

/// Function that opens an asynchronous handler, within its runtime. It must not wait; a failure counts as a failed
/// attempt.
pub type OpenAsync = Arc<dyn Fn() -> Result<Arc<dyn AsyncHandler>, HandlerError> + Send + Sync>;

/// Function that opens a handler on its thread: at the start, after a panic, and on the replacement of a hung thread.
#[derive(Clone)]
pub enum Open {
    /// A handler that blocks.
    Blocking(OpenHandler),
    /// A handler that waits without blocking.
    Async {
        /// Function that opens it.
        open: OpenAsync,
        /// Number of concurrent deliveries, at least one.
        concurrency: usize,
        /// Timeout of one attempt.
        timeout: Duration,
    },
}

/// Handle of a handler's current thread. A thread ends after it has closed its handler, or was replaced, or all its
/// senders are dropped.
#[derive(Clone)]
pub struct Worker(Arc<Shared>);

struct Shared {
    name: String,
    open: Open,
    /// Time without an answer after which a thread counts as hung.
    patience: Duration,
    threads: Mutex<Threads>,
    /// Fault of the next batch, for tests.
    fault: SharedFault,
}

/// The current thread, if there is one yet, and the abandoned ones.
#[derive(Default)]
struct Threads {
    current: Option<Thread>,
    left_behind: Vec<Weak<AtomicBool>>,
}

/// Handle of a thread.
#[derive(Clone)]
struct Thread {
    jobs: Jobs,
    /// Set if it was abandoned; this flag lives as long as the thread.
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

/// Report on an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The attempt has ended.
    Answer(AttemptOutcome),
    /// The thread did not answer for this time. It was abandoned, and a new thread is ready for the batch.
    Replaced(Duration),
    /// The thread has not answered for this time, and too many threads hang. The attempt continues to wait.
    Stuck(Duration),
}

impl Worker {
    /// Starts the thread, which opens its handler at once. The thread counts as hung if it does not answer for
    /// `hung_after`. If attempts have a timeout, `hung_after` counts from its end.
    ///
    /// # Errors
    /// Fails if the system cannot start another thread.
    pub fn spawn(name: &str, hung_after: Duration, open: Open) -> io::Result<Self> {
        let worker = Self::reserve(name, hung_after, open);
        worker.0.thread()?;
        Ok(worker)
    }

    /// Makes a worker whose thread starts with the first batch. Use it for a handler that must not be opened before its
    /// predecessor is closed. See [`Worker::spawn`].
    pub fn reserve(name: &str, hung_after: Duration, open: Open) -> Self {
        let patience = match open {
            Open::Blocking(_) => hung_after,
            Open::Async { timeout, .. } => timeout.saturating_add(hung_after),
        };
        let (threads, fault) = (Mutex::default(), SharedFault::default());
        Self(Arc::new(Shared { name: name.to_owned(), open, patience, threads, fault }))
    }

    /// Returns its maximum number of concurrent deliveries.
    #[cfg(test)]
    pub fn concurrency(&self) -> usize {
        match self.0.open {
            Open::Blocking(_) => 1,
            Open::Async { concurrency, .. } => concurrency.max(1),
        }
    }

    /// Returns true if dropping an [`Attempt`] ends its delivery.
    pub fn can_cancel(&self) -> bool {
        matches!(self.0.open, Open::Async { .. })
    }

    /// Returns the smallest form that it accepts.
    pub fn smallest_form(&self) -> Form {
        match self.0.open {
            Open::Blocking(_) => Form::Whole,
            Open::Async { .. } => Form::Reference,
        }
    }

    /// Starts the delivery of a batch. [`Attempt::hear`] reports its result.
    pub fn deliver(&self, batch: Notification, form: Form) -> Attempt<'_> {
        self.submit(|answer| Job::Deliver(batch, form, answer))
    }

    /// Closes the handler and waits without a limit until it is closed; the thread ends.
    pub async fn close(&self) -> AttemptOutcome {
        if lock(&self.0.threads).current.is_none() {
            return AttemptOutcome::Delivered;
        }
        self.submit(Job::Close).answer.await.unwrap_or_else(|_| ended())
    }

    /// Causes a fault on the thread of a handler that blocks, with the next batch.
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

/// Delivery of a batch.
pub struct Attempt<'a> {
    shared: &'a Shared,
    /// Thread of the delivery.
    thread: Option<Thread>,
    answer: oneshot::Receiver<AttemptOutcome>,
    /// Time until the next report.
    wait: Duration,
    silent: Duration,
}

impl Attempt<'_> {
    /// Waits for the next report, without blocking. Other reports follow only after [`Heard::Stuck`].
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

/// Result of replacing a hung thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replacement {
    /// A new thread was started.
    New,
    /// Another attempt has already replaced the thread.
    AlreadyThere,
    /// Too many threads hang, or the system cannot start another one.
    Impossible,
}

impl Shared {
    /// Returns the current thread, which is started if there is none.
    fn thread(&self) -> io::Result<Thread> {
        let mut threads = lock(&self.threads);
        match &threads.current {
            Some(thread) => Ok(thread.clone()),
            None => Ok(threads.current.insert(self.start()?).clone()),
        }
    }

    /// Replaces a hung thread, if that has not happened yet.
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
    /// Sends a job. If that fails, returns the job and whether the thread has ended.
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
        replaced::set(Arc::clone(&self.left_behind));
        let thread = thread::current(); // named after the handler
        let handler = thread.name().and_then(|name| name.strip_prefix("handler-"));
        let (mut flushes, started) = (Failures::default(), Instant::now());
        if let AttemptOutcome::Failed(error) = self.guarded(|_| Ok(())) {
            tracing::warn!(handler, %error, "failed to open the handler; will retry with its first event");
        }
        // Jobs that still wait for an abandoned thread are delivered by its replacement.
        while !self.left_behind.load(Ordering::Acquire) {
            let tick = self.handler.as_ref().and_then(|handler| handler.tick_interval());
            // If the receiver was dropped, its owner no longer waits; the job is done anyway.
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
                            tracing::info!(handler, failures, "the handler flushes again");
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

/// An asynchronous handler, on its thread and within its runtime.
struct Waiting {
    open: OpenAsync,
    handler: Arc<Mutex<Option<Arc<dyn AsyncHandler>>>>,
    timeout: Duration,
    left_behind: Arc<AtomicBool>,
}

impl Waiting {
    async fn work(self, mut queue: mpsc::Receiver<Job>) {
        if let Err(outcome) = self.handler() {
            tracing::warn!(?outcome, "failed to open the handler; will retry with its first event");
        }
        while let Some(job) = queue.recv().await {
            match job {
                // Jobs that still wait for an abandoned thread are delivered by its replacement.
                Job::Deliver(_, _, answer) if answer.is_closed() => {}
                Job::Deliver(batch, form, answer) => self.deliver(batch, form, answer),
                Job::Close(answer) => {
                    // If the receiver was dropped, its owner no longer waits.
                    drop(answer.send(self.close().await));
                    return;
                }
            }
        }
        if !self.left_behind.load(Ordering::Acquire) && timeout(CLOSE_TIMEOUT, self.close()).await.is_err() {
            tracing::error!("the handler did not close in time");
        }
    }

    /// Starts a delivery. It ends with its answer, or when the receiver of the answer is dropped.
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

    /// Returns the handler, which is opened if necessary.
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

/// Runs code of a handler; turns a panic into an [`AttemptOutcome`].
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
