//! Thread of a handler. It receives jobs over a bounded channel and answers each one.
//!
//! A handler that blocks receives one job at a time. An asynchronous handler has a runtime on its thread, which runs its deliveries
//! concurrently. A panic ends the handler, not the thread. The next job opens a new handler; deliveries that already run continue
//! with the old one (E7). A hung thread is abandoned with its handler, and a new thread replaces it. At most three abandoned
//! threads of one handler exist at a time.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, Weak, atomic::AtomicBool},
    thread,
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, TrySendError, bounded};
use futures_util::FutureExt as _;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use super::{
    attempts::{AttemptError, AttemptOutcome},
    status::HandlerStatus,
};
#[cfg(any(test, feature = "testing"))]
use crate::supervisor::fault::Harm;
use crate::{
    failures::Failures,
    handler::{AsyncHandler, Form, Handler, HandlerError, replaced::Replaced},
    mutex::lock,
    notification::Notification,
    supervisor::{child::panic_text, fault::SharedFault},
};

/// Capacity of the queue of a thread that does one job at a time.
const JOBS_MAX: usize = 2;
/// Maximum number of replaced threads of one handler that still hang. At this limit, attempts wait for a hung
/// thread, which is not replaced.
const LEFT_BEHIND_MAX: usize = 3;
/// Time for an asynchronous handler to close after its worker was dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Function that opens a handler that blocks, on the thread of the token. A failure counts as a failed attempt.
pub(crate) type OpenHandler = Arc<dyn Fn(&Replaced) -> Result<Box<dyn Handler>, HandlerError> + Send + Sync>;

/// Function that opens an asynchronous handler, within its runtime. It must not wait; a failure counts as a failed
/// attempt.
pub(crate) type OpenAsync = Arc<dyn Fn() -> Result<Arc<dyn AsyncHandler>, HandlerError> + Send + Sync>;

/// Function that opens a handler on its thread: at the start, after a panic, and on the replacement of a hung thread.
#[derive(Clone)]
pub(crate) enum Open {
    /// A handler that blocks.
    Blocking(OpenHandler),
    /// A handler that waits without blocking.
    Async {
        /// Function that opens the handler.
        open: OpenAsync,
        /// Number of concurrent deliveries, at least one.
        concurrency: usize,
        /// Timeout of one attempt.
        timeout: Duration,
    },
}

/// Owner of a handler's threads. A thread ends when its handler is closed, when it is replaced, or when the worker is dropped.
pub(crate) struct Worker {
    name: String,
    pub(super) open: Open,
    /// Time without an answer after which a thread counts as hung.
    patience: Duration,
    threads: Mutex<Threads>,
    /// Fault to inject into the next batch, for tests.
    fault: SharedFault,
}

/// The current thread, if one was started, and the abandoned threads.
#[derive(Default)]
struct Threads {
    current: Option<Thread>,
    left_behind: Vec<Weak<AtomicBool>>,
}

/// Handle of a thread.
#[derive(Clone)]
struct Thread {
    send: SendJob,
    /// Token of the thread. It lives as long as the thread.
    replaced: Replaced,
}

/// Function that queues a job for a thread, without waiting.
type SendJob = Arc<dyn Fn(Job) -> Result<(), NotQueued> + Send + Sync>;

/// Reason why a job was not queued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotQueued {
    ThreadEnded,
    QueueFull,
}

enum Job {
    Deliver(Notification, Form, oneshot::Sender<AttemptOutcome>),
    Close(oneshot::Sender<AttemptOutcome>),
}

impl Worker {
    /// Makes a worker whose thread starts with the first batch. The thread counts as hung if it does not answer for `hung_after`.
    /// For an asynchronous handler, the timeout of an attempt is added to `hung_after`.
    pub(crate) fn new(name: &str, hung_after: Duration, open: Open) -> Self {
        let patience = match open {
            Open::Blocking(_) => hung_after,
            Open::Async { timeout, .. } => timeout.saturating_add(hung_after),
        };
        Self { name: name.to_owned(), open, patience, threads: Mutex::default(), fault: SharedFault::default() }
    }

