//! Key of all digests of an engine: configured, kept in the state directory, or made for one run. The module also logs conditions
//! that cannot be evaluated.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tempfile::NamedTempFile;

use crate::{
    config::Redact,
    list_watch::transform::Transform,
    mutex::lock,
    object::Object,
    private_dir,
    redact::{Fingerprint, Key, Redactor, Rule},
    rules::RuleError,
    secret::{ExposeSecret as _, SecretRef},
};

/// Name of the key's file in the state directory.
const FILE: &str = "hmac.key";
/// Length of a generated key in bytes. The file contains twice as many hex digits.
const KEY_LEN: usize = 32;

/// Key of the digests; see the module. Clones share one key.
#[derive(Clone, Debug)]
pub(super) struct DigestKey {
    key: Key,
    /// `Some` if the key lasts for one run only. The flag is set when that was logged.
    lasts_one_run: Option<Arc<AtomicBool>>,
    /// Entries and paths with conditions that could not be evaluated; each is logged once.
    doubted: Arc<Mutex<BTreeSet<(String, String)>>>,
}

impl DigestKey {
    /// Returns the configured key, or else the key in `state_dir` if digests are needed; creates that key if it is missing. Without
    /// these keys, returns a key for this run: the key of `running`, or a new one. Reads and writes files, so it blocks the thread.
    ///
    /// # Errors
    /// Fails, with a message for the user, if the configured key or the file cannot be used.
    pub(super) fn load(redact: &Redact, state_dir: Option<&Path>, running: Option<&Self>) -> Result<Self, String> {
        if let Some(secret) = &redact.hmac_key {
            return read(secret).map(Self::lasting).map_err(|error| format!("[redact] hmac_key: {error}"));
        }
        // A key is needed only for digests.
        if let Some(dir) = state_dir.filter(|_| redact.makes_digests()) {
            let path = dir.join(FILE);
            let said = |error| format!("cannot use the [redact] key in {}: {error}", path.display());
            let needs = "let this user write there, or set [redact] hmac_key";
            ensure(&path, dir).map_err(|error| said(format!("{error}; {needs}")))?;
            return read(&SecretRef::File(path.clone())).map(Self::lasting).map_err(said);
        }
        match running.filter(|running| running.lasts_one_run.is_some()) {
            Some(running) => Ok(running.clone()),
            None => Ok(Self { lasts_one_run: Some(Arc::default()), ..Self::lasting(Key::new(make().as_bytes())?) }),
        }
    }

    /// Wraps a key that lasts longer than one run.
    pub(super) fn lasting(key: Key) -> Self {
        Self { key, lasts_one_run: None, doubted: Arc::default() }
    }

    /// Returns the fingerprint that distinguishes keys.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint()
    }

    /// Returns the transform that redacts the objects of an entry when they arrive. `doubts` counts conditions that could not
    /// be evaluated.
    ///
    /// # Errors
    /// Fails on an invalid condition. Loading the configuration has already refused such conditions.
    pub(super) fn transform(
        &self,
        entry: &str,
        rules: &[Rule],
        doubts: &Arc<AtomicU64>,
    ) -> Result<Transform, RuleError> {
        let redactor = Redactor::new(self.key.clone(), rules)?;
        let (key, entry, doubts) = (self.clone(), entry.to_owned(), Arc::clone(doubts));
        Ok(Transform::new(move |object| {
            let doubt = |rule: &Rule| {
                doubts.fetch_add(1, Ordering::Relaxed);
                key.say_doubt(&entry, rule, object);
            };
            redactor.apply(object, doubt).map_err(|error| error.to_string())
        }))
    }

    /// Returns the transform for objects that were cached earlier and may already contain digests. The transform evaluates no
    /// conditions.
    ///
    /// # Errors
    /// See [`DigestKey::transform`].
    pub(super) fn transform_of_cached(&self, rules: &[Rule]) -> Result<Transform, RuleError> {
        let redactor = Redactor::new(self.key.clone(), rules)?.for_redacted();
        Ok(Transform::new(move |object| redactor.apply(object, |_| {}).map_err(|error| error.to_string())))
    }

    /// Logs that the condition of a path cannot be evaluated, once for each path of an entry. The reason may contain values, so it
    /// is not logged.
    fn say_doubt(&self, entry: &str, rule: &Rule, object: &Object) {
        let path = rule.path.to_string();
        if lock(&self.doubted).insert((entry.to_owned(), path.clone())) {
            let condition = rule.only.as_ref().map_or("", |only| &only.expression).trim();
            tracing::warn!(
                entry, path, condition, object = %object.key(),
                "cannot evaluate the condition of a redacted path: the value is redacted; test for members with \
                 has(object.a.b); redactErrors in /v1/resources counts further errors"
            );
        }
    }

    /// Logs once that digests of different runs cannot be compared.
    pub(super) fn say_how_long_it_lasts(&self) {
        if let Some(said) = &self.lasts_one_run
            && !said.swap(true, Ordering::Relaxed)
        {
            tracing::info!(
                "values are redacted with a key for this run only: after a restart the same value has another digest; \
                 set [redact] hmac_key to keep the key"
            );
        }
    }
}

