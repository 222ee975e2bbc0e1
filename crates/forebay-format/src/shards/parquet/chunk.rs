//! The pages of one column in one row group, and where the values of its rows are.

use std::ops::Range;

use forebay_core::Result;
use parquet::basic::{Encoding, PageType};
use xxhash_rust::xxh3::xxh3_64;

use super::page::{self, Codec, Levels, MAX_PAGE_BYTES};
use super::scanner::Budget;
use super::schema::{Layout, Physical};
use super::table::{NewPage, PageTable};
use super::values::{self, NO_MEMORY, TOO_LARGE, Values, Why};
use crate::parquet_pages::Header;
use crate::shards::Lost;
use crate::shards::numbers::push;

/// Most headers are much shorter. Statistics may make one long, and none longer than this.
const FIRST_HEADER_BYTES: u64 = 512;
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// What the values of rows are, each with its place, its size and its hash.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Of a value that is lost, why.
    offsets: Vec<u64>,
    /// The largest number for a value that is lost.
    sizes: Vec<u32>,
    hashes: Vec<u64>,
}

impl Parts {
    fn len(&self) -> u64 {
        self.sizes.len() as u64
    }

    fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.push_hashed(offset, bytes.len(), xxh3_64(bytes))
    }

    fn push_hashed(&mut self, offset: u64, size: usize, hash: u64) -> Result<()> {
        let Some(size) = u32::try_from(size).ok().filter(|size| *size < u32::MAX) else {
            return self.lose(Lost::Unreadable);
        };
        push(&mut self.offsets, offset)?;
        push(&mut self.sizes, size)?;
        push(&mut self.hashes, hash)
    }

    fn lose(&mut self, why: Lost) -> Result<()> {
        push(&mut self.offsets, why as u64)?;
        push(&mut self.sizes, u32::MAX)?;
        push(&mut self.hashes, 0)
    }

    /// Loses all rows that are not there, up to this one.
    pub(super) fn lose_up_to(&mut self, rows: u64, why: Lost) -> Result<()> {
        while self.len() < rows {
            self.lose(why)?;
        }
        Ok(())
    }

    fn truncate(&mut self, rows: u64) {
        let rows = rows as usize;
        self.offsets.truncate(rows);
        self.sizes.truncate(rows);
        self.hashes.truncate(rows);
    }

    /// Place, size and hash of a row's value, or why it is lost.
    pub(super) fn get(&self, row: u64) -> (u64, Result<u32, Lost>, u64) {
        let at = row as usize;
        match self.sizes.get(at) {
            Some(&u32::MAX) => {
                let why = Lost::ALL.get(self.offsets[at] as usize).copied().unwrap_or(Lost::Unreadable);
                (0, Err(why), 0)
            }
            Some(size) => (self.offsets[at], Ok(*size), self.hashes[at]),
            None => (0, Err(Lost::Unreadable), 0),
        }
    }
}

/// What a reader wants next.
pub(super) enum Next {
    /// These bytes of the file.
    Need(Range<u64>),
    Done,
}

/// Reads the pages of a chunk.
#[derive(Debug)]
pub(super) struct ChunkReader {
    layout: Layout,
    codec: Codec,
    /// Of the row group.
    rows: u64,
    /// Where the next page begins, and where the last one ends.
    position: u64,
    end: u64,
    header_bytes: u64,
    dictionary: Option<Dictionary>,
    texts: Option<Texts>,
    list: Option<OpenRow>,
    parts: Parts,
    lost: Vec<(Range<u64>, Why)>,
}

/// The values of a dictionary.
#[derive(Debug)]
struct Dictionary {
    values: Values,
    hashes: Vec<u64>,
    place: Place,
    /// The page that it is, where it is kept as one.
    page: Option<u32>,
}

/// Where values are: in a page that is unpacked, or in the file.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Back to back from there on.
    Paged(u64),
    /// From there on, so many bytes apart.
    Apart(u64, usize),
    /// From there on, each behind its length.
    Prefixed(u64),
}

