//! The file handler on real files.

use std::{cell::Cell, collections::BTreeMap, fs, sync::Arc, time::SystemTime};

use jiff::{fmt::strtime, tz::TimeZone};

use super::*;
use crate::{
    change::Change,
    cloud_event::Encoder,
    journal::{Record, Sequence, UnitId, testing::*},
    notification::{Event, UnitInfo},
    object::ResourceType,
    private_dir::tests::mode,
};

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(1_795_243_203) };
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW.get()).unwrap()
}

fn batch(from: u64, events: u64) -> Notification {
    let (version, kind, plural) = ("v1".into(), "Pod".into(), "pods".into());
    let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
    let unit = Arc::new(UnitInfo { entry: "pods".into(), resource, namespace: None });
    let record = |n| {
        let change: Change = added("web", "u", n);
        Record { sequence: Sequence(n), unit: UnitId(0), time_micros: 0, change, old_lost: false }
    };
    Notification::new((from..from + events).map(|n| Event { unit: unit.clone(), record: record(n) }).collect())
}

fn options(path: &Path) -> FileOptions {
    let path = path.to_str().unwrap().to_owned();
    FileOptions { path, rotate: None, fsync: FileFsync::Never, permissions: Permissions::default() }
}

fn handler(options: FileOptions) -> FileHandler {
    FileHandler::with_clock(options, Encoder::new("c", "j"), now, &Replaced::default()).unwrap()
}

/// Returns the resource versions in all files of a directory by file name, decompressed.
fn content(directory: &Path) -> BTreeMap<String, Vec<u64>> {
    let read = |path: PathBuf| {
        let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(path).unwrap();
        let bytes = if Path::new(&name).extension().is_some_and(|end| end == "zst") {
            zstd::decode_all(&bytes[..]).unwrap()
        } else {
            bytes
        };
        let version = |line: &str| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            event["resourceversion"].as_str().unwrap().parse().unwrap()
        };
        (name, String::from_utf8(bytes).unwrap().lines().map(version).collect())
    };
    files(directory).into_iter().map(read).collect()
}

/// Returns the files in a directory and its subdirectories.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the resource versions in all files of a directory, sorted.
fn versions(directory: &Path) -> Vec<u64> {
    let mut versions: Vec<u64> = content(directory).into_values().flatten().collect();
    versions.sort_unstable();
    versions
}

const MIDNIGHT: i64 = 1_795_305_600;

fn rotating(path: &Path, max_bytes: u64, keep: u32, compress: FileCompression) -> FileOptions {
    FileOptions { rotate: Some(Rotate { max_bytes, keep: Some(keep), compress, ..Rotate::default() }), ..options(path) }
}

#[test]
fn lines_are_appended_and_directories_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/out.jsonl");
    for start in [1, 3] {
        let mut handler = handler(FileOptions { fsync: FileFsync::Always, ..options(&path) });
        handler.deliver(&batch(start, 2)).unwrap();
        handler.close().unwrap();
    }
    assert_eq!(content(path.parent().unwrap()), BTreeMap::from([("out.jsonl".into(), vec![1, 2, 3, 4])]));
}

#[test]
fn keep_zero_removes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut handler = handler(FileOptions {
        rotate: Some(Rotate { max_bytes: 1200, keep: Some(0), compress: FileCompression::None, ..Rotate::default() }),
        ..options(&dir.path().join("out.jsonl"))
    });
    for n in 0..5 {
        NOW.set(1_795_243_203 + n);
        handler.deliver(&batch(1 + 2 * n.cast_unsigned(), 2)).unwrap();
    }
    handler.close().unwrap();
    assert_eq!(content(dir.path()).into_values().flatten().collect::<Vec<_>>().len(), 10);
}

