//! Connection to the server, and its state.

use std::{
    collections::{HashSet, VecDeque},
    future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use async_nats::{
    Client, ClientError, ConnectErrorKind, ConnectOptions, Event, RequestErrorKind, Server, ServerAddr, ServerError,
    connection,
    jetstream::{Context, context::ContextBuilder, stream::Stream},
    rustls::crypto::{CryptoProvider, ring},
};
use tokio::{
    runtime,
    sync::{self, Semaphore, oneshot, watch},
    task,
    time::timeout,
};

use super::{NatsOptions, acks::AckInbox, auth, received::Received};
use crate::{handler::HandlerError, mutex::lock};

/// Maximum time that an attempt waits for the connection. Also the timeout of connecting to one server.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Timeout of an acknowledgement or an answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(6);
/// Maximum number of remembered refusals. The client reports up to 128 at a time.
const REFUSALS_MAX: usize = 1024;
/// Beginning of the server's error text for a refused message. The subject of the message follows, in quotes.
const REFUSED_PUBLISH: &str = "permissions violation for publish to \"";
/// Subject of a request for the user's own info. The answer arrives after the answers and refusals of all earlier messages. A
/// refusal of this request serves as an answer.
const ROUND_TRIP_SUBJECT: &str = "$SYS.REQ.USER.INFO";

/// Maximum time of the first connection to one of all addresses. Each address has [`CONNECT_WAIT`].
const FIRST_CONNECT_MAX: Duration = Duration::from_mins(1);
/// Maximum number of messages that wait in an inbox or a search. An attempt waits for fewer acknowledgements.
const WAITING_MAX: usize = 2048;
/// Maximum number of servers that are kept from an announcement.
const ANNOUNCED_MAX: usize = 256;
/// Parts of the errors of a failed TLS handshake. The client reports them as text.
const TLS_ERRORS: [&str; 7] = [
    "TLS error",
    "tls handshake",
    "invalid peer certificate",
    "received fatal alert",
    "received corrupt message",
    "peer is incompatible",
    "peer misbehaved",
];

/// A connection that reconnects by itself.
///
/// Its tasks have a thread and a runtime of their own. The end of the runtime ends the tasks in any state and frees their buffers;
/// the client has no other way to end them while the server sends. After that end nothing is sent any more.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) context: Context,
    /// Inboxes that no attempt uses.
    inboxes: Mutex<Vec<AckInbox>>,
    state: Arc<watch::Sender<State>>,
    servers: Vec<String>,
    /// Value of `connects()` when the announced servers were last noted.
    announced_on: AtomicU64,
    /// Value of `connects()` when the server last accepted a message; 0 if it has accepted none. If `connects()` still returns
    /// this value, the server has accepted a message on the current connection.
    accepted_on: AtomicU64,
    /// The checked stream; `None` before the check.
    pub(super) stream: sync::Mutex<Option<Arc<Stream>>>,
    pub(super) received: Arc<Received>,
    runtime: runtime::Handle,
    /// Ends the thread when it is dropped.
    _open: oneshot::Sender<()>,
}

/// State of the server and the network. The client reports changes with a small delay, in order.
#[derive(Clone, Debug, Default)]
struct State {
    /// Number of connections made, and number of connections lost.
    connects: u64,
    drops: u64,
    /// Number of refused messages, and the subjects of the most recently refused messages.
    refusals: u64,
    refused: VecDeque<Arc<str>>,
    /// Number of errors about missing rights that every message needs, and the last such error. Each such error fails the running
    /// attempts.
    bars: u64,
    barred: Option<Arc<str>>,
    /// Number of round-trip requests that the server refused. Such a refusal counts as an answer.
    trips: u64,
    /// Reason why there is no connection.
    trouble: Option<Arc<str>>,
    /// Reason why the connection has ended for good.
    end: Option<Arc<str>>,
}

impl State {
    fn note(&mut self, event: &Event) {
        match event {
            Event::Connected => {
                self.connects += 1;
                self.trouble = None;
            }
            Event::Disconnected => self.drops += 1,
            Event::ServerError(ServerError::Other(text)) if text.contains(ROUND_TRIP_SUBJECT) => self.trips += 1,
            Event::ServerError(ServerError::Other(text)) => self.note_error(text),
            Event::ServerError(error) => self.trouble = Some(error.to_string().into()),
            Event::ClientError(ClientError::Other(text)) => self.trouble = Some(text.as_str().into()),
            Event::ClientError(error) => self.trouble = Some(error.to_string().into()),
            _ => {}
        }
    }