impl Place {
    /// Where a value begins.
    fn of(self, values: &Values, at: usize) -> u64 {
        match self {
            Self::Paged(start) => start + values.range(at).start as u64,
            Self::Apart(start, stored) => start + (at * stored) as u64,
            Self::Prefixed(start) => start + values.range(at).start as u64 + 4 * (at as u64 + 1),
        }
    }
}

/// A page of texts as they are, which is walked through: it may be larger than what fits into memory.
#[derive(Debug)]
struct Texts {
    page: Range<u64>,
    /// Of each row whether it has a value.
    present: std::vec::IntoIter<bool>,
    position: u64,
}

/// The row of a list that has begun.
#[derive(Debug, Default)]
struct OpenRow {
    start: u64,
    length: usize,
    /// In the file itself, as long as it is in one page.
    direct: Option<u64>,
    lost: Option<Lost>,
    /// What it has in earlier pages.
    pending: Vec<u8>,
}

impl ChunkReader {
    /// For a chunk in this part of the file.
    pub(super) fn new(layout: Layout, codec: Codec, range: Range<u64>, rows: u64) -> Self {
        Self {
            layout,
            codec,
            rows,
            position: range.start,
            end: range.end,
            header_bytes: FIRST_HEADER_BYTES,
            dictionary: None,
            texts: None,
            list: None,
            parts: Parts::default(),
            lost: Vec::new(),
        }
    }

    /// The bytes to begin with.
    pub(super) fn first_need(&self) -> Range<u64> {
        self.position..self.end.min(self.position + self.header_bytes)
    }

    /// What was found, and which rows are lost, and why.
    pub(super) fn finish(self) -> (Parts, Vec<(Range<u64>, Why)>) {
        (self.parts, self.lost)
    }

    /// Goes on with these bytes of the file, which begin at `start`, and has what was needed.
    pub(super) fn read(
        &mut self,
        start: u64,
        bytes: &[u8],
        table: &mut PageTable,
        budget: &mut Budget,
    ) -> Result<Next> {
        loop {
            let more = if self.texts.is_some() {
                self.read_texts(start, bytes)?
            } else if self.position >= self.end || (self.parts.len() >= self.rows && self.list.is_none()) {
                self.close()?;
                return Ok(Next::Done);
            } else {
                let need = self.first_need();
                if bytes_of(start, bytes, &need).is_none() {
                    return Ok(Next::Need(need));
                }
                let all = &bytes[(self.position - start) as usize..];
                let all = &all[..all.len().min((self.end - self.position) as usize)];
                self.read_page(all, table, budget)?
            };
            if let Some(need) = more.filter(|need| bytes_of(start, bytes, need).is_none()) {
                return Ok(Next::Need(need));
            }
        }
    }

    /// The last row of a list ends, and rows that are missing are lost.
    fn close(&mut self) -> Result<()> {
        self.close_row(&[])?;
        let (have, rows) = (self.parts.len(), self.rows);
        if have < rows {
            self.lost.push((have..rows, "there are fewer values than rows"));
            self.parts.lose_up_to(rows, Lost::Unreadable)?;
        }
        Ok(())
    }

    /// Loses so many rows, and all where it is not known how many.
    fn lose(&mut self, count: Option<u64>, why: Why) -> Result<()> {
        self.list = None;
        let have = self.parts.len();
        let to = count.map_or(self.rows, |count| self.rows.min(have.saturating_add(count)));
        if count.is_none() {
            self.position = self.end;
        }
        match self.lost.last_mut() {
            Some((rows, known)) if rows.end == have && *known == why => rows.end = to,
            _ => self.lost.push((have..to, why)),
        }
        self.parts.lose_up_to(to, Lost::Unreadable)
    }

