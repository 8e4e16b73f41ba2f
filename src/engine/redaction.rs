//! The key of all digests of an engine: configured, kept in the state directory, or made for one run; and what is said of
//! conditions that cannot be evaluated.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    config::Redact,
    list_watch::transform::{Transform, TransformError},
    mutex::lock,
    object::Object,
    private_dir,
    redact::{Fingerprint, Key, Redactor, Rule},
    rules::RuleError,
    secret::{ExposeSecret as _, SecretRef},
};

/// What the key is called that is kept in the state directory.
const FILE: &str = "hmac.key";
/// Bytes of a key that is made here; it is written as twice so many hex digits.
const KEY_LEN: usize = 32;

/// See the module. Clones are one key.
#[derive(Clone, Debug)]
pub(super) struct DigestKey {
    key: Key,
    /// For a key that ends with this run: whether that has been said.
    lasts_one_run: Option<Arc<AtomicBool>>,
    /// Entries and paths whose condition could not be evaluated: that is said once.
    doubted: Arc<Mutex<BTreeSet<(String, String)>>>,
}

impl DigestKey {
    /// Reads the key that is configured or kept in `state_dir`, where one is made the first time. Without both it is
    /// `running`, or one made for this run. Reads and writes files: blocks.
    ///
    /// # Errors
    /// A sentence for people, that says what is wrong with the configured key or with the file.
    pub(super) fn load(redact: &Redact, state_dir: Option<&Path>, running: Option<&Self>) -> Result<Self, String> {
        if let Some(secret) = &redact.hmac_key {
            return read(secret).map(Self::lasting).map_err(|error| format!("[redact] hmac_key: {error}"));
        }
        // Nobody needs a key that only Secrets without digests would have.
        if let Some(dir) = state_dir.filter(|_| redact.makes_digests()) {
            let path = dir.join(FILE);
            let said = |error| format!("[redact] without hmac_key its key is kept in {}: {error}", path.display());
            let needs = "this user needs the right and the room to write there, or [redact] hmac_key has to name a key";
            return kept(dir).map_err(|error| said(format!("{error}; {needs}")))?.map_or_else(
                || read(&SecretRef::File(path.clone())).map(Self::lasting).map_err(said),
                |made| Ok(Self::lasting(made)),
            );
        }
        match running.filter(|running| running.lasts_one_run.is_some()) {
            Some(running) => Ok(running.clone()),
            None => Ok(Self { lasts_one_run: Some(Arc::default()), ..Self::lasting(make().1) }),
        }
    }

    /// Makes a key of one that somebody has.
    pub(super) fn lasting(key: Key) -> Self {
        Self { key, lasts_one_run: None, doubted: Arc::default() }
    }

    /// Returns what tells it from other keys.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint()
    }

    /// Returns what takes values out of the objects of an entry as they come in. `doubts` counts conditions that could not
    /// be evaluated.
    ///
    /// # Errors
    /// A condition that cannot be used; loading the configuration has refused those before.
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
            redactor.apply(object, doubt).map_err(TransformError::new)
        }))
    }

    /// Returns what does so of objects that were cached before, in which digests may stand already: of them no condition is
    /// asked.
    ///
    /// # Errors
    /// As [`DigestKey::transform`].
    pub(super) fn transform_of_cached(&self, rules: &[Rule]) -> Result<Transform, RuleError> {
        let redactor = Redactor::new(self.key.clone(), rules)?.for_redacted();
        Ok(Transform::new(move |object| redactor.apply(object, |_| {}).map_err(TransformError::new)))
    }

    /// Says once for an entry's path that its condition could not be evaluated. Why is not said: it may have values in it.
    fn say_doubt(&self, entry: &str, rule: &Rule, object: &Object) {
        let path = rule.path.to_string();
        if lock(&self.doubted).insert((entry.to_owned(), path.clone())) {
            let condition = rule.only.as_ref().map_or("", |only| &only.expression).trim();
            tracing::warn!(
                entry, path, condition, object = %object.key(),
                "the condition of a redacted path cannot be evaluated: the value is redacted; has(object.a.b) asks whether \
                 there is such a member; redactErrors in /v1/resources counts on"
            );
        }
    }

    /// Says once that digests of this run tell nothing of those of another.
    pub(super) fn say_how_long_it_lasts(&self) {
        if let Some(said) = &self.lasts_one_run
            && !said.swap(true, Ordering::Relaxed)
        {
            tracing::info!(
                "values are redacted with a key made for this run: after a restart the same value has another digest; \
                 [redact] hmac_key names a key that stays"
            );
        }
    }
}

fn read(secret: &SecretRef) -> Result<Key, String> {
    let text = secret.read().map_err(|error| error.to_string())?;
    Key::new(text.expose_secret().as_bytes()).map_err(|error| error.to_string())
}

/// Makes a key: as text, and ready.
fn make() -> (String, Key) {
    let bytes: [u8; KEY_LEN] = rand::random();
    let text = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let key = Key::new(text.as_bytes()).expect("it is long enough");
    (text, key)
}

/// Makes a key in the directory unless there is one: whole and on the disk, or not at all. `None` where it was there.
fn kept(dir: &Path) -> io::Result<Option<Key>> {
    let path = dir.join(FILE);
    if path.exists() {
        return Ok(None);
    }
    private_dir::make(dir)?;
    let (text, key) = make();
    let unfinished = dir.join(format!("{FILE}.{}", std::process::id()));
    drop(fs::remove_file(&unfinished)); // of a process of this number that ended before it was done
    let mut file = private_dir::file().create_new(true).open(&unfinished)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    // A link, no renaming: of two processes one has made the key.
    let linked = fs::hard_link(&unfinished, &path);
    fs::remove_file(&unfinished)?;
    File::open(dir)?.sync_all()?;
    match linked {
        Ok(()) => Ok(Some(key)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_dir::tests::mode;

    fn load(redact: &Redact, dir: Option<&Path>) -> Fingerprint {
        DigestKey::load(redact, dir, None).unwrap().fingerprint()
    }

    #[test]
    fn d11_the_key_is_made_once_in_the_state_directory_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let first = load(&Redact::default(), Some(&state));
        let path = state.join(FILE);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "nothing else is left behind");
        assert_eq!(load(&Redact::default(), Some(&state)), first);
        // Given to another replica it is the same key.
        let configured = Redact { hmac_key: Some(SecretRef::File(path.clone())), ..Redact::default() };
        assert_eq!(load(&configured, None), first);
        fs::write(&path, "short").unwrap();
        let error = DigestKey::load(&Redact::default(), Some(&state), None).unwrap_err();
        let expected = format!(
            "[redact] without hmac_key its key is kept in {}: expected a key of at least 16 bytes, found 5",
            path.display()
        );
        assert_eq!(error, expected);
    }

    #[test]
    fn d11_a_key_of_one_run_outlives_reloads() {
        let first = DigestKey::load(&Redact::default(), None, None).unwrap();
        let again = DigestKey::load(&Redact::default(), None, Some(&first)).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_ne!(load(&Redact::default(), None), first.fingerprint(), "another run has another");
        assert!(first.lasts_one_run.is_some());
    }

    #[test]
    fn d11_a_configured_key_that_cannot_be_had_is_told() {
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
