//! Permissions of the state directory.

use super::*;
use crate::private_dir::tests::{mode, set};

#[test]
fn a_directory_that_is_made_is_for_its_owner_alone() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("lib/deltabus");
    let (store, _) = open(&Store::home(&dir)).unwrap();
    store.close().unwrap();
    assert_eq!([mode(&top.path().join("lib")), mode(&dir)], [0o700, 0o700]);
    for file in ["lock", "format", "seal"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
}

#[test]
fn a_directory_that_is_there_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    set(dir.path(), 0o755);
    assert_eq!(Store::home(dir.path()), dir.path());
    open(dir.path()).unwrap();
    assert_eq!(mode(dir.path()), 0o755);
}

#[test]
fn in_a_volume_of_a_group_the_state_has_a_subdirectory_for_its_owner_alone() {
    let volume = tempfile::tempdir().unwrap();
    set(volume.path(), 0o2775);
    let home = Store::home(volume.path());
    assert_eq!(home, volume.path().join("state"));
    drop(open(&home).unwrap());
    assert_eq!(mode(&home) & 0o777, 0o700);
    set(&home, 0o2770); // as a mount does for `fsGroup`
    assert_eq!(Store::home(volume.path()), home);
    drop(open(&home).unwrap());
    assert_eq!(mode(&home) & 0o777, 0o700);
}

#[test]
fn a_state_that_lies_in_the_root_of_such_a_volume_stays_there() {
    let Opened { store, dir, .. } = fresh();
    drop(store);
    set(dir.path(), 0o2770);
    assert_eq!(Store::home(dir.path()), dir.path());
}
