//! `forebay mirror` between directories: what is copied, what is refused, what is said; and what is left when it is killed.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests, of files")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_cli::Status;
use serde_json::Value;

use crate::{Ended, forebay, forebay_on};

/// Two directories of a folder that is removed at the end.
pub(crate) struct Ends {
    pub(crate) folder: tempfile::TempDir,
}

impl Ends {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let ends = Self { folder: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(name, content)| ends.put(&format!("source/{name}"), content));
        ends
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn call(&self, more: &[&str]) -> Ended {
        let [source, target] = ["source", "target"].map(|name| self.path(name).to_str().unwrap().to_owned());
        forebay(&[&["mirror", &source, &target], more].concat())
    }

    /// As a JSON object, and the exit status.
    fn mirror(&self, more: &[&str]) -> (Status, Value) {
        let ended = self.call(&[&["--json"], more].concat());
        assert_eq!(ended.err, "");
        (ended.status, serde_json::from_str(&ended.out).unwrap())
    }

    fn tree(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        tree(&self.path(name))
    }
}

pub(crate) fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut files, mut waiting) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => waiting.push(path),
                false => drop(files.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap())),
            }
        }
    }
    files
}

const FILES: &[(&str, &[u8])] =
    &[("cat/1.jpg", b"one"), ("cat/deep/2.jpg", b"twotwo"), ("dog/empty.jpg", b""), ("dog/a b\n\u{fc}.txt", b"odd")];

pub(crate) fn numbers<const N: usize>(seen: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| seen[name].as_u64().unwrap())
}

#[test]
fn copies_everything_once_with_its_time() {
    let ends = Ends::new(FILES);
    let time = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
    fs::File::options().write(true).open(ends.path("source/cat/1.jpg")).unwrap().set_modified(time).unwrap();
    let (status, seen) = ends.mirror(&[]);
    assert_eq!(status, Status::Fine, "{seen}");
    assert_eq!(numbers(&seen, ["files", "bytes", "copied_files", "copied_bytes", "same_files"]), [4, 12, 4, 12, 0]);
    assert_eq!(ends.tree("target"), ends.tree("source"));
    let metadata = fs::metadata(ends.path("target/cat/1.jpg")).unwrap();
    assert_eq!(metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(), 1_700_000_000_123_456_789);
    let (_, seen) = ends.mirror(&["--verify"]);
    assert_eq!(numbers(&seen, ["copied_files", "read_bytes", "same_files"]), [0, 0, 4]);
    ends.put("source/cat/1.jpg", b"new");
    let (_, seen) = ends.mirror(&["--verify"]);
    assert_eq!(numbers(&seen, ["copied_files", "read_bytes", "same_files"]), [1, 3, 3]);
    assert_eq!(ends.tree("target"), ends.tree("source"));
    let said = ends.call(&[]);
    let expected = "4 files, 12 bytes: 4 were there already\ncopied 0 files, 0 bytes in ";
    assert!(said.status == Status::Fine && said.out.starts_with(expected), "{}", said.out);
}

#[test]
fn a_dry_run_says_what_a_run_would_do_and_does_nothing() {
    let ends = Ends::new(FILES);
    let said = ends.call(&["--dry-run", "--delete"]);
    assert_eq!(said.status, Status::Fine);
    assert!(said.out.contains("copy    \"cat/deep/2.jpg\" (6 bytes)\n"), "{}", said.out);
    assert!(said.out.ends_with("to copy: 4 files, 12 bytes; to remove: 0\n"), "{}", said.out);
    assert!(!ends.path("target").exists());
    ends.put("target/cat/old.jpg", b"old");
    let before = ends.tree("target");
    let (status, seen) = ends.mirror(&["--dry-run", "--delete", "--exclude", "dog"]);
    assert_eq!((status, &seen["removed"]), (Status::Fine, &serde_json::json!(["cat/old.jpg"])));
    assert_eq!(seen["to_copy"], serde_json::json!(["cat/1.jpg", "cat/deep/2.jpg"]));
    assert_eq!(ends.tree("target"), before);
}

