//! The server that every peer reads, in a process of its own.

use std::{error::Error, fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::{
    go::{GoPeers, target_dir},
    support::{process::Player, simulated::Server},
};

/// Sends the same watch to each client, from the begin.
pub(crate) struct Replay {
    player: Player,
    url: String,
    secured_url: String,
    authority: PathBuf,
    /// Answers for everything but pods: discovery, definitions, rights.
    _simulator: Server,
}

impl Replay {
    /// Lets it record so many pods and updates of the simulated API server.
    pub(crate) fn start(go: &GoPeers, pods: usize, events: usize) -> Result<Self, Box<dyn Error>> {
        let [authority, certificate, key] = ["ca.crt", "server.crt", "server.key"].map(|name| target_dir().join(name));
        let made = Certificates::make()?;
        fs::write(&authority, made.authority)?;
        fs::write(&certificate, made.certificate)?;
        fs::write(&key, made.key)?;
        let mut simulator = Server::start(pods, false)?;
        let mut command = go.command("replay");
        command.args([simulator.url(), &events.to_string()]).args([certificate, key]);
        let mut player = Player::spawn(&mut command)?;
        player.line()?;
        simulator.churn(events)?;
        let urls = player.line()?;
        let (url, secured_url) = urls.split_once(' ').ok_or("the replay server says no addresses")?;
        let (url, secured_url) = (url.to_owned(), secured_url.to_owned());
        Ok(Self { player, url, secured_url, authority, _simulator: simulator })
    }

    pub(crate) fn url(&self, secured: bool) -> &str {
        if secured { &self.secured_url } else { &self.url }
    }

    /// Returns the path of the certificate (PEM) that clients are to trust.
    pub(crate) fn authority(&self) -> &str {
        self.authority.to_str().unwrap_or_default()
    }

    /// Sends the events to who watches, and to who will.
    pub(crate) fn send_events(&mut self) -> Result<(), Box<dyn Error>> {
        self.player.tell("go")
    }

    /// Begins anew for the next client; returns how the last one has read.
    pub(crate) fn reset(&mut self) -> Result<String, Box<dyn Error>> {
        self.player.tell("reset")?;
        self.player.line()
    }
}

/// In PEM.
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
