//! Measured processes that run this program: deltabus, or a reflector of kube-rs.

use std::fs;

use deltabus::internals::list_watch::kube::ClusterAccess;
use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::rows::Peer;
use crate::harness::{Outcome, observe};

/// Runs a peer to its end.
pub(crate) fn play(role: &str, url: &str, authority: &str, strip: bool, pods: u64, events: u64) -> Outcome<()> {
    let authorities = if url.starts_with("https:") {
        Some(vec![CertificateDer::from_pem_slice(&fs::read(authority)?)?.to_vec()])
    } else {
        None
    };
    if role == Peer::Deltabus.id() {
        let access = ClusterAccess::with_token(url, "bench", None, authorities)?;
        let drop = if strip { "" } else { "drop = []" }; // the default drops `metadata.managedFields`
        let config = format!("[resources.pods]\nmatch = [\"pods\"]\n{drop}\n[handlers.out]\ntype = \"blackhole\"");
        return observe(access, &config, pods, events);
    }
    #[cfg(feature = "peers")]
    {
        super::kube_rs::play(role, url, authorities, &super::kube_rs::Task { strip, pods, events })
    }
    #[cfg(not(feature = "peers"))]
    {
        Err(format!("unexpected role {role:?}").into())
    }
}
