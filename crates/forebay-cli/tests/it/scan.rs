//! `forebay scan`: what it prints, what it writes, how it ends.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, on a real folder")]

use std::fs;
use std::path::{Path, PathBuf};

use forebay_cli::Status;
use serde_json::Value;

use crate::{forebay, forebay_on};

fn picture() -> Vec<u8> {
    let head = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".as_slice();
    [head, &[0; 24], &[1, 2, 3, 0]].concat()
}

/// Six pictures of two classes, and where the manifest is to be.
fn plant(folder: &Path) -> (PathBuf, PathBuf) {
    let root = folder.join("data");
    for number in 0..6 {
        let class = root.join(["cat", "dog"][number % 2]);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number}.bmp")), picture()).unwrap();
    }
    (root, folder.join("m.parquet"))
}

fn scan(root: &Path, output: &Path, more: &[&str]) -> crate::Ended {
    forebay(&[&["scan", root.to_str().unwrap(), "-o", output.to_str().unwrap()], more].concat())
}

fn json(ended: &crate::Ended) -> Value {
    serde_json::from_str(&ended.out).expect("--json gives one object")
}

#[test]
fn a_manifest_is_written_and_then_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = plant(folder.path());
    let first = scan(&root, &output, &["--deep"]);
    assert_eq!((first.status, first.err.as_str()), (Status::Fine, ""), "{}", first.out);
    let lines: Vec<_> = first.out.lines().collect();
    assert_eq!(lines[0], format!("6 samples of 2 classes in {}", root.display()));
    assert_eq!(lines[1], "6 files read, 348 bytes");
    assert!(lines[2].starts_with(&format!("written to {} (", output.display())), "{}", first.out);
    assert!(lines[2].contains(" kB) in "), "{}", first.out);

    fs::write(root.join("cat/0.bmp"), [picture(), vec![0]].concat()).unwrap();
    fs::remove_file(root.join("dog/1.bmp")).unwrap();
    (0..12).for_each(|number| fs::write(root.join(format!("dog/new{number:02}.bmp")), picture()).unwrap());
    let again = scan(&root, &output, &["--deep"]);
    assert_eq!(again.status, Status::Fine, "{}", again.err);
    for line in [
        "17 samples of 2 classes",
        "12 added, 1 deleted, 1 changed",
        "  added    dog/new09.bmp\n  added    and 2 more (--json names all)",
        "  deleted  dog/1.bmp",
        "  changed  cat/0.bmp",
        "13 files read",
    ] {
        assert!(again.out.contains(line), "{line:?} is missing in:\n{}", again.out);
    }
    let same = scan(&root, &output, &["--deep", "--json"]);
    let same = json(&same);
    assert_eq!((same["samples"].as_u64(), same["files_read"].as_u64()), (Some(17), Some(0)));
    assert_eq!(same["added"].as_array().unwrap().len() + same["changed"].as_array().unwrap().len(), 0);
    assert_eq!((same["is_new"].as_bool(), same["root"].as_str()), (Some(false), root.to_str()));
    fs::remove_file(root.join("dog/new00.bmp")).unwrap();
    assert_eq!(json(&scan(&root, &output, &["--json"]))["deleted"], serde_json::json!(["dog/new00.bmp"]));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}: nothing but the folder and the manifest");
}

#[test]
fn what_cannot_be_read_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = plant(folder.path());
    fs::write(root.join("cat/2.bmp"), "<html>").unwrap();
    let ended = scan(&root, &output, &["--deep", "--json"]);
    assert_eq!(ended.status, Status::Problems);
    assert!(ended.err.starts_with("problem: \""), "{}", ended.err);
    let seen = json(&ended);
    assert_eq!(seen["problems"][0]["code"], "undecodable");
    assert!(seen["problems"][0]["path"].as_str().unwrap().ends_with("cat/2.bmp"));
    assert!(output.is_file(), "the others are written down all the same");
    let gone = scan(&folder.path().join("none"), &output, &[]);
    assert_eq!(gone.status, Status::Problems);
    assert!(gone.err.contains("hint: is it the right folder?"), "{}", gone.err);
}

#[test]
fn a_folder_that_is_not_there_is_told_before_anything_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let ended = scan(&folder.path().join("no such root"), &folder.path().join("none/m.parquet"), &[]);
    assert_eq!(ended.status, Status::Problems);
    assert!(ended.err.contains("/none\" could not be examined") && ended.err.contains("mkdir -p"), "{}", ended.err);
}

