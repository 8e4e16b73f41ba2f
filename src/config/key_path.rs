//! Paths of keys in a configuration.

use std::fmt;

/// Path of a key from the root: `resources`, `pods`, `match`, `[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct KeyPath(pub(super) Vec<String>);

impl KeyPath {
    pub(crate) fn new(keys: &[&str]) -> Self {
        Self::default().join(keys)
    }

    pub(super) fn join(&self, keys: &[&str]) -> Self {
        Self(self.0.iter().map(String::as_str).chain(keys.iter().copied()).map(str::to_owned).collect())
    }

    pub(crate) fn child(&self, key: &str) -> Self {
        self.join(&[key])
    }

    pub(crate) fn element(&self, index: usize) -> Self {
        self.child(&format!("[{index}]"))
    }

    pub(super) fn parent(&self) -> Option<Self> {
        self.0.split_last().map(|(_, parent)| Self(parent.to_vec()))
    }

    /// Returns the path in `[defaults]` from which this key is inherited; `None` outside the entries of `resources` and `handlers`.
    pub(super) fn inherited(&self) -> Option<Self> {
        match &self.0[..] {
            [section, _, rest @ ..] if !rest.is_empty() && (section == "resources" || section == "handlers") => {
                Some(Self([&["defaults".to_owned(), section.clone()][..], rest].concat()))
            }
            _ => None,
        }
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, key) in self.0.iter().enumerate() {
            let bare = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') && !key.is_empty();
            match (key.starts_with('['), bare) {
                (true, _) => f.write_str(key)?,
                (false, true) => write!(f, "{}{key}", if i > 0 { "." } else { "" })?,
                (false, false) => write!(f, "{}{key:?}", if i > 0 { "." } else { "" })?,
            }
        }
        Ok(())
    }
}