    /// Starts the thread, which opens its handler at once. Do not call this if the previous handler must be closed first.
    ///
    /// # Errors
    /// Fails if the system cannot start another thread.
    pub(crate) fn start(self) -> io::Result<Self> {
        self.thread()?;
        Ok(self)
    }

    /// Delivers a batch. An attempt on a hung thread fails when the thread is replaced. If the thread cannot be replaced, the
    /// attempt waits for the thread. Dropping the future ends the attempt of an asynchronous handler.
    pub(super) async fn deliver(&self, batch: Notification, form: Form, status: &HandlerStatus) -> AttemptOutcome {
        let (answer, mut answered) = oneshot::channel();
        let thread = self.submit(Job::Deliver(batch, form, answer))?;
        let (mut wait, mut silent) = (self.patience, Duration::ZERO);
        loop {
            if let Ok(answer) = timeout(wait, &mut answered).await {
                return answer.unwrap_or_else(|_| ended());
            }
            silent += wait;
            wait = (self.patience / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
            if let Some(outcome) = self.replace(&thread, silent, status) {
                return outcome;
            }
            let error = format!("no answer within {silent:.1?}, and too many of the handler's threads are hung");
            let mut counts = status.lock();
            let was_hung = std::mem::replace(&mut counts.is_hung, true);
            counts.note_error(error.clone());
            drop(counts);
            if !was_hung {
                tracing::error!(handler = status.name, %error, "handler is hung; waiting for one of its threads");
            }
        }
    }

    /// Closes the handler, and waits without a limit until it is closed. Then the thread ends.
    pub(super) async fn close(&self) -> AttemptOutcome {
        if lock(&self.threads).current.is_none() {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Close(answer))?;
        answered.await.unwrap_or_else(|_| ended())
    }

    /// Causes a fault with the next batch, on the thread of a handler that blocks.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn sabotage(&self, harm: Harm) {
        self.fault.put(harm);
    }

    /// Queues a job on the current thread. Starts a thread if there is none. Fails if the thread cannot take the job.
    fn submit(&self, job: Job) -> Result<Thread, HandlerError> {
        let failed = |error: io::Error| HandlerError::Failed(format!("failed to start the handler's thread: {error}"));
        let thread = self.thread().map_err(failed)?;
        (thread.send)(job).map_err(|why| {
            if why == NotQueued::ThreadEnded {
                lock(&self.threads).current.take_if(|current| current.is(&thread));
            }
            HandlerError::Failed("the handler's thread is busy or has ended".to_owned())
        })?;
        Ok(thread)
    }

    /// Returns the current thread. Starts a thread if there is none.
    fn thread(&self) -> io::Result<Thread> {
        let mut threads = lock(&self.threads);
        match &threads.current {
            Some(thread) => Ok(thread.clone()),
            None => Ok(threads.current.insert(self.start_thread()?).clone()),
        }
    }

    /// Replaces the thread `hung`, which gave no answer for the time `silent`. Does nothing if another attempt has replaced it
    /// already. Returns the failure for the calling attempt; `None` if too many threads hang, or the system cannot start another
    /// thread.
    fn replace(&self, hung: &Thread, silent: Duration, status: &HandlerStatus) -> Option<AttemptOutcome> {
        let mut threads = lock(&self.threads);
        if !threads.current.as_ref().is_some_and(|current| current.is(hung)) {
            return Some(ended());
        }
        threads.left_behind.retain(|thread| thread.strong_count() > 0);
        if threads.left_behind.len() >= LEFT_BEHIND_MAX {
            return None;
        }
        threads.current = Some(self.start_thread().ok()?);
        hung.replaced.set();
        threads.left_behind.push(hung.replaced.downgrade());
        status.lock().view.restarts += 1;
        Some(failed(format!("no answer within {silent:.1?}; the handler's thread was replaced")))
    }

