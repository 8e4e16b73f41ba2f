//! What the processes do: serve, or see all pods and all events and say what that cost.

#![expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]

use std::{
    error::Error,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use deltabus::list_watch::kube::ClusterAccess;
use futures_util::StreamExt;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, WatchEvent, WatchParams},
};

use crate::support::{
    engine::{CONFIG, HANDLER, engine},
    observer::{Meter, report, report_progress},
    simulated::{SIMULATOR, simulator},
};

/// The stream that every observer reads.
const WATCH: &str = "/api/v1/pods?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&timeoutSeconds=600";

/// A socket that is silent for so long has said everything.
const SILENCE: Duration = Duration::from_millis(500);

/// So many events are some 5 ms of work.
const SOME: usize = 50;

/// Plays a role to its end.
pub(crate) fn play(role: &str, args: &[String]) -> Result<(), Box<dyn Error>> {
    match (role, args) {
        (SIMULATOR, [pods, diverse]) => simulator(pods.parse()?, diverse.parse()?),
        ("engine", [url, pods, events, handler, more]) => {
            let access = ClusterAccess::without_credentials(url, "bench")?;
            let config = CONFIG.replace(HANDLER, handler);
            engine(access, &format!("{config}\n{more}"), pods.parse()?, events.parse()?)
        }
        ("drop", [url, ..]) => read_and_drop(url),
        ("kube", [url, pods, events, ..]) => decode_and_drop(url, pods.parse()?, events.parse()?),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

fn read_and_drop(url: &str) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter::start();
    let address = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address)?;
    write!(socket, "GET {WATCH} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..2 {
        socket.set_read_timeout(None)?;
        let began = Instant::now();
        let mut read = socket.read(&mut buffer);
        socket.set_read_timeout(Some(SILENCE))?;
        while matches!(read, Ok(1..)) {
            read = socket.read(&mut buffer);
        }
        report(meter.lap(began.elapsed().saturating_sub(SILENCE)));
    }
    Ok(())
}

/// What a client built on the kube crate does before it does anything with an object.
fn decode_and_drop(url: &str, pods: usize, events: usize) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kube::Client::try_from(kube::Config::new(url.parse()?))?;
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api = Api::<DynamicObject>::all_with(client, &resource);
        let mut stream = api.watch(&WatchParams::default().initial_events(), "0").await?.boxed();
        for expected in [pods, events] {
            let (mut began, mut seen) = (None, 0);
            while seen < expected {
                let event = stream.next().await.ok_or("the watch has ended")??;
                began.get_or_insert_with(Instant::now);
                seen += usize::from(matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_)));
                if seen.is_multiple_of(SOME) {
                    report_progress(u64::try_from(seen)?);
                }
            }
            report(meter.lap(began.map(|began| began.elapsed()).unwrap_or_default()));
        }
        Ok(())
    })
}
