//! Finds the records of a file of lines, from its bytes as they come.

use forebay_core::{Error, Kind, Result};

use super::quotes::{Event, Found, Quoting, find_line_end};
use super::{LineIndex, LineRule, Noticed};
use crate::extents::ExtentsBuilder;
use crate::file_scan::FileScanner;

const MARK: &[u8] = b"\xEF\xBB\xBF";
/// How far away quotes may be closed. Those that are not are characters, and cost the record they are in, not the file.
const MAX_QUOTED_BYTES: u64 = 16 << 20;
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Finds records. It is given the bytes of a file from [`LineScanner::position`] on, in pieces of any size.
///
/// ```
/// use forebay_format::{FileScanner, LineRule, LineScanner};
///
/// let text = b"one\ntwo\r\nthree";
/// let mut scanner = LineScanner::new(LineRule::Text, text.len() as u64);
/// while let Some(position) = scanner.position() {
///     scanner.feed(&text[position as usize..][..1])?;
/// }
/// let lines = scanner.finish()?;
/// assert_eq!((lines.len(), lines.range(1)), (3, 4..9));
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LineScanner {
    rule: LineRule,
    size_bytes: u64,
    position: u64,
    noticed: Noticed,
    /// Bytes of a byte order mark that were seen so far; `None` once it is known whether there is one.
    mark: Option<usize>,
    records: ExtentsBuilder,
    /// The lines of each record, and whether they are other than one for each.
    lines: ExtentsBuilder,
    has_own_lines: bool,
    /// The record whose end is not known yet, because blank lines may follow.
    open: Option<Open>,
    /// Line breaks so far.
    line: u64,
    /// Where the line, or the record of CSV, begins, in bytes and lines.
    start: (u64, u64),
    is_blank: bool,
    last: Option<u8>,
    /// NUL bytes before this position are counted.
    counted: u64,
    header: Vec<u8>,
    /// The next record is the header.
    is_header_next: bool,
    quoting: Quoting,
    /// The first line break in the record, and in the quotes that are open: behind it, and the line that begins there.
    first_break: Option<(u64, u64)>,
    open_break: Option<(u64, u64)>,
    /// Bytes that may be looked at twice because of quotes that are not closed.
    again_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    start: u64,
    line: u64,
}

impl LineScanner {
    /// For a file of this size.
    pub fn new(rule: LineRule, size_bytes: u64) -> Self {
        Self {
            rule,
            size_bytes,
            position: 0,
            noticed: Noticed::default(),
            mark: Some(0),
            records: ExtentsBuilder::new(0),
            lines: ExtentsBuilder::new(0),
            has_own_lines: false,
            open: None,
            line: 0,
            start: (0, 0),
            is_blank: true,
            last: None,
            counted: 0,
            header: Vec::new(),
            is_header_next: matches!(rule, LineRule::Csv { has_header: true, .. }),
            quoting: Quoting::Outside,
            first_break: None,
            open_break: None,
            again_bytes: size_bytes.saturating_add(MAX_QUOTED_BYTES),
        }
    }
}

impl FileScanner for LineScanner {
    type Index = LineIndex;

    const EXPECTED: &'static str = "plain lines";

    fn position(&self) -> Option<u64> {
        (self.position < self.size_bytes).then_some(self.position)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let left = usize::try_from(self.size_bytes - self.position).unwrap_or(usize::MAX);
        let mut rest = self.without_mark(&bytes[..bytes.len().min(left)]);
        self.count_nuls(rest);
        match self.rule {
            LineRule::Text => self.feed_text(rest)?,
            LineRule::Json => self.feed_json(rest)?,
            LineRule::Csv { delimiter, .. } => {
                while !rest.is_empty() {
                    rest = self.feed_csv(rest, delimiter)?;
                }
            }
        }
        if self.position == self.size_bytes { self.end() } else { Ok(()) }
    }

    fn finish(self) -> Result<LineIndex> {
        if let Some(position) = self.position() {
            return Err(Error::internal(format!("an index of lines that ends at byte {position}")));
        }
        let (records, lines) = (self.records.finish()?, self.lines.finish()?);
        let lines = self.has_own_lines.then_some(lines);
        Ok(LineIndex { records, lines, header: self.header, noticed: self.noticed })
    }
}

