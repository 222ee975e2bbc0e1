//! The command as its users see it: what is printed, and the exit status.

mod cache;
mod mirror;
mod pack;
mod parity;
mod scan;
mod tokenize;

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
    assert!(again.err.contains("--folder: expected a new or empty folder, got"), "{}", again.err);
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