    /// Reads a page of which at least the beginning is there; or says what is needed for it.
    fn read_page(&mut self, bytes: &[u8], table: &mut PageTable, budget: &mut Budget) -> Result<Option<Range<u64>>> {
        let start = self.position;
        let (header, length) = match Header::read(bytes) {
            Ok(found) => found,
            Err(_) if self.header_bytes < MAX_HEADER_BYTES && start + self.header_bytes < self.end => {
                self.header_bytes *= 8;
                return Ok(Some(self.first_need()));
            }
            Err(_) => return self.lose(None, "a page has a header that cannot be read").map(|()| None),
        };
        self.header_bytes = FIRST_HEADER_BYTES;
        let end = start + length as u64 + header.compressed as u64;
        if end > self.end {
            return self.lose(None, "a page is longer than its column").map(|()| None);
        }
        let is_data = matches!(header.kind, PageType::DATA_PAGE | PageType::DATA_PAGE_V2);
        let left = self.rows - self.parts.len().min(self.rows);
        // Of a list only its repetition levels say how many rows there are.
        let rows = match (is_data, self.layout.list_def > 0) {
            (false, _) => Some(0),
            (true, false) => Some(header.values as u64),
            (true, true) => None,
        };
        if rows.is_some_and(|rows| rows > left) {
            return self.lose(None, "there are more values than rows").map(|()| None);
        }
        let is_walked = is_data
            && self.layout.list_def == 0
            && self.layout.physical == Physical::ByteArray
            && header.encoding == Encoding::PLAIN
            && !page::is_packed(&header, self.codec);
        let is_large = header.compressed as u64 > MAX_PAGE_BYTES;
        let body = bytes.get(length..length + header.compressed);
        if is_walked && (header.crc.is_none() || is_large) {
            return self.begin_texts(&header, &bytes[length..], start + length as u64..end);
        }
        if is_large {
            self.position = end;
            return self.lose(rows, TOO_LARGE).map(|()| None);
        }
        let Some(body) = body else { return Ok(Some(start..end)) };
        if is_walked && page::has_right_sum(&header, body) {
            return self.begin_texts(&header, body, start + length as u64..end);
        }
        self.position = end;
        let before = self.parts.len();
        let read = match header.kind {
            _ if !page::has_right_sum(&header, body) => Ok(Err("a page is not what its checksum says")),
            PageType::DICTIONARY_PAGE => self.read_dictionary(&header, body, start..end, table, budget),
            _ if is_data => self.read_data(&header, &bytes[..length + header.compressed], start..end, table, budget),
            _ => Ok(Ok(())),
        };
        if let Err(why) = read? {
            self.parts.truncate(before);
            self.lose(rows, why)?;
        }
        Ok(None)
    }

    /// Charges what a page becomes.
    fn charge(&self, header: &Header, budget: &mut Budget) -> Result<(), Why> {
        if page::is_packed(header, self.codec) {
            let left = budget.unpacked_bytes.checked_sub(header.uncompressed as u64);
            budget.unpacked_bytes = left.ok_or("the file becomes too large when it is unpacked")?;
        }
        let left = budget.entries.checked_sub(header.values as u64);
        budget.entries = left.ok_or("the file has too many values for its size")?;
        Ok(())
    }