#[test]
fn what_the_source_has_not_is_removed_when_asked_and_only_then() {
    let ends = Ends::new(FILES);
    for name in ["cat/old.jpg", "bird/deep/3.jpg", "notes.txt"] {
        ends.put(&format!("target/{name}"), b"old");
    }
    symlink("/nowhere", ends.path("target/cat/link")).unwrap();
    ends.mirror(&[]);
    assert!(ends.path("target/cat/old.jpg").exists());
    let (_, seen) = ends.mirror(&["--delete", "--exclude", "*.txt"]);
    assert_eq!(seen["removed"], serde_json::json!(["bird/deep/3.jpg", "cat/link", "cat/old.jpg"]));
    assert!(!ends.path("target/bird").exists(), "directories that became empty go too");
    assert!(ends.path("target/notes.txt").exists(), "what is left out is left alone");
    let (_, seen) = ends.mirror(&["--delete"]);
    assert_eq!(seen["removed"], serde_json::json!(["notes.txt"]));
    assert_eq!(ends.tree("target"), ends.tree("source"));
}

#[test]
fn nothing_is_removed_if_it_would_be_more_than_allowed() {
    let ends = Ends::new(FILES);
    for name in ["cat/old.jpg", "bird/3.jpg"] {
        ends.put(&format!("target/{name}"), b"old");
    }
    for options in [&["--delete", "--max-delete", "1"][..], &["--delete", "--max-delete", "1", "--dry-run"]] {
        let (status, seen) = ends.mirror(options);
        assert_eq!((status, &seen["removed"]), (Status::Problems, &serde_json::json!([])));
        assert_eq!(
            seen["failures"][0]["message"],
            "nothing was removed: the target has 2 files that are not in the source, and --max-delete is 1"
        );
    }
    let (status, seen) = ends.mirror(&["--delete", "--max-delete", "2"]);
    assert_eq!((status, &seen["removed"]), (Status::Fine, &serde_json::json!(["bird/3.jpg", "cat/old.jpg"])));
    assert_eq!(ends.call(&["--max-delete", "2"]).status, Status::Usage, "it limits --delete");
}

#[test]
fn nothing_is_removed_for_a_source_that_is_not_there_or_empty() {
    let ends = Ends::new(&[]);
    ends.put("target/precious.jpg", b"old");
    let ended = ends.call(&["--delete"]);
    assert_eq!(ended.status, Status::Problems);
    assert!(ended.err.contains("/source\" could not be examined: No such file or directory"), "{}", ended.err);
    fs::create_dir(ends.path("source")).unwrap();
    let (status, seen) = ends.mirror(&["--delete"]);
    assert_eq!(status, Status::Problems);
    assert_eq!(seen["failures"][0]["message"], "nothing was removed: the source has no files at all");
    // Not listed completely: a link that leads back.
    ends.put("source/cat/1.jpg", b"one");
    symlink("..", ends.path("source/cat/up")).unwrap();
    let (status, seen) = ends.mirror(&["--delete"]);
    assert_eq!(status, Status::Problems);
    let said: Vec<_> = seen["failures"].as_array().unwrap().iter().map(|row| row["message"].to_string()).collect();
    assert!(said[0].contains("is a symbolic link to a directory that contains it"), "{said:?}");
    assert!(said[1].contains("nothing was removed: some directories could not be listed"), "{said:?}");
    assert_eq!(fs::read(ends.path("target/precious.jpg")).unwrap(), b"old");
    assert_eq!(fs::read(ends.path("target/cat/1.jpg")).unwrap(), b"one", "the rest is copied all the same");
}

#[test]
fn a_file_that_cannot_be_looked_at_keeps_its_copy() {
    let ends = Ends::new(FILES);
    ends.mirror(&[]);
    let before = ends.tree("target");
    // As if the storage had lost it for a moment.
    fs::remove_file(ends.path("source/cat/1.jpg")).unwrap();
    symlink("nowhere", ends.path("source/cat/1.jpg")).unwrap();
    ends.put("target/old.jpg", b"old");
    let (status, seen) = ends.mirror(&["--delete"]);
    assert_eq!((status, &seen["removed"]), (Status::Problems, &serde_json::json!([])));
    fs::remove_file(ends.path("target/old.jpg")).unwrap();
    assert_eq!(ends.tree("target"), before);
}

#[test]
fn patterns_choose_what_is_copied() {
    let ends = Ends::new(FILES);
    ends.mirror(&["--include", "*.jpg", "--exclude", "deep"]);
    let names: Vec<_> = ends.tree("target").into_keys().collect();
    assert_eq!(names, ["cat/1.jpg", "dog/empty.jpg"].map(PathBuf::from));
}

