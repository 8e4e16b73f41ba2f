//! Permissions of the state directory.

use super::*;
use crate::private_dir::tests::{mode, set};

#[test]
fn created_directory_is_private_to_owner() {
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
fn existing_directory_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    set(dir.path(), 0o755);
    assert_eq!(Store::home(dir.path()), dir.path());
    open(dir.path()).unwrap();
    assert_eq!(mode(dir.path()), 0o755);
}

#[test]
fn group_volume_gets_private_subdirectory() {
    let volume = tempfile::tempdir().unwrap();
    set(volume.path(), 0o2775);
    let home = Store::home(volume.path());
    assert_eq!(home, volume.path().join("state"));
    drop(open(&home).unwrap());
    assert_eq!(mode(&home) & 0o777, 0o700);
    set(&home, 0o2770); // mode of an `fsGroup` mount
    assert_eq!(Store::home(volume.path()), home);
    drop(open(&home).unwrap());
    assert_eq!(mode(&home) & 0o777, 0o700);
}

#[test]
fn existing_state_in_volume_root_stays_there() {
    let Opened { store, dir, .. } = fresh();
    drop(store);
    set(dir.path(), 0o2770);
    assert_eq!(Store::home(dir.path()), dir.path());
}
