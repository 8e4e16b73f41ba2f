//! The whole pipeline in one process, from a server's socket to a handler, measured by criterion: CPU of the engine.
//!
//! A server sends changes of generated objects over HTTP on loopback as fast as the engine accepts them. The engine has the
//! default configuration and a handler that counts. CPU includes all threads of the process except the server's.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use criterion::{
    Criterion, Throughput, criterion_group, criterion_main,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use deltabus::internals::{
    bench::{Generator, ReplayServer, Shape, measure},
    config::{Config, HandlerOptions},
    engine::Engine,
    list_watch::kube::ClusterAccess,
    notification::Notification,
};
use tokio::sync::oneshot;

/// Divisor of the work in a debug build, which only shows that the bench runs.
const SMOKE: u64 = if cfg!(debug_assertions) { 100 } else { 1 };
const OBJECTS: u64 = 20_000 / SMOKE;
/// Number of events per iteration.
const EVENTS: u64 = 10_000 / SMOKE;
/// Name of the server's thread.
const SERVER: &str = "replay\n";
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// CPU time of the engine in nanoseconds.
struct EngineCpu;

impl Measurement for EngineCpu {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        engine_cpu()
    }

    fn end(&self, start: u64) -> u64 {
        engine_cpu() - start
    }

    fn add(&self, one: &u64, other: &u64) -> u64 {
        one + other
    }

    fn zero(&self) -> u64 {
        0
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a bench")]
    fn to_f64(&self, nanos: &u64) -> f64 {
        *nanos as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Returns the CPU of this process without the server's threads.
fn engine_cpu() -> u64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_server = threads.filter_map(|thread| {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).ok();
        read("comm").filter(|name| name == SERVER)?;
        read("schedstat")?.split(' ').next()?.parse::<u64>().ok()
    });
    let of_server: u64 = of_server.sum();
    measure::cpu() - of_server
}

/// A server, and an engine that has synced with it.
struct Pipeline {
    server: ReplayServer,
    /// Version of the last event delivered to the handler.
    seen: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    engine: Option<JoinHandle<()>>,
}

impl Pipeline {
    fn start(shape: Shape) -> Self {
        let server = ReplayServer::start(Generator::new(shape, OBJECTS, 1)).expect("a free port");
        let access = ClusterAccess::without_credentials(&server.url(), "bench").expect("a URL");
        let config = format!("[resources.measured]\nmatch = [{:?}]", shape.resource().qualified_name());
        let mut config = Config::from_toml_str(&config).expect("it is valid");
        config.http.listen = None;
        let seen = Arc::new(AtomicU64::new(0));
        let of_handler = Arc::clone(&seen);
        let see = move |notification: &Notification| {
            let last = notification.events().iter().rev().find_map(|event| event.record.object());
            if let Some(object) = last {
                of_handler.store(object.resource_version().parse().unwrap_or_default(), Ordering::Release);
            }
            Ok(())
        };
        let (stop, stopped) = oneshot::channel();
        let (tell, synced) = mpsc::channel();
        let engine = thread::spawn(move || {
            actix::System::new().block_on(async {
                let builder = Engine::builder().config(config).cluster(access);
                let builder = builder.on_change("count", HandlerOptions::default(), see);
                let engine = builder.start().await.expect("it starts");
                engine.wait_for_sync().await;
                tell.send(()).expect("somebody waits");
                drop(stopped.await);
                engine.stop().await;
            });
        });
        synced.recv().expect("the engine syncs");
        Self { server, seen, stop: Some(stop), engine: Some(engine) }
    }

    /// Makes changes and waits until the handler has received the last one; returns the engine's CPU.
    fn pass(&self, changes: u64) -> u64 {
        let before = engine_cpu();
        self.server.release(changes);
        let target = self.server.generator().version(self.server.changes());
        while self.seen.load(Ordering::Acquire) < target {
            thread::sleep(LOOK_EVERY);
        }
        engine_cpu() - before
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(engine) = self.engine.take() {
            engine.join().expect("the engine stops");
        }
    }
}

fn throughput(c: &mut Criterion<EngineCpu>) {
    let mut group = c.benchmark_group("throughput");
    for shape in [Shape::Pods, Shape::Diverse, Shape::Custom, Shape::Events] {
        let bytes = EVENTS * Generator::new(shape, OBJECTS, 1).object_bytes() as u64;
        group.throughput(Throughput::ElementsAndBytes { elements: EVENTS, bytes });
        group.sample_size(20);
        group.bench_function(shape.title(), |b| {
            let pipeline = Pipeline::start(shape);
            pipeline.pass(EVENTS);
            b.iter_custom(|passes| pipeline.pass(passes * EVENTS));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(EngineCpu);
    targets = throughput
}
criterion_main!(benches);
