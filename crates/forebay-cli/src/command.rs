//! The command line: parses arguments, runs the command, returns its exit status.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use clap::{Parser, Subcommand};

use crate::console::{Console, Status};
use crate::{cache, demo, doctor, mirror, pack, parity, scan};

/// A data loader for training that survives its storage.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cache(cache::Arguments),
    Demo(demo::Arguments),
    Doctor(doctor::Arguments),
    Mirror(mirror::Arguments),
    Pack(Box<pack::Arguments>),
    Parity(parity::Arguments),
    Scan(scan::Arguments),
}

/// Runs the command with the process's own streams. `arguments` are those after the program's name; returns the exit
/// status: 0 fine, 1 problems found, 2 wrong usage.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    // Not locked: a thread that panics writes to stderr, and would wait for the lock while the command waits for it.
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let is_terminal = err.is_terminal();
    run(arguments, &mut Console { out: &mut out, err: &mut err, is_terminal }) as u8
}

/// As [`main`], with the caller's console.
pub fn run(arguments: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> Status {
    let status = dispatch(arguments, console).and_then(|status| console.out.flush().map(|()| status));
    match status {
        Ok(status) => status,
        // `forebay … | head` closed the pipe, which is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Status::Fine,
        Err(error) => {
            // If this cannot be written either, only the exit status is left.
            let _unheard = writeln!(console.err, "error: the output could not be written: {error}");
            Status::Problems
        }
    }
}

/// The names of the arguments of all commands, without their dashes.
#[cfg(test)]
pub(crate) fn long_arguments() -> Vec<String> {
    use clap::CommandFactory;
    let command = Arguments::command();
    let of = |command: &clap::Command| {
        command.get_arguments().filter_map(|argument| argument.get_long().map(str::to_owned)).collect::<Vec<_>>()
    };
    command.get_subcommands().flat_map(of).collect()
}

fn dispatch(arguments: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> io::Result<Status> {
    // The program's name is always forebay, also when started with `python -m forebay`.
    match Arguments::try_parse_from(std::iter::once("forebay".into()).chain(arguments)) {
        Ok(Arguments { command: Command::Cache(arguments) }) => cache::run(&arguments, console),
        Ok(Arguments { command: Command::Demo(arguments) }) => demo::run(&arguments, console),
        Ok(Arguments { command: Command::Doctor(arguments) }) => doctor::run(&arguments, console),
        Ok(Arguments { command: Command::Mirror(arguments) }) => mirror::run(&arguments, console),
        Ok(Arguments { command: Command::Pack(arguments) }) => pack::run(&arguments, console),
        Ok(Arguments { command: Command::Parity(arguments) }) => parity::run(&arguments, console),
        Ok(Arguments { command: Command::Scan(arguments) }) => scan::run(&arguments, console),
        // `--help` and `--version` end up here too.
        Err(told) => {
            let (stream, status): (&mut dyn Write, _) = match told.use_stderr() {
                true => (console.err, Status::Usage),
                false => (console.out, Status::Fine),
            };
            write!(stream, "{}", told.render())?;
            Ok(status)
        }
    }
}
