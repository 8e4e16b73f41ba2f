//! Credentials of one cluster, shared by all its clients.
//!
//! ```text
//! Login       read from files: header, TLS settings, or a credential program; read again when a file changes
//! Plugin      runs the program
//! Cache       decides when the program runs: at first, shortly before the expiry, after a 401 (core)
//! Credential  Login and issued credentials: all that one request needs
//! ```

mod cache;
mod login;
mod plugin;

#[cfg(test)]
mod tests;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    thread,
};

use http::HeaderValue;
use jiff::Timestamp;
use kube::client::middleware::ExtraHeadersLayer;
use tokio::{sync::watch, time::Instant};

pub(super) use self::login::Tls;
use self::{
    cache::{Cache, Now, Refusal, Step},
    login::{Login, User, bearer},
    plugin::{Issued, Plugin},
};
use super::kubeconfig::Entry;
use crate::{
    fresh::{FilesSeen, Fresh},
    mutex::lock,
};

/// Reason why there are no credentials. It never contains a secret, or an output of a credential program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct CredentialError(Arc<str>);

impl CredentialError {
    fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// Everything that identifies one request, and secures its connection.
pub(super) struct Credential {
    /// `Authorization` header.
    pub(super) authorization: Option<HeaderValue>,
    /// Headers of impersonation.
    pub(super) headers: ExtraHeadersLayer,
    /// Another value means that other certificates are in use: open connections must not be used any more.
    pub(super) tls: Arc<Tls>,
    /// Generation of the issued credentials; 0 without a credential program.
    generation: u64,
    issued: Option<Arc<Issued>>,
}

/// Owner of a cluster's credentials.
///
/// A credential is valid until its expiry, until its files change, or until the server refuses it. Files that are missing or
/// invalid are ignored, and the previous content stays in use.
pub(super) struct Credentials {
    login: Fresh<Login>,
    issuing: Arc<Issuing>,
}

/// Credentials that a program issues.
struct Issuing {
    state: Mutex<State>,
    /// Changes at the end of each run.
    ended: watch::Sender<()>,
    start: Instant,
}

struct State {
    cache: Cache<Arc<Issued>>,
    /// Program that the cache belongs to.
    plugin: Option<Plugin>,
    last: Option<(Arc<Login>, Arc<Credential>)>,
}

impl Credentials {
    /// Reads the credentials for the first time. Runs no program; blocks while it reads files.
    ///
    /// # Errors
    /// Fails if a file is missing or invalid. The error is a sentence for the user.
    pub(super) fn new(
        read: impl Fn(&mut FilesSeen) -> Result<Entry, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let state = State { cache: Cache::new(), plugin: None, last: None };
        Ok(Self {
            login: Fresh::new(move |files| Login::new(read(files)?))?,
            issuing: Arc::new(Issuing {
                state: Mutex::new(state),
                ended: watch::Sender::default(),
                start: Instant::now(),
            }),
        })
    }

    /// Returns the credential for a request. Waits for the credential program if there is no valid credential.
    pub(super) async fn current(&self) -> Result<Arc<Credential>, CredentialError> {
        loop {
            let mut ended = self.issuing.ended.subscribe();
            let login = self.login.get();
            let User::Plugin(plugin) = &login.user else { return self.issuing.credential(&login, None) };
            match self.issuing.step(plugin) {
                Step::Use(issued, generation) => return self.issuing.credential(&login, Some((issued, generation))),
                Step::Renew(issued, generation, run) => {
                    self.issuing.run(plugin, run, Purpose::Expiry);
                    return self.issuing.credential(&login, Some((issued, generation)));
                }
                Step::Fail(error) => return Err(error),
                Step::Run(run) => self.issuing.run(plugin, run, Purpose::Request),
                Step::Wait => {}
            }
            drop(ended.changed().await); // the sender is in `self`
        }
    }

    /// Takes note of an answer 401. Returns the credential with which the request may be repeated; `None` if there is no other one.
    ///
    /// # Errors
    /// Fails if the credential program cannot issue another credential.
    pub(super) async fn refused(&self, refused: &Arc<Credential>) -> Result<Option<Arc<Credential>>, CredentialError> {
        let mut ended = self.issuing.ended.subscribe();
        let login = self.login.get();
        if let User::Plugin(plugin) = &login.user {
            match self.issuing.refused(refused.generation) {
                Refusal::Final => return Ok(None),
                Refusal::Replaced => {}
                Refusal::Run(run) => {
                    self.issuing.run(plugin, run, Purpose::Refused);
                    drop(ended.changed().await);
                }
                Refusal::Wait => drop(ended.changed().await),
            }
            if let Some(error) = lock(&self.issuing.state).cache.error() {
                let what = "the API server does not accept the credentials (401), and they cannot be renewed";
                return Err(CredentialError::new(&format!("{what}: {error}")));
            }
        }
        let now = self.current().await?;
        Ok((!Arc::ptr_eq(&now, refused)).then_some(now))
    }