    fn start_thread(&self) -> io::Result<Thread> {
        let replaced = Replaced::default();
        let (token, builder) = (replaced.clone(), thread::Builder::new().name(format!("handler-{}", self.name)));
        let send: SendJob = match self.open.clone() {
            Open::Blocking(open) => {
                let (jobs, queue) = bounded(JOBS_MAX);
                let fault = self.fault.clone();
                builder.spawn(move || Blocking { open, replaced: token, handler: None }.work(&queue, &fault))?;
                Arc::new(move |job| {
                    jobs.try_send(job).map_err(|error| match error {
                        TrySendError::Full(_) => NotQueued::QueueFull,
                        TrySendError::Disconnected(_) => NotQueued::ThreadEnded,
                    })
                })
            }
            Open::Async { open, concurrency, timeout } => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let (jobs, queue) = mpsc::channel(concurrency.max(1) + 1);
                builder.spawn(move || {
                    let waiting = Waiting { open, replaced: token, handler: Mutex::default(), timeout };
                    runtime.block_on(Arc::new(waiting).work(queue));
                })?;
                Arc::new(move |job| {
                    jobs.try_send(job).map_err(|error| match error {
                        mpsc::error::TrySendError::Full(_) => NotQueued::QueueFull,
                        mpsc::error::TrySendError::Closed(_) => NotQueued::ThreadEnded,
                    })
                })
            }
        };
        Ok(Thread { send, replaced })
    }
}

impl Thread {
    fn is(&self, other: &Self) -> bool {
        self.replaced.is(&other.replaced)
    }
}

fn failed(error: String) -> AttemptOutcome {
    Err(HandlerError::Failed(error).into())
}

fn ended() -> AttemptOutcome {
    failed("the handler's thread has ended".to_owned())
}

/// A handler that blocks, on its thread.
struct Blocking {
    open: OpenHandler,
    replaced: Replaced,
    handler: Option<Box<dyn Handler>>,
}

