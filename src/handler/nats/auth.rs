//! Authentication: the answer to the server's challenge.

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;

use super::NatsAuth;
use crate::secret::{ExposeSecret as _, SecretRef};

/// Answers the server's challenge. Secrets are read for each connection, so that changes take effect.
pub(super) async fn answer(auth: Option<NatsAuth>, nonce: Vec<u8>) -> Result<Auth, AuthError> {
    // Reads files, so it runs on a thread that may block.
    let answered = tokio::task::spawn_blocking(move || prove(auth.as_ref(), &nonce)).await;
    answered.unwrap_or_else(|error| Err(error.to_string())).map_err(AuthError::new)
}

fn prove(auth: Option<&NatsAuth>, nonce: &[u8]) -> Result<Auth, String> {
    let read = |secret: &SecretRef| secret.read().map(|secret| secret.expose_secret().to_owned());
    let sign = |keys: &KeyPair| keys.sign(nonce).map_err(|error| error.to_string());
    let mut proof = Auth::new();
    match auth {
        None => {}
        Some(NatsAuth::Basic { username, password }) => {
            proof.username = Some(username.clone());
            proof.password = Some(read(password)?);
        }
        Some(NatsAuth::Token(token)) => proof.token = Some(read(token)?),
        Some(NatsAuth::Nkey(seed)) => {
            let keys = KeyPair::from_seed(read(seed)?.trim());
            let keys = keys.map_err(|_| "`nkey` holds no seed: expected one that begins with SU")?;
            proof.nkey = Some(keys.public_key());
            proof.signature = Some(sign(&keys)?);
        }
        Some(NatsAuth::CredsFile(path)) => {
            let text = read(&SecretRef::File(path.clone()))?;
            let (jwt, keys) = credentials(&text).ok_or_else(|| {
                format!("{} holds no credentials: expected a file made by `nsc generate creds`", path.display())
            })?;
            proof.jwt = Some(jwt.to_owned());
            proof.signature = Some(sign(&keys)?);
        }
    }
    Ok(proof)
}

/// Returns the JWT and the keys of a credentials file.
fn credentials(text: &str) -> Option<(&str, KeyPair)> {
    let block = |name: &str| {
        let behind = text.split_once(&format!("BEGIN {name}"))?.1;
        behind.lines().skip(1).map(str::trim).find(|line| !line.is_empty() && !line.starts_with('-'))
    };
    Some((block("NATS USER JWT")?, KeyPair::from_seed(block("USER NKEY SEED")?).ok()?))
}
