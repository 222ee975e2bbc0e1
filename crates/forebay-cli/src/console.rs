//! Where a command writes, and how it ends.

use std::io::{self, Write};

use crate::hint;

/// How a command ended; the number is the process's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It did what it was asked to.
    Fine = 0,
    /// It found problems, or could not do it.
    Problems = 1,
    /// It was called in a wrong way, and did nothing.
    Usage = 2,
}

/// Where a command writes.
pub struct Console<'a> {
    /// What it was asked for: text, or one JSON object.
    pub out: &'a mut dyn Write,
    /// Progress, notes and errors.
    pub err: &'a mut dyn Write,
    /// Whether `err` is a terminal, on which a line may be drawn over itself.
    pub is_terminal: bool,
}

impl Console<'_> {
    /// Says why the command failed, with the hint kept apart.
    pub(crate) fn error(&mut self, error: &forebay::Error) -> io::Result<()> {
        writeln!(self.err, "error: {error}")?;
        if let Some(detail) = error.detail() {
            writeln!(self.err, "detail: {detail}")?;
        }
        writeln!(self.err, "hint: {}", error.hint_in(hint::argument))
    }

    /// Says what has come up about the servers that are spoken to.
    pub(crate) fn warnings(&mut self) -> io::Result<()> {
        forebay::take_warnings().iter().try_for_each(|warning| writeln!(self.err, "warning: {warning}"))
    }
}

/// Bytes as people say them.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(factor, _)| bytes as f64 >= *factor) {
        Some((factor, unit)) => format!("{:.1} {unit}", bytes as f64 / factor),
        None => format!("{bytes} bytes"),
    }
}
