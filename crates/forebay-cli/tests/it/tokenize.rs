//! `forebay pack --tokenize`: what it prints and writes, how it ends, and what is there after it was killed.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, on real files")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forebay_cli::Status;
use serde_json::{Value, json};

use crate::{Ended, forebay};

/// Words are tokens.
fn tokenizer() -> String {
    let vocabulary = json!({"?": 0, "<|end|>": 1, "ein": 2, "zwei": 3, "drei": 4});
    let added = json!({
        "id": 1, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}
    })
    .to_string()
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(lines: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), tokenizer()).unwrap();
        fs::create_dir(folder.path().join("corpus")).unwrap();
        fs::write(folder.path().join("corpus/a.jsonl"), lines.join("\n")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn arguments(&self, target: &str, more: &[&str]) -> Vec<String> {
        let text = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let own = ["pack", &text("corpus"), "-o", &text(target), "--tokenize", &text("tokenizer.json")];
        own.iter().chain(more).map(|&argument| argument.to_owned()).collect()
    }

    fn pack(&self, target: &str, more: &[&str]) -> Ended {
        forebay(&self.arguments(target, more).iter().map(String::as_str).collect::<Vec<_>>())
    }
}

fn line(number: usize) -> String {
    format!("{{\"text\": \"{}drei\"}}", "ein zwei ".repeat(number % 7))
}

/// The files of tokens, by name.
fn files(target: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut names: Vec<_> = fs::read_dir(target).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|ending| ending == "bin" || ending == "idx"));
    names.sort();
    names.into_iter().map(|path| (path.file_name().unwrap().into(), fs::read(path).unwrap())).collect()
}

#[test]
fn it_says_what_was_made_and_what_is_missing() {
    let place = Place::new(&[line(1), "{\"text\": \"\"}".into(), "{\"text\": 1}".into(), line(0)]);
    let ended = place.pack("tokens", &["--append", "<|end|>"]);
    assert_eq!((ended.status, ended.err.as_str()), (Status::Problems, ""));
    let target = place.path("tokens");
    let said: Vec<_> = ended.out.lines().collect();
    assert_eq!(said[0], format!("6 tokens (uint16) of 2 documents in 1 shard in {}", target.display()));
    assert_eq!(said[1], "1 document without a token is left out");
    let ledger = target.join("forebay-ledger.jsonl");
    assert_eq!(said[2], format!("1 document is not in the shards, and named in {}", ledger.display()));
    assert!(said[3].starts_with("done in "), "{}", ended.out);
    assert!(fs::read_to_string(ledger).unwrap().contains("is no text"));
    assert_eq!(fs::read(target.join("tokens-000000.bin")).unwrap(), [2, 0, 3, 0, 4, 0, 1, 0, 4, 0, 1, 0]);

    let again = place.pack("tokens", &["--append", "<|end|>", "--json"]);
    let json: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&json["tokens"], &json["kept_shards"], &json["failed"]), (&json!(6), &json!(1), &json!(1)));
}

#[test]
fn wrong_usage_is_said_and_nothing_is_written() {
    let place = Place::new(&[line(1)]);
    for (more, told) in [
        (&["--append", "nothing"][..], "--append"),
        (&["--max-side", "512"], "cannot be used with"),
        (&["--documents", "pages"], "--documents"),
    ] {
        let ended = place.pack("tokens", more);
        assert_eq!(ended.status, Status::Usage, "{}", ended.err);
        assert!(ended.err.contains(told), "{}", ended.err);
    }
    fs::write(place.path("corpus/b.txt"), "ein").unwrap();
    let source = place.path("corpus/b.txt");
    let (source, target) = (source.to_str().unwrap(), place.path("tokens"));
    let tokenizer = place.path("tokenizer.json");
    let arguments = ["pack", source, "-o", target.to_str().unwrap(), "--tokenize", tokenizer.to_str().unwrap()];
    let ended = forebay(&arguments);
    assert_eq!(ended.status, Status::Usage);
    assert!(ended.err.contains("--documents lines or --documents files"), "{}", ended.err);
    assert!(!target.exists());
    fs::write(&tokenizer, "{}").unwrap();
    let ended = place.pack("tokens", &[]);
    assert!(ended.status == Status::Usage && ended.err.contains("is no tokenizer"), "{}", ended.err);
}

#[test]
fn a_run_that_was_killed_is_finished_by_the_next_one() {
    let lines: Vec<_> = (0..40_000).map(line).collect();
    let (place, settings) = (Place::new(&lines), ["--shard-size", "40kB"]);
    let whole = place.pack("whole", &settings);
    assert_eq!(whole.status, Status::Fine, "{}", whole.err);
    let finished = |target: &str| {
        let record = fs::read(place.path(target).join("forebay-tokens.json")).unwrap_or_default();
        let record: Value = serde_json::from_slice(&record).unwrap_or_default();
        record["shards"].as_array().map_or(0, Vec::len)
    };
    let mut kills = 0;
    while kills < 6 {
        let before = finished("killed");
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(place.arguments("killed", &settings))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        // Killed after it has finished a shard more, in the midst of the next one.
        while finished("killed") == before && child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < Duration::from_secs(60), "it makes no progress");
            thread::sleep(Duration::from_millis(2));
        }
        if child.try_wait().unwrap().is_some() {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(kills > 0, "it was finished before it could be killed");
    let last = place.pack("killed", &settings);
    assert_eq!(last.status, Status::Fine, "{}", last.err);
    assert_eq!(files(&place.path("killed")), files(&place.path("whole")));
    assert!(files(&place.path("whole")).len() > 20);
}
