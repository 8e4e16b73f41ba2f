//! `[[tests]]`: what handlers are sent where an object changes; `deltabus test` tries it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Loaded, ValueOrigin, text::Optional};

/// A change of objects, and how many events it makes for handlers. Tests of all files count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestCase {
    /// What it is about, in a few words; no other test is called so. Required.
    pub name: String,
    /// The objects before: a file of YAML or JSON, its path seen from the file that names it. Without it, or where an object
    /// is not in it, the object is new.
    #[serde(default, with = "Optional")]
    pub old: Option<PathBuf>,
    /// The objects after. Without it, or where an object is not in it, the object is deleted.
    #[serde(default, with = "Optional")]
    pub new: Option<PathBuf>,
    /// How many events handlers are sent, by their names: `{ hook = 1, audit = 0 }`. Of handlers that are not named nothing
    /// is expected. Required.
    pub expect: BTreeMap<String, u32>,
}

impl Loaded {
    /// Returns where the files of a test are, the one before and the one after, by its position in `tests`.
    pub fn files_of_test(&self, test: usize) -> [Option<PathBuf>; 2] {
        let place = format!("[{test}]");
        let Some(TestCase { old, new, .. }) = self.config.tests.get(test) else { return [None, None] };
        [("old", old), ("new", new)].map(|(key, path)| {
            let path = path.as_ref()?;
            Some(match self.finding(&["tests", &place, key], "").origin {
                ValueOrigin::File { file, .. } => Path::new(&*file).parent().unwrap_or(Path::new("")).join(path),
                _ => path.clone(),
            })
        })
    }
}
