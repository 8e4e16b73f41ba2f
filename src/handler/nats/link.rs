//! The connection: how the server is reached, and what becomes of it.

use std::{
    collections::{HashSet, VecDeque},
    error::Error as StdError,
    io,
    sync::{
        Arc,
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

use super::{NatsOptions, auth};
use crate::handler::HandlerError;

/// How long an attempt waits for the connection, and one server for its answer.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// How long the server may take to acknowledge a message or to answer a request.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(6);
/// Messages that wait for their acknowledgement at a time, of all batches.
const UNACKNOWLEDGED_MAX: usize = 16_384;
/// Refusals that are remembered for those who wait for them. The client tells 128 at a time.
const REFUSALS_MAX: usize = 1024;
/// How the server begins to say what must not be published to; the subject follows, in quotes.
const REFUSED_PUBLISH: &str = "permissions violation for publish to \"";
/// Every user may ask who it is; the answer comes behind all that was sent before.
const ROUND_TRIP_SUBJECT: &str = "$SYS.REQ.USER.INFO";

/// A connection that was made once, and makes itself anew.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) context: Context,
    state: Arc<watch::Sender<State>>,
    servers: String,
    /// The last connection over which the server took a message: the user may publish something.
    taken_over: AtomicU64,
}

/// What the server and the network did. The client tells it a little later, in order.
#[derive(Clone, Debug, Default)]
struct State {
    /// Connections that were made and lost.
    connects: u64,
    drops: u64,
    /// How often a message was refused, and to which subjects the last of them were.
    refusals: u64,
    refused: VecDeque<Arc<str>>,
    /// Refusals of something that the handler cannot do without, and the last of them.
    bars: u64,
    barred: Option<Arc<str>>,
    /// Round trips that ended in a refusal, which is an answer too.
    trips: u64,
    /// Why there is no connection.
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

    /// The server says which right is missing: `Permissions Violation for Publish to "k8s.x"`.
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

    /// Returns the subjects that were refused after the first `seen` refusals, of those that are remembered.
    fn refused_after(&self, seen: u64) -> impl Iterator<Item = &str> {
        let new = usize::try_from(self.refusals - seen).unwrap_or(usize::MAX);
        let skipped = self.refused.len().saturating_sub(new);
        self.refused.iter().skip(skipped).map(AsRef::as_ref)
    }
}

impl Link {
    /// Connects; tries each server once.
    pub(super) async fn connect(options: &NatsOptions) -> Result<Self, HandlerError> {
        // Where two providers are compiled in, rustls takes none by itself and panics.
        if CryptoProvider::get_default().is_none() {
            drop(ring::default_provider().install_default()); // somebody else was faster
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
        let context = ContextBuilder::new().timeout(ANSWER_WAIT).ack_timeout(ANSWER_WAIT);
        let context = context.max_ack_inflight(UNACKNOWLEDGED_MAX).build(client.clone());
        Ok(Self { client, context, state, servers, taken_over: AtomicU64::new(0) })
    }

    /// Waits a while for the connection, and returns a watch over it.
    pub(super) async fn ready(&self) -> Result<Watch, HandlerError> {
        let mut state = self.state.subscribe();
        // A loss that is told late would fail the attempt of the connection that followed: what was told is behind us
        // when as many connections were told as were made.
        let is_up = |state: &State| {
            self.client.connection_state() == connection::State::Connected && state.connects >= self.connects()
        };
        if tokio::time::timeout(CONNECT_WAIT, state.wait_for(is_up)).await.is_err() {
            if self.client.connection_state() != connection::State::Connected {
                let trouble = self.state.borrow().trouble.clone();
                let trouble = trouble.as_deref().unwrap_or("no answer yet");
                return Err(HandlerError::Failed(format!("not connected to NATS at {}: {trouble}", self.servers)));
            }
            // Of very many events at once the client tells some only.
            self.state.send_modify(|state| state.connects = self.connects());
        }
        let State { drops, refusals, bars, .. } = *state.borrow_and_update();
        Ok(Watch { state, drops, refusals, bars })
    }

    fn connects(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Notes that the server has taken a message.
    pub(super) fn note_taken(&self) {
        self.taken_over.store(self.connects(), Ordering::Relaxed);
    }

    /// Says what it means that messages to a subject are refused. Where the server takes others it is these which it will
    /// not take; else the user has no rights yet, or none any more, and may be given them.
    pub(super) fn refusal(&self, subject: &str) -> HandlerError {
        let advice = "give the user this right, or change `subject`";
        let text = format!("NATS refused: Permissions Violation for Publish to \"{subject}\"; {advice}");
        if self.taken_over.load(Ordering::Relaxed) == self.connects() {
            HandlerError::Rejected(text)
        } else {
            HandlerError::Failed(text)
        }
    }

    /// Waits until the server has read everything sent so far.
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

/// Sees what happens to the connection from a moment on.
#[derive(Clone)]
pub(super) struct Watch {
    state: watch::Receiver<State>,
    drops: u64,
    refusals: u64,
    bars: u64,
}

impl Watch {
    /// Waits until nothing more will be acknowledged: the connection is lost, or a right is missing without which nothing
    /// works.
    pub(super) async fn broken(&mut self) -> HandlerError {
        let (drops, bars) = (self.drops, self.bars);
        match self.state.wait_for(|state| state.drops != drops || state.bars != bars).await {
            Ok(state) if state.bars != bars => {
                let barred = state.barred.as_deref().unwrap_or_default();
                HandlerError::Failed(format!("NATS refused: {barred}; give the user this right"))
            }
            _ => HandlerError::Failed("the connection to NATS was lost before everything was acknowledged".to_owned()),
        }
    }

    /// Waits until a message to a subject is refused.
    pub(super) async fn refused(&mut self, subject: &str) {
        let seen = self.refusals;
        let is_refused = |state: &State| state.refused_after(seen).any(|refused| refused == subject);
        if self.state.wait_for(is_refused).await.is_err() {
            std::future::pending::<()>().await; // the link is gone, and with it the caller
        }
    }

    /// Returns the subjects that were refused.
    pub(super) fn all_refused(&self) -> HashSet<String> {
        self.state.borrow().refused_after(self.refusals).map(str::to_owned).collect()
    }
}

fn not_connected(servers: &str, error: &ConnectError) -> HandlerError {
    let text = match error.kind() {
        ConnectErrorKind::AuthorizationViolation => {
            format!("NATS at {servers} refused the credentials: check `auth`, and the server's users")
        }
        ConnectErrorKind::Authentication => format!("failed to prove who we are to NATS at {servers}: {error}"),
        _ if error.kind() == ConnectErrorKind::Tls || is_tls(error) => {
            format!("failed to agree on TLS with NATS at {servers}: {error}; check `tls`")
        }
        _ => format!("failed to connect to NATS at {servers}: {error}"),
    };
    HandlerError::Failed(text)
}

/// What goes wrong in a handshake comes as an error of input and output.
fn is_tls(error: &ConnectError) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(error) = cause {
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if within.and_then(|within| within.downcast_ref::<rustls::Error>()).is_some() || error.is::<rustls::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(state: &mut State, text: &str) {
        state.note(&Event::ServerError(ServerError::Other(text.to_owned())));
    }

    #[test]
    fn a_refusal_is_of_a_message_or_of_what_nothing_works_without() {
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
    fn i5_the_last_refusals_are_remembered_and_each_is_heard_once() {
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