    /// Takes note that the server has accepted a credential.
    pub(super) fn accepted(&self, credential: &Credential) {
        if credential.generation > 0 {
            let now = self.issuing.now();
            lock(&self.issuing.state).cache.accepted(credential.generation, now);
        }
    }
}

/// Reason for a run of the credential program.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// A request waits for the first credential, or for one in place of an expired one. It reports the error.
    Request,
    /// The credential expires soon. No request waits.
    Expiry,
    /// The server has refused the credential.
    Refused,
}

impl Issuing {
    fn now(&self) -> Now {
        Now { wall: Timestamp::now(), elapsed: self.start.elapsed(), jitter: rand::random() }
    }

    fn step(&self, plugin: &Plugin) -> Step<Arc<Issued>> {
        let mut state = lock(&self.state);
        if state.plugin.as_ref() != Some(plugin) {
            state.cache.clear();
            state.plugin = Some(plugin.clone());
        }
        state.cache.step(self.now())
    }

    fn refused(&self, generation: u64) -> Refusal {
        lock(&self.state).cache.refused(generation, self.now())
    }

    /// Runs the program on a thread of its own, since requests and their runtimes may end earlier.
    fn run(self: &Arc<Self>, plugin: &Plugin, run: u64, purpose: Purpose) {
        let (this, plugin) = (Arc::clone(self), plugin.clone());
        let work = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| plugin.run()));
            let outcome = outcome.unwrap_or_else(|_| Err(plugin.error("could not be run: internal error")));
            match (&outcome, purpose) {
                (Err(error), Purpose::Expiry) => {
                    tracing::warn!(%error, "cannot renew the credentials before they expire");
                }
                (Ok(_), Purpose::Refused) => {
                    tracing::info!("renewed the credentials after the API server refused them");
                }
                _ => {}
            }
            this.finish(run, outcome);
        };
        if let Err(error) = thread::Builder::new().name("credentials".to_owned()).spawn(work) {
            self.finish(run, Err(CredentialError::new(&format!("cannot run the credential program: {error}"))));
        }
    }

    fn finish(&self, run: u64, outcome: Result<(Issued, Option<Timestamp>), CredentialError>) {
        let outcome = outcome.map(|(issued, expires)| (Arc::new(issued), expires));
        lock(&self.state).cache.finish(run, outcome, self.now());
        self.ended.send_replace(());
    }

    /// Combines what was read and what was issued. The same parts give the same credential.
    fn credential(
        &self,
        login: &Arc<Login>,
        issued: Option<(Arc<Issued>, u64)>,
    ) -> Result<Arc<Credential>, CredentialError> {
        let mut state = lock(&self.state);
        let (issued, generation) = issued.map_or((None, 0), |(issued, generation)| (Some(issued), generation));
        let last = state.last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, login)).map(|(_, credential)| credential);
        if let Some(same) = last.filter(|last| last.generation == generation) {
            return Ok(Arc::clone(same));
        }
        let failed =
            |error: String| CredentialError::new(&format!("invalid credentials of the credential program: {error}"));
        let tls = match issued.as_ref().and_then(|issued| issued.identity.as_ref()) {
            None => Arc::clone(&login.tls),
            Some(identity) => match last.filter(|last| last.identity() == Some(identity)) {
                Some(last) => Arc::clone(&last.tls),
                None => Arc::new(login.tls_of(identity).map_err(failed)?),
            },
        };
        let token = issued.as_ref().and_then(|issued| issued.token.as_ref());
        let authorization = match token {
            Some(token) => Some(bearer(token).map_err(failed)?),
            None => login.authorization(),
        };
        let headers = login.headers.clone();
        let credential = Arc::new(Credential { authorization, headers, tls, generation, issued });
        state.last = Some((Arc::clone(login), Arc::clone(&credential)));
        Ok(credential)
    }
}

impl Credential {
    fn identity(&self) -> Option<&plugin::Identity> {
        self.issued.as_ref()?.identity.as_ref()
    }
}
