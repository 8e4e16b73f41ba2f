//! The server of a webhook: its behaviour can be set, and it records the events that it accepts.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    error::Error,
    future::pending,
    hash::{BuildHasher as _, RandomState},
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;

use crate::{
    harness::{Outcome, micros, percentile, serve},
    world,
};

/// Seconds in the `Retry-After` of a 429.
const RETRY_SECONDS: &str = "1";
/// Largest lag of a sink that has caught up.
const FRESH_MICROS: u64 = 1_000_000;

/// Answer to requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mood {
    #[default]
    Good,
    /// No answer.
    Hangs,
    Refuses(StatusCode),
}

/// The fields of an event that the sink reads.
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

/// Last event of an object.
struct Last {
    sequence: u64,
    version: u64,
    deleted: bool,
}

/// Accepted events and their lags.
#[derive(Default)]
pub(super) struct Notes {
    mood: Mood,
    pub(super) refused: u64,
    pub(super) delivered: u64,
    ids: HashSet<u64>,
    hasher: RandomState,
    pub(super) duplicates: u64,
    /// Events that came after a later one of their object.
    pub(super) disordered: u64,
    last: HashMap<String, Last>,
    /// Microseconds from change to arrival.
    lags: Vec<u64>,
    recovered: u64,
    caught_up: u64,
}

/// The server of a webhook. It runs on a thread of this process.
pub(super) struct Sink {
    pub(super) url: String,
    notes: Arc<Mutex<Notes>>,
}

impl Sink {
    pub(super) fn start() -> Outcome<Self> {
        let notes = Arc::<Mutex<Notes>>::default();
        let shared = Arc::clone(&notes);
        let url = serve(move |request| answer(request, Arc::clone(&shared)))?;
        Ok(Self { url, notes })
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    /// Sets the behaviour from now on.
    pub(super) fn behave(&mut self, mood: Mood) {
        self.mood = mood;
        if mood == Mood::Good {
            (self.recovered, self.caught_up) = (micros(), 0);
        }
    }

    /// Returns the median and the 99th percentile of the lags.
    pub(super) fn lag(&mut self) -> [u64; 2] {
        let mut lags = take(&mut self.lags);
        let lag = [50, 99].map(|percent| percentile(&mut lags, percent));
        self.lags = lags;
        lag
    }

    /// Returns the microseconds from the recovery to the first request without an old event.
    pub(super) fn catch_up(&self) -> u64 {
        self.caught_up.saturating_sub(self.recovered)
    }

    fn take(&mut self, body: &[u8]) -> Result<(), serde_json::Error> {
        let now = micros();
        let mut oldest = None;
        for event in serde_json::from_slice::<Vec<Event<'_>>>(body)? {
            self.delivered += 1;
            let number = |text: &str| text.parse::<u64>().unwrap_or_default();
            let is_new = self.ids.insert(self.hasher.hash_one(&*event.id));
            self.duplicates += u64::from(!is_new);
            let deleted = event.kind.ends_with("deleted");
            let lag = now.saturating_sub(number(&event.data.object.data.stamp));
            if !deleted {
                self.lags.push(lag);
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

    /// Returns the number of missing outcomes: last states and deletions that did not arrive, and unknown objects.
    pub(super) fn missing(&self, truth: &[world::Last]) -> usize {
        let arrived = truth.iter().filter(|(uid, version)| {
            let last = self.last.get(uid);
            last.is_some_and(|last| {
                last.deleted == version.is_none() && version.is_none_or(|version| version == last.version)
            })
        });
        let known = truth.iter().filter(|(uid, _)| self.last.contains_key(uid)).count();
        truth.len() - arrived.count() + self.last.len() - known
    }
}

async fn answer(
    request: Request<Incoming>,
    notes: Arc<Mutex<Notes>>,
) -> Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>> {
    let body = request.into_body().collect().await?.to_bytes();
    let mut answer = Response::new(Full::default());
    let mood = {
        let mut notes = lock(&notes);
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
