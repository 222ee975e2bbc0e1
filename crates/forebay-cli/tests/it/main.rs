//! The command as its users see it: what is printed, and the exit status.

use std::ffi::OsString;
use std::path::Path;

use forebay_cli::{Console, Status, run};
use serde_json::Value;

struct Ended {
    status: Status,
    out: String,
    err: String,
}

fn forebay_on(is_terminal: bool, arguments: &[&str]) -> Ended {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = run(arguments.iter().map(OsString::from), &mut Console { out: &mut out, err: &mut err, is_terminal });
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    Ended { status, out: text(out), err: text(err) }
}

fn forebay(arguments: &[&str]) -> Ended {
    forebay_on(false, arguments)
}

fn demo_json(arguments: &[&str]) -> Value {
    let ended = forebay(&[&["demo", "--json"], arguments].concat());
    assert_eq!((ended.status, ended.err.as_str()), (Status::Fine, ""));
    serde_json::from_str(&ended.out).expect("--json gives one object")
}

#[test]
fn the_demo_reports_what_failed_and_balances_its_books() {
    let ended = forebay(&["demo"]);
    assert_eq!((ended.status, ended.err.as_str()), (Status::Fine, ""), "{}", ended.out);
    let lines = [
        "\"checks/0020.jpg\" is truncated (JPEG",
        "\"dots/0005.jpg\" is empty (0 bytes)",
        "\"stripes/0123.png\" is not an image of a known format",
        "\"rings/0008.webp\" could not be opened",
        "hint (not_found): was it moved or deleted after the folder was scanned?",
        "epoch 0: planned 600 = delivered ",
        "epoch 1: planned 600 = delivered ",
        "1200 images in ",
        "every damaged file was found and named, and no batch was lost",
    ];
    for line in lines {
        assert!(ended.out.contains(line), "{line:?} is missing in:\n{}", ended.out);
    }
    assert!(!ended.out.contains('\r'), "a progress line without a terminal");
    let first = ended.out.lines().next().unwrap();
    let folder = first.split(" in ").nth(1).unwrap();
    assert!(!Path::new(folder).exists(), "{folder} was left behind");
}

#[test]
fn on_a_terminal_a_line_shows_the_rate_and_the_failures_and_is_removed_again() {
    let ended = forebay_on(true, &["demo", "--epochs", "1"]);
    assert!(
        ended.err.contains("600/600") && ended.err.contains("images/s") && ended.err.contains("failed"),
        "{}",
        ended.err
    );
    assert!(ended.err.ends_with("\r\x1b[K") && !ended.err.contains('\n'), "{:?}", ended.err);
}

#[test]
fn exactly_the_planted_files_fail_each_as_what_it_is() {
    let seen = demo_json(&[]);
    let folder = Path::new(seen["folder"].as_str().unwrap());
    let planted = seen["planted"].as_array().unwrap();
    assert!(planted.len() >= 10 && seen["problems"].as_array().unwrap().is_empty());
    let pairs = |rows: &Value, epoch: Option<u64>| {
        let rows = rows.as_array().unwrap().iter().filter(|row| epoch.is_none() || row["epoch"].as_u64() == epoch);
        let mut pairs: Vec<_> = rows
            .map(|row| (folder.join(row["path"].as_str().unwrap()), row["code"].as_str().unwrap().to_owned()))
            .collect();
        pairs.sort();
        pairs
    };
    for epoch in 0..2 {
        assert_eq!(pairs(&seen["failures"], Some(epoch)), pairs(&seen["planted"], None), "epoch {epoch}");
    }
    let epochs = seen["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 2);
    for books in epochs {
        let number = |name: &str| books[name].as_u64().unwrap();
        assert_eq!(number("planned"), 600);
        assert_eq!(number("planned"), number("delivered") + number("replaced") + number("skipped"));
        assert_eq!(number("replaced"), planted.len() as u64);
    }
    assert_eq!(seen["images"], 1200);
    for failure in seen["failures"].as_array().unwrap() {
        assert!(!failure["hint"].as_str().unwrap().is_empty() && failure["outcome"] == "replaced", "{failure}");
    }
}

#[test]
fn a_folder_that_was_asked_for_is_left_and_never_mixed_with_other_files() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("new/images");
    let folder = folder.to_str().unwrap();
    let seen = demo_json(&["--epochs", "1", "--folder", folder]);
    assert_eq!((seen["is_kept"].as_bool(), seen["images"].as_u64()), (Some(true), Some(600)));
    assert!(Path::new(folder).join("dots/0000.jpg").is_file());
    let again = forebay(&["demo", "--folder", folder]);
    assert_eq!(again.status, Status::Usage);
    assert!(again.err.contains("--folder: expected a new or an empty folder, got"), "{}", again.err);
}