#[test]
fn links_in_the_target_are_refused_and_listed() {
    let ends = Ends::new(FILES);
    ends.put("outside/1.jpg", b"precious");
    fs::create_dir(ends.path("target")).unwrap();
    symlink("../outside", ends.path("target/cat")).unwrap();
    let (status, seen) = ends.mirror(&["--delete"]);
    assert_eq!(status, Status::Problems);
    let failures = seen["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2, "{failures:?}");
    for failure in failures {
        assert_eq!(failure["code"], "denied");
        assert!(failure["message"].as_str().unwrap().contains("symbolic link"), "{failure}");
    }
    assert_eq!(ends.tree("outside"), BTreeMap::from([("1.jpg".into(), b"precious".to_vec())]));
    assert_eq!(fs::read(ends.path("target/dog/a b\n\u{fc}.txt")).unwrap(), b"odd");
}

#[test]
fn wrong_usage_is_told_before_anything_is_done() {
    let ends = Ends::new(FILES);
    let inside = ends.path("source/inside");
    for (arguments, said) in [
        (["mirror", "source", "source"], "target: expected a location outside the source"),
        (["mirror", "source", inside.to_str().unwrap()], "target: expected a location outside the source"),
        (["mirror", "s3://bucket/a/b", "s3a://bucket/a"], "target: expected a location outside the source"),
        (["mirror", "http://127.0.0.1:1/x", "target"], "source: HTTP servers cannot list their files"),
        (["mirror", "source", "http://127.0.0.1:1/x"], "target: HTTP cannot be written to"),
        (["mirror", "ftp://host/x", "target"], "expected s3://, gs://, az://"),
    ] {
        let place = |text: &str| match text {
            "source" | "target" => ends.path(text).to_str().unwrap().to_owned(),
            other => other.to_owned(),
        };
        let arguments = arguments.map(place);
        let ended = forebay(&arguments.each_ref().map(String::as_str));
        assert_eq!(ended.status, Status::Usage, "{arguments:?}: {}", ended.err);
        assert!(ended.err.contains(said), "{}", ended.err);
    }
    for (more, said) in [
        (["--bandwidth", "fast"], "50MB/s"),
        (["--threads", "0"], "0"),
        (["--include", "[a"], "expected a \"]\""),
        (["--storage-option", "hunter2hunter2"], "expected NAME=VALUE"),
        (["--storage-option", "key=hunter2"], "expected none for a directory"),
    ] {
        let ended = ends.call(&more);
        assert_eq!(ended.status, Status::Usage, "{more:?}: {}", ended.err);
        assert!(ended.err.contains(said) && !ended.err.contains("hunter2"), "{}", ended.err);
    }
    assert!(!ends.path("target").exists());
}

#[test]
fn for_a_source_that_is_not_there_nothing_is_made() {
    let ends = Ends::new(&[]);
    let (none, target) = (ends.path("none"), ends.path("target"));
    let ended = forebay(&["mirror", none.to_str().unwrap(), target.to_str().unwrap()]);
    assert_eq!(ended.status, Status::Problems);
    assert!(
        ended.err.contains("No such file") && ended.err.contains("hint: is the name of the source right"),
        "{}",
        ended.err
    );
    assert!(!target.exists());
    ends.put("target", b"a file");
    ends.put("source/1.jpg", b"one");
    let ended = ends.call(&[]);
    assert_eq!(ended.status, Status::Usage);
    assert!(ended.err.contains("expected a directory or a path that does not exist, got a file"), "{}", ended.err);
}

#[test]
fn on_a_terminal_a_line_shows_bytes_rate_and_time_left() {
    let ends = Ends::new(&[("1.bin", &[7; 300_000]), ("2.bin", &[8; 300_000])]);
    let [source, target] = ["source", "target"].map(|name| ends.path(name).to_str().unwrap().to_owned());
    let ended = forebay_on(true, &["mirror", &source, &target, "--bandwidth", "1MB/s", "--threads", "1"]);
    assert_eq!(ended.status, Status::Fine);
    for part in ["listing  ", "copying  [", "2/2  files  600.0 kB of 600.0 kB", "/s  ", " left"] {
        assert!(ended.err.contains(part), "{part:?} is missing in {:?}", ended.err);
    }
    assert!(ended.err.ends_with("\r\x1b[K") && !ended.err.contains('\n'), "{:?}", ended.err);
}

#[test]
fn the_bandwidth_is_what_was_asked_for() {
    let files: Vec<_> = (0..30).map(|number| (format!("{number}.bin"), vec![number as u8; 100_000])).collect();
    let files: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    let ends = Ends::new(&files);
    ends.put("source/large.bin", &[1; 3_000_000]);
    let started = Instant::now();
    let (status, seen) = ends.mirror(&["--bandwidth", "2MB/s"]);
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!((status, numbers(&seen, ["copied_bytes"])), (Status::Fine, [6_000_000]));
    assert!((2.7..3.3).contains(&seconds), "6 MB at 2 MB/s took {seconds:.2} s");
}

/// Seen with `--no-capture`.
fn say(text: &str) {
    eprintln!("{text}");
}

/// An S3 server that has one good object, and one whose name leads out of every target.
fn hostile_server() -> String {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let object = |key: &str| {
        format!("<Contents><Key>{key}</Key><Size>4</Size><LastModified>2026-11-16T00:00:00Z</LastModified></Contents>")
    };
    let root = format!("{}<CommonPrefixes><Prefix>train/bad/</Prefix></CommonPrefixes>", object("train/ok.jpg"));
    let bad = format!("{}{}", object("train/bad/1.jpg"), object("train/bad/../../../evil.jpg"));
    let answer = move |line: &str| match line {
        line if line.contains("prefix=train%2Fbad%2F") => format!("<ListBucketResult>{bad}</ListBucketResult>"),
        line if line.contains("list-type=2") => format!("<ListBucketResult>{root}</ListBucketResult>"),
        _ => "good".to_owned(),
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                    let body = answer(&line);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: \"v1\"\r\n", body.len());
                    let date = "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT\r\n\r\n";
                    stream.write_all(format!("{head}{date}{body}").as_bytes()).unwrap();
                }
            });
        }
    });
    url
}