#[test]
fn closed_files_are_removed_by_age_alone() {
    let dir = tempfile::tempdir().unwrap();
    let days = |days: u32| MIDNIGHT - 86_400 * i64::from(days);
    for age in 1..=50 {
        let name =
            strtime::format("%Y-%m-%d.jsonl", &Timestamp::from_second(days(age)).unwrap().to_zoned(TimeZone::UTC));
        let file = File::create(dir.path().join(name.unwrap())).unwrap();
        file.set_modified(SystemTime::from(Timestamp::from_second(days(age)).unwrap())).unwrap();
    }
    let rotate =
        Rotate { keep_for: Duration::from_hours(30 * 24), compress: FileCompression::None, ..Rotate::default() };
    let template = dir.path().join("%Y-%m-%d.jsonl");
    let mut rotated =
        Rotated::new(template.to_str().unwrap(), Some(&rotate), || Timestamp::from_second(MIDNIGHT).unwrap());
    rotated.look(&dir.path().join("2026-11-22.jsonl"));
    rotated.close();
    // More than the 30 files that `keep` would leave on its own.
    assert_eq!(files(dir.path()).len(), 30);
    let limits = [(None, 0, Some(30)), (None, 1, None), (Some(0), 0, None), (Some(9), 1, Some(9))];
    for (keep, days, files) in limits {
        let rotate = Rotate { keep, keep_for: Duration::from_hours(24 * days), ..Rotate::default() };
        assert_eq!(rotate.files_max(), files);
    }
}

#[test]
fn full_file_is_rotated_and_oldest_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("out.jsonl.backup");
    fs::write(&foreign, "").unwrap();
    let mut handler = handler(FileOptions {
        rotate: Some(Rotate { max_bytes: 1200, keep: Some(2), compress: FileCompression::Zstd, ..Rotate::default() }),
        ..options(&dir.path().join("out.jsonl"))
    });
    for n in 0..10 {
        NOW.set(1_795_243_203 + n);
        handler.deliver(&batch(1 + 2 * n.cast_unsigned(), 2)).unwrap();
        std::thread::sleep(Duration::from_millis(15)); // files of the same age have no order
    }
    handler.close().unwrap();
    assert!(foreign.exists());
    fs::remove_file(foreign).unwrap();
    let expected = BTreeMap::from([
        ("out.jsonl".into(), vec![19, 20]),
        ("out.jsonl.20261121T064011.000000Z.zst".into(), vec![15, 16]),
        ("out.jsonl.20261121T064012.000000Z.zst".into(), vec![17, 18]),
    ]);
    assert_eq!(content(dir.path()), expected);
}

#[test]
fn new_utc_day_starts_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut handler = handler(FileOptions {
        rotate: Some(Rotate {
            max_bytes: u64::MAX,
            keep: Some(1),
            compress: FileCompression::None,
            ..Rotate::default()
        }),
        ..options(&dir.path().join("x-%Y-%m-%d.jsonl"))
    });
    for day in 0..3 {
        NOW.set(1_795_243_203 + day * 86_400);
        handler.deliver(&batch(1 + day.cast_unsigned(), 1)).unwrap();
        std::thread::sleep(Duration::from_millis(15));
    }
    handler.close().unwrap();
    let expected = BTreeMap::from([("x-2026-11-22.jsonl".into(), vec![2]), ("x-2026-11-23.jsonl".into(), vec![3])]);
    assert_eq!(content(dir.path()), expected);
}

#[test]
fn rotated_and_compressed_files_keep_configured_permissions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("day/out.jsonl");
    for (permissions, of_directory) in [(0o640, 0o750), (0o600, 0o700), (0o664, 0o775)] {
        let rotate =
            Some(Rotate { max_bytes: 1, keep: Some(100), compress: FileCompression::Zstd, ..Rotate::default() });
        let mut handler = handler(FileOptions { rotate, permissions: Permissions(permissions), ..options(&path) });
        handler.deliver(&batch(1, 1)).unwrap();
        handler.deliver(&batch(2, 1)).unwrap();
        handler.close().unwrap();
        let files: Vec<_> = fs::read_dir(dir.path().join("day")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 2);
        assert!(files.iter().any(|file| file.extension().is_some_and(|end| end == "zst")));
        assert!(files.iter().all(|file| mode(file) == permissions), "{files:?}");
        let entered = mode(&dir.path().join("day"));
        assert!(entered & 0o700 == 0o700 && entered & !of_directory == 0, "{entered:o}, for the umask may take bits");
        fs::remove_dir_all(dir.path().join("day")).unwrap();
    }
}

