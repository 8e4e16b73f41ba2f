//! A workload in its own thread.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::{super::shared::SharedStore, Workload};

use crate::mutex::lock;

/// Number of news items that are kept.
const NEWS_KEPT: usize = 16;

/// A workload running in its own thread. Dropping this value stops the workload.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Latest news of a workload: rollouts, and types and namespaces that were added or removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct News(pub(super) Arc<Mutex<VecDeque<String>>>);

impl Workload {
    /// Runs `rate` steps per second in a thread, until the returned value is dropped.
    pub fn run(mut self, store: SharedStore, rate: f64) -> io::Result<Running> {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let pause = Duration::from_secs_f64(1.0 / rate.clamp(0.01, 1e6));
        let thread = std::thread::Builder::new().name("workload".to_owned()).spawn(move || {
            let mut due = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = self.step(&store) {
                    tracing::debug!(%error, "workload: a step was refused");
                }
                due += pause;
                if due >= Duration::from_millis(1) {
                    // at a high rate several steps share one sleep
                    let nap = due.min(Duration::from_millis(100));
                    std::thread::sleep(nap);
                    due -= nap;
                }
            }
        })?;
        Ok(Running { stop, thread: Some(thread) })
    }
}

impl News {
    /// Returns the latest news, newest last.
    pub(crate) fn latest(&self) -> Vec<String> {
        lock(&self.0).iter().cloned().collect()
    }

    pub(super) fn push(&self, news: String) {
        let mut kept = lock(&self.0);
        if kept.len() == NEWS_KEPT {
            kept.pop_front();
        }
        kept.push_back(news);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the workload's thread has panicked");
        }
    }
}