    /// Records an error text of the server. The text may name a missing right: `Permissions Violation for Publish to "k8s.x"`.
    fn note_error(&mut self, text: &str) {
        let lower = text.to_lowercase();
        let subject = lower.starts_with(REFUSED_PUBLISH).then(|| &text[REFUSED_PUBLISH.len()..]);
        match subject.and_then(|subject| subject.strip_suffix('"')) {
            Some(subject) if !subject.starts_with('$') => {
                self.refusals += 1;
                self.refused.push_back(subject.into());
                if self.refused.len() > REFUSALS_MAX {
                    self.refused.pop_front();
                }
            }
            _ if lower.starts_with("permissions violation") => {
                self.bars += 1;
                self.barred = Some(text.into());
            }
            _ => self.trouble = Some(text.into()),
        }
    }

    /// Returns the subjects of all refusals after the first `seen` refusals, as far as they are remembered.
    fn refused_after(&self, seen: u64) -> impl Iterator<Item = &str> {
        let new = usize::try_from(self.refusals - seen).unwrap_or(usize::MAX);
        let skipped = self.refused.len().saturating_sub(new);
        self.refused.iter().skip(skipped).map(AsRef::as_ref)
    }
}

impl Link {
    /// Connects; tries each server once. Waits until the thread of the previous connection has ended: the thread keeps the permit of
    /// `slot`.
    pub(super) async fn connect(options: &NatsOptions, slot: &Arc<Semaphore>) -> Result<Self, HandlerError> {
        let servers = options.servers.join(", ");
        let failed = |problem: &str| HandlerError::Failed(format!("failed to connect to NATS at {servers}: {problem}"));
        let permit = timeout(CONNECT_WAIT, Arc::clone(slot).acquire_owned()).await;
        let permit = permit.map_err(|_| failed("the previous connection has not ended yet"))?;

        let state = Arc::new(watch::Sender::new(State::default()));
        let (open, closed) = oneshot::channel();
        let (alive, ended) = oneshot::channel();
        let (connecting, addresses) = (connecting(options, &servers, &state, alive), options.servers.clone());
        let (starting, started) = oneshot::channel();
        let run = async move {
            let client = connecting.connect(addresses).await.map_err(|error| error.to_string())?;
            let received = Arc::new(Received::new(client.statistics()));
            drop(starting.send((client, Arc::clone(&received), runtime::Handle::current())));
            tokio::select! {
                _ = closed => Ok(()),
                _ = ended => Err("the client has stopped".to_owned()), // a panic, for example about a length
                exceeded = received.exceeded() => Err(exceeded),
            }
        };
        let (noted, place) = (Arc::clone(&state), servers.clone());
        let work = move || {
            let _permit = permit;
            let end = |error| {
                let end = format!("ended the connection to NATS at {place}: {error}");
                noted.send_modify(|state| state.end = Some(end.into()));
            };
            // With an interval of 1, timers run between any two polls of a task, also while the server floods the connection.
            match runtime::Builder::new_current_thread().enable_all().event_interval(1).build() {
                Ok(runtime) => {
                    runtime.block_on(run).unwrap_or_else(end); // before requests fail
                    runtime.shutdown_background();
                }
                Err(error) => end(error.to_string()),
            }
        };
        let thread = thread::Builder::new().name("nats".to_owned()).spawn(work);
        thread.map_err(|error| failed(&format!("cannot start a thread: {error}")))?;

        let (client, received, runtime) = started.await.map_err(|_| failed("its thread has ended"))?;
        let context = ContextBuilder::new().timeout(ANSWER_WAIT).build(client.clone());
        let (inboxes, announced_on, accepted_on) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let link = Self {
            client,
            context,
            inboxes,
            state,
            servers: options.servers.clone(),
            announced_on,
            accepted_on,
            stream: sync::Mutex::default(),
            received,
            runtime,
            _open: open,
        };
        let mut state = link.state.subscribe();
        let is_settled = |state: &State| state.connects > 0 || state.end.is_some();
        let is_late = timeout(FIRST_CONNECT_MAX, state.wait_for(is_settled)).await.is_err();
        let late = || failed(&format!("no answer within {FIRST_CONNECT_MAX:?}"));
        let problem = link.end().or_else(|| is_late.then(late));
        problem.map_or(Ok(link), Err)
    }

