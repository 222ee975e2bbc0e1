//! Handling of test requirements that this machine lacks.

use std::fs::OpenOptions;
use std::io::Write;

/// Fails the test that needs `what`, unless `FOREBAY_ALLOW_MISSING` (comma-separated names) allows skipping it. Then it
/// is listed as skipped: in the file that `FOREBAY_SKIPPED` names, which `make test-rust` prints at the end.
///
/// # Panics
/// If `what` may not be missing, or if the skip cannot be recorded.
pub fn missing(what: &str, why: &str) {
    let allowed = std::env::var("FOREBAY_ALLOW_MISSING").unwrap_or_default();
    let hint = format!("run scripts/setup.sh servers, or set FOREBAY_ALLOW_MISSING={what} to skip what needs it");
    assert!(allowed.split(',').any(|name| name.trim() == what), "{what} is missing ({why}): {hint}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("skipped: {test}: {what} is missing ({why})\n");
    if let Some(list) = std::env::var_os("FOREBAY_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(&list);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("FOREBAY_SKIPPED can be appended to");
    }
}