#[test]
fn something_else_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = plant(folder.path());
    fs::write(&output, "my thesis").unwrap();
    let ended = scan(&root, &output, &[]);
    assert_eq!(ended.status, Status::Problems);
    assert!(
        ended.err.contains("is not a whole Parquet file") && ended.err.contains("hint: it will not be overwritten"),
        "{}",
        ended.err
    );
    assert_eq!(fs::read(&output).unwrap(), b"my thesis");
    // Nor is a manifest of another folder, unless that has moved.
    let (mine, moved, other) =
        (folder.path().join("mine.parquet"), folder.path().join("moved"), folder.path().join("o"));
    assert_eq!(scan(&root, &mine, &[]).status, Status::Fine);
    let before = fs::read(&mine).unwrap();
    fs::create_dir_all(other.join("cat")).unwrap();
    fs::write(other.join("cat/none of them.bmp"), picture()).unwrap();
    let ended = scan(&other, &mine, &["--deep"]);
    assert_eq!(ended.status, Status::Problems);
    assert!(
        ended.err.contains("none of its samples is in") && ended.err.contains("not be overwritten"),
        "{}",
        ended.err
    );
    assert_eq!(fs::read(&mine).unwrap(), before);
    fs::rename(&root, &moved).unwrap();
    let ended = scan(&moved, &mine, &[]);
    assert!(ended.status == Status::Fine && ended.out.contains("0 added, 0 deleted, 0 changed"), "{}", ended.out);
}

#[test]
fn endings_and_empty_classes_are_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = plant(folder.path());
    fs::write(root.join("cat/x.npy"), "tensor").unwrap();
    let refused = scan(&root, &output, &["--extension", "npy"]);
    assert_eq!(refused.status, Status::Problems, "dog has none");
    assert!(refused.err.contains("--allow-empty") && !refused.err.contains("allow_empty"), "{}", refused.err);
    let ended = scan(&root, &output, &["--extension", "npy", "--allow-empty", "--deep", "--json"]);
    assert_eq!(ended.status, Status::Fine, "{}", ended.err);
    assert_eq!((json(&ended)["samples"].as_u64(), json(&ended)["classes"].as_u64()), (Some(1), Some(2)));
    assert_eq!(json(&ended)["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn on_a_terminal_a_line_shows_how_far_it_is_and_is_removed_again() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = plant(folder.path());
    let ended = forebay_on(true, &["scan", root.to_str().unwrap(), "-o", output.to_str().unwrap(), "--deep"]);
    assert!(ended.err.contains("listing  ") && ended.err.contains("  6/6  "), "{:?}", ended.err);
    assert!(ended.err.ends_with("\r\x1b[K") && !ended.err.contains('\n'), "{:?}", ended.err);
}

#[test]
fn wrong_usage_is_said_before_anything_is_done() {
    for (arguments, said) in [
        (&["scan", "x"][..], "--output"),
        (&["scan", "x", "-o", "m.csv"], "expected a name that ends in .parquet"),
        (&["scan", "x", "-o", "https://host/m.parquet"], "expected a place that can be written to, got an HTTP server"),
        (&["scan", "x", "-o", "s3://m.parquet"], "expected the name of an object in the bucket"),
        (
            &["scan", "x", "-o", "s3://b/m.csv?key=me&secret=secret"],
            "expected a name that ends in .parquet, got \"s3://b/m.csv\"",
        ),
        (
            &["scan", "x", "-o", "m.parquet", "--output-option", "region=eu"],
            "--output-option: expected none for a file",
        ),
        (&["scan", "x", "-o", "s3://b/m.parquet", "--output-option", "secret"], "--output-option: expected NAME=VALUE"),
        (&["scan", "", "-o", "m.parquet"], "expected a directory or a URL"),
        (
            &["scan", "x", "-o", "m.parquet", "--storage-option", "key=y"],
            "expected none for a directory, got some for \"x\"",
        ),
        (&["scan", "s3://b/x", "-o", "m.parquet", "--storage-option", "endpint=y"], "storage_options[\"endpint\"]"),
        (&["scan", "x", "-o", "m.parquet", "--storage-option", "secret"], "expected NAME=VALUE"),
    ] {
        let ended = forebay(arguments);
        assert_eq!((ended.status, ended.out.as_str()), (Status::Usage, ""), "{arguments:?}");
        assert!(ended.err.contains(said) && !ended.err.contains("got \"secret\""), "{}", ended.err);
    }
}