impl LineScanner {
    /// Leaves out a byte order mark, which may come in pieces.
    fn without_mark<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(seen) = self.mark else { return bytes };
        let matching = bytes.iter().zip(&MARK[seen..]).take_while(|(byte, mark)| byte == mark).count();
        let is_mark = seen + matching == MARK.len();
        if is_mark {
            self.noticed.mark_bytes = MARK.len() as u64;
            self.position = MARK.len() as u64;
            self.begin_at(self.position);
            self.mark = None;
            return &bytes[matching..];
        }
        if matching == bytes.len() && self.position + (matching as u64) < self.size_bytes {
            // It may still become one. They are asked for again if not.
            (self.mark, self.position) = (Some(seen + matching), self.position + matching as u64);
            return &[];
        }
        self.mark = None;
        if seen > 0 {
            self.position = 0;
            return &[];
        }
        bytes
    }

    /// Nothing before this byte is a record.
    fn begin_at(&mut self, position: u64) {
        self.records = ExtentsBuilder::new(position);
        self.start = (position, self.line);
    }

    fn feed_text(&mut self, bytes: &[u8]) -> Result<()> {
        for at in memchr::memchr_iter(b'\n', bytes) {
            self.count_line_end(bytes, at);
            let end = self.position + at as u64 + 1;
            self.records.push(end - self.start.0)?;
            self.start.0 = end;
        }
        self.pass(bytes);
        Ok(())
    }

    fn feed_json(&mut self, bytes: &[u8]) -> Result<()> {
        let mut from = 0;
        for at in memchr::memchr_iter(b'\n', bytes) {
            self.count_line_end(bytes, at);
            self.is_blank &= bytes[from..at].iter().all(u8::is_ascii_whitespace);
            from = at + 1;
            self.line += 1;
            self.end_line(self.position + from as u64)?;
        }
        self.is_blank &= bytes[from..].iter().all(u8::is_ascii_whitespace);
        self.pass(bytes);
        Ok(())
    }

    /// Takes bytes up to the end of a record, and gives the rest.
    fn feed_csv<'a>(&mut self, bytes: &'a [u8], delimiter: u8) -> Result<&'a [u8]> {
        let (position, before) = (self.position, self.last);
        let (line, first_break, open_break) = (&mut self.line, &mut self.first_break, &mut self.open_break);
        let found = find_line_end(bytes, &mut self.quoting, &mut self.last, delimiter, |event| match event {
            Event::Open => *open_break = None,
            Event::Break(at) => {
                *line += 1;
                let behind = (position + at as u64 + 1, *line);
                first_break.get_or_insert(behind);
                open_break.get_or_insert(behind);
            }
        });
        let end = match found {
            Some(Found::LineEnd(at)) => at + 1,
            Some(Found::Misquoted(at)) => at,
            None => bytes.len(),
        };
        let (taken, rest) = bytes.split_at(end);
        self.is_blank &= taken.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        self.keep_header(taken)?;
        self.position += taken.len() as u64;
        let at = match found {
            Some(Found::LineEnd(at)) => at,
            Some(Found::Misquoted(_)) => {
                if self.open_break.is_some() {
                    // A quote that was not closed, and the one that opens the next quoted field.
                    self.end_open_quotes(self.open_break)?;
                    return Ok(self.position.checked_sub(position).map_or(&[], |taken| &bytes[taken as usize..]));
                }
                return Ok(rest);
            }
            None => {
                let is_far = self.position - self.start.0 > MAX_QUOTED_BYTES;
                if self.quoting == Quoting::Inside && (is_far || self.position == self.size_bytes) {
                    // So many bytes are not one record, whichever quotes were the wrong ones.
                    self.end_open_quotes(if is_far { self.first_break } else { self.open_break })?;
                }
                return Ok(rest);
            }
        };
        let before = if at == 0 { before } else { Some(bytes[at - 1]) };
        self.noticed.crlf_lines += u64::from(before == Some(b'\r'));
        self.line += 1;
        self.end_line(self.position)?;
        Ok(rest)
    }

    /// Quotes were opened and not closed: the record ends with one of its lines, and what follows is looked at again.
    fn end_open_quotes(&mut self, at_break: Option<(u64, u64)>) -> Result<()> {
        let is_end = self.position == self.size_bytes;
        let Some((end, line)) = at_break else {
            self.noticed.open_quotes += u64::from(is_end);
            return Ok(());
        };
        self.noticed.open_quotes += 1;
        let Some(left) = self.again_bytes.checked_sub(self.position - end) else {
            let message = "has quotes that are not closed in too many of its lines to be read as CSV";
            let hint = "look at its quotes, or read it as lines of text";
            return Err(Error::new(Kind::Corrupt, message).with_hint(hint));
        };
        if self.is_header_next {
            self.header.truncate((end - self.start.0) as usize);
        }
        (self.position, self.line, self.again_bytes) = (end, line, left);
        (self.quoting, self.last) = (Quoting::Outside, None);
        self.end_line(end)
    }

    fn keep_header(&mut self, taken: &[u8]) -> Result<()> {
        if !self.is_header_next {
            return Ok(());
        }
        if self.header.len() as u64 + taken.len() as u64 > MAX_HEADER_BYTES {
            let message = format!("has a header of more than {MAX_HEADER_BYTES} bytes");
            return Err(Error::new(Kind::Corrupt, message));
        }
        self.header.extend(taken);
        Ok(())
    }

    /// A line, or a record of CSV, has ended behind this byte; `line` is of the next one.
    fn end_line(&mut self, end: u64) -> Result<()> {
        let (start, line) = self.start;
        self.start = (end, self.line);
        (self.first_break, self.open_break) = (None, None);
        if std::mem::replace(&mut self.is_blank, true) {
            if self.is_header_next {
                self.header.clear();
            }
            return Ok(());
        }
        if std::mem::take(&mut self.is_header_next) {
            return Ok(());
        }
        self.close(start, line)?;
        self.open = Some(Open { start, line });
        Ok(())
    }

    /// The record before ends here.
    fn close(&mut self, end: u64, line: u64) -> Result<()> {
        match self.open.take() {
            Some(open) => {
                self.records.push(end - open.start)?;
                self.lines.push(line - open.line)?;
                self.has_own_lines |= line - open.line != 1;
            }
            None => {
                self.records = ExtentsBuilder::new(end);
                self.lines = ExtentsBuilder::new(line);
                self.has_own_lines |= line != 0;
            }
        }
        Ok(())
    }

    /// All bytes were seen.
    fn end(&mut self) -> Result<()> {
        let is_whole = self.start.0 == self.size_bytes;
        self.noticed.open_lines = u64::from(!is_whole && (self.rule == LineRule::Text || !self.is_blank));
        if self.rule == LineRule::Text {
            return if is_whole { Ok(()) } else { self.records.push(self.size_bytes - self.start.0) };
        }
        if !is_whole {
            self.line += 1;
            self.end_line(self.size_bytes)?;
        }
        match self.open.is_some() {
            true => self.close(self.size_bytes, self.line),
            false => Ok(()),
        }
    }

    fn count_line_end(&mut self, bytes: &[u8], at: usize) {
        let before = if at == 0 { self.last } else { Some(bytes[at - 1]) };
        self.noticed.crlf_lines += u64::from(before == Some(b'\r'));
    }

    /// Of bytes that are looked at again, only those that were not counted.
    fn count_nuls(&mut self, bytes: &[u8]) {
        let counted = usize::try_from(self.counted.saturating_sub(self.position)).unwrap_or(usize::MAX);
        self.noticed.nul_bytes += memchr::memchr_iter(0, bytes.get(counted..).unwrap_or_default()).count() as u64;
        self.counted = self.counted.max(self.position + bytes.len() as u64);
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.position += bytes.len() as u64;
        self.last = bytes.last().copied().or(self.last);
    }
}
