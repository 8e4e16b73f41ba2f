//! The server that every peer reads, in a separate process.

use std::{fs, path::PathBuf};

use deltabus::internals::bench::{Generator, ReplayServer, Shape};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::go::{GoPeers, target_dir};
use crate::harness::{Outcome, Player};

/// Sends the same watch to each client, from the beginning.
pub(super) struct Replay {
    player: Player,
    url: String,
    secured_url: String,
    authority: PathBuf,
    /// Server of all requests except pods: discovery, definitions, rights.
    _upstream: ReplayServer,
}

impl Replay {
    /// Starts the server, which records this number of generated pods and updates.
    pub(super) fn start(go: &GoPeers, pods: u64, events: u64) -> Outcome<Self> {
        let [authority, certificate, key] = ["ca.crt", "server.crt", "server.key"].map(|name| target_dir().join(name));
        let made = Certificates::make()?;
        fs::write(&authority, made.authority)?;
        fs::write(&certificate, made.certificate)?;
        fs::write(&key, made.key)?;
        let upstream = ReplayServer::start(Generator::new(Shape::Pods, pods, 1))?;
        let mut command = go.command("replay");
        command.args([upstream.url(), events.to_string()]).args([certificate, key]);
        let mut player = Player::spawn(&mut command)?;
        player.line()?;
        upstream.release(events);
        let urls = player.line()?;
        let (url, secured_url) = urls.split_once(' ').ok_or("the replay server says no addresses")?;
        let (url, secured_url) = (url.to_owned(), secured_url.to_owned());
        Ok(Self { player, url, secured_url, authority, _upstream: upstream })
    }

    pub(super) fn url(&self, secured: bool) -> &str {
        if secured { &self.secured_url } else { &self.url }
    }

    /// Returns the path of the certificate (PEM) that clients must trust.
    pub(super) fn authority(&self) -> &str {
        self.authority.to_str().unwrap_or_default()
    }

    /// Sends the events to current and later watches.
    pub(super) fn send_events(&mut self) -> Outcome<()> {
        self.player.tell("go")
    }

    /// Restarts for the next client; returns the last client's kind of requests.
    pub(super) fn reset(&mut self) -> Outcome<String> {
        self.player.tell("reset")?;
        self.player.line()
    }
}

/// Certificates in PEM format.
struct Certificates {
    authority: String,
    certificate: String,
    key: String,
}

impl Certificates {
    fn make() -> Result<Self, rcgen::Error> {
        let mut of_authority = CertificateParams::new([])?;
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(of_authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &authority)?;
        Ok(Self { authority: authority.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
    }
}
