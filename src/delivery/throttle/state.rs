//! Throttle of one handler: the keys of its events, and the file that keeps the last events over a restart.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::{Passed, Throttle, ThrottleKey};
use crate::{
    cloud_event::{Encoder, template::Template},
    journal::Sequence,
    mutex::lock,
    notification::Event,
    private_dir,
};

/// Version of the file format.
const VERSION: u32 = 1;
/// Name of the directory of the files, in the state directory.
const DIRECTORY: &str = "once";

/// Rule of a handler: at most one event of a key within the period.
#[derive(Clone, Debug)]
pub(crate) struct ThrottleRule {
    /// Period, counted from an event that was sent.
    pub period: Duration,
    /// Template of the key, with its text; `None`: each object is a key.
    pub key: Option<(Template, String)>,
    /// Encoder for the template.
    pub encoder: Encoder,
    /// Last events of the handler.
    pub state: Arc<ThrottleState>,
}

/// Events after a judgement.
#[derive(Debug, Default)]
pub(crate) struct Throttled {
    /// Events that the handler gets.
    pub wanted: Vec<Event>,
    /// Positions of the other events.
    pub suppressed: Vec<Sequence>,
    /// Number of events whose key could not be rendered. The key of such an event is its object.
    pub errors: u64,
    /// Object and text of the last of these errors.
    pub last_error: Option<String>,
    /// Number of keys that were forgotten before their period was over.
    pub forgotten: u64,
}

impl ThrottleRule {
    /// Judges events. A template takes at most some milliseconds per event, so this may block the thread for long.
    pub(crate) fn judge(&self, events: Vec<Event>) -> Throttled {
        let mut judged = Throttled::default();
        for event in events {
            let Some(key) = self.key(&event, &mut judged) else {
                judged.wanted.push(event);
                continue;
            };
            let (time, sequence) = (event.record.time_micros, event.record.sequence);
            let mut throttle = lock(&self.state.throttle);
            let is_wanted = throttle.admits(self.period, key, time, sequence);
            judged.forgotten += std::mem::take(&mut throttle.forgotten);
            drop(throttle);
            if is_wanted {
                judged.wanted.push(event);
            } else {
                judged.suppressed.push(sequence);
            }
        }
        judged
    }

    /// Returns the key of an event. `None` for an event without an object (`synced`), which always passes.
    fn key(&self, event: &Event, judged: &mut Throttled) -> Option<ThrottleKey> {
        let (object, resource) = (event.record.object()?, &event.unit.resource);
        if let Some((template, text)) = &self.key {
            match template.render(&self.encoder, event) {
                Ok(key) => return Some(ThrottleKey::of(&[text, &key])),
                Err(error) => {
                    judged.errors += 1;
                    judged.last_error = Some(format!("{}: `once_key`: {error}", object.key()));
                }
            }
        }
        Some(ThrottleKey::of(&[&resource.group, &resource.plural, object.namespace(), object.name()]))
    }
}

/// Last events of a handler. The state outlives changes of the handler.
#[derive(Debug, Default)]
pub(crate) struct ThrottleState {
    throttle: Mutex<Throttle>,
    /// `None` without a state directory: then a restart forgets all events.
    file: Option<ThrottleFile>,
}

#[derive(Debug)]
struct ThrottleFile {
    path: PathBuf,
    /// Id of the journal that the positions belong to.
    journal: String,
    /// Number of events let through that the file contains. The lock is held while the file is written.
    saved: Mutex<u64>,
}

/// Content of a file.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    journal: String,
    passed: Vec<(ThrottleKey, Passed)>,
}

impl ThrottleState {
    /// Reads the state of a handler from its file. A file that cannot be read is ignored: the worst result is an event too many.
    /// Blocks the thread.
    fn load(path: PathBuf, journal: &str) -> Self {
        let throttle = read(&path, journal).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "failed to read the last events of `once_per`; an event may be sent twice");
            Throttle::default()
        });
        let file = ThrottleFile { path, journal: journal.to_owned(), saved: Mutex::new(0) };
        Self { throttle: Mutex::new(throttle), file: Some(file) }
    }

    /// Returns true if the file lacks events. Does not wait for a write.
    pub(crate) fn is_unsaved(&self) -> bool {
        let saved = self.file.as_ref().and_then(|file| file.saved.try_lock().map(|saved| *saved).ok());
        saved.is_some_and(|saved| saved < lock(&self.throttle).admitted)
    }

    /// Replaces the file, if it lacks events. Logs a failure. Blocks the thread.
    pub(crate) fn save(&self) {
        let Some(ThrottleFile { path, journal, saved }) = &self.file else { return };
        let mut saved = lock(saved);
        let throttle = lock(&self.throttle);
        let admitted = throttle.admitted;
        if *saved == admitted {
            return;
        }
        let passed = throttle.passed.iter().map(|(key, last)| (*key, *last)).collect();
        drop(throttle); // the handler goes on while the file is written
        let content = Saved { version: VERSION, journal: journal.clone(), passed };
        match write(path, &content) {
            Ok(()) => *saved = admitted,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "failed to save the last events of `once_per`");
            }
        }
    }
}

/// Reads a file. Positions of another journal mean nothing in this one, so they are dropped.
fn read(path: &Path, journal: &str) -> io::Result<Throttle> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Throttle::default()),
        opened => opened?,
    };
    let saved: Saved = serde_json::from_reader(BufReader::new(file))?;
    if saved.version != VERSION {
        return Err(io::Error::other(format!("unknown version {}: expected {VERSION}", saved.version)));
    }
    let is_same = saved.journal == journal;
    let known = |(key, last): (ThrottleKey, Passed)| {
        (key, Passed { sequence: if is_same { last.sequence } else { 0 }, ..last })
    };
    Ok(Throttle { passed: saved.passed.into_iter().map(known).collect(), ..Throttle::default() })
}

