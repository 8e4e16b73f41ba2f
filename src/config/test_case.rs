//! `[[tests]]`: expected events of handlers for a change of objects, checked by `deltabus test`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Loaded, ValueOrigin, text::Optional};

/// Change of objects, and the expected number of events for each handler. The tests of all files are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestCase {
    /// Short description of the test, different for each test. Required.
    pub name: String,
    /// File of YAML or JSON with the objects before the change. A relative path starts at the directory of the
    /// configuration file. An object that is missing here is added.
    #[serde(default, with = "Optional")]
    pub old: Option<PathBuf>,
    /// File of YAML or JSON with the objects after the change. An object that is missing here is deleted.
    #[serde(default, with = "Optional")]
    pub new: Option<PathBuf>,
    /// Number of events for each handler, by name: `{ hook = 1, audit = 0 }`. Other handlers are not checked. Required.
    pub expect: BTreeMap<String, u32>,
}

impl Loaded {
    /// Returns the paths of the files `old` and `new` of a test; `test` is the position of the test in `tests`.
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
