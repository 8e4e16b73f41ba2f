//! Connection to the server, and its state.

use std::{
    collections::{HashSet, VecDeque},
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, ClientError, ConnectError, ConnectErrorKind, ConnectOptions, Event, RequestErrorKind, ServerError,
    connection,
    jetstream::{Context, context::ContextBuilder},
    rustls::{
        self,
        crypto::{CryptoProvider, ring},
    },
};
use tokio::sync::watch;

use super::{NatsOptions, acks::AckInbox, auth};
use crate::{client_error::causes, handler::HandlerError, mutex::lock};

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

/// A connection that reconnects by itself.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) context: Context,
    /// Inboxes that no attempt uses.
    inboxes: Mutex<Vec<AckInbox>>,
    state: Arc<watch::Sender<State>>,
    servers: String,
    /// Value of `connects()` when the server last accepted a message; 0 if it has accepted none. If `connects()` still returns
    /// this value, the server has accepted a message on the current connection.
    accepted_on: AtomicU64,
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
    /// Connects; tries each server once.
    pub(super) async fn connect(options: &NatsOptions) -> Result<Self, HandlerError> {
        // With two compiled-in providers, rustls selects none by itself and panics.
        if CryptoProvider::get_default().is_none() {
            drop(ring::default_provider().install_default()); // another thread may have installed one
        }
        let state = Arc::new(watch::Sender::new(State::default()));
        let (noted, who) = (Arc::clone(&state), options.auth.clone());
        let mut connecting = ConnectOptions::with_auth_callback(move |nonce| auth::answer(who.clone(), nonce))
            .name(&options.name)
            .connection_timeout(CONNECT_WAIT)
            .max_reconnects(None)
            .require_tls(options.requires_tls())
            .event_callback(move |event| {
                tracing::debug!(%event, "NATS connection");
                noted.send_modify(|state| state.note(&event));
                std::future::ready(())
            });
        if let Some(tls) = &options.tls {
            if let Some(ca) = &tls.ca_file {
                connecting = connecting.add_root_certificates(ca.clone());
            }
            if let Some((certificate, key)) = tls.client() {
                connecting = connecting.add_client_certificate(certificate.clone(), key.clone());
            }
        }
        let servers = options.servers.join(", ");
        let client = connecting.connect(&options.servers[..]).await.map_err(|error| not_connected(&servers, &error))?;
        let context = ContextBuilder::new().timeout(ANSWER_WAIT).build(client.clone());
        Ok(Self { client, context, inboxes: Mutex::default(), state, servers, accepted_on: AtomicU64::new(0) })
    }

    /// Waits for the connection, and returns a watch on it.
    pub(super) async fn ready(&self) -> Result<Watch, HandlerError> {
        let mut state = self.state.subscribe();
        // A late report of a lost connection would fail an attempt on the next connection. All reports have arrived
        // when the number of reported connections equals the number of connections made.
        let is_up = |state: &State| {
            self.client.connection_state() == connection::State::Connected && state.connects >= self.connects()
        };
        if tokio::time::timeout(CONNECT_WAIT, state.wait_for(is_up)).await.is_err() {
            if self.client.connection_state() != connection::State::Connected {
                let trouble = self.state.borrow().trouble.clone();
                let trouble = trouble.as_deref().unwrap_or("no answer yet");
                return Err(HandlerError::Failed(format!("not connected to NATS at {}: {trouble}", self.servers)));
            }
            // If very many events happen at once, the client does not report all. So the number is corrected here.
            self.state.send_modify(|state| state.connects = self.connects());
        }
        let State { drops, refusals, bars, .. } = *state.borrow_and_update();
        Ok(Watch { state, drops, refusals, bars })
    }

    /// Returns an inbox that no other attempt uses.
    pub(super) async fn inbox(&self) -> Result<AckInbox, HandlerError> {
        let unused = lock(&self.inboxes).pop();
        if let Some(inbox) = unused { Ok(inbox) } else { AckInbox::open(&self.client).await }
    }

    /// Keeps an inbox for the next attempt.
    pub(super) fn keep(&self, inbox: AckInbox) {
        lock(&self.inboxes).push(inbox);
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

    /// Waits until the server has read all messages sent so far.
    pub(super) async fn round_trip(&self) -> Result<(), HandlerError> {
        let mut state = self.state.subscribe();
        let trips = state.borrow_and_update().trips;
        let request = tokio::time::timeout(ANSWER_WAIT, self.client.request(ROUND_TRIP_SUBJECT, "".into()));
        tokio::select! {
            biased;
            _ = state.wait_for(|state| state.trips != trips) => Ok(()),
            answer = request => match answer {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
                Ok(Err(error)) => Err(HandlerError::Failed(format!("NATS did not answer: {error}"))),
                Err(_) => Err(HandlerError::Failed(format!("NATS did not answer within {ANSWER_WAIT:?}"))),
            }
        }
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
    /// Waits until no more acknowledgements will arrive: the connection is lost, or a right is missing that every
    /// message needs.
    pub(super) async fn broken(&self) -> HandlerError {
        match self.state.clone().wait_for(|state| state.drops != self.drops || state.bars != self.bars).await {
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

fn not_connected(servers: &str, error: &ConnectError) -> HandlerError {
    let text = match error.kind() {
        ConnectErrorKind::AuthorizationViolation => {
            format!("NATS at {servers} refused the credentials: check `auth`, and the server's users")
        }
        ConnectErrorKind::Authentication => format!("failed to authenticate with NATS at {servers}: {error}"),
        // A failed handshake is reported as an I/O error.
        kind if kind == ConnectErrorKind::Tls || causes(error).any(<dyn Error>::is::<rustls::Error>) => {
            format!("failed to agree on TLS with NATS at {servers}: {error}; check `tls`")
        }
        _ => format!("failed to connect to NATS at {servers}: {error}"),
    };
    HandlerError::Failed(text)
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
