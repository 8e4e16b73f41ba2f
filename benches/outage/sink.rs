//! The process that a webhook calls: it behaves as it is told, and notes what it takes.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    error::Error,
    fs,
    future::pending,
    hash::{BuildHasher as _, RandomState},
    io::stdin,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Deserialize;

use crate::{Outcome, micros};

/// Seconds that a 429 asks for.
const RETRY_SECONDS: &str = "1";
/// Who gets nothing older has caught up.
const FRESH_MICROS: u64 = 1_000_000;

/// How requests are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Good,
    /// Never.
    Hangs,
    Refuses(StatusCode),
}

/// What is read of an event.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(rename = "resourceversion", borrow)]
    version: Cow<'a, str>,
    #[serde(borrow)]
    sequence: Cow<'a, str>,
    #[serde(borrow)]
    data: Data<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    object: Object<'a>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    data: Content<'a>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    stamp: Cow<'a, str>,
}

/// The last that was heard of an object.
struct Last {
    sequence: u64,
    version: u64,
    deleted: bool,
}

/// What was taken, and how late.
#[derive(Default)]
struct Notes {
    mood: Mood,
    requests: u64,
    refused: u64,
    events: u64,
    ids: HashSet<u64>,
    hasher: RandomState,
    duplicates: u64,
    /// Events that came behind a later one of their object.
    disordered: u64,
    last: HashMap<String, Last>,
    /// Microseconds from change to arrival, since this was last asked for, and of all.
    lags: Vec<u64>,
    all_lags: Vec<u64>,
    recovered: u64,
    caught_up: u64,
}

/// Serves, and does what each line on stdin says: `good`, `hang`, `500`, `429`, `lags`, `sum` or `compare FILE`.
pub(crate) fn play() -> Outcome<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    println!("http://{}/", listener.local_addr()?);
    let notes = Arc::new(Mutex::new(Notes::default()));
    let shared = Arc::clone(&notes);
    thread::spawn(move || serve(listener, &shared));
    for line in stdin().lines() {
        let line = line?;
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["good"] => (notes.mood, notes.recovered, notes.caught_up) = (Mood::Good, micros(), 0),
            ["hang"] => notes.mood = Mood::Hangs,
            ["500"] => notes.mood = Mood::Refuses(StatusCode::INTERNAL_SERVER_ERROR),
            ["429"] => notes.mood = Mood::Refuses(StatusCode::TOO_MANY_REQUESTS),
            ["lags"] => {
                let lags = std::mem::take(&mut notes.lags);
                println!("{}", percentiles(lags));
            }
            ["sum"] => {
                let catch_up = notes.caught_up.saturating_sub(notes.recovered);
                let Notes { requests, refused, events, duplicates, disordered, .. } = *notes;
                let lags = percentiles(std::mem::take(&mut notes.all_lags));
                println!("{lags} {requests} {refused} {events} {duplicates} {disordered} {catch_up}");
            }
            ["compare", file] => {
                let (wrong, undeleted, unknown) = notes.compare(&fs::read_to_string(file)?)?;
                println!("{wrong} {undeleted} {unknown}");
            }
            _ => return Err(format!("unexpected line {line:?}").into()),
        }
    }
    Ok(())
}

/// Returns how many there are, the median and the 99th percentile.
fn percentiles(mut lags: Vec<u64>) -> String {
    lags.sort_unstable();
    let at = |percent: usize| lags.get(lags.len() * percent / 100).copied().unwrap_or_default();
    format!("{} {} {}", lags.len(), at(50), at(99))
}

impl Notes {
    fn take(&mut self, body: &[u8]) -> Result<(), serde_json::Error> {
        let now = micros();
        let mut oldest = None;
        for event in serde_json::from_slice::<Vec<Event<'_>>>(body)? {
            self.events += 1;
            let number = |text: &str| text.parse::<u64>().unwrap_or_default();
            let is_new = self.ids.insert(self.hasher.hash_one(&*event.id));
            self.duplicates += u64::from(!is_new);
            let deleted = event.kind.ends_with("deleted");
            let lag = now.saturating_sub(number(&event.data.object.data.stamp));
            if !deleted {
                self.lags.push(lag);
                self.all_lags.push(lag);
                oldest = oldest.max(Some(lag));
            }
            let last = Last { sequence: number(&event.sequence), version: number(&event.version), deleted };
            match self.last.get_mut(&*event.uid) {
                Some(known) if known.sequence < last.sequence => *known = last,
                Some(_) => self.disordered += u64::from(is_new),
                None => drop(self.last.insert(event.uid.into_owned(), last)),
            }
        }
        if self.caught_up == 0 && oldest.is_some_and(|lag| lag < FRESH_MICROS) {
            self.caught_up = now;
        }
        Ok(())
    }

    /// Compares what was heard with what there is: returns objects of which the last state did not come, deletions that
    /// did not, and objects that are not known.
    fn compare(&self, truth: &str) -> Outcome<(u64, u64, usize)> {
        let (mut wrong, mut undeleted, mut known) = (0, 0, 0);
        for line in truth.lines() {
            let (uid, version) = line.split_once(' ').ok_or("unexpected line")?;
            let last = self.last.get(uid);
            known += usize::from(last.is_some());
            if version == "-" {
                undeleted += u64::from(!last.is_some_and(|last| last.deleted));
            } else {
                let version: u64 = version.parse()?;
                wrong += u64::from(!last.is_some_and(|last| !last.deleted && last.version == version));
            }
        }
        Ok((wrong, undeleted, self.last.len() - known))
    }
}

fn serve(listener: std::net::TcpListener, notes: &Arc<Mutex<Notes>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        listener.set_nonblocking(true).expect("an open socket");
        let listener = tokio::net::TcpListener::from_std(listener).expect("an open socket");
        while let Ok((stream, _)) = listener.accept().await {
            let notes = Arc::clone(notes);
            let service = service_fn(move |request| answer(request, Arc::clone(&notes)));
            // A client that goes away is part of it.
            drop(tokio::spawn(async move {
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
            }));
        }
    });
}

async fn answer(
    request: Request<Incoming>,
    notes: Arc<Mutex<Notes>>,
) -> Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>> {
    let body = request.into_body().collect().await?.to_bytes();
    let mut answer = Response::new(Full::default());
    let mood = {
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.requests += 1;
        if notes.mood == Mood::Good {
            notes.take(&body)?;
        } else {
            notes.refused += 1;
        }
        notes.mood
    };
    match mood {
        Mood::Good => {}
        Mood::Hangs => pending().await,
        Mood::Refuses(status) => {
            *answer.status_mut() = status;
            if status == StatusCode::TOO_MANY_REQUESTS {
                answer.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS.parse()?);
            }
        }
    }
    Ok(answer)
}
