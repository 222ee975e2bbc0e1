//! The report: what failed, why, what to do, and whether the books balance. Plain text for a terminal.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use forebay_core::{Books, Epoch, Failure, Outcome};

/// Files shown in the table; the ledger and `failures` have the others.
const SHOWN: usize = 20;

/// What a report counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Files: the engine reads them.
    #[default]
    File,
    /// Samples of a dataset in Python, which need not be files.
    Sample,
}

/// What [`crate::Loader::report`] gives; `Display` is the text.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every failure remembered.
    pub failures: Vec<Failure>,
    /// Failures no longer remembered.
    pub forgotten: u64,
    /// The books of each epoch.
    pub epochs: Vec<(Epoch, Books)>,
    /// Why the ledger could not be written.
    pub ledger_error: Option<String>,
    /// What it counts.
    pub unit: Unit,
    /// Files that are damaged and were repaired by their parity, each with its damaged blocks as far as they were read.
    pub repaired: Vec<(PathBuf, u64)>,
}

/// One row: a sample, its first failure, and how often.
struct Row<'a> {
    failure: &'a Failure,
    times: usize,
}

impl Report {
    /// Failures by path and index, first failed first; those that recovered are counted only.
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = Vec::new();
        let mut places = BTreeMap::new();
        for failure in self.failures.iter().filter(|failure| failure.outcome.is_failure()) {
            let at = *places.entry((&failure.path, failure.index)).or_insert_with(|| {
                rows.push(Row { failure, times: 0 });
                rows.len() - 1
            });
            rows[at].times += 1;
        }
        rows
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let recovered = self.failures.iter().filter(|failure| failure.outcome == Outcome::Recovered).count();
        if rows.is_empty() && self.forgotten == 0 {
            writeln!(f, "no sample failed")?;
        } else {
            write_table(f, &rows, self.unit)?;
        }
        if self.forgotten > 0 {
            writeln!(f, "{} older failures are not remembered; a ledger has them all", self.forgotten)?;
        }
        if recovered > 0 {
            let what = if self.unit == Unit::File { "reads" } else { "samples" };
            writeln!(f, "{recovered} {what} failed at first and succeeded when tried again")?;
        }
        for (path, blocks) in self.repaired.iter().take(SHOWN) {
            writeln!(f, "{}", rots(path, *blocks))?;
        }
        if self.repaired.len() > SHOWN {
            writeln!(f, "… and {} more files with damage that their parity repaired", self.repaired.len() - SHOWN)?;
        }
        if let Some(error) = &self.ledger_error {
            writeln!(f, "the ledger is incomplete: {error}")?;
        }
        for (epoch, books) in &self.epochs {
            writeln!(f, "epoch {epoch}: {books}")?;
        }
        Ok(())
    }
}

/// What is said of a file whose damage is repaired whenever it is read.
pub fn rots(path: &Path, blocks: u64) -> String {
    let plural = if blocks == 1 { "" } else { "s" };
    format!(
        "{path:?} is damaged on its storage: {blocks} block{plural} of it so far, repaired by its parity in each read; \
         `forebay parity --repair` repairs the file"
    )
}

fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Row<'_>], unit: Unit) -> fmt::Result {
    let what = if unit == Unit::File { "file" } else { "sample" };
    let plural = if rows.len() == 1 { "" } else { "s" };
    writeln!(f, "{} {what}{plural} failed:", rows.len())?;
    let mut hints: Vec<(&str, &str)> = Vec::new();
    let stage = |failure: &Failure| failure.stage.map_or("-", forebay_core::Stage::name);
    let code_width = rows.iter().map(|row| row.failure.code.len()).max().unwrap_or(0).max("class".len());
    let stage_width = rows.iter().map(|row| stage(row.failure).len()).max().unwrap_or(0).max("stage".len());
    writeln!(f, "  {:code_width$}  {:stage_width$}  times  message", "class", "stage")?;
    for Row { failure, times } in rows.iter().take(SHOWN) {
        let detail = failure.detail.as_ref().map_or(String::new(), |detail| format!(" [{detail}]"));
        let line = format!("{}{detail}", failure.message);
        writeln!(f, "  {:code_width$}  {:stage_width$}  {times:>5}  {line}", failure.code, stage(failure))?;
        if !hints.contains(&(&failure.code, &failure.hint)) {
            hints.push((&failure.code, &failure.hint));
        }
    }
    if rows.len() > SHOWN {
        writeln!(f, "  … and {} more", rows.len() - SHOWN)?;
    }
    for (code, hint) in hints {
        writeln!(f, "  hint ({code}): {hint}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Error, Kind, Stage};
    use std::path::Path;

    fn failure(path: &str, outcome: Outcome) -> Failure {
        let error = Error::new(Kind::Corrupt, "is empty (0 bytes)").at_path(Path::new(path)).at_stage(Stage::Decode);
        Failure::of(&error, Path::new(path), outcome)
    }

    #[test]
    fn a_file_is_one_row_with_its_hint_and_every_epoch_has_its_line() {
        let books = Books { planned: 10, delivered: 9, replaced: 1, ..Books::default() };
        let report = Report {
            failures: vec![
                failure("a.jpg", Outcome::Replaced),
                failure("a.jpg", Outcome::Replaced),
                failure("b", Outcome::Recovered),
            ],
            epochs: vec![(Epoch(0), books), (Epoch(1), books)],
            ..Report::default()
        };
        let expected = "\
1 file failed:
  class    stage   times  message
  corrupt  decode      2  \"a.jpg\" is empty (0 bytes)
  hint (corrupt): the file itself is bad (a second read agreed): restore it from its source or delete it
1 reads failed at first and succeeded when tried again
epoch 0: planned 10 = delivered 9 + replaced 1 + skipped 0
epoch 1: planned 10 = delivered 9 + replaced 1 + skipped 0
";
        assert_eq!(report.to_string(), expected);
        assert_eq!(Report::default().to_string(), "no sample failed\n");
    }
}
