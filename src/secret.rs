//! References to secrets: an environment variable, or a file that may change. The configuration never contains the
//! secret itself.

use std::{env, fmt, path::Path, path::PathBuf};

use schemars::{JsonSchema, Schema};
pub(crate) use secrecy::ExposeSecret;
pub use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::regular_file;

/// Location of a secret. Its `Debug` form is `***`; errors name the location, but never contain the secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, description = "Location of a secret; set exactly one of these keys.", transform = exclusive_keys)]
pub enum SecretRef {
    /// Environment variable with the secret.
    Env(String),
    /// File with the secret; it is read again when it changes.
    File(PathBuf),
}

impl SecretRef {
    /// Reads the secret, without trailing line ends. Blocks if it reads a file.
    ///
    /// # Errors
    /// Fails if the secret is missing, empty or not UTF-8. The error names the location, and never contains the content.
    pub fn read(&self) -> Result<SecretString, String> {
        let (bytes, place) = match self {
            Self::Env(name) => {
                let place = format!("the environment variable {name}");
                let unset = || format!("{place} is not set: set it, or name another one");
                (env::var_os(name).ok_or_else(unset)?.into_encoded_bytes(), place)
            }
            Self::File(path) => {
                let place = path.display().to_string();
                (regular_file::read(path).map_err(|error| format!("cannot read {place}: {error}"))?, place)
            }
        };
        let text = String::from_utf8(bytes).map_err(|_| format!("{place} is not UTF-8 text"))?;
        match text.trim_end_matches(['\n', '\r']) {
            "" => Err(format!("{place} is empty: expected a secret")),
            text => Ok(SecretString::from(text)),
        }
    }

    /// Returns the file, if the secret is in one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Env(_) => None,
        }
    }
}

/// Replaces the schema of an enum by the schema of a table. The variants become keys, and a table must have exactly one of them.
/// `writeOnly` marks values that may be secret.
pub(crate) fn exclusive_keys(schema: &mut Schema) {
    let Some(Value::Array(variants)) = schema.remove("oneOf") else { return };
    let mut keys = Map::new();
    for variant in variants {
        for (key, value) in variant["properties"].as_object().into_iter().flatten() {
            let mut described = value.clone();
            described["description"] = variant["description"].clone();
            if described.get("required").is_some() {
                described["writeOnly"] = true.into();
            }
            keys.insert(key.clone(), described);
        }
    }
    let Value::Object(table) = json!({
        "type": "object", "properties": keys, "minProperties": 1, "maxProperties": 1, "writeOnly": true,
    }) else {
        return;
    };
    schema.ensure_object().extend(table);
}

/// Plain text, or a reference to a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PlainOrSecret {
    /// The text itself.
    Plain(String),
    /// Reference to the secret.
    Secret(SecretRef),
}

impl PlainOrSecret {
    /// Returns the text, or reads the secret, see [`SecretRef::read`].
    pub fn read(&self) -> Result<SecretString, String> {
        match self {
            Self::Plain(text) => Ok(SecretString::from(text.as_str())),
            Self::Secret(secret) => secret.read(),
        }
    }

    /// Returns the file of the secret, if there is one.
    pub fn file(&self) -> Option<&Path> {
        if let Self::Secret(secret) = self { secret.file() } else { None }
    }

    /// Returns true for a reference to a secret.
    pub fn is_secret(&self) -> bool {
        matches!(self, Self::Secret(_))
    }
}

impl fmt::Debug for PlainOrSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => printable_url(text).fmt(f),
            Self::Secret(secret) => secret.fmt(f),
        }
    }
}

/// Returns a URL without its user and password, and with `***` for the values of its query.
pub(crate) fn printable_url(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let start = base.find("//").map_or(0, |at| at + "//".len());
    let end = base[start..].find('/').map_or(base.len(), |at| start + at);
    let host = base[start..end].rfind('@').map_or(start, |at| start + at + 1);
    let mut printed = format!("{}{}", &base[..start], &base[host..]);
    for (i, parameter) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        printed.push(if i == 0 { '?' } else { '&' });
        if let Some((name, _)) = parameter.split_once('=') {
            printed.push_str(name);
            printed.push('=');
        }
        printed.push_str("***");
    }
    printed
}

impl fmt::Debug for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn secret_is_read_without_trailing_line_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let read = |content: &[u8]| {
            fs::write(&file, content).unwrap();
            SecretRef::File(file.clone()).read().map(|secret| secret.expose_secret().to_owned())
        };
        assert_eq!(read(b" s3cret \r\n\n").unwrap(), " s3cret ");
        let place = file.display().to_string();
        assert_eq!(read(b"\n").unwrap_err(), format!("{place} is empty: expected a secret"));
        assert_eq!(read(b"\xff").unwrap_err(), format!("{place} is not UTF-8 text"));
    }

    #[test]
    fn missing_secret_is_reported_by_location() {
        let error = |secret: SecretRef| secret.read().unwrap_err();
        assert_eq!(
            error(SecretRef::File("/nowhere/token".into())),
            "cannot read /nowhere/token: No such file or directory (os error 2)"
        );
        assert_eq!(
            error(SecretRef::Env("DELTABUS_TEST_UNSET".to_owned())),
            "the environment variable DELTABUS_TEST_UNSET is not set: set it, or name another one"
        );
    }

    #[test]
    fn printable_url_has_no_user_or_query_values() {
        for (url, printed) in [
            ("https://x/a", "https://x/a"),
            ("https://me:s3cret@x/a@b?key=s3cret&s3cret&b=", "https://x/a@b?key=***&***&b=***"),
            ("me@x", "x"),
        ] {
            assert_eq!(printable_url(url), printed);
        }
    }

    #[test]
    fn secret_is_displayed_as_stars() {
        for secret in [SecretRef::Env("NAME".to_owned()), SecretRef::File("/place".into())] {
            assert_eq!(format!("{secret:?}"), "***");
        }
    }
}