    /// Returns the reason why the connection has ended for good; `None` while it works or reconnects.
    pub(super) fn end(&self) -> Option<HandlerError> {
        self.state.borrow().end.as_deref().map(|end| HandlerError::Failed(end.to_owned()))
    }

    /// Waits for the connection, and returns a watch on it.
    pub(super) async fn ready(&self) -> Result<Watch, HandlerError> {
        let mut state = self.state.subscribe();
        // A late report of a lost connection would fail an attempt on the next connection. All reports have arrived
        // when the number of reported connections equals the number of connections made.
        let is_up = |state: &State| {
            self.client.connection_state() == connection::State::Connected && state.connects >= self.connects()
        };
        let is_settled = |state: &State| state.end.is_some() || is_up(state);
        if timeout(CONNECT_WAIT, state.wait_for(is_settled)).await.is_err() {
            if self.client.connection_state() != connection::State::Connected {
                let trouble = self.state.borrow().trouble.clone();
                let trouble = trouble.as_deref().unwrap_or("no answer yet");
                return Err(HandlerError::Failed(format!(
                    "not connected to NATS at {}: {trouble}",
                    self.servers.join(", ")
                )));
            }
            // If very many events happen at once, the client does not report all. So the number is corrected here.
            self.state.send_modify(|state| state.connects = self.connects());
        }
        if let Some(end) = self.end() {
            return Err(end);
        }
        self.note_announced().await;
        let State { drops, refusals, bars, .. } = *state.borrow_and_update();
        Ok(Watch { state, drops, refusals, bars })
    }

    /// Adds the servers that the connected server announces. The client does not do it, because it compares each announced server
    /// with all others: a hostile announcement would occupy its thread for hours.
    async fn note_announced(&self) {
        let connects = self.connects();
        if self.announced_on.swap(connects, Ordering::Relaxed) != connects {
            let servers = pool(&self.servers, &self.client.server_info().connect_urls);
            let noted = timeout(CONNECT_WAIT, self.client.set_server_pool(servers)).await;
            tracing::debug!(?noted, "announced NATS servers");
        }
    }

    /// Returns an inbox that no other attempt uses.
    pub(super) async fn inbox(&self) -> Result<AckInbox, HandlerError> {
        let unused = lock(&self.inboxes).pop();
        match unused {
            Some(inbox) => Ok(inbox),
            None => AckInbox::open(&self.client, Arc::clone(&self.received)).await,
        }
    }

    /// Keeps an inbox for the next attempt. Removes messages that have arrived in kept inboxes: nothing else reads them soon.
    pub(super) fn keep(&self, inbox: AckInbox) {
        let mut inboxes = lock(&self.inboxes);
        inboxes.push(inbox);
        inboxes.iter_mut().for_each(AckInbox::clear);
    }

