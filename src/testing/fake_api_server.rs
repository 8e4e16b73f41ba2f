//! A [`ListWatch`] over a [`Collection`], with faults on demand.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use futures_util::{
    FutureExt, StreamExt,
    future::LocalBoxFuture,
    stream::{self, LocalBoxStream},
};
use tokio::sync::watch;

use super::{Collection, Cursor};
use crate::{
    list_watch::{Failure, ListPage, ListRequest, ListWatch, WatchEvent, WatchRequest, WatchStream},
    mutex::lock,
};

/// One request, as received by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A page of a list.
    List(ListRequest),
    /// A watch, or a streaming list.
    Watch(WatchRequest),
}

/// One collection of an API server in this process. Clones are handles to the same server: the test holds one, and the
/// reflector's source holds another.
///
/// Streams deliver each change immediately, in batches of at most 100 events. The server needs no runtime and no clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeApiServer {
    shared: Arc<Mutex<Server>>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Server {
    collection: Collection,
    list_failures: VecDeque<Failure>,
    hold_lists: bool,
    requests: Vec<Request>,
    streams: BTreeMap<u64, Open>,
    opened: u64,
}

/// An open stream.
#[derive(Debug, Default)]
struct Open {
    cursor: Cursor,
    /// Events to deliver before all others.
    injected: VecDeque<WatchEvent>,
}

type Batch = Result<Vec<WatchEvent>, Failure>;

impl FakeApiServer {
    /// Creates a server with these objects.
    pub(crate) fn with_objects(names: &[&str]) -> Self {
        let server = Self::default();
        server.change(|collection| names.iter().for_each(|name| collection.put(name)));
        server
    }

    /// Changes the collection; open streams deliver the changes.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Collection)) {
        self.act(|server| change(&mut server.collection));
    }

    /// Returns a copy of the collection.
    pub(crate) fn collection(&self) -> Collection {
        self.lock().collection.clone()
    }

    /// Returns all requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    /// Returns the number of open streams.
    pub(crate) fn open_streams(&self) -> usize {
        self.lock().streams.len()
    }

    /// Makes the next page fail. Each further call makes one more page fail.
    pub(crate) fn fail_list(&self, failure: Failure) {
        self.act(|server| server.list_failures.push_back(failure));
    }

    /// Delays the answers to lists if `hold` is true, until a call with `false`.
    pub(crate) fn hold_lists(&self, hold: bool) {
        self.act(|server| server.hold_lists = hold);
    }

    /// Sends `events` on every open stream, before all other undelivered events. They may be wrong kinds, errors or bad bookmarks.
    pub(crate) fn inject(&self, events: &[WatchEvent]) {
        self.act(|server| server.streams.values_mut().for_each(|open| open.injected.extend(events.iter().cloned())));
    }

    /// Changes the server atomically: streams do not run during `f`.
    fn act(&self, f: impl FnOnce(&mut Server)) {
        f(&mut self.lock());
        self.changed.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        lock(&self.shared)
    }

    fn open(&self, request: &WatchRequest) -> Result<u64, Failure> {
        let mut server = self.lock();
        server.requests.push(Request::Watch(request.clone()));
        let cursor = server.collection.watch(request, true, 0)?;
        server.opened += 1;
        let id = server.opened;
        server.streams.insert(id, Open { cursor, ..Open::default() });
        Ok(id)
    }

    fn stream(&self, id: u64) -> LocalBoxStream<'static, Batch> {
        let guard = OpenStream { server: self.clone(), id };
        let changed = self.changed.subscribe();
        stream::unfold((guard, changed), |(guard, mut changed)| async move {
            loop {
                changed.mark_unchanged();
                let batch = guard.server.lock().next_of(guard.id);
                if !batch.is_empty() {
                    return Some((Ok(batch), (guard, changed)));
                }
                changed.changed().await.ok()?;
            }
        })
        .boxed_local()
    }
}

impl Server {
    fn page(&mut self, request: &ListRequest) -> Result<ListPage, Failure> {
        match self.list_failures.pop_front() {
            Some(failure) => Err(failure),
            None => self.collection.list(request, 0, true),
        }
    }

    /// Returns the undelivered events of a stream.
    fn next_of(&mut self, id: u64) -> Vec<WatchEvent> {
        let Self { collection, streams, .. } = self;
        let Some(open) = streams.get_mut(&id) else { return Vec::new() };
        open.injected.drain(..).chain(collection.poll(&mut open.cursor, 100)).collect()
    }
}

/// An open stream; dropping it closes the stream on the server.
#[derive(Debug)]
struct OpenStream {
    server: FakeApiServer,
    id: u64,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.server.lock().streams.remove(&self.id);
    }
}

