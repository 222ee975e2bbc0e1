//! Files of lines: where each record begins and ends. A record is a line of text, a line of JSON or a record of CSV.
//!
//! A line ends with `\n`; a `\r` before it belongs to the line end. Records lie one behind the other: a record's range has its
//! line end, and the blank lines after it where blank lines are no records.

mod quotes;
mod scanner;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::extents::{Extents, take_word};
use crate::file_scan::FileIndex;

pub use scanner::LineScanner;

/// What the lines of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineRule {
    /// Text: every line is a record, empty ones too.
    Text,
    /// JSON: every line that is not blank is a record.
    Json,
    /// CSV: fields may be quoted, and have line breaks then. Empty lines are no records.
    Csv {
        /// What is between two fields.
        delimiter: u8,
        /// Whether the first record names the columns. It is none of the records then.
        has_header: bool,
    },
}

impl LineRule {
    /// Which rule it is, as a number: an index of lines is kept for one rule.
    pub fn word(self) -> u64 {
        match self {
            Self::Text => 0,
            Self::Json => 1,
            Self::Csv { delimiter, has_header } => 2 | u64::from(has_header) << 8 | u64::from(delimiter) << 16,
        }
    }
}

/// The records of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineIndex {
    /// The bytes of each.
    records: Extents,
    /// The lines of each, counted from 0, where it is not the one of its own number.
    lines: Option<Extents>,
    /// The bytes of the header.
    header: Vec<u8>,
    noticed: Noticed,
}

/// What was counted in a file on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Noticed {
    /// Bytes of a byte order mark.
    pub(crate) mark_bytes: u64,
    /// Line ends of two bytes, CR LF.
    pub(crate) crlf_lines: u64,
    pub(crate) nul_bytes: u64,
    /// 1 where the last line has no line end.
    pub(crate) open_lines: u64,
    /// Quotes that nothing closes.
    pub(crate) open_quotes: u64,
}

impl Noticed {
    fn words(self) -> [u64; 5] {
        [self.mark_bytes, self.crlf_lines, self.nul_bytes, self.open_lines, self.open_quotes]
    }
}

impl LineIndex {
    /// How many records there are.
    pub fn len(&self) -> u64 {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The bytes of a record, with its line end. It has to be one of them.
    pub fn range(&self, record: u64) -> Range<u64> {
        self.records.range(record)
    }

    /// The line in which a record begins, counted from 1.
    pub fn line(&self, record: u64) -> u64 {
        1 + self.lines.as_ref().map_or(record, |lines| lines.range(record).start)
    }

    /// The bytes of the header, with its line end; empty where there is none.
    pub fn header(&self) -> &[u8] {
        &self.header
    }
}

impl FileIndex for LineIndex {
    fn sample_count(&self) -> u64 {
        self.len()
    }

    fn notes(&self) -> Vec<String> {
        let Noticed { mark_bytes, crlf_lines, nul_bytes, open_lines, open_quotes } = self.noticed;
        let said = [
            (mark_bytes, "begins with a byte order mark, which is left out".to_owned()),
            (crlf_lines, format!("has {crlf_lines} lines that end with CR LF, which is left out")),
            (nul_bytes, format!("has {nul_bytes} NUL bytes, which stay as they are")),
            (open_lines, "has no line end after its last line, which is taken as whole".to_owned()),
            (
                open_quotes,
                format!("has {open_quotes} quotes that are not closed, and records that end with their line"),
            ),
            (u64::from(self.is_empty()), "has no records".to_owned()),
        ];
        said.into_iter().filter(|(count, _)| *count > 0).map(|(_, said)| said).collect()
    }

    fn write(&self, out: &mut Vec<u8>) {
        for word in [self.header.len() as u64, u64::from(self.lines.is_some())].into_iter().chain(self.noticed.words())
        {
            out.extend(word.to_le_bytes());
        }
        out.extend(&self.header);
        self.records.write(out);
        self.lines.iter().for_each(|lines| lines.write(out));
    }

    fn parse(bytes: &mut &[u8], size_bytes: u64) -> Option<Self> {
        let mut words = [0; 7];
        for word in &mut words {
            *word = take_word(bytes)?;
        }
        let [header_bytes, has_lines, mark_bytes, crlf_lines, nul_bytes, open_lines, open_quotes] = words;
        let header = bytes.split_off(..usize::try_from(header_bytes).ok()?)?.to_vec();
        let records = Extents::parse(bytes).filter(|records| records.end() <= size_bytes)?;
        let lines = match has_lines {
            0 => None,
            1 => Some(Extents::parse(bytes).filter(|lines| lines.len() == records.len())?),
            _ => return None,
        };
        let noticed = Noticed { mark_bytes, crlf_lines, nul_bytes, open_lines, open_quotes };
        Some(Self { records, lines, header, noticed })
    }
}