    fn connects(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Remembers that the server has accepted a message on the current connection.
    pub(super) fn note_taken(&self) {
        self.accepted_on.store(self.connects(), Ordering::Relaxed);
    }

    /// Returns the error for messages that are refused on a subject. `Rejected` if the server has accepted another message on this
    /// connection: only the right to this subject is missing. Otherwise `Failed`: the user may have no rights at all yet, so a
    /// retry can help.
    pub(super) fn refusal(&self, subject: &str) -> HandlerError {
        let advice = "give the user this right, or change `subject`";
        let text = format!("NATS refused: Permissions Violation for Publish to \"{subject}\"; {advice}");
        if self.accepted_on.load(Ordering::Relaxed) == self.connects() {
            HandlerError::Rejected(text)
        } else {
            HandlerError::Failed(text)
        }
    }

    /// Waits until everything is noted that the client has to report when it hands out an answer. This task has its turn on the
    /// client's thread after the task that takes the reports, which takes all that can wait (128) in two turns.
    async fn note_reports(&self) {
        let turns = async {
            for _ in 0..3 {
                task::yield_now().await;
            }
        };
        drop(self.runtime.spawn(turns).await); // fails if the connection has ended
    }

    /// Waits until the server has read all messages sent so far, and notes all refusals of these messages.
    pub(super) async fn round_trip(&self) -> Result<(), HandlerError> {
        let mut state = self.state.subscribe();
        let trips = state.borrow_and_update().trips;
        let request = timeout(ANSWER_WAIT, self.client.request(ROUND_TRIP_SUBJECT, "".into()));
        let answer = tokio::select! {
            biased;
            _ = state.wait_for(|state| state.trips != trips) => return Ok(()),
            answer = request => answer,
        };
        match answer {
            Ok(Ok(answer)) => self.received.consume([&answer]),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {}
            Ok(Err(error)) => return Err(HandlerError::Failed(format!("NATS did not answer: {error}"))),
            Err(_) => return Err(HandlerError::Failed(format!("NATS did not answer within {ANSWER_WAIT:?}"))),
        }
        self.note_reports().await;
        Ok(())
    }
}

/// Watch on the connection, from the start of an attempt.
pub(super) struct Watch {
    state: watch::Receiver<State>,
    drops: u64,
    refusals: u64,
    bars: u64,
}

impl Watch {
    /// Waits until no more acknowledgements will arrive: the connection is lost or has ended, or a right is missing that every
    /// message needs.
    pub(super) async fn broken(&self) -> HandlerError {
        let is_broken = |state: &State| state.drops != self.drops || state.bars != self.bars || state.end.is_some();
        match self.state.clone().wait_for(is_broken).await.as_deref() {
            Ok(State { end: Some(end), .. }) => HandlerError::Failed(end.to_string()),
            Ok(state) if state.bars != self.bars => {
                let barred = state.barred.as_deref().unwrap_or_default();
                HandlerError::Failed(format!("NATS refused: {barred}; give the user this right"))
            }
            _ => HandlerError::Failed("the connection to NATS was lost before everything was acknowledged".to_owned()),
        }
    }

    /// Waits until more than `seen` messages of the connection were refused since the attempt began. Returns the number of refusals.
    pub(super) async fn refused(&self, seen: u64) -> u64 {
        let mut state = self.state.clone();
        let refused = state.wait_for(|state| state.refusals > self.refusals + seen).await.map(|state| state.refusals);
        match refused {
            Ok(refusals) => refusals - self.refusals,
            Err(_) => std::future::pending().await, // the link was dropped; the caller is dropped with it
        }
    }