impl ListWatch for FakeApiServer {
    fn list(&self, request: ListRequest) -> LocalBoxFuture<'static, Result<ListPage, Failure>> {
        let server = self.clone();
        async move {
            let mut changed = server.changed.subscribe();
            server.lock().requests.push(Request::List(request.clone()));
            loop {
                changed.mark_unchanged();
                {
                    let mut state = server.lock();
                    if !state.hold_lists {
                        return state.page(&request);
                    }
                }
                if changed.changed().await.is_err() {
                    return Err(Failure::Disconnected("the server is gone".into()));
                }
            }
        }
        .boxed_local()
    }

    fn watch(&self, request: WatchRequest) -> LocalBoxFuture<'static, Result<WatchStream, Failure>> {
        let server = self.clone();
        async move { server.open(&request).map(|id| server.stream(id)) }.boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::status, *};
    use crate::reflector::{
        Comparison, Reflector, ReflectorAction, ReflectorConfig, ReflectorEvent, ReflectorInput, ReflectorStart,
        StreamingLists,
    };

    fn request(initial_events: bool, version: &str) -> WatchRequest {
        WatchRequest { resource_version: version.into(), initial_events, timeout_seconds: 300 }
    }

    fn list(version: &str, limit: Option<u32>) -> ListRequest {
        ListRequest { resource_version: version.into(), limit, continue_token: None }
    }

    #[tokio::test]
    async fn stream_delivers_state_marker_and_changes() {
        let server = FakeApiServer::with_objects(&["a", "b"]);
        let mut stream = server.watch(request(true, "")).await.unwrap();
        let batch = stream.next().await.unwrap().unwrap();
        assert!(matches!(
            batch[..],
            [WatchEvent::Added(_), WatchEvent::Added(_), WatchEvent::Bookmark { initial_events_end: true, .. }]
        ));
        server.change(|collection| collection.delete("a"));
        let batch = stream.next().await.unwrap().unwrap();
        assert!(matches!(batch[..], [WatchEvent::Deleted(_)]), "{batch:?}");
        drop(stream);
        assert_eq!(server.open_streams(), 0);
        assert_eq!(server.requests(), [Request::Watch(request(true, ""))]);
    }

    #[tokio::test]
    async fn faults_are_delivered_on_demand() {
        let server = FakeApiServer::with_objects(&["a", "b", "c"]);
        server.fail_list(status(500));
        assert_eq!(server.list(list("", None)).await.unwrap_err(), status(500));
        let page = server.list(list("", Some(2))).await.unwrap();
        assert_eq!((page.items.len(), page.continue_token.is_some()), (2, true));

        let mut stream = server.watch(request(false, "103")).await.unwrap();
        server.change(|collection| collection.put("d"));
        server.inject(&[WatchEvent::Bookmark { resource_version: "99".into(), initial_events_end: false }]);
        let batch = stream.next().await.unwrap().unwrap();
        assert!(matches!(batch[..], [WatchEvent::Bookmark { .. }, WatchEvent::Added(_)]), "{batch:?}");
        server.change(Collection::compact);
        assert_eq!(server.watch(request(false, "103")).await.err(), Some(super::super::expired()));
    }

    #[tokio::test]
    async fn held_lists_are_answered_on_release() {
        let server = FakeApiServer::with_objects(&["a"]);
        server.hold_lists(true);
        let mut answer = server.list(list("", None));
        assert!((&mut answer).now_or_never().is_none());
        server.hold_lists(false);
        assert_eq!(answer.await.unwrap().items.len(), 1);
    }

    /// Runs a reflector without its actor: the test executes each action, until the reflector has reported the deletion of `a`.
    #[tokio::test(start_paused = true)]
    async fn reflector_mirrors_fake_server_despite_failures() {
        let server = FakeApiServer::with_objects(&["a", "b", "c"]);
        server.fail_list(status(500));
        let config = ReflectorConfig { streaming_lists: StreamingLists::Never, ..ReflectorConfig::default() };
        let mut reflector = Reflector::new(config, ReflectorStart::Fresh("".into()));
        let (mut input, mut stream, mut seen) = (ReflectorInput::Start, None, Vec::new());
        let begin = tokio::time::Instant::now();
        while seen.last() != Some(&"-a".to_owned()) {
            let step = reflector.step(input, begin.elapsed(), 0.5);
            seen.extend(step.events.iter().map(|event| match event {
                ReflectorEvent::Replace { items, .. } => format!("={}", items.len()),
                ReflectorEvent::Deleted(object) => format!("-{}", object.name()),
                other => format!("{other:?}"),
            }));
            input = match step.action {
                ReflectorAction::List(request) => ReflectorInput::Page(server.list(request).await),
                ReflectorAction::OpenWatch(request) => {
                    let opened = server.watch(request).await;
                    if opened.is_ok() {
                        server.change(|collection| collection.delete("a"));
                    }
                    ReflectorInput::Opened(opened.map(|opened| stream = Some(opened)))
                }
                ReflectorAction::Read { until } => {
                    let next = stream.as_mut().expect("a read follows an opening").next();
                    match tokio::time::timeout_at(begin + until, next).await {
                        Ok(Some(Ok(batch))) => ReflectorInput::Received(batch),
                        Ok(Some(Err(failure))) => ReflectorInput::Ended(Err(failure)),
                        Ok(None) => ReflectorInput::Ended(Ok(())),
                        Err(_) => ReflectorInput::Timer,
                    }
                }
                ReflectorAction::Wait { until } => {
                    tokio::time::sleep_until(begin + until).await;
                    ReflectorInput::Timer
                }
                ReflectorAction::Compare => ReflectorInput::Compared(Comparison::default()),
                ReflectorAction::Keep | ReflectorAction::Done => panic!("unexpected {reflector:?}"),
            };
        }
        assert_eq!(seen, ["=3", "-a"]);
        assert_eq!(reflector.counters.lists, 2);
    }
}
