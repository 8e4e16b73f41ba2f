//! How a request says who sent it: a token, a password, or a signature as Standard Webhooks 1.0 has it.

use std::path::PathBuf;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::fresh::Fresh;
use crate::secret::{ExposeSecret, SecretRef, exclusive_keys};

/// How a receiver knows the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, transform = exclusive_keys)]
pub enum Auth {
    /// A token: `Authorization: Bearer …`.
    Bearer(SecretRef),
    /// A user and a password: `Authorization: Basic …`.
    Basic {
        /// The user.
        username: String,
        /// The password.
        password: SecretRef,
    },
    /// The secret of a signature by Standard Webhooks: base64 of 24 to 64 bytes behind `whsec_`; several with blanks between,
    /// while one replaces the other.
    Signature(SecretRef),
}

impl Auth {
    fn secret(&self) -> &SecretRef {
        match self {
            Self::Bearer(secret) | Self::Basic { password: secret, .. } | Self::Signature(secret) => secret,
        }
    }

    /// Reads the secret and checks that it is of use. Reads a file: blocks.
    ///
    /// # Errors
    /// When it is not there, or no header can carry it. The text says nothing of the secret.
    pub fn check(&self) -> Result<(), String> {
        self.credentials().map(drop)
    }

    pub(super) fn keep_fresh(self) -> Result<Fresh<Credentials>, String> {
        let files: Vec<PathBuf> = self.secret().file().map(ToOwned::to_owned).into_iter().collect();
        Fresh::new(files, move || self.credentials())
    }

    fn credentials(&self) -> Result<Credentials, String> {
        let secret = self.secret().read().map_err(|error| error.to_string())?;
        let secret = secret.expose_secret();
        let (authorization, keys) = match self {
            Self::Bearer(_) => (Some(format!("Bearer {secret}")), Vec::new()),
            Self::Basic { username, .. } => {
                (Some(format!("Basic {}", STANDARD.encode(format!("{username}:{secret}")))), Vec::new())
            }
            Self::Signature(_) => (None, secret.split_whitespace().map(key).collect::<Result<_, _>>()?),
        };
        if matches!(self, Self::Signature(_)) && keys.is_empty() {
            return Err(EXPECTED_KEY.to_owned());
        }
        let header = |text: &String| {
            let unfit = |_| "the token has characters that no header can carry: expected printable ASCII".to_owned();
            let mut value = HeaderValue::from_str(text).map_err(unfit)?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        };
        let sent = authorization.iter().filter_map(|text| text.split_once(' ')).map(|(_, token)| token.to_owned());
        let hidden = sent.chain(secret.split_whitespace().map(str::to_owned)).chain([secret.to_owned()]).collect();
        Ok(Credentials { authorization: authorization.as_ref().map(header).transpose()?, keys, hidden })
    }
}

const EXPECTED_KEY: &str = "expected a signing secret: base64 of 24 to 64 bytes behind \"whsec_\", or several of them with \
                            blanks between";

/// Makes a key; what keeps it sees only the error.
fn key(secret: &str) -> Result<Hmac<Sha256>, String> {
    let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    let bytes = bytes.filter(|bytes| (24..=64).contains(&bytes.len())).ok_or_else(|| EXPECTED_KEY.to_owned())?;
    Hmac::new_from_slice(&bytes).map_err(|_| EXPECTED_KEY.to_owned())
}

/// What was read of the secrets. Not to be printed.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    authorization: Option<HeaderValue>,
    keys: Vec<Hmac<Sha256>>,
    hidden: Vec<String>,
}

impl Credentials {
    /// Adds the headers that a request needs. `message` is the same for every attempt at the same events, `timestamp` in
    /// seconds since the Unix epoch.
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

    /// Writes `***` over every secret in a text of the receiver.
    pub(super) fn hide(&self, text: &str) -> String {
        hide(&self.hidden, text)
    }
}

/// Writes `***` over every one of these secrets in a text.
pub(super) fn hide(secrets: &[String], text: &str) -> String {
    let secrets = secrets.iter().filter(|secret| !secret.is_empty());
    secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
}

/// Returns the name of a message: a hash of the ids of its events, the same for every attempt at them. Ids themselves may
/// hold full stops, which Standard Webhooks allows in no `webhook-id`.
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

    /// The example that the specification's libraries test with.
    #[test]
    fn a_signature_is_the_one_of_the_specification() {
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
    fn a_signing_secret_that_is_none_is_refused_and_not_told() {
        let short = format!("whsec_{}", STANDARD.encode([1; 23]));
        let long = format!("whsec_{}", STANDARD.encode([1; 65]));
        for secret in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_???", &short, &long, " ", "whsec_"] {
            let error = with_secret(secret, Auth::Signature).err();
            assert_eq!(error.as_deref(), Some(EXPECTED_KEY), "{secret}");
        }
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_refused_and_not_told() {
        let error = with_secret("to\nken", Auth::Bearer).err().unwrap();
        assert_eq!(error, "the token has characters that no header can carry: expected printable ASCII");
    }

    #[test]
    fn credentials_are_hidden_in_what_the_receiver_says() {
        let bearer = with_secret("t0ken", Auth::Bearer).unwrap();
        assert_eq!(bearer.hide("Bearer t0ken is wrong"), "Bearer *** is wrong");
        let basic = |password| Auth::Basic { username: "me".to_owned(), password };
        let basic = with_secret("pa55", basic).unwrap();
        assert_eq!(basic.hide("bWU6cGE1NQ== is me:pa55"), "*** is me:***");
        assert_eq!(basic.authorization.unwrap(), "Basic bWU6cGE1NQ==");
    }

    #[test]
    fn a_message_has_a_name_without_full_stops_that_depends_on_each_of_its_events() {
        let one = message_id(["a.1", "b.2"]);
        assert_eq!(one, message_id(["a.1", "b.2"]));
        assert!(one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        for other in [&["a.1"][..], &["a.1b.2"], &["b.2", "a.1"], &["a.1", "b.2", "c"]] {
            assert_ne!(one, message_id(other.iter().copied()));
        }
    }
}
