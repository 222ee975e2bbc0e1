//! `forebay doctor`: runs the user's Python dataset, so the command itself is Python (`python/forebay/_doctor`), and
//! the package runs it before this is reached. This is what the standalone binary prints.

use std::ffi::OsString;
use std::io;

use crate::console::{Console, Status};

/// Run a Python dataset through checks: pickling, handles, leaks, errors, speed, threads or processes.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// The dataset and options: see `forebay doctor --help` of the Python package
    #[arg(value_name = "module:attribute", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console<'_>) -> io::Result<Status> {
    let given: Vec<_> = arguments.arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let given = if given.is_empty() { "module:attribute".to_owned() } else { given.join(" ") };
    writeln!(console.err, "error: doctor runs Python datasets, and this binary contains no Python")?;
    writeln!(console.err, "hint: where the forebay package is installed, run: python -m forebay doctor {given}")?;
    Ok(Status::Usage)
}
