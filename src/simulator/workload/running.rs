//! A workload in a thread of its own.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::{super::shared::SharedStore, Workload};

use crate::mutex::lock;

/// News kept for those who look seldom.
const NEWS_KEPT: usize = 16;

/// What the thread and its owner share.
#[derive(Debug, Default)]
struct Board {
    stop: AtomicBool,
    steps: AtomicU64,
    news: Mutex<VecDeque<String>>,
}

/// A workload that runs in its thread; dropping it stops it.
#[derive(Debug)]
pub struct Running {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

/// The news of a workload, for those who do not own it.
#[derive(Clone, Debug)]
pub struct News(Arc<Board>);

impl Workload {
    /// Runs the steps in a thread, `rate` a second, until the returned value is dropped.
    pub fn run(mut self, store: SharedStore, rate: f64) -> io::Result<Running> {
        let board = Arc::new(Board::default());
        let shared = Arc::clone(&board);
        let pause = Duration::from_secs_f64(1.0 / rate.clamp(0.01, 1e6));
        let thread = std::thread::Builder::new().name("workload".to_owned()).spawn(move || {
            let mut due = Duration::ZERO;
            while !shared.stop.load(Ordering::Relaxed) {
                if let Err(error) = self.step(&store) {
                    tracing::debug!(%error, "workload: a step was refused");
                }
                shared.steps.fetch_add(1, Ordering::Relaxed);
                shared.tell(&mut self.news);
                due += pause;
                if due >= Duration::from_millis(1) {
                    // at a high rate several steps share one sleep
                    let nap = due.min(Duration::from_millis(100));
                    std::thread::sleep(nap);
                    due -= nap;
                }
            }
        })?;
        Ok(Running { board, thread: Some(thread) })
    }
}

impl Board {
    fn tell(&self, news: &mut Vec<String>) {
        if news.is_empty() {
            return;
        }
        let mut told = lock(&self.news);
        told.extend(news.drain(..));
        let surplus = told.len().saturating_sub(NEWS_KEPT);
        told.drain(..surplus);
    }
}

impl Running {
    /// Returns how many steps were done.
    pub fn steps(&self) -> u64 {
        self.board.steps.load(Ordering::Relaxed)
    }

    /// Returns where the news are read.
    pub fn news(&self) -> News {
        News(Arc::clone(&self.board))
    }
}

impl News {
    /// Returns what was worth telling of late, newest last: rollouts, types and namespaces that came or went.
    pub fn latest(&self) -> Vec<String> {
        lock(&self.0.news).iter().cloned().collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the workload's thread has panicked");
        }
    }
}
