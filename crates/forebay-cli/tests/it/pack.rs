//! `forebay pack`: what is said, and what is left when it is killed or its disk is full.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, of files")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_cli::Status;
use serde_json::Value;

use crate::mirror::{Chance, Ends, Small, is_root, numbers, program, tree, wait_until_dead};
use crate::{Ended, forebay, forebay_on};

impl Ends {
    /// Folders of classes with grey pictures of this many pixels a side.
    fn of_pictures(count: u32, side: u32) -> Self {
        let ends = Self::new(&[]);
        for number in 0..count {
            let pixels = (0..side * side).map(|at| (at.wrapping_mul(number + 3) >> 2) as u8);
            let picture: Vec<u8> = format!("P5 {side} {side} 255\n").into_bytes().into_iter().chain(pixels).collect();
            ends.put(&format!("source/class{}/{number:05}.pgm", number % 3), &picture);
        }
        ends
    }

    fn arguments(&self, target: &str) -> Vec<String> {
        let text = |name: &str| self.path(name).to_str().unwrap().to_owned();
        vec!["pack".to_owned(), text("source"), "-o".to_owned(), text(target)]
    }

    fn call_pack(&self, more: &[&str]) -> Ended {
        let arguments = self.arguments("target");
        let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        forebay(&arguments)
    }

    fn pack(&self, more: &[&str]) -> (Status, Value) {
        let ended = self.call_pack(&[&["--json"], more].concat());
        assert_eq!(ended.err, "");
        (ended.status, serde_json::from_str(&ended.out).unwrap())
    }
}

#[test]
fn says_what_it_made_and_what_it_left_out() {
    let ends = Ends::of_pictures(6, 8);
    ends.put("source/class0/bad.pgm", b"P5 8 8 255\n");
    let ended = ends.call_pack(&["--samples-per-shard", "4"]);
    assert_eq!((ended.status, ended.err.as_str()), (Status::Problems, ""));
    let target = ends.path("target").display().to_string();
    let lines: Vec<_> = ended.out.lines().collect();
    let [shards, classes, left_out, why, done] = lines[..] else { panic!("{}", ended.out) };
    assert_eq!(shards, format!("6 of 7 samples in 2 shards in {target}, 14.3 kB"));
    assert_eq!(classes, "3 classes, named in classes.json");
    assert_eq!(left_out, format!("1 sample is not in the shards, and named in {target}/forebay-ledger.jsonl"));
    assert!(why.starts_with("  corrupt      \"") && why.contains("bad.pgm\" is truncated (PNM)"), "{why}");
    assert!(done.starts_with("done in "), "{done}");
    let again = ends.call_pack(&["--samples-per-shard", "4"]);
    assert!(
        again.out.contains("in 2 shards") && again.out.contains("14.3 kB; 2 of these were there already\n"),
        "{}",
        again.out
    );
    assert_eq!(
        fs::read_to_string(ends.path("target/classes.json")).unwrap(),
        "{\n  \"class0\": 0,\n  \"class1\": 1,\n  \"class2\": 2\n}\n"
    );
}

#[test]
fn json_has_all_of_it() {
    let ends = Ends::of_pictures(7, 16);
    let (status, seen) = ends.pack(&["--max-side", "8", "--format", "jpeg", "--shuffle", "1", "--prefix", "train"]);
    assert_eq!(status, Status::Fine, "{seen}");
    assert_eq!(numbers(&seen, ["samples", "packed", "failed", "kept_shards"]), [7, 7, 0, 0]);
    assert_eq!(seen["shards"][0]["name"], "train-000000.tar");
    assert_eq!(seen["classes"], serde_json::json!({"class0": 0, "class1": 1, "class2": 2}));
    assert_eq!(numbers(&seen["pictures"], ["written_again", "bytes_before"]), [7, 7 * (256 + 13)]);
    assert!(seen["failures"].as_array().unwrap().is_empty() && seen["ledger"].is_null() && seen["stopped"].is_null());
}

#[test]
fn wrong_settings_are_wrong_usage() {
    let ends = Ends::of_pictures(2, 8);
    for (more, said) in [
        (&["--quality", "80"][..], "--quality: expected --max-side or --format as well"),
        (&["--shard-size", "much"], "expected bytes like 256MiB"),
        (&["--max-failures", "some"], "expected a number like 100"),
        (&["--storage-option", "key=a"], "--storage-option: expected none for a directory"),
        (&["--prefix", "a/b"], "--prefix: expected up to 200 letters"),
        (&["--format", "gif"], "invalid value 'gif'"),
    ] {
        let ended = ends.call_pack(more);
        assert_eq!((ended.status, ended.out.as_str()), (Status::Usage, ""), "{more:?}");
        assert!(ended.err.contains(said), "{}", ended.err);
    }
    assert!(!ends.path("target").exists());
    ends.call_pack(&[]);
    let ended = ends.call_pack(&["--shuffle", "5"]);
    assert_eq!(ended.status, Status::Usage);
    assert!(ended.err.contains("shuffle (expected null, got 5)") && ended.err.contains("\nhint: "), "{}", ended.err);
}