#[test]
fn partial_event_is_truncated_and_foreign_line_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    for (tail, kept) in [
        (r#"{"specversion":"1.0","id":"5f"#.to_owned(), ""),
        (r#"{"spec"#.to_owned(), ""),
        (format!(r#"{{"specversion":"1.0","x":"{}"#, "y".repeat(200_000)), ""),
        ("hello".to_owned(), "hello\n"),
    ] {
        fs::write(&path, format!("{{}}\n{tail}")).unwrap();
        handler(options(&path)).deliver(&batch(1, 1)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(&format!("{{}}\n{kept}{{\"specversion\"")), "{text}");
        assert!(text.ends_with("}\n"));
    }
}

#[test]
fn removed_or_truncated_file_is_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let mut handler = handler(options(&path));
    handler.deliver(&batch(1, 1)).unwrap();
    fs::remove_file(&path).unwrap();
    handler.deliver(&batch(2, 1)).unwrap();
    fs::write(&path, "").unwrap();
    handler.deliver(&batch(3, 1)).unwrap();
    assert_eq!(content(dir.path())["out.jsonl"], [3]);
}

#[test]
fn full_device_is_temporary_failure() {
    let mut handler = handler(options(Path::new("/dev/full")));
    let error = handler.deliver(&batch(1, 1)).unwrap_err();
    assert!(matches!(error, HandlerError::Failed(_)) && error.to_string().contains("/dev/full"), "{error}");
    let missing =
        FileHandler::new(options(Path::new("/proc/nowhere/out")), Encoder::new("c", "j"), &Replaced::default());
    assert!(missing.is_err_and(|error| error.to_string().starts_with("failed to open /proc/nowhere/out")));
}

/// The disk fills up in the middle of a batch. Uses its own process, because a file size limit applies to a process.
#[test]
fn full_disk_leaves_no_partial_line() {
    const CHILD: &str = "DELTABUS_TEST_FULL_DISK";
    if let Some(path) = std::env::var_os(CHILD) {
        let mut handler = handler(options(Path::new(&path)));
        handler.deliver(&batch(1, 2)).unwrap();
        let error = handler.deliver(&batch(3, 20)).unwrap_err();
        assert!(matches!(error, HandlerError::Failed(_)), "{error}");
        handler.deliver(&batch(3, 1)).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let name = "full_disk_leaves_no_partial_line";
    let status = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--test-threads=1", name])
        .env(CHILD, &path)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(content(dir.path())["out.jsonl"], [1, 2, 3]);
}

#[test]
fn abandoned_thread_leaves_successor_file_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let returned = options(&path);
    let thread = std::thread::spawn({
        let path = path.clone();
        move || {
            let token = Replaced::default();
            let open = || FileHandler::with_clock(returned.clone(), Encoder::new("c", "j"), now, &token);
            let mut handler = open().unwrap();
            token.set();
            // its replacement is in the middle of a line
            fs::write(&path, EVENT_START).unwrap();
            let refused = handler.deliver(&batch(1, 1)).unwrap_err().to_string();
            let unopened = open().map(drop).unwrap_err();
            (refused, unopened.to_string())
        }
    });
    let (refused, unopened) = thread.join().unwrap();
    assert!(refused.contains(REPLACED) && unopened.contains(REPLACED), "{refused}; {unopened}");
    assert_eq!(fs::read(&path).unwrap(), EVENT_START);
}

#[test]
fn repeated_name_overwrites_no_closed_file() {
    let at_midnight = [-1, 1, -3, 2, -2, 3, 86_400];
    let in_circles = [0, 1, 2, 60, 61, 120, 121];
    for (template, seconds) in
        [("%Y-%m-%d.jsonl", at_midnight), ("%S.jsonl", in_circles), ("%A/%H%M.jsonl", at_midnight)]
    {
        let dir = tempfile::tempdir().unwrap();
        for (n, second) in (1..).zip(seconds) {
            NOW.set(MIDNIGHT + second);
            let mut handler = handler(rotating(&dir.path().join(template), u64::MAX, 0, FileCompression::Zstd));
            handler.deliver(&batch(n, 1)).unwrap();
            handler.close().unwrap(); // waits for the compression
        }
        assert_eq!(versions(dir.path()), [1, 2, 3, 4, 5, 6, 7], "{template}: {:?}", content(dir.path()));
    }
}

#[test]
fn rotation_after_clock_was_set_back_overwrites_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut handler = handler(rotating(&dir.path().join("out.jsonl"), 1, 0, FileCompression::Zstd));
    for n in 1..8 {
        NOW.set(MIDNIGHT); // the clock stands still
        handler.deliver(&batch(n, 1)).unwrap();
    }
    handler.close().unwrap();
    assert_eq!(versions(dir.path()), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn file_in_use_is_neither_compressed_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("%Y-%m-%d.jsonl");
    NOW.set(MIDNIGHT - 1);
    let mut before = handler(options(&template));
    before.deliver(&batch(1, 1)).unwrap();
    NOW.set(MIDNIGHT);
    handler(rotating(&template, u64::MAX, 1, FileCompression::Zstd)).close().unwrap();
    assert_eq!(content(dir.path())["2026-11-21.jsonl"], [1]);
    before.close().unwrap();
    handler(rotating(&template, u64::MAX, 1, FileCompression::Zstd)).close().unwrap();
    assert_eq!(content(dir.path())["2026-11-21.jsonl.zst"], [1]);
}

#[test]
fn planted_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [victim, closed] = ["victim", "2026-11-21.jsonl"].map(|name| dir.path().join(name));
    fs::write(&victim, "precious").unwrap();
    for planted in ["2026-11-21.jsonl.zst.part", "2026-11-21.jsonl.zst", "2026-11-20.jsonl"] {
        let link = dir.path().join(planted);
        NOW.set(MIDNIGHT - 1);
        handler(options(&dir.path().join("%Y-%m-%d.jsonl"))).deliver(&batch(1, 1)).unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        NOW.set(MIDNIGHT);
        handler(rotating(&dir.path().join("%Y-%m-%d.jsonl"), u64::MAX, 0, FileCompression::Zstd)).close().unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{planted}");
        assert!(!closed.exists(), "{planted}: the closed file is compressed");
        let compressed = |path: &PathBuf| path.extension().is_some_and(|end| end == "zst") && !path.is_symlink();
        let made: Vec<_> = files(dir.path()).into_iter().filter(compressed).collect();
        assert_eq!(made.len(), 1, "{planted}: {made:?}");
        fs::remove_file(&made[0]).unwrap();
        drop(fs::remove_file(&link));
    }
}

#[test]
fn directories_of_earlier_dates_are_tidied() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("%Y/%m-%d/out.jsonl");
    let foreign = ["2026/notes/out.jsonl", "other/out.jsonl", "2026/11-21/x.jsonl"].map(|name| dir.path().join(name));
    for path in &foreign {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    for day in 0..5 {
        NOW.set(MIDNIGHT - 86_400 + 86_400 * day);
        let mut handler = handler(rotating(&template, u64::MAX, 2, FileCompression::Zstd));
        handler.deliver(&batch(1 + day.cast_unsigned(), 1)).unwrap();
        handler.close().unwrap();
        std::thread::sleep(Duration::from_millis(15)); // files of the same age have no order
    }
    for path in &foreign {
        fs::remove_file(path).unwrap();
    }
    let expected = BTreeMap::from([
        ("2026/11-23/out.jsonl.zst".into(), vec![3]),
        ("2026/11-24/out.jsonl.zst".into(), vec![4]),
        ("2026/11-25/out.jsonl".into(), vec![5]),
    ]);
    assert_eq!(content(dir.path()), expected);
    assert!(dir.path().join("2026/11-21").exists() && !dir.path().join("2026/11-22").exists());
}

#[test]
fn batch_larger_than_a_file_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let mut handler = handler(rotating(&dir.path().join("out.jsonl"), 1200, 0, FileCompression::None));
    handler.deliver(&batch(1, 20)).unwrap();
    handler.close().unwrap();
    assert_eq!(versions(dir.path()), (1..=20).collect::<Vec<_>>());
    let sizes: Vec<_> = files(dir.path()).iter().map(|path| fs::metadata(path).unwrap().len()).collect();
    assert!(sizes.iter().all(|size| (300..=1200).contains(size)), "{sizes:?}");
}

/// The second file of a batch cannot be opened, because its directory is a file.
#[test]
fn retry_of_a_cut_batch_repeats_no_event() {
    let dir = tempfile::tempdir().unwrap();
    let moments = || Timestamp::from_second(NOW.replace(NOW.get() + 1)).unwrap();
    NOW.set(MIDNIGHT);
    let options = rotating(&dir.path().join("%S/out.jsonl"), 1200, 0, FileCompression::None);
    let mut handler = FileHandler::with_clock(options, Encoder::new("c", "j"), moments, &Replaced::default()).unwrap();
    fs::write(dir.path().join("02"), "").unwrap();
    handler.deliver(&batch(1, 7)).unwrap_err();
    fs::remove_file(dir.path().join("02")).unwrap();
    handler.deliver(&batch(1, 7)).unwrap();
    handler.close().unwrap();
    let lines: Vec<_> = content(dir.path()).into_values().flatten().collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 6, 7], "{:?}", content(dir.path()));
}