/// Writes a file, and then renames it to its final name, so that a crash leaves the old content or the new one.
fn write(path: &Path, content: &Saved) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    private_dir::make(dir)?;
    let mut file = BufWriter::new(NamedTempFile::new_in(dir)?);
    serde_json::to_writer(&mut file, content)?;
    file.flush()?;
    let file = file.into_inner().map_err(io::Error::other)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(dir)?.sync_all()
}

/// States of all handlers of an engine that have a rule.
#[derive(Debug)]
pub(crate) struct Throttles {
    /// Directory of the files, and id of the journal. `None` without a state directory.
    home: Option<(PathBuf, String)>,
    states: Mutex<BTreeMap<String, Arc<ThrottleState>>>,
}

impl Throttles {
    /// Makes the states of an engine. Removes the files of handlers that have no rule any more.
    pub(crate) fn new(state_dir: Option<&Path>, journal: &str, has_rule: &dyn Fn(&str) -> bool) -> Self {
        let dir = state_dir.map(|dir| dir.join(DIRECTORY));
        for entry in dir.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().filter_map(Result::ok) {
            let path = entry.path();
            if !path.file_stem().and_then(|name| name.to_str()).is_some_and(has_rule) {
                fs::remove_file(path).ok(); // it only takes room
            }
        }
        Self { home: dir.map(|dir| (dir, journal.to_owned())), states: Mutex::default() }
    }

    /// Returns the state of a handler. The first call reads its file, and blocks the thread.
    pub(crate) fn of(&self, handler: &str) -> Arc<ThrottleState> {
        let load = || match &self.home {
            Some((dir, journal)) => ThrottleState::load(dir.join(format!("{handler}.json")), journal),
            None => ThrottleState::default(),
        };
        Arc::clone(lock(&self.states).entry(handler.to_owned()).or_insert_with(|| Arc::new(load())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        change::Change,
        journal::{Record, UnitId, testing::*},
        notification::UnitInfo,
        object::ResourceType,
    };

    const HOUR: Duration = Duration::from_hours(1);

    fn rule(key: Option<&str>, state: &Arc<ThrottleState>) -> ThrottleRule {
        let key = key.map(|text| (Template::compile(text).unwrap(), text.to_owned()));
        ThrottleRule { period: HOUR, key, encoder: Encoder::new("c", "j"), state: Arc::clone(state) }
    }

    /// Returns events of objects of these names, with positions from `first` and one minute apart.
    fn events(first: u64, names: &[&'static str]) -> Vec<Event> {
        let [group, version, kind, plural] = ["", "v1", "Thing", "things"].map(str::to_owned);
        let resource = ResourceType { group, version, kind, plural, namespaced: true };
        let unit = Arc::new(UnitInfo { entry: "entry".to_owned(), resource, namespace: None });
        let event = |(n, name): (u64, &&'static str)| {
            let change: Change = added(name, name, n);
            let (sequence, time_micros) = (Sequence(n), n.cast_signed() * 60_000_000);
            Event {
                unit: Arc::clone(&unit),
                record: Record { sequence, unit: UnitId(0), time_micros, change, old_lost: false },
            }
        };
        (first..).zip(names).map(event).collect()
    }

    fn sequences(judged: &Throttled) -> Vec<u64> {
        judged.wanted.iter().map(|event| event.record.sequence.0).collect()
    }

    #[test]
    fn default_key_is_the_object() {
        let judged = rule(None, &Arc::default()).judge(events(1, &["a", "b", "a", "b"]));
        assert_eq!(sequences(&judged), [1, 2]);
        assert_eq!(judged.suppressed, [Sequence(3), Sequence(4)]);
    }

    #[test]
    fn rendered_key_joins_objects_and_failing_one_is_the_object() {
        let state = Arc::default();
        let judged = rule(Some("{{ object.kind | default('none') }}"), &state).judge(events(1, &["a", "b"]));
        assert_eq!(sequences(&judged), [1]);
        let judged = rule(Some("{{ object.nope }}"), &state).judge(events(10, &["a", "b", "a"]));
        assert_eq!((sequences(&judged), judged.errors), (vec![10, 11], 3));
        let said = judged.last_error.unwrap();
        assert!(said.contains("`once_key`: ") && said.contains('a'), "{said}");
    }

    #[test]
    fn saved_events_survive_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("once/h.json");
        let load = |journal| Arc::new(ThrottleState::load(path.clone(), journal));
        let state = load("j1");
        assert!(!state.is_unsaved());
        assert_eq!(sequences(&rule(None, &state).judge(events(5, &["a"]))), [5]);
        assert!(state.is_unsaved());
        state.save();
        assert!(!state.is_unsaved());
        // The event that passed is not suppressed if it is delivered again.
        assert_eq!(sequences(&rule(None, &load("j1")).judge(events(5, &["a", "a"]))), [5]);
        // Another journal counts from the beginning: only times are comparable.
        assert!(sequences(&rule(None, &load("j2")).judge(events(2, &["a"]))).is_empty());
        fs::write(&path, "{").unwrap();
        assert_eq!(sequences(&rule(None, &load("j1")).judge(events(6, &["a"]))), [6]);
        let [kept, removed] = [true, false].map(|has_rule| {
            Throttles::new(Some(dir.path()), "j1", &|name| has_rule && name == "h");
            path.exists()
        });
        assert!(kept && !removed);
    }
}