    fn read_dictionary(
        &mut self,
        header: &Header,
        body: &[u8],
        at: Range<u64>,
        table: &mut PageTable,
        budget: &mut Budget,
    ) -> Result<Result<(), Why>> {
        self.dictionary = None;
        let made = self.charge(header, budget).and_then(|()| {
            let bytes = page::open(header, self.codec, body)?;
            page::dictionary_of(&self.layout, header, &bytes)
        });
        let values = match made {
            Ok(values) => values,
            Err(why) => return Ok(Err(why)),
        };
        let mut hashes = Vec::new();
        if hashes.try_reserve_exact(header.values).is_err() {
            return Ok(Err(NO_MEMORY));
        }
        hashes.extend((0..header.values).map(|entry| xxh3_64(&values.bytes[values.range(entry)])));
        let in_file = at.end - header.compressed as u64;
        // Lists are put together of it, for which it is read as a page.
        let is_paged = page::is_packed(header, self.codec) || self.layout.list_def > 0;
        let (place, page) = match self.layout.physical {
            _ if is_paged && !values.bytes.is_empty() => {
                let (page, start) = self.keep(header, at, None, values.bytes.len(), table)?;
                (Place::Paged(start), Some(page))
            }
            Physical::Fixed { bytes } => (Place::Apart(in_file, bytes), None),
            _ if is_paged => (Place::Paged(in_file), None),
            _ => (Place::Prefixed(in_file), None),
        };
        self.dictionary = Some(Dictionary { values, hashes, place, page });
        Ok(Ok(()))
    }

    fn keep(
        &self,
        header: &Header,
        packed: Range<u64>,
        dictionary: Option<u32>,
        values_bytes: usize,
        table: &mut PageTable,
    ) -> Result<(u32, u64)> {
        // Sizes of pages have 31 bits.
        let page =
            NewPage { packed, body_bytes: header.uncompressed as u32, entries: header.values as u32, dictionary };
        table.push((self.layout, self.codec), &page, values_bytes)
    }

