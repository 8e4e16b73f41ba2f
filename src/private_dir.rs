//! Directories and files that only this user may access.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Mode of a private directory.
pub(crate) const OWNER_ALONE: u32 = 0o700;

const GROUP_WRITES: u32 = 0o020;
const SET_GROUP_ID: u32 = 0o2000;

/// Creates a directory and its missing parents, with mode 0700. An existing directory is not changed.
///
/// # Errors
/// The error of the system.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(OWNER_ALONE).create(dir)
}

/// Returns options that open a file for writing, and create it with mode 0600.
pub(crate) fn file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// Returns true if a directory has the mode of a volume that a group shares. Kubernetes makes such volumes for `fsGroup`. This user
/// often has no right to change the mode of such a directory.
pub(crate) fn belongs_to_a_group(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|found| {
        let is_foreign = found.uid() != user();
        found.mode() & GROUP_WRITES != 0 && (is_foreign || found.mode() & SET_GROUP_ID != 0)
    })
}

/// Returns an error text if a file or directory belongs to another user, or has more permissions than `allowed`. The text
/// contains a command that corrects this. `None` if the file is private enough, or does not exist.
pub(crate) fn looseness(path: &Path, allowed: u32) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let (owner, user, shown) = (found.uid(), user(), path.display());
    if owner != user {
        return Some(format!(
            "{shown} belongs to user {owner}, not to user {user}; fix it with `chown {user} {shown}`"
        ));
    }
    let mode = found.mode() & 0o777;
    (mode & !allowed != 0).then(|| {
        format!("{shown} has mode {mode:04o}, more than {allowed:04o}; fix it with `chmod {allowed:04o} {shown}`")
    })
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Sets the mode of a file or directory.
    pub(crate) fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns the mode of a file or directory, without its type.
    pub(crate) fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn created_directories_and_files_are_private() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("a/b");
        make(&dir).unwrap();
        make(&dir).unwrap();
        file().create(true).open(dir.join("f")).unwrap();
        assert_eq!([mode(dir.parent().unwrap()), mode(&dir), mode(&dir.join("f"))], [0o700, 0o700, 0o600]);
        set(&dir, 0o750);
        make(&dir).unwrap();
        assert_eq!(mode(&dir), 0o750, "an existing directory is not changed");
    }

    #[test]
    fn loose_modes_are_reported_with_chmod_command() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path();
        set(dir, 0o700);
        assert_eq!(looseness(dir, 0o700), None);
        assert_eq!(looseness(&dir.join("nowhere"), 0o700), None);
        set(dir, 0o755);
        let (told, shown) = (looseness(dir, 0o700).unwrap(), dir.display());
        assert_eq!(told, format!("{shown} has mode 0755, more than 0700; fix it with `chmod 0700 {shown}`"));
        set(dir, 0o500);
        assert_eq!(looseness(dir, 0o700), None, "stricter permissions are accepted");
        set(dir, 0o700);
    }

    #[test]
    fn group_volume_is_recognized_by_mode() {
        let top = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o700, false), (0o755, false), (0o775, false), (0o2775, true), (0o2770, true)] {
            set(top.path(), mode);
            assert_eq!(belongs_to_a_group(top.path()), expected, "{mode:o}");
        }
        assert!(!belongs_to_a_group(&top.path().join("nowhere")));
    }
}