#[test]
fn a_temporary_folder_is_left_when_asked() {
    let seen = demo_json(&["--epochs", "1", "--keep"]);
    let folder = Path::new(seen["folder"].as_str().unwrap());
    assert!(folder.join("rings").is_dir());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_a_problem_with_a_hint() {
    let ended = forebay(&["demo", "--folder", "/proc/forebay"]);
    assert_eq!(ended.status, Status::Problems);
    assert!(ended.err.starts_with("error: \"/proc/forebay/checks\" could not be created"), "{}", ended.err);
    assert!(ended.err.contains("\nhint: "), "{}", ended.err);
}

#[test]
fn help_and_version_are_fine_and_wrong_usage_is_not() {
    let version = forebay(&["--version"]);
    assert_eq!(
        (version.status, version.out.as_str()),
        (Status::Fine, concat!("forebay ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    let help = forebay(&["--help"]);
    assert!(help.status == Status::Fine && help.out.contains("demo"), "{}", help.out);
    let demo = forebay(&["demo", "--help"]);
    for option in ["--folder", "--json", "--epochs", "--keep"] {
        assert!(demo.out.contains(option), "{}", demo.out);
    }
    for wrong in [&["nonsense"][..], &[], &["demo", "--epochs", "0"], &["demo", "--no-such-option"], &["demo", "extra"]]
    {
        let ended = forebay(wrong);
        assert_eq!(ended.status, Status::Usage, "{wrong:?}");
        assert!(ended.out.is_empty() && !ended.err.is_empty(), "{wrong:?}");
    }
    assert!(forebay(&["dmo"]).err.contains("'demo'"), "no suggestion");
}

/// An output that cannot be written.
struct Closed(std::io::ErrorKind);

impl std::io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn a_pipe_closed_by_its_reader_is_fine_and_a_full_disk_is_not() {
    for (kind, expected) in
        [(std::io::ErrorKind::BrokenPipe, Status::Fine), (std::io::ErrorKind::StorageFull, Status::Problems)]
    {
        let mut err = Vec::new();
        let mut console = Console { out: &mut Closed(kind), err: &mut err, is_terminal: false };
        assert_eq!(run(["--version".into()], &mut console), expected);
    }
}

#[test]
fn the_doctor_is_listed_and_the_bare_program_says_where_it_is() {
    assert!(forebay(&["--help"]).out.contains("doctor"));
    for arguments in [&["doctor"][..], &["doctor", "--help"], &["doctor", "data:train", "--json"]] {
        let ended = forebay(arguments);
        assert_eq!((ended.status, ended.out.as_str()), (Status::Usage, ""), "{arguments:?}");
        assert!(ended.err.contains("python -m forebay doctor"), "{}", ended.err);
    }
    assert!(forebay(&["doctor", "data:train", "--json"]).err.ends_with("doctor data:train --json\n"));
}

/// A cache with three objects in it, and their files.
fn cache(place: &Path) -> (String, Vec<std::path::PathBuf>) {
    use forebay::{Cache, CacheOptions, Cached, Local, Store};
    let cache = place.join("cache");
    let opened = Cache::open(&cache, CacheOptions { limit_bytes: Some(1 << 30), ..CacheOptions::default() }).unwrap();
    let cached = Cached::new(std::sync::Arc::new(Local), opened);
    for name in ["1.jpg", "2.jpg", "3.jpg"] {
        std::fs::write(place.join(name), vec![7; 5_000]).unwrap();
        cached.read(&place.join(name), std::time::Duration::MAX, &mut |_| Ok(Vec::new())).unwrap();
    }
    let shards = std::fs::read_dir(cache.join("v1")).unwrap().map(|shard| shard.unwrap().path());
    let files = shards
        .filter(|shard| shard.is_dir())
        .map(|shard| std::fs::read_dir(shard).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>());
    (cache.to_str().unwrap().to_owned(), files.flatten().collect())
}

#[test]
fn a_cache_is_looked_at_checked_and_emptied() {
    let place = tempfile::tempdir().unwrap();
    let (root, files) = cache(place.path());
    let info = forebay(&["cache", "info", &root]);
    assert_eq!((info.status, info.err.as_str()), (Status::Fine, ""));
    assert_eq!(info.out, format!("3 objects, 24.0 KiB of at most 1.0 GiB in {root}\n"));
    let info: Value = serde_json::from_str(&forebay(&["cache", "info", "--json", &root]).out).unwrap();
    assert_eq!(
        (info["entries"].as_u64(), info["bytes"].as_u64(), info["foreign"].as_u64()),
        (Some(3), Some(24_576), Some(0))
    );
    assert!(info["oldest_unix_seconds"].as_f64().unwrap() > 1.7e9);

    let verified = forebay(&["cache", "verify", &root]);
    assert_eq!(
        (verified.status, verified.out.as_str()),
        (Status::Fine, "3 objects, 14.6 KiB, are whole; 0 were damaged\n")
    );
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    std::fs::File::options().write(true).open(&files[1]).unwrap().set_len(9).unwrap();
    let verified = forebay_on(true, &["cache", "verify", &root]);
    assert_eq!(verified.status, Status::Problems);
    assert!(verified.out.contains("damaged, removed: v1/") && verified.out.contains(".jpg\""), "{}", verified.out);
    assert!(verified.out.contains("of an object that it does not name"), "{}", verified.out);
    assert!(verified.out.ends_with("1 objects, 4.9 KiB, are whole; 2 were damaged\n"), "{}", verified.out);
    assert!(verified.err.contains("256/256"), "{:?}", verified.err);
    let again: Value = serde_json::from_str(&forebay(&["cache", "verify", &root, "--json"]).out).unwrap();
    assert_eq!((again["entries"].as_u64(), again["damaged"].as_array().map(Vec::len)), (Some(1), Some(0)));

    std::fs::write(Path::new(&root).join("v1/mine"), "").unwrap();
    let cleared = forebay(&["cache", "clear", &root]);
    assert_eq!(cleared.status, Status::Fine);
    assert_eq!(cleared.out, format!("removed 1 objects, 8.0 KiB, from {root}\nleft 1 that are not of forebay\n"));
    assert!(Path::new(&root).join("v1/mine").exists() && !files[2].exists());
}

#[test]
fn what_is_no_cache_is_not_touched() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("thesis.tex"), "mine").unwrap();
    for action in ["info", "verify", "clear"] {
        let ended = forebay(&["cache", action, place.path().to_str().unwrap()]);
        assert_eq!((ended.status, ended.out.as_str()), (Status::Problems, ""));
        assert!(ended.err.contains("is not a cache of forebay") && ended.err.contains("hint: "), "{}", ended.err);
        assert_eq!(forebay(&["cache", action, "/nowhere/at/all"]).status, Status::Problems);
        assert_eq!(forebay(&["cache", action]).status, Status::Usage);
    }
    assert_eq!(std::fs::read(place.path().join("thesis.tex")).unwrap(), b"mine");
}