    /// Returns the subjects that were refused since the start of the attempt.
    pub(super) fn all_refused(&self) -> HashSet<String> {
        self.state.borrow().refused_after(self.refusals).map(str::to_owned).collect()
    }
}

/// Returns the options of a connection that notes its state. The client drops `alive` when its tasks have ended.
fn connecting(
    options: &NatsOptions,
    servers: &str,
    state: &Arc<watch::Sender<State>>,
    alive: oneshot::Sender<()>,
) -> ConnectOptions {
    // With two compiled-in providers, rustls selects none by itself and panics.
    if CryptoProvider::get_default().is_none() {
        drop(ring::default_provider().install_default()); // another thread may have installed one
    }
    let (noted, failed) = (Arc::clone(state), Arc::clone(state));
    let (who, place, is_retry) = (options.auth.clone(), servers.to_owned(), AtomicBool::new(false));
    let mut connecting = ConnectOptions::with_auth_callback(move |nonce| auth::answer(who.clone(), nonce))
        .name(&options.name)
        .connection_timeout(CONNECT_WAIT)
        .subscription_capacity(WAITING_MAX)
        .max_reconnects(None)
        .ignore_discovered_servers() // see `Link::note_announced`
        .retry_on_initial_connect() // so that the received bytes are known from the beginning
        .reconnect_to_server_callback(move |servers: Vec<Server>, _| {
            let is_failed = is_retry.swap(true, Ordering::Relaxed) && !servers.iter().any(|server| server.did_connect);
            if is_failed {
                let errors: Vec<_> = servers.iter().filter_map(|server| server.last_error.as_deref()).collect();
                failed.send_modify(|state| state.end = Some(not_connected(&place, &errors).into()));
            }
            async move { if is_failed { future::pending().await } else { None } }
        })
        .require_tls(options.requires_tls())
        .event_callback(move |event| {
            let _ = &alive;
            tracing::debug!(%event, "NATS connection");
            noted.send_modify(|state| state.note(&event));
            future::ready(())
        });
    if let Some(tls) = &options.tls {
        if let Some(ca) = &tls.ca_file {
            connecting = connecting.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = tls.client() {
            connecting = connecting.add_client_certificate(certificate.clone(), key.clone());
        }
    }
    connecting
}

/// Returns the configured servers and the announced ones.
fn pool(configured: &[String], announced: &[String]) -> Vec<ServerAddr> {
    let mut servers = Vec::new();
    for server in configured.iter().chain(announced.iter().take(ANNOUNCED_MAX)).filter_map(|server| server.parse().ok())
    {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    servers
}

/// Returns the error of a first connection that failed. `errors` are those of the servers; a server has none if its name has no
/// address.
fn not_connected(servers: &str, errors: &[&str]) -> String {
    let is = |kind: ConnectErrorKind| errors.iter().any(|error| error.starts_with(&kind.to_string()));
    if is(ConnectErrorKind::AuthorizationViolation) {
        return format!("NATS at {servers} refused the credentials: check `auth`, and the server's users");
    }
    let error = if errors.is_empty() { "the name has no address".to_owned() } else { errors.join("; ") };
    if is(ConnectErrorKind::Authentication) {
        format!("failed to authenticate with NATS at {servers}: {error}")
    } else if TLS_ERRORS.iter().any(|part| error.contains(part)) {
        format!("failed to agree on TLS with NATS at {servers}: {error}; check `tls`")
    } else {
        format!("failed to connect to NATS at {servers}: {error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(state: &mut State, text: &str) {
        state.note(&Event::ServerError(ServerError::Other(text.to_owned())));
    }

    #[test]
    fn refusal_concerns_message_or_whole_link() {
        let mut state = State::default();
        told(&mut state, r#"Permissions Violation for Publish to "k8s.Prod.a""#);
        assert_eq!((state.refusals, state.bars), (1, 0));
        assert_eq!(state.refused_after(0).collect::<Vec<_>>(), ["k8s.Prod.a"]);
        for text in [
            r#"Permissions Violation for Publish to "$JS.API.STREAM.INFO.K8S""#,
            r#"Permissions Violation for Subscription to "_INBOX.x.*""#,
        ] {
            told(&mut state, text);
            assert_eq!(state.barred.as_deref(), Some(text));
        }
        told(&mut state, r#"Permissions Violation for Publish to "$SYS.REQ.USER.INFO""#);
        told(&mut state, "maximum connections exceeded");
        assert_eq!((state.refusals, state.bars, state.trips), (1, 2, 1));
        assert_eq!(state.trouble.as_deref(), Some("maximum connections exceeded"));
        state.note(&Event::Connected);
        assert_eq!((state.connects, state.trouble), (1, None));
    }

    #[test]
    fn announced_servers_are_bounded() {
        let announced: Vec<_> = (0..1_000_000).map(|i| format!("nats-{}:4222", i / 2)).collect();
        let servers = pool(&["nats://nats-1:4222".to_owned(), "tls://b".to_owned()], &announced);
        assert_eq!(servers.len(), 2 + ANNOUNCED_MAX / 2 - 1);
        assert_eq!(servers[2], "nats-0:4222".parse().unwrap());
    }

    #[test]
    fn failed_connection_is_error_with_advice() {
        for (errors, expected) in [
            (&[][..], "failed to connect to NATS at a: the name has no address"),
            (
                &["timed out", "IO error: Connection refused (os error 111)"],
                "failed to connect to NATS at a: timed out; IO error: Connection refused (os error 111)",
            ),
            (
                &["authorization violation: x", "timed out"],
                "NATS at a refused the credentials: check `auth`, and the server's users",
            ),
            (
                &["failed signing nonce: cannot read f"],
                "failed to authenticate with NATS at a: failed signing nonce: cannot read f",
            ),
            (
                &["IO error: invalid peer certificate: UnknownIssuer"],
                "failed to agree on TLS with NATS at a: IO error: invalid peer certificate: UnknownIssuer; check `tls`",
            ),
        ] {
            assert_eq!(not_connected("a", errors), expected);
        }
    }

    #[test]
    fn latest_refusals_are_kept_and_reported_once() {
        let mut state = State::default();
        for i in 0..3000 {
            told(&mut state, &format!("Permissions Violation for Publish to \"k8s.{i}\""));
        }
        assert_eq!((state.refusals, state.refused.len()), (3000, REFUSALS_MAX));
        assert_eq!(state.refused_after(2998).collect::<Vec<_>>(), ["k8s.2998", "k8s.2999"]);
        assert_eq!(state.refused_after(3000).count(), 0);
        assert_eq!(state.refused_after(0).count(), REFUSALS_MAX);
    }
}