fn read(secret: &SecretRef) -> Result<Key, String> {
    let text = secret.read()?;
    Key::new(text.expose_secret().as_bytes())
}

/// Returns the text of a random key.
fn make() -> String {
    let bytes: [u8; KEY_LEN] = rand::random();
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Creates the file of a key in the directory unless it exists; a crash leaves no partial file.
fn ensure(path: &Path, dir: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    private_dir::make(dir)?;
    let mut file = NamedTempFile::new_in(dir)?; // only this user may read it
    writeln!(file, "{}", make())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => File::open(dir)?.sync_all(),
        Err(other) if other.error.kind() == io::ErrorKind::AlreadyExists => Ok(()), // made by another process
        Err(failed) => Err(failed.error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::private_dir::tests::mode;

    fn load(redact: &Redact, dir: Option<&Path>) -> Fingerprint {
        DigestKey::load(redact, dir, None).unwrap().fingerprint()
    }

    #[test]
    fn digest_key_is_created_once_for_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let first = load(&Redact::default(), Some(&state));
        let path = state.join(FILE);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "nothing else is left behind");
        assert_eq!(load(&Redact::default(), Some(&state)), first);
        // Another replica with this file has the same key.
        let configured = Redact { hmac_key: Some(SecretRef::File(path.clone())), ..Redact::default() };
        assert_eq!(load(&configured, None), first);
        fs::write(&path, "short").unwrap();
        let error = DigestKey::load(&Redact::default(), Some(&state), None).unwrap_err();
        let expected =
            format!("cannot use the [redact] key in {}: expected a key of at least 16 bytes, found 5", path.display());
        assert_eq!(error, expected);
    }

    #[test]
    fn key_of_one_run_survives_reloads() {
        let first = DigestKey::load(&Redact::default(), None, None).unwrap();
        let again = DigestKey::load(&Redact::default(), None, Some(&first)).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_ne!(load(&Redact::default(), None), first.fingerprint(), "another run has another");
        assert!(first.lasts_one_run.is_some());
    }

    #[test]
    fn unusable_configured_key_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let redact = Redact { hmac_key: Some(SecretRef::File(file.clone())), ..Redact::default() };
        let error = |redact: &Redact| DigestKey::load(redact, None, None).unwrap_err();
        assert!(error(&redact).starts_with("[redact] hmac_key: cannot read "), "{}", error(&redact));
        fs::write(&file, "0123456789\n").unwrap();
        assert_eq!(error(&redact), "[redact] hmac_key: expected a key of at least 16 bytes, found 10");
        fs::write(&file, "0123456789abcdef\n").unwrap();
        assert_eq!(load(&redact, None), Key::new(b"0123456789abcdef").unwrap().fingerprint());
    }
}
