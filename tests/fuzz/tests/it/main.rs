//! The smoke test of all targets: committed inputs and mutations of them, each target in a process of its own with little
//! memory. What crashes, hangs or takes too much fails one test, and leaves its input behind.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests read folders and start processes")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Inputs made of each file. `make fuzz-smoke` makes more.
fn mutations() -> String {
    std::env::var("FUZZ_MUTATIONS").unwrap_or_else(|_| "20".to_owned())
}

/// Enough on a machine that does much else.
const MAX_SECONDS: &str = "20";
/// Far more than the largest picture that is decoded takes, and far less than what lying sizes ask for.
const MAX_MEGABYTES: &str = "1024";

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn smoke(name: &str) {
    let target = fuzztargets::find(name).expect("a target of this name");
    let mut paths = vec![project().join("fuzz/seeds").join(name), project().join("fuzz/regressions").join(name)];
    paths.retain(|path| path.is_dir());
    let golden = project().join("crates/forebay-decode/tests/golden/decode");
    if !target.golden.is_empty() {
        let entries = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path());
        let is_seed = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            // The results lie beside the pictures.
            let is_result = path.file_stem().is_some_and(|stem| Path::new(stem).extension().is_some());
            target.golden.contains(&ending) && !is_result
        };
        paths.extend(entries.filter(is_seed));
        paths.sort();
    }
    let failed = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    let output = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args([name, &mutations(), MAX_SECONDS, MAX_MEGABYTES])
        .arg(&failed)
        .args(&paths)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let kept = if failed.exists() { format!("; the input is in {}", failed.display()) } else { String::new() };
    assert!(output.status.success(), "{}: {said}{kept}", output.status);
    assert!(!said.contains(" 0 files"), "no seeds: {said}");
}

macro_rules! smoke_tests {
    ($($name:ident($($_row:tt)*);)*) => {
        $(#[test]
        fn $name() {
            smoke(stringify!($name));
        })*
    };
}

fuzztargets::for_each_target!(smoke_tests);
