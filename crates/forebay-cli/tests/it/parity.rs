//! `forebay parity`, on files that are then damaged.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, which damage files")]

use std::path::{Path, PathBuf};

use forebay_cli::Status;
use serde_json::Value;

use crate::forebay;

const BYTES: usize = 300_000;

fn archive(place: &Path, name: &str) -> (PathBuf, Vec<u8>) {
    let content: Vec<u8> = (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let path = place.join(name);
    std::fs::write(&path, &content).unwrap();
    (path, content)
}

fn json(arguments: &[&str]) -> (Status, Value) {
    let ended = forebay(arguments);
    let value: Value = serde_json::from_str(&ended.out).unwrap();
    (ended.status, value["files"].clone())
}

#[test]
fn archives_are_checked_and_put_back_as_they_were() {
    let place = tempfile::tempdir().unwrap();
    let (path, content) = archive(place.path(), "a.tar");
    let name = path.to_str().unwrap();
    let sidecar = format!("{name}.parity");
    let made = forebay(&["parity", name, "--fraction", "5%"]);
    assert_eq!((made.status, made.err.as_str()), (Status::Fine, ""));
    assert_eq!(made.out, format!("{sidecar}: 17.8 kB for 300.0 kB; 4 of 74 blocks of a group may be lost\n"));
    // What a shell's `*` names beside archives is not taken for one.
    let checked = forebay(&["parity", "--check", name, &sidecar]);
    assert_eq!((checked.status, checked.out), (Status::Fine, format!("{name}: whole\n")));

    let mut damaged = content.clone();
    damaged[10_000] ^= 1;
    damaged[100_000..104_096].fill(0);
    damaged.truncate(BYTES - 100);
    std::fs::write(&path, &damaged).unwrap();
    let checked = forebay(&["parity", "--check", name]);
    assert_eq!(checked.status, Status::Problems);
    let expected = format!(
        "{name}: expected 300000 bytes, got 299900\n{name}: 4 blocks are damaged, all of them can be repaired: bytes \
         8192..12288, 98304..106496, 299008..300000\nhint: `forebay parity --repair` puts it back as it was\n"
    );
    assert_eq!(checked.out, expected);
    assert_eq!(std::fs::read(&path).unwrap(), damaged, "a check changes nothing");
    let (status, rows) = json(&["parity", "--repair", "--json", name]);
    assert_eq!((status, &rows[0]["repaired"], &rows[0]["damaged_blocks"]), (Status::Fine, &true.into(), &4.into()));
    assert_eq!(std::fs::read(&path).unwrap(), content);
    assert_eq!(forebay(&["parity", "--check", name]).status, Status::Fine);
}

#[test]
fn bytes_that_were_put_in_or_taken_out_are_found_again() {
    let place = tempfile::tempdir().unwrap();
    let (path, content) = archive(place.path(), "a.tar");
    let name = path.to_str().unwrap();
    assert_eq!(forebay(&["parity", name]).status, Status::Fine);
    let inserted = [&content[..50_000], &[9; 777], &content[50_000..]].concat();
    let removed = [&content[..70_000], &content[70_512..]].concat();
    let longer = [&content[..], &[1; 5_000]].concat();
    for damaged in [inserted, removed, longer] {
        std::fs::write(&path, &damaged).unwrap();
        let (status, rows) = json(&["parity", "--check", "--json", name]);
        assert_eq!(
            (status, &rows[0]["whole"], &rows[0]["repairable"]),
            (Status::Problems, &false.into(), &true.into())
        );
        assert_eq!(forebay(&["parity", "--repair", name]).status, Status::Fine);
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[test]
fn what_cannot_be_repaired_stays_as_it_is_and_is_said() {
    let place = tempfile::tempdir().unwrap();
    let (path, content) = archive(place.path(), "a.tar");
    let (whole, _) = archive(place.path(), "b.tar");
    let (name, whole) = (path.to_str().unwrap(), whole.to_str().unwrap());
    assert_eq!(forebay(&["parity", name, whole]).status, Status::Fine);
    let damaged: Vec<u8> = content.iter().map(|byte| byte ^ 5).collect();
    std::fs::write(&path, &damaged).unwrap();
    let repaired = forebay(&["parity", "--repair", name, whole]);
    assert_eq!(repaired.status, Status::Problems);
    assert!(repaired.out.contains("74 blocks are damaged, 74 of them cannot be repaired"), "{}", repaired.out);
    assert!(repaired.out.ends_with(&format!("{whole}: whole\n")), "{}", repaired.out);
    assert_eq!(std::fs::read(&path).unwrap(), damaged);

    // The sidecar itself is damaged: the archive is not, and it is said.
    let sidecar = format!("{whole}.parity");
    let mut bytes = std::fs::read(&sidecar).unwrap();
    bytes[100] ^= 1;
    bytes[2_000] ^= 1;
    std::fs::write(&sidecar, &bytes).unwrap();
    let checked = forebay(&["parity", "--check", whole]);
    assert_eq!(checked.status, Status::Problems);
    assert!(
        checked.out.starts_with(&format!("{whole}: whole\n{sidecar}: 2 pieces are damaged\nhint: ")),
        "{}",
        checked.out
    );
    std::fs::write(&sidecar, "no parity").unwrap();
    let checked = forebay(&["parity", "--check", whole]);
    assert_eq!((checked.status, checked.out.as_str()), (Status::Problems, ""));
    assert!(checked.err.contains("b.tar.parity\" cannot be used: it is truncated"), "{}", checked.err);
    assert!(checked.err.contains("hint: make it again with `forebay parity`"), "{}", checked.err);
}

#[test]
fn wrong_usage_is_refused_before_anything_is_done() {
    let place = tempfile::tempdir().unwrap();
    let (path, _) = archive(place.path(), "a.tar");
    let name = path.to_str().unwrap();
    for arguments in [
        &["parity"][..],
        &["parity", name, "--fraction", "0"],
        &["parity", name, "--check", "--repair"],
        &["parity", name, "--check", "--fraction", "3%"],
        &["parity", "s3://bucket/a.tar"],
        &["parity", "--repair", "s3://bucket/a.tar"],
    ] {
        assert_eq!(forebay(arguments).status, Status::Usage, "{arguments:?}");
    }
    let missing = forebay(&["parity", "--check", name]);
    assert_eq!(missing.status, Status::Problems);
    assert!(missing.err.contains("a.tar.parity\" could not be opened"), "{}", missing.err);
    assert!(missing.err.contains("hint: make its parity with `forebay parity`"), "{}", missing.err);
    let none = forebay(&["parity", "--json", &format!("{name}.none")]);
    assert_eq!(none.status, Status::Problems);
    assert!(none.out.contains("\"code\":\"not_found\""), "{}", none.out);
    assert!(!place.path().join("a.tar.parity").exists());
}
