//! Real NFS, for `make test-nfs`: a User-Mode Linux kernel is an NFS server and its own client, and the loader runs over
//! the mount while the link is cut, the server restarts and files are deleted. README.md tells how.
//!
//! One program with three parts, each a process of its own: `boot` on the host starts the kernel and writes the summary,
//! `guest` inside it makes the trouble and judges, and `epoch` is the loader that is being tried.

#![allow(clippy::disallowed_methods, reason = "it makes its own files, on mounts of its own kernel")]

mod boot;
mod engine;
mod epoch;
mod guest;
mod judge;
mod machine;
mod summary;
mod trial;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// What goes wrong here is for a person to read.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["boot", summary, shim] => boot::run(Path::new(summary), Path::new(shim)),
        ["guest", out] => guest::run(Path::new(out)).map(|()| true),
        ["epoch", folder, settings] => epoch::run(Path::new(folder), settings).map(|()| true),
        _ => Err("expected `boot SUMMARY SHIM`, `guest OUT` or `epoch FOLDER SETTINGS`".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "nfstest: {error}");
            ExitCode::FAILURE
        }
    }
}