#[test]
fn names_that_lead_out_of_the_target_are_refused_and_listed() {
    let ends = Ends::new(&[]);
    let (target, endpoint) = (ends.path("deep/target"), format!("endpoint={}", hostile_server()));
    let options = ["--storage-option", &endpoint, "--storage-option", "anon=true", "--json"];
    let arguments = [&["mirror", "s3://bucket/train", target.to_str().unwrap()], &options[..]].concat();
    let ended = forebay(&arguments);
    assert_eq!(ended.status, Status::Problems, "{}", ended.err);
    let seen: Value = serde_json::from_str(&ended.out).unwrap();
    let failures = seen["failures"].as_array().unwrap();
    let odd = "s3://bucket/train/bad/../../../evil.jpg";
    assert_eq!((failures.len(), failures[0]["path"].as_str()), (1, Some(odd)), "{failures:?}");
    let there: Vec<_> = ends.tree("").into_keys().collect();
    assert_eq!(there, ["deep/target/bad/1.jpg", "deep/target/ok.jpg"].map(PathBuf::from), "and nothing else anywhere");
}

pub(crate) fn is_root() -> bool {
    // SAFETY: it has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The command as a process, where another user could start it too.
pub(crate) fn program(folder: &Path) -> Command {
    let copy = folder.join("forebay");
    fs::copy(env!("CARGO_BIN_EXE_forebay"), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    Command::new(copy)
}

#[test]
fn what_may_not_be_read_is_named_and_the_rest_is_copied() {
    let ends = Ends::new(FILES);
    fs::set_permissions(ends.path("source/cat/1.jpg"), fs::Permissions::from_mode(0o0)).unwrap();
    fs::set_permissions(ends.path("source/cat/deep"), fs::Permissions::from_mode(0o0)).unwrap();
    let mut command = program(ends.folder.path());
    if is_root() {
        command.uid(65_534).gid(65_534);
    }
    let done = command.arg("mirror").args([ends.path("source"), ends.path("target")]).arg("--json").output().unwrap();
    let seen: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{seen}");
    let mut failures: Vec<_> = seen["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let path = Path::new(row["path"].as_str().unwrap()).strip_prefix(ends.path("source")).unwrap().to_owned();
            (path, row["code"].as_str().unwrap(), row["errno"].as_i64().unwrap())
        })
        .collect();
    failures.sort();
    assert_eq!(failures, [("cat/1.jpg".into(), "denied", 13), ("cat/deep".into(), "denied", 13)]);
    assert_eq!(ends.tree("target").len(), 2);
    fs::set_permissions(ends.path("source/cat/deep"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// A file system of one megabyte, until it is dropped.
pub(crate) struct Small(pub(crate) PathBuf);

impl Small {
    pub(crate) fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&path).output();
        match mount {
            Ok(done) if done.status.success() => Some(Self(path)),
            other => {
                forebay_store::testing::missing("mount", &format!("a small tmpfs cannot be mounted: {other:?}"));
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg(&self.0).status();
        assert!(umount.is_ok_and(|status| status.success()), "{:?} is left mounted", self.0);
    }
}

#[test]
fn a_full_disk_stops_it_with_one_message_and_what_is_there_is_valid() {
    let ends = Ends::new(&[]);
    for number in 0..40 {
        ends.put(&format!("source/{number:02}.bin"), &[number; 100_000]);
    }
    let Some(small) = Small::mount(ends.path("target")) else { return };
    let ended = ends.call(&["--threads", "4"]);
    assert_eq!(ended.status, Status::Problems);
    assert_eq!(ended.err.matches("error: ").count(), 1, "{}", ended.err);
    assert!(ended.err.contains("No space left on device [Errno 28]") && ended.err.contains("is full"), "{}", ended.err);
    assert!(!ended.out.contains("failures:"), "{}", ended.out);
    let there = ends.tree("target");
    assert!((5..=10).contains(&there.len()), "{} files", there.len());
    for (name, content) in &there {
        assert!(fs::read(ends.path("source").join(name)).unwrap() == *content, "{name:?}");
    }
    // With less to copy there is room, and the same command goes on.
    for name in ends.tree("source").keys().filter(|name| !there.contains_key(*name)) {
        fs::remove_file(ends.path("source").join(name)).unwrap();
    }
    ends.put("source/last.bin", b"last");
    let (status, seen) = ends.mirror(&["--delete"]);
    assert_eq!((status, numbers(&seen, ["copied_files"])), (Status::Fine, [1]), "{seen}");
    assert_eq!(ends.tree("target"), ends.tree("source"));
    drop(small);
}

/// A source of numbers that differ from run to run.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Bytes that a process has written in its life, as the kernel counts them; it has ended, and was not yet waited for.
fn written_bytes(process: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

pub(crate) fn wait_until_dead(process: u32) {
    let until = Instant::now() + Duration::from_secs(10);
    let is_dead = || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('Z')
    };
    while !is_dead() {
        assert!(Instant::now() < until, "a killed process is still there");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn killed_twenty_times_it_copies_every_byte_once() {
    const KILLS: usize = 20;
    let ends = Ends::new(&[]);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut chance = Chance(seed);
    let mut bytes = |size: usize| -> Vec<u8> { (0..size).map(|_| chance.next() as u8).collect() };
    for number in 0..1_500 {
        let size = 4_000 + number * 13;
        let content = bytes(size);
        ends.put(&format!("source/{:02}/{number:04}.jpg", number % 20), &content);
    }
    for number in 0..3 {
        ends.put(&format!("source/shards/{number}.tar"), &bytes(10_000_000));
    }
    let source = ends.tree("source");
    let all: u64 = source.values().map(|content| content.len() as u64).sum();
    let mirror = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("mirror").args([ends.path("source"), ends.path("target")]).args([
            "--bandwidth",
            "10MB/s",
            "--json",
        ]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let (mut written, mut killed) = (0, 0);
    while killed < KILLS {
        let mut child = mirror();
        std::thread::sleep(Duration::from_millis(20 + chance.next() % 400));
        if child.try_wait().unwrap().is_some() {
            panic!("it was done after {killed} kills (seed {seed})");
        }
        child.kill().unwrap();
        wait_until_dead(child.id());
        written += written_bytes(child.id());
        child.wait().unwrap();
        killed += 1;
        if !ends.path("target").exists() {
            continue;
        }
        for (name, content) in ends.tree("target") {
            if name.extension().is_some_and(|extension| extension != "part") {
                assert!(source[&name] == content, "{name:?} is not whole after kill {killed} (seed {seed})");
            }
        }
    }
    let done = mirror().wait_with_output().unwrap();
    let seen: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{seen}");
    let last = seen["copied_bytes"].as_u64().unwrap();
    written += last;
    assert!(ends.tree("target") == source, "seed {seed}");
    assert!(last < all, "the last run went on: {last} of {all} (seed {seed})");
    let ratio = written as f64 / all as f64;
    say(&format!("{KILLS} kills: {written} bytes written for {all}, {ratio:.4}, the last run {last}"));
    assert!(ratio <= 1.05, "{written} bytes were written for {all}: {ratio:.3} (seed {seed})");
    assert!(ratio >= 1.0, "{ratio}");
    let again: Value = serde_json::from_slice(&mirror().wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(numbers(&again, ["copied_files", "read_bytes"]), [0, 0]);
}
