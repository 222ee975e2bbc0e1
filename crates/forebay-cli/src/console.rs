//! The output streams and the exit status of a command.

use std::io::{self, Write};

use crate::hint;

/// How a command ended; the number is the process's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Fine = 0,
    /// It found problems, or failed.
    Problems = 1,
    /// Wrong usage; nothing was done.
    Usage = 2,
}

/// The output streams of a command.
pub struct Console<'a> {
    /// The result: text, or one JSON object.
    pub out: &'a mut dyn Write,
    /// Progress, notes and errors.
    pub err: &'a mut dyn Write,
    /// Whether `err` is a terminal, on which a line can be overwritten.
    pub is_terminal: bool,
}

impl Console<'_> {
    /// Prints an error, and its hint on a separate line.
    pub(crate) fn error(&mut self, error: &forebay::Error) -> io::Result<()> {
        self.error_with_hint(error, &error.hint_in(hint::argument))
    }

    /// Like [`Self::error`], with the hint in the words of a command.
    pub(crate) fn error_with_hint(&mut self, error: &forebay::Error, hint: &str) -> io::Result<()> {
        writeln!(self.err, "error: {error}")?;
        if let Some(detail) = error.detail() {
            writeln!(self.err, "detail: {detail}")?;
        }
        writeln!(self.err, "hint: {hint}")
    }

    /// Prints new warnings about servers.
    pub(crate) fn warnings(&mut self) -> io::Result<()> {
        forebay::take_warnings().iter().try_for_each(|warning| writeln!(self.err, "warning: {warning}"))
    }
}

/// A number of things: `1 shard`, `2 shards`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number of bytes.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(factor, _)| bytes as f64 >= *factor) {
        Some((factor, unit)) => format!("{:.1} {unit}", bytes as f64 / factor),
        None => format!("{bytes} bytes"),
    }
}