impl Blocking {
    fn work(mut self, queue: &crossbeam_channel::Receiver<Job>, fault: &SharedFault) {
        let thread = thread::current(); // named after the handler
        let handler = thread.name().and_then(|name| name.strip_prefix("handler-"));
        let (mut flushes, started) = (Failures::default(), Instant::now());
        if let Err(AttemptError::Failed(error)) = self.guarded(|_| Ok(())) {
            tracing::warn!(handler, %error, "failed to open the handler; will retry with its first event");
        }
        let mut ticked = Instant::now();
        // If this thread is replaced, the attempts that wait in its queue fail, and are retried on the replacement.
        while !self.replaced.is_set() {
            let interval = self.handler.as_ref().and_then(|handler| handler.tick_interval());
            let wait = interval.map_or(Duration::from_hours(1), |interval| interval.saturating_sub(ticked.elapsed()));
            // A queue that is never empty must not delay the tick.
            let job = if wait.is_zero() { Err(RecvTimeoutError::Timeout) } else { queue.recv_timeout(wait) };
            // If the receiver was dropped, its owner no longer waits; the job is done anyway.
            match job {
                Ok(Job::Deliver(batch, _, answer)) => drop(answer.send(self.guarded(|handler| {
                    fault.strike("handler");
                    handler.deliver(&batch)
                }))),
                Ok(Job::Close(answer)) => {
                    drop(answer.send(self.close()));
                    return;
                }
                Err(RecvTimeoutError::Timeout) if self.handler.is_some() => {
                    match self.guarded(Handler::tick) {
                        Ok(()) => {
                            if let Some(failures) = flushes.worked() {
                                tracing::info!(handler, failures, "the handler can be flushed again");
                            }
                        }
                        Err(AttemptError::Failed(error)) => {
                            if let Some(suppressed) = flushes.failed(started.elapsed()) {
                                tracing::error!(handler, %error, suppressed, "failed to flush the handler");
                            }
                        }
                        Err(AttemptError::Panicked(_)) => {} // logged by the panic hook
                    }
                    ticked = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Err(AttemptError::Failed(error)) = self.close() {
            tracing::error!(handler, %error, "failed to close the handler");
        }
    }

    /// Closes the handler, if it is open.
    fn close(&mut self) -> AttemptOutcome {
        if self.handler.is_none() { Ok(()) } else { self.guarded(Handler::close) }
    }

    /// Opens the handler if necessary, and calls `work` with it. A panic ends the handler.
    fn guarded(
        &mut self,
        work: impl FnOnce(&mut (dyn Handler + 'static)) -> Result<(), HandlerError>,
    ) -> AttemptOutcome {
        let Self { open, replaced, handler } = self;
        let outcome = guard(|| {
            let handler = match handler {
                Some(handler) => handler,
                None => handler.insert(open(replaced)?),
            };
            work(handler.as_mut())
        });
        if matches!(outcome, Err(AttemptError::Panicked(_))) {
            let broken = handler.take();
            drop(catch_unwind(AssertUnwindSafe(|| drop(broken))));
        }
        outcome
    }
}

/// An asynchronous handler, on its thread and within its runtime.
struct Waiting {
    open: OpenAsync,
    replaced: Replaced,
    handler: Mutex<Option<Arc<dyn AsyncHandler>>>,
    timeout: Duration,
}

impl Waiting {
    async fn work(self: Arc<Self>, mut queue: mpsc::Receiver<Job>) {
        if let Err(error) = self.handler() {
            tracing::warn!(%error, "failed to open the handler; will retry with its first event");
        }
        while let Some(job) = queue.recv().await {
            match job {
                // The caller no longer waits: the attempt was cancelled, or failed when the thread was replaced.
                Job::Deliver(_, _, answer) if answer.is_closed() => {}
                Job::Deliver(batch, form, answer) => {
                    drop(tokio::spawn(Arc::clone(&self).deliver(batch, form, answer)));
                }
                Job::Close(answer) => {
                    // If the receiver was dropped, its owner no longer waits.
                    drop(answer.send(self.close().await));
                    return;
                }
            }
        }
        if !self.replaced.is_set() && timeout(CLOSE_TIMEOUT, self.close()).await.is_err() {
            tracing::error!("the handler did not close in time");
        }
    }

    /// Makes an attempt and sends the answer. If the receiver of the answer is dropped, the attempt ends early.
    async fn deliver(self: Arc<Self>, batch: Notification, form: Form, mut answer: oneshot::Sender<AttemptOutcome>) {
        let outcome = tokio::select! {
            biased; // after the handler was closed, an attempt without a receiver must not open it again
            () = answer.closed() => return,
            outcome = self.attempt(&batch, form) => outcome,
        };
        drop(answer.send(outcome));
    }

    async fn attempt(&self, batch: &Notification, form: Form) -> AttemptOutcome {
        let handler = self.handler()?;
        let attempt = timeout(self.timeout, guard_async(async { handler.deliver(batch, form).await }));
        let outcome = attempt.await.unwrap_or_else(|_| failed(format!("no answer within {:?}", self.timeout)));
        if matches!(outcome, Err(AttemptError::Panicked(_))) {
            lock(&self.handler).take_if(|open| Arc::ptr_eq(open, &handler));
        }
        outcome
    }

    /// Returns the handler. Opens the handler if necessary.
    fn handler(&self) -> Result<Arc<dyn AsyncHandler>, AttemptError> {
        let mut handler = lock(&self.handler);
        if let Some(handler) = &*handler {
            return Ok(Arc::clone(handler));
        }
        Ok(Arc::clone(handler.insert(guard(|| (self.open)())?)))
    }

    /// Closes the handler, if it is open.
    async fn close(&self) -> AttemptOutcome {
        let Some(handler) = lock(&self.handler).take() else { return Ok(()) };
        guard_async(async { handler.close().await }).await
    }
}

/// Runs code of a handler; turns a panic into an error.
pub(super) fn guard<T>(work: impl FnOnce() -> Result<T, HandlerError>) -> Result<T, AttemptError> {
    Ok(catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panicked(panic.as_ref()))??)
}

async fn guard_async(work: impl Future<Output = Result<(), HandlerError>>) -> AttemptOutcome {
    Ok(AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| panicked(panic.as_ref()))??)
}

fn panicked(panic: &(dyn Any + Send)) -> AttemptError {
    AttemptError::Panicked(panic_text(panic))
}