    /// A page of data, whose bytes are those of the file with its header.
    fn read_data(
        &mut self,
        header: &Header,
        bytes: &[u8],
        at: Range<u64>,
        table: &mut PageTable,
        budget: &mut Budget,
    ) -> Result<Result<(), Why>> {
        let body = &bytes[bytes.len() - header.compressed..];
        let opened = self.charge(header, budget).and_then(|()| page::open(header, self.codec, body));
        let opened = match opened {
            Ok(opened) => opened,
            Err(why) => return Ok(Err(why)),
        };
        let (levels, from) = match page::levels(header, &self.layout, &opened) {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let coded = &opened[from..];
        let is_entries = matches!(header.encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY);
        if is_entries && self.layout.list_def == 0 {
            return self.push_entries(levels, coded);
        }
        let dictionary = self.dictionary.as_ref().filter(|_| is_entries);
        let values = levels.clone().present(&self.layout).and_then(|count| {
            let entries = dictionary.map(|dictionary| &*dictionary.values.bytes);
            values::read(&self.layout, header.encoding, coded, count, entries)
        });
        let values = match values {
            Ok(values) => values,
            Err(why) => return Ok(Err(why)),
        };
        let is_plain = header.encoding == Encoding::PLAIN && !page::is_packed(header, self.codec);
        // Of a page that is unpacked this is no place.
        let in_file = at.end.saturating_sub((header.compressed.saturating_sub(from)) as u64);
        if self.layout.list_def > 0 {
            let page = dictionary.and_then(|dictionary| dictionary.page);
            let start = match values.bytes.len() {
                0 => table.end(),
                length => self.keep(header, at, page, length, table)?.1,
            };
            let is_apart = matches!(self.layout.physical, Physical::Fixed { bytes } if bytes == self.layout.width);
            let direct = (is_plain && is_apart).then_some(in_file);
            return self.push_lists(levels, &values, start, direct);
        }
        match self.layout.physical {
            Physical::Fixed { bytes } if is_plain => self.push_values(levels, &values, Place::Apart(in_file, bytes)),
            Physical::Boolean if is_plain && bytes.len() - header.compressed >= 7 => {
                self.push_bits(levels, bytes, bytes.len() - header.compressed + from, at.start)
            }
            _ => {
                let start = match values.bytes.len() {
                    0 => table.end(),
                    length => self.keep(header, at, None, length, table)?.1,
                };
                self.push_values(levels, &values, Place::Paged(start))
            }
        }
    }

    /// Rows whose values are entries of the dictionary.
    fn push_entries(&mut self, levels: Levels<'_>, coded: &[u8]) -> Result<Result<(), Why>> {
        let (Some(dictionary), max_def) = (&self.dictionary, u32::from(self.layout.max_def)) else {
            return Ok(Err("the dictionary cannot be read"));
        };
        let mut entries = match values::entries(coded) {
            Ok(entries) => entries,
            Err(why) => return Ok(Err(why)),
        };
        for level in levels {
            match level {
                Ok((_, definition)) if definition < max_def => self.parts.lose(Lost::Null)?,
                Ok(_) => {
                    let entry = entries.next().map(|entry| entry as usize);
                    let Some(entry) = entry.filter(|entry| *entry < dictionary.hashes.len()) else {
                        return Ok(Err("a page has values that its dictionary does not have"));
                    };
                    let size = dictionary.values.range(entry).len();
                    let place = dictionary.place.of(&dictionary.values, entry);
                    self.parts.push_hashed(place, size, dictionary.hashes[entry])?;
                }
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(()))
    }

    fn push_values(&mut self, levels: Levels<'_>, values: &Values, place: Place) -> Result<Result<(), Why>> {
        let (mut next, max_def) = (0, u32::from(self.layout.max_def));
        for level in levels {
            match level {
                Ok((_, definition)) if definition < max_def => self.parts.lose(Lost::Null)?,
                Ok(_) => {
                    self.parts.push(place.of(values, next), &values.bytes[values.range(next)])?;
                    next += 1;
                }
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(()))
    }

    /// Truth values as bits of the file: the last byte of a range has the bit, and as many as are before say which of its bits.
    fn push_bits(&mut self, levels: Levels<'_>, page: &[u8], from: usize, start: u64) -> Result<Result<(), Why>> {
        let (mut next, max_def) = (0, u32::from(self.layout.max_def));
        for level in levels {
            match level {
                Ok((_, definition)) if definition < max_def => self.parts.lose(Lost::Null)?,
                Ok(_) => {
                    let byte = from + next / 8;
                    let own = byte - next % 8..byte + 1;
                    self.parts.push(start + own.start as u64, &page[own])?;
                    next += 1;
                }
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(()))
    }

    /// Rows that are lists. The last one may go on in the next page.
    fn push_lists(
        &mut self,
        levels: Levels<'_>,
        values: &Values,
        start: u64,
        direct: Option<u64>,
    ) -> Result<Result<(), Why>> {
        let Layout { width, max_def, list_def, .. } = self.layout;
        let (max_def, list_def) = (u32::from(max_def), u32::from(list_def));
        // How many bytes were read, and where the row begins among them.
        let (mut at, mut from) = (0, 0);
        if let Some(row) = self.list.as_mut().filter(|row| row.length == 0) {
            row.start = start;
        }
        for level in levels {
            let (repetition, definition) = match level {
                Ok(level) => level,
                Err(why) => return Ok(Err(why)),
            };
            if repetition == 0 {
                self.close_row(&values.bytes[from..at])?;
                if self.parts.len() >= self.rows {
                    return Ok(Err("there are more values than rows"));
                }
                from = at;
                let place = direct.map(|direct| direct + at as u64);
                self.list = Some(OpenRow { start: start + at as u64, direct: place, ..OpenRow::default() });
            }
            let Some(row) = &mut self.list else { return Ok(Err("a page begins inside of a row that is not there")) };
            if definition == max_def {
                if at == 0 && repetition > 0 {
                    row.direct = None;
                }
                row.length += width;
                at += width;
            } else if definition >= list_def || definition + 1 < list_def {
                // An element without a value, or no list at all. One without elements is a list.
                row.lost = Some(Lost::Null);
            }
        }
        if let Some(row) = &mut self.list {
            let own = &values.bytes[from..at];
            if (row.pending.len() + own.len()) as u64 > MAX_PAGE_BYTES || row.pending.try_reserve(own.len()).is_err() {
                return Ok(Err(TOO_LARGE));
            }
            row.pending.extend_from_slice(own);
        }
        Ok(Ok(()))
    }

    /// The row of a list ends, with these bytes of the page.
    fn close_row(&mut self, own: &[u8]) -> Result<()> {
        let Some(OpenRow { start, length, direct, lost, mut pending }) = self.list.take() else { return Ok(()) };
        if let Some(lost) = lost {
            return self.parts.lose(lost);
        }
        let bytes = match pending.is_empty() {
            true => own,
            false => {
                pending.extend_from_slice(own);
                &*pending
            }
        };
        debug_assert_eq!(bytes.len(), length);
        self.parts.push(direct.unwrap_or(start), bytes)
    }

    /// A page of texts that are read where they are. Of its bytes at least the first ones are there.
    fn begin_texts(&mut self, header: &Header, bytes: &[u8], page: Range<u64>) -> Result<Option<Range<u64>>> {
        let rows = Some(header.values as u64);
        if let Err(why) = page::check(header, self.codec) {
            self.position = page.end;
            return self.lose(rows, why).map(|()| None);
        }
        let bytes = &bytes[..bytes.len().min(header.compressed)];
        let is_whole = bytes.len() == header.compressed;
        match page::levels_end(header, &self.layout, bytes) {
            Some(end) if bytes.len() >= end || is_whole => {}
            Some(end) => return Ok(Some(self.position..page.end.min(page.start.saturating_add(end as u64)))),
            None if !is_whole => return Ok(Some(self.position..page.end.min(page.start + bytes.len() as u64 + 64))),
            None => {}
        }
        self.position = page.end;
        let max_def = u32::from(self.layout.max_def);
        let mut present = Vec::new();
        let found = page::levels(header, &self.layout, bytes).and_then(|(levels, from)| {
            present.try_reserve_exact(header.values).map_err(|_| NO_MEMORY)?;
            for level in levels {
                present.push(level?.1 == max_def);
            }
            Ok(from)
        });
        match found {
            Ok(from) => {
                let position = page.start + from as u64;
                self.texts = Some(Texts { page, present: present.into_iter(), position });
                Ok(None)
            }
            Err(why) => self.lose(rows, why).map(|()| None),
        }
    }

    /// The rows of a page of texts, as far as their bytes are there; or what the next one needs.
    fn read_texts(&mut self, start: u64, bytes: &[u8]) -> Result<Option<Range<u64>>> {
        let Some(texts) = &mut self.texts else { return Ok(None) };
        let have = |range: Range<u64>| bytes_of(start, bytes, &range).ok_or(range);
        while let Some(is_present) = texts.present.as_slice().first() {
            if *is_present {
                let value = texts.position.saturating_add(4);
                let prefix = match (value <= texts.page.end).then(|| have(texts.position..value)) {
                    Some(Ok(prefix)) => prefix,
                    Some(Err(need)) => return Ok(Some(need)),
                    None => break,
                };
                let length = prefix.iter().rev().fold(0, |length, byte| length << 8 | u64::from(*byte));
                let end = value + length;
                let content = match (end <= texts.page.end).then(|| have(texts.position..end)) {
                    Some(Ok(content)) => &content[prefix.len()..],
                    Some(Err(need)) => return Ok(Some(need)),
                    None => break,
                };
                self.parts.push(value, content)?;
                texts.position = end;
            } else {
                self.parts.lose(Lost::Null)?;
            }
            texts.present.next();
        }
        let left = texts.present.len() as u64;
        self.texts = None;
        match left {
            0 => Ok(None),
            left => self.lose(Some(left), "a page has fewer values than it says").map(|()| None),
        }
    }
}

/// Bytes of a file, of which these are there.
fn bytes_of<'a>(start: u64, bytes: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
    bytes.get(from..from.checked_add(usize::try_from(range.end - range.start).ok()?)?)
}