#[test]
fn a_terminal_shows_how_far_it_is() {
    let ends = Ends::of_pictures(30, 8);
    let arguments = ends.arguments("target");
    let ended = forebay_on(true, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ended.status, Status::Fine);
    assert!(ended.err.contains("packing  [") && ended.err.contains("30/30  samples"), "{:?}", ended.err);
    assert!(ended.err.ends_with("\r\x1b[K"), "{:?}", ended.err);
}

#[test]
fn a_target_that_may_not_be_written_to_is_named() {
    let ends = Ends::of_pictures(3, 8);
    fs::create_dir(ends.path("target")).unwrap();
    fs::set_permissions(ends.path("target"), fs::Permissions::from_mode(0o555)).unwrap();
    let mut command = program(ends.folder.path());
    if is_root() {
        command.uid(65_534).gid(65_534);
    }
    let done = command.args(ends.arguments("target")).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("target") && said.contains("Permission denied [Errno 13]"), "{said}");
    assert_eq!(tree(&ends.path("target")).len(), 0);
}

#[test]
fn a_full_disk_stops_it_and_there_is_room_for_more_later() {
    let ends = Ends::of_pictures(40, 220);
    let Some(small) = Small::mount(ends.path("target")) else { return };
    let ended = ends.call_pack(&["--shard-size", "200KiB", "--threads", "4"]);
    assert_eq!(ended.status, Status::Problems);
    assert_eq!(ended.err.matches("error: ").count(), 1, "{}", ended.err);
    assert!(ended.err.contains("No space left on device [Errno 28]"), "{}", ended.err);
    assert!(ended.err.ends_with("all finished shards are complete; run the same command to resume\n"), "{}", ended.err);
    let there = tree(&ends.path("target"));
    assert!(there.keys().all(|name| name.extension().is_none_or(|ending| ending != "part")), "{:?}", there.keys());
    let mut larger = Command::new("mount");
    larger.args(["-o", "remount,size=8m"]).arg(&small.0);
    assert!(larger.status().unwrap().success());
    let (status, seen) = ends.pack(&["--shard-size", "200KiB", "--threads", "4"]);
    assert_eq!(status, Status::Fine, "{seen}");
    let [kept, packed] = numbers(&seen, ["kept_shards", "packed"]);
    assert!(kept >= 1 && packed == 40, "{seen}");
    drop(small);
}

/// Everything that does not say when or how fast it was made.
fn lasting(target: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = tree(target);
    found.retain(|name, _| !matches!(name.to_str(), Some("forebay-ledger.jsonl" | "forebay-pack.json")));
    found
}

#[test]
fn killed_twenty_times_it_makes_the_same_bytes() {
    const KILLS: usize = 20;
    let ends = Ends::of_pictures(1_500, 64);
    ends.put("source/class1/bad.pgm", b"P5 64 64 255\nshort");
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut chance = Chance(seed);
    let settings = [
        "--samples-per-shard",
        "50",
        "--shuffle",
        "3",
        "--max-side",
        "48",
        "--format",
        "jpeg",
        "--parity",
        "5%",
        "--threads",
        "2",
        "--json",
    ];
    let start = |target: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(ends.arguments(target)).args(settings).stdout(Stdio::piped()).spawn().unwrap()
    };
    let begun = std::time::Instant::now();
    let whole = start("whole").wait_with_output().unwrap();
    let took = begun.elapsed();
    assert_eq!(whole.status.code(), Some(1), "one sample is bad");
    let expected = lasting(&ends.path("whole"));
    let (mut killed, mut finished) = (0, 0);
    for _ in 0..KILLS {
        let mut child = start("target");
        // Anywhere in a run, so that some of it is done each time and all of it hardly ever.
        std::thread::sleep(Duration::from_micros(chance.next() % (took.as_micros() as u64 * 2 / 3).max(1)));
        if child.try_wait().unwrap().is_some() {
            finished += 1;
            fs::remove_dir_all(ends.path("target")).unwrap();
            continue;
        }
        child.kill().unwrap();
        wait_until_dead(child.id());
        child.wait().unwrap();
        killed += 1;
        if !ends.path("target").exists() {
            continue;
        }
        for (name, content) in tree(&ends.path("target")) {
            if name.extension().is_some_and(|ending| ending == "tar") {
                assert!(expected[&name] == content, "{name:?} is not whole after kill {killed} (seed {seed})");
            }
        }
    }
    let done = start("target").wait_with_output().unwrap();
    let seen: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{seen}");
    assert_eq!(numbers(&seen, ["packed", "failed"]), [1_500, 1]);
    assert!(lasting(&ends.path("target")) == expected, "seed {seed}");
    assert!(killed >= KILLS / 2, "{finished} of {KILLS} were done before they were killed (seed {seed})");
    let ledger = fs::read_to_string(ends.path("target/forebay-ledger.jsonl")).unwrap();
    assert!(ledger.lines().count() >= 1 && ledger.lines().all(|line| line.contains("class1/bad.pgm")), "{ledger}");
}
