//! Authentication of requests: a token, a password, or a signature by Standard Webhooks 1.0.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::secret::{ExposeSecret, SecretRef, exclusive_keys};

/// Authentication of the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, transform = exclusive_keys)]
pub enum Auth {
    /// Token: `Authorization: Bearer …`.
    Bearer(SecretRef),
    /// User and password: `Authorization: Basic …`.
    Basic {
        /// Name of the user.
        username: String,
        /// The password.
        password: SecretRef,
    },
    /// Secret of a Standard Webhooks signature: base64 of 24 to 64 bytes after `whsec_`. During a rotation, it contains
    /// several secrets, separated by blanks.
    Signature(SecretRef),
}

impl Auth {
    /// Returns the location of the secret.
    pub(super) fn secret(&self) -> &SecretRef {
        match self {
            Self::Bearer(secret) | Self::Basic { password: secret, .. } | Self::Signature(secret) => secret,
        }
    }

    /// Reads the secret and checks that it is valid. Blocks while it reads a file.
    ///
    /// # Errors
    /// Fails if the secret is missing or invalid. The error does not contain the secret.
    pub(crate) fn credentials(&self) -> Result<Credentials, String> {
        let secret = self.secret().read()?;
        let secret = secret.expose_secret();
        let mut hidden: Vec<_> = secret.split_whitespace().chain([secret]).map(str::to_owned).collect();
        let (scheme, token) = match self {
            Self::Bearer(_) => ("Bearer", secret.to_owned()),
            Self::Basic { username, .. } => ("Basic", STANDARD.encode(format!("{username}:{secret}"))),
            Self::Signature(_) => {
                let keys = secret.split_whitespace().map(key).collect::<Result<Vec<_>, _>>()?;
                let credentials = Credentials { authorization: None, keys, hidden };
                return if credentials.keys.is_empty() { Err(EXPECTED_KEY.to_owned()) } else { Ok(credentials) };
            }
        };
        let unfit = |_| "the token has characters that no header can carry: expected printable ASCII".to_owned();
        let mut authorization = HeaderValue::from_str(&format!("{scheme} {token}")).map_err(unfit)?;
        authorization.set_sensitive(true);
        hidden.insert(0, token);
        Ok(Credentials { authorization: Some(authorization), keys: Vec::new(), hidden })
    }
}

const EXPECTED_KEY: &str = "expected a signing secret: base64 of 24 to 64 bytes after \"whsec_\", or several of them, \
                            separated by blanks";

/// Parses a signing key. The error does not contain the key.
fn key(secret: &str) -> Result<Hmac<Sha256>, String> {
    let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    let bytes = bytes.filter(|bytes| (24..=64).contains(&bytes.len())).ok_or_else(|| EXPECTED_KEY.to_owned())?;
    Hmac::new_from_slice(&bytes).map_err(|_| EXPECTED_KEY.to_owned())
}

/// Secrets that were read. Never print them.
#[derive(Default)]
pub(crate) struct Credentials {
    authorization: Option<HeaderValue>,
    keys: Vec<Hmac<Sha256>>,
    /// Texts that errors must not contain.
    pub(super) hidden: Vec<String>,
}

impl Credentials {
    /// Adds the headers that authenticate a request. `message` is the message's id, the same for every attempt with the same
    /// events; `timestamp` is in seconds since the Unix epoch.
    pub(super) fn sign(&self, headers: &mut HeaderMap, message: &str, timestamp: i64, body: &[u8]) {
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if self.keys.is_empty() {
            return;
        }
        let sign = |key: &Hmac<Sha256>| {
            let mut mac = key.clone();
            mac.update(format!("{message}.{timestamp}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        let signatures = self.keys.iter().map(sign).collect::<Vec<_>>().join(" ");
        for (name, value) in [
            ("webhook-id", message.to_owned()),
            ("webhook-timestamp", timestamp.to_string()),
            ("webhook-signature", signatures),
        ] {
            let value = HeaderValue::try_from(value).expect("hexadecimal, decimal and base64 fit headers");
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Replaces each of these secrets in a text with `***`.
pub(super) fn hide(secrets: &[String], text: &str) -> String {
    let secrets = secrets.iter().filter(|secret| !secret.is_empty());
    secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
}

/// Returns the id of a message: a hash of its events' ids, the same for every attempt. The ids of events can contain full stops,
/// which Standard Webhooks does not allow in `webhook-id`.
pub(super) fn message_id<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.as_bytes());
        hash.update(b"\n");
    }
    format!("{:x}", Bytes::copy_from_slice(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_secret(content: &str, auth: impl Fn(SecretRef) -> Auth) -> Result<Credentials, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, content).unwrap();
        auth(SecretRef::File(file)).credentials()
    }

    /// Example from the tests of the Standard Webhooks libraries.
    #[test]
    fn signature_matches_specification() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let credentials = with_secret(secret, Auth::Signature).unwrap();
        let mut headers = HeaderMap::new();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        credentials.sign(&mut headers, id, 1_614_265_330, body);
        assert_eq!(headers["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(
            (&headers["webhook-id"], &headers["webhook-timestamp"]),
            (&id.parse().unwrap(), &1_614_265_330.into())
        );
        let two = with_secret(&format!("{secret}\nwhsec_{}\n", STANDARD.encode([7; 32])), Auth::Signature).unwrap();
        two.sign(&mut headers, id, 1_614_265_330, body);
        let signatures = headers["webhook-signature"].to_str().unwrap();
        assert!(signatures.starts_with("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,"), "{signatures}");
    }

    #[test]
    fn invalid_signing_secret_is_refused_without_leaking() {
        let short = format!("whsec_{}", STANDARD.encode([1; 23]));
        let long = format!("whsec_{}", STANDARD.encode([1; 65]));
        for secret in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_???", &short, &long, " ", "whsec_"] {
            let error = with_secret(secret, Auth::Signature).err();
            assert_eq!(error.as_deref(), Some(EXPECTED_KEY), "{secret}");
        }
    }

    #[test]
    fn unsendable_token_is_refused_without_leaking() {
        let error = with_secret("to\nken", Auth::Bearer).err().unwrap();
        assert_eq!(error, "the token has characters that no header can carry: expected printable ASCII");
    }

    #[test]
    fn credentials_are_hidden_in_response_text() {
        let bearer = with_secret("t0ken", Auth::Bearer).unwrap();
        assert_eq!(hide(&bearer.hidden, "Bearer t0ken is wrong"), "Bearer *** is wrong");
        let basic = |password| Auth::Basic { username: "me".to_owned(), password };
        let basic = with_secret("pa55", basic).unwrap();
        assert_eq!(hide(&basic.hidden, "bWU6cGE1NQ== is me:pa55"), "*** is me:***");
        assert_eq!(basic.authorization.unwrap(), "Basic bWU6cGE1NQ==");
    }

    #[test]
    fn message_id_depends_on_every_event() {
        let one = message_id(["a.1", "b.2"]);
        assert_eq!(one, message_id(["a.1", "b.2"]));
        assert!(one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        for other in [&["a.1"][..], &["a.1b.2"], &["b.2", "a.1"], &["a.1", "b.2", "c"]] {
            assert_ne!(one, message_id(other.iter().copied()));
        }
    }
}
