//! Embedded cluster: an API server in this process that behaves like a real one for its clients.
//!
//! It serves list, paging, watch, bookmarks, streaming lists, 410, conflicts, writes, discovery and custom resources
//! over HTTP/1.1 on loopback, without authentication. [`Workload`] changes objects as a live cluster does. With the feature
//! `testing`, `Faults` injects misbehaviour. `deltabus demo`, tests and benches use the simulator; the real kube-apiserver
//! remains the reference.
//!
//! ```no_run
//! use deltabus::{Simulator, SimulatorOptions};
//!
//! let simulator = Simulator::start(SimulatorOptions::default())?;
//! simulator.store().create("configmaps", serde_json::json!({"metadata": {"name": "hello"}}))?;
//! println!("kubectl --server {} get configmaps", simulator.url());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Known differences:
//! - A definition has one served version. There are no schemas, and so no validation and no defaults.
//! - Custom resources have no `scale`.
//! - A protobuf body may have the fields that `kubectl create` sets, and some others. The rest is refused.
//! - Not supported: `Table`, `dryRun`, admission, garbage collection.
//! - The answer to an expired `continue` token offers no new token: the client must start the list again.
//! - Controllers of definitions and namespaces act immediately.
//! - Every request is allowed. Tests can remove rights (`Faults::forbid`).

mod error;
#[cfg(any(test, feature = "testing"))]
mod faults;
mod patch;
pub(crate) mod random;
#[cfg(any(test, feature = "testing"))]
mod rights;
mod selector;
mod server;
mod shared;
mod store;
pub(crate) mod template;
mod types;
mod workload;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use educe::Educe;

use crate::mutex::lock;

pub(crate) use crate::serve::ApiError;
#[cfg(any(test, feature = "testing"))]
pub(crate) use faults::Faults;
#[cfg(any(test, feature = "testing"))]
pub use faults::{ServerFault, StreamFault, Times};
pub use patch::strategic_merge;
pub use random::Random;
#[cfg(any(test, feature = "testing"))]
pub use rights::Area;
pub(crate) use server::{Call, Front, WatchTimer, list_head, push_bookmark, push_event};
pub use server::{RequestKind, SeenRequest};
pub(crate) use shared::SharedStore;
pub use store::{HistoryLimits, RawObject};
pub(crate) use workload::News;
pub(crate) use workload::{APPS, POD, RUNNING, WEBSITE, with_plain_values};
pub use workload::{Running, Sizes, Workload, bench_type};

/// Server behaviour for `sendInitialEvents` on watches (A-4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamingSupport {
    /// Sends synthetic events, then the bookmark that ends them, like current servers.
    #[default]
    Served,
    /// Answers 422 `Invalid`, like servers with the feature off.
    Refused,
    /// Opens a plain watch, like servers that do not know the option.
    Ignored,
}

/// Settings of a simulated API server.
#[derive(Clone, Debug, Educe)]
#[educe(Default)]
pub struct SimulatorOptions {
    /// Seed of uids and generated names.
    #[educe(Default = 1)]
    pub seed: u64,
    /// Port on 127.0.0.1; 0 selects a free one.
    pub port: u16,
    /// Behaviour for `sendInitialEvents`.
    pub streaming_lists: StreamingSupport,
    /// Time between bookmarks (A-5).
    #[educe(Default = Duration::from_mins(1))]
    pub bookmark_interval: Duration,
    /// Lifetime of a watch without `timeoutSeconds`.
    #[educe(Default = Duration::from_mins(45))]
    pub watch_timeout: Duration,
    /// Longest wait for a requested version that the store has not reached yet. After this time, the answer is 504 (A-6).
    #[educe(Default = Duration::from_secs(3))]
    pub fresh_timeout: Duration,
    /// Size of the history that watches can read.
    pub history: HistoryLimits,
    /// Set if a list with `resourceVersion=0` ignores `limit`, as on servers with a watch cache (A-2).
    #[educe(Default = true)]
    pub watch_cache: bool,
}

/// A running simulated API server, on its own thread. Dropping this value stops the server.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    shared: Arc<server::Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Simulator {
    /// Starts the server and returns once it accepts connections.
    ///
    /// The server has its own thread and runtime, so callers with and without a runtime can start it.
    pub fn start(options: SimulatorOptions) -> io::Result<Self> {
        Self::start_behind(None, options)
    }

    /// Starts a server behind `front`. The server answers only the requests that `front` does not answer.
    pub(crate) fn start_behind(front: Option<Arc<dyn Front>>, options: SimulatorOptions) -> io::Result<Self> {
        let store = SharedStore::new(options.seed, options.history);
        let listener = server::bind(SocketAddr::from(([127, 0, 0, 1], options.port)))?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(server::Shared::new(store, front, options));
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("simulator".to_owned())
            .spawn(move || runtime.block_on(server::serve(listener, serving)))?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Returns the address as a URL, `http://127.0.0.1:40001`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a kubeconfig for this server, as YAML, without credentials.
    pub fn kubeconfig(&self) -> String {
        let url = self.url();
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: simulator\n  cluster:\n    server: {url}\n\
             contexts:\n- name: simulator\n  context:\n    cluster: simulator\n    user: simulator\n\
             users:\n- name: simulator\n  user: {{}}\ncurrent-context: simulator\n"
        )
    }

    /// Returns the store, for reads and writes without HTTP.
    pub fn store(&self) -> &SharedStore {
        &self.shared.store
    }

    /// Returns the faults.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Returns the last 10,000 requests, oldest first.
    pub fn requests(&self) -> Vec<SeenRequest> {
        lock(&self.shared.requests).iter().cloned().collect()
    }

    /// Clears the request log.
    pub fn clear_requests(&self) {
        lock(&self.shared.requests).clear();
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the highest number of connections open at once.
    pub fn connections_peak(&self) -> usize {
        self.shared.connections_peak.load(Ordering::Relaxed)
    }

    /// Returns the number of open watches.
    pub fn open_watches(&self) -> usize {
        self.shared.watches.load(Ordering::Relaxed)
    }

    /// Breaks all open connections; the server keeps running.
    pub fn close_connections(&self) {
        self.shared.order(|orders| orders.epoch += 1);
    }

    /// Simulates a stopped server: connections break and new ones are refused. The objects stay.
    ///
    /// The stop takes effect shortly after this call returns.
    pub fn go_down(&self) {
        self.shared.order(|orders| orders.is_down = true);
        self.close_connections();
    }

    /// Ends [`Simulator::go_down`]: the server accepts connections again, on the same address.
    pub fn come_up(&self) {
        self.shared.order(|orders| orders.is_down = false);
    }

    /// Stops the server and waits for its thread; open connections break.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.shared.order(|orders| orders.stopped = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the simulator's thread has panicked");
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.shut_down();
    }
}
