//! Authentication: the answer to the server's challenge.

use std::path::Path;

use async_nats::{Auth, AuthError};

use super::NatsAuth;
use crate::secret::{ExposeSecret as _, SecretRef};

/// Answers the server's challenge. Secrets are read for each connection, so that changes take effect.
pub(super) async fn answer(auth: NatsAuth, nonce: Vec<u8>) -> Result<Auth, AuthError> {
    // Reads files, so it runs on a thread that may block.
    let answered = tokio::task::spawn_blocking(move || prove(&auth, &nonce)).await;
    answered.unwrap_or_else(|error| Err(error.to_string())).map_err(AuthError::new)
}

fn prove(auth: &NatsAuth, nonce: &[u8]) -> Result<Auth, String> {
    let read = |secret: &SecretRef| secret.read().map(|secret| secret.expose_secret().to_owned());
    let mut proof = Auth::new();
    match auth {
        NatsAuth::None => {}
        NatsAuth::UserPassword { user, password } => {
            proof.username = Some(user.clone());
            proof.password = Some(read(password)?);
        }
        NatsAuth::Token(token) => proof.token = Some(read(token)?),
        NatsAuth::Nkey(seed) => {
            let keys = keys(read(seed)?.trim()).ok_or("`nkey` holds no seed: expected one that begins with SU")?;
            proof.nkey = Some(keys.public_key());
            proof.signature = Some(keys.sign(nonce).map_err(|error| error.to_string())?);
        }
        NatsAuth::Credentials(path) => {
            let text = read(&SecretRef::File(path.clone()))?;
            let (jwt, seed) = credentials(&text).ok_or_else(|| no_credentials(path))?;
            let keys = keys(seed).ok_or_else(|| no_credentials(path))?;
            proof.jwt = Some(jwt.to_owned());
            proof.signature = Some(keys.sign(nonce).map_err(|error| error.to_string())?);
        }
    }
    Ok(proof)
}

fn keys(seed: &str) -> Option<nkeys::KeyPair> {
    nkeys::KeyPair::from_seed(seed).ok()
}

fn no_credentials(path: &Path) -> String {
    format!("{} holds no credentials: expected a file made by `nsc generate creds`", path.display())
}

/// Returns the JWT and the seed of a credentials file.
fn credentials(text: &str) -> Option<(&str, &str)> {
    let block = |name: &str| {
        let behind = text.split_once(&format!("BEGIN {name}"))?.1;
        behind.lines().skip(1).map(str::trim).find(|line| !line.is_empty() && !line.starts_with('-'))
    };
    Some((block("NATS USER JWT")?, block("USER NKEY SEED")?))
}
