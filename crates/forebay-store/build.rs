//! Compiles the reader (`src/reader/main.rs`: standard library only) so that the library can carry it in itself.
//!
//! `docs/decisions/0010-reader-processes.md` says why: a wheel or a binary needs no second file beside it. The same
//! source is also a bin target of this package, for the linter and for `FOREBAY_READER`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/reader");
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"));
    let program = PathBuf::from(variable("OUT_DIR")).join("forebay-reader");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=bin", "--crate-name=forebay_reader", "src/reader/main.rs"]);
    rustc.args(["-Copt-level=2", "-Cpanic=abort", "-Cstrip=symbols", "-Clto=fat", "-Ccodegen-units=1"]);
    rustc.arg("--target").arg(variable("TARGET")).arg("-o").arg(&program);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut argument = std::ffi::OsString::from("-Clinker=");
        argument.push(linker);
        rustc.arg(argument);
    }
    let status = rustc.status().unwrap_or_else(|error| panic!("rustc could not be started: {error}"));
    assert!(status.success(), "the reader could not be compiled: rustc ended with {status}");
}
