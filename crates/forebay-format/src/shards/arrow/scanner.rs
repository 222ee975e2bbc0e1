//! Finds the rows of an Arrow file, message by message.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};

use super::flatbuffer::Table;
use super::schema::{ArrowSchema, Column, Values};
use crate::file_scan::RangeScanner;
use crate::shards::mds::corrupt;
use crate::shards::{Lost, ShardIndex, ShardIndexBuilder};

const FILE_MAGIC: &[u8] = b"ARROW1";
/// The first read of a message: the whole header of most.
const HEADER_BYTES: u64 = 16 << 10;
/// Names of classes may make a schema long; nothing makes it longer than that.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// A record batch of no more is read as a whole: that is one read.
const SHORT_BODY_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 4 << 20;

const SCHEMA: u8 = 1;
const RECORD_BATCH: u8 = 3;

/// What a fingerprint of the schema is called among the names of fields.
const SCHEMA_FIELD: &str = "\0schema";

/// Finds the samples of an Arrow file.
#[derive(Debug)]
pub struct ArrowScanner {
    begin: u64,
    size_bytes: u64,
    position: u64,
    state: State,
    schema: Option<ArrowSchema>,
    rows: ShardIndexBuilder,
    notes: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// At a message, of which so many bytes are needed.
    Message(u64),
    Batch(Batch),
    End,
}

/// A record batch, whose bytes are read that say where its values are.
#[derive(Debug)]
struct Batch {
    rows: u64,
    body: Range<u64>,
    /// Beginning and length of each buffer in the body.
    buffers: Vec<(u64, u64)>,
    /// Of each node the number of values that are not there.
    nulls: Vec<u64>,
    /// What is read, in order and apart from each other, and what was read of it.
    wanted: Vec<(Range<u64>, Vec<u8>)>,
    at: usize,
}

/// The prefix of a message: how long it is, and how long the header behind it; `None` at the end.
fn prefix(bytes: &[u8]) -> Option<(u64, i32)> {
    let word = |at: usize| bytes.get(at..)?.first_chunk::<4>().map(|word| i32::from_le_bytes(*word));
    match word(0)? {
        // Since Arrow 0.15, so that the length is at a multiple of 8.
        -1 => Some((8, word(4)?)),
        length => Some((4, length)),
    }
}

/// The schema at the beginning of a file; `Err` with how many bytes that takes, where these are too few.
pub fn arrow_schema(bytes: &[u8]) -> Result<Result<ArrowSchema, u64>> {
    let no_schema = || corrupt("does not begin with an Arrow schema");
    let start = if bytes.starts_with(FILE_MAGIC) { 8 } else { 0 };
    let rest = bytes.get(start..).ok_or_else(no_schema)?;
    let (head, length) = prefix(rest).ok_or_else(no_schema)?;
    let length = u64::try_from(length).ok().filter(|length| (1..=MAX_HEADER_BYTES).contains(length));
    let end = head + length.ok_or_else(no_schema)?;
    let Some(header) = rest.get(head as usize..end as usize) else { return Ok(Err(start as u64 + end)) };
    let message = Table::root(header).filter(|message| message.u8(1) == SCHEMA);
    let schema = message.and_then(|message| message.table(2)).ok_or_else(no_schema)?;
    ArrowSchema::read(schema).map(Ok)
}

impl ArrowScanner {
    /// For a file of this size.
    pub fn new(size_bytes: u64) -> Self {
        Self::behind(0, size_bytes)
    }

    /// For a file of this size in which something else comes before the Arrow messages, which begin here.
    pub fn behind(begin: u64, size_bytes: u64) -> Self {
        let (rows, notes) = (ShardIndexBuilder::new(false), Vec::new());
        Self { begin, size_bytes, position: begin, state: State::Message(HEADER_BYTES), schema: None, rows, notes }
    }

    /// The fingerprint of the schema that a file had when its index was made.
    pub fn schema_of(index: &ShardIndex) -> Option<&str> {
        index.fields().iter().find_map(|name| name.strip_prefix(SCHEMA_FIELD))
    }

    /// Gives up what follows: without this message nothing says where the next one is.
    fn give_up(&mut self, why: &str) {
        let (from, to) = (self.position, self.size_bytes);
        self.notes.push(format!("is damaged: bytes {from}..{to} are lost ({why})"));
        self.state = State::End;
    }

    fn read_message(&mut self, bytes: &[u8]) -> Result<()> {
        if self.position == self.begin && bytes.starts_with(FILE_MAGIC) {
            self.position = self.begin + 8;
            return Ok(());
        }
        let Some((head, length)) = prefix(bytes) else {
            self.give_up("the file ends in a message");
            return Ok(());
        };
        if length == 0 {
            self.state = State::End;
            return Ok(());
        }
        let Some(length) = u64::try_from(length).ok().filter(|length| *length <= MAX_HEADER_BYTES) else {
            self.give_up("the length of a message makes no sense");
            return Ok(());
        };
        let end = self.position + head + length;
        if end > self.size_bytes {
            self.give_up("the file ends in a message");
            return Ok(());
        }
        let Some(header) = bytes.get(head as usize..(head + length) as usize) else {
            self.state = State::Message(head + length);
            return Ok(());
        };
        let Some(message) = Table::root(header) else {
            self.give_up("a message cannot be read");
            return Ok(());
        };
        let body_end = u64::try_from(message.i64(3)).ok().and_then(|length| end.checked_add(length));
        let Some(body_end) = body_end.filter(|body_end| *body_end <= self.size_bytes) else {
            self.give_up("the file ends in a record batch");
            return Ok(());
        };
        self.read_header(message, end..body_end)
    }

    fn read_header(&mut self, message: Table<'_>, body: Range<u64>) -> Result<()> {
        match (message.u8(1), message.table(2), &self.schema) {
            (SCHEMA, Some(header), None) => {
                let schema = ArrowSchema::read(header)?;
                if schema.columns.is_empty() {
                    return Err(Error::new(Kind::Undecodable, "has no column of a type that is read"));
                }
                self.rows.name_field(&format!("{SCHEMA_FIELD}{:016x}", schema.fingerprint()))?;
                self.schema = Some(schema);
            }
            (RECORD_BATCH, Some(header), Some(schema)) => {
                if header.table(3).is_some() {
                    let error = Error::new(Kind::Undecodable, "holds record batches that are compressed");
                    return Err(error.with_hint("write it again without compression: datasets.save_to_disk does so"));
                }
                match Batch::read(header, schema, body.clone()) {
                    Ok(batch) => {
                        self.state = State::Batch(batch);
                        self.position = body.end;
                        return self.close_batch();
                    }
                    Err(why) => {
                        let (start, end) = (self.position, body.end);
                        self.notes.push(format!("is damaged: bytes {start}..{end} are lost ({why})"));
                    }
                }
            }
            (_, _, None) => return Err(corrupt("does not begin with an Arrow schema")),
            _ => {}
        }
        (self.position, self.state) = (body.end, State::Message(HEADER_BYTES));
        Ok(())
    }

    /// Takes the rows of a batch of which everything was read.
    fn close_batch(&mut self) -> Result<()> {
        let State::Batch(batch) = &self.state else { return Ok(()) };
        if batch.next_range().is_some() {
            return Ok(());
        }
        let columns = self.schema.as_ref().map_or(&[][..], |schema| &schema.columns);
        for row in 0..batch.rows {
            for column in columns {
                let (range, lost) = match batch.value(column, row) {
                    Ok(range) => (range, None),
                    Err(lost) => (batch.body.start..batch.body.start, Some(lost)),
                };
                self.rows.push_part(&column.name, range.start, range.end - range.start, None, lost)?;
            }
            self.rows.end_sample(None)?;
        }
        self.state = State::Message(HEADER_BYTES);
        Ok(())
    }
}

impl RangeScanner for ArrowScanner {
    type Index = ShardIndex;

    fn next_range(&self) -> Option<Range<u64>> {
        match &self.state {
            State::Message(count) => {
                let range = self.position..self.size_bytes.min(self.position.saturating_add(*count));
                (!range.is_empty()).then_some(range)
            }
            State::Batch(batch) => batch.next_range(),
            State::End => None,
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.state {
            State::Message(_) => self.read_message(bytes),
            State::Batch(batch) => {
                batch.take(bytes)?;
                self.close_batch()
            }
            State::End => Ok(()),
        }
    }

    fn finish(mut self) -> Result<ShardIndex> {
        if let Some(range) = self.next_range() {
            return Err(Error::internal(format!("an index of Arrow messages that ends at byte {}", range.start)));
        }
        if matches!(self.state, State::Message(_)) {
            self.notes.push("has no end-of-stream mark: it may have been cut off".to_owned());
        }
        self.rows.finish(self.notes)
    }
}

impl Batch {
    /// Reads the header of a record batch, and says what has to be read of its body; or why the batch makes no sense.
    fn read(header: Table<'_>, schema: &ArrowSchema, body: Range<u64>) -> Result<Self, &'static str> {
        let number = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
            word.and_then(|word| u64::try_from(i64::from_le_bytes(*word)).ok())
        };
        let pairs = |field| {
            let items = header.items(field, 16).unwrap_or_default().chunks_exact(16);
            items.map(|item| number(item, 0).zip(number(item, 8))).collect::<Option<Vec<_>>>()
        };
        let size = body.end - body.start;
        let rows = u64::try_from(header.i64(0)).map_err(|_| "a record batch of a negative length")?;
        let nodes =
            pairs(1).filter(|nodes| nodes.len() == schema.node_count).ok_or("a record batch of other columns")?;
        let buffers = pairs(2).filter(|buffers| buffers.len() == schema.buffer_count);
        let buffers = buffers.ok_or("a record batch of other columns")?;
        let is_inside = |(start, length): &(u64, u64)| start.checked_add(*length).is_some_and(|end| end <= size);
        if !buffers.iter().all(is_inside) {
            return Err("a record batch with values behind its end");
        }
        // Else few bytes could be the values of any number of columns.
        if buffers.iter().try_fold(0u64, |sum, (_, length)| sum.checked_add(*length)).is_none_or(|sum| sum > size) {
            return Err("a record batch whose columns share their bytes");
        }
        let nulls = nodes.iter().map(|(_, nulls)| *nulls).collect();
        let mut batch = Self { rows, body, buffers, nulls, wanted: Vec::new(), at: 0 };
        let mut wanted = Vec::new();
        for column in &schema.columns {
            if column.present.iter().any(|(node, _)| nodes.get(*node).is_none_or(|(length, _)| *length != rows)) {
                return Err("a record batch with columns of different lengths");
            }
            wanted.extend(batch.wanted_of(column).ok_or("a record batch with fewer values than rows")?);
        }
        batch.wanted = match size <= SHORT_BODY_BYTES {
            true if !wanted.is_empty() => vec![(batch.body.clone(), Vec::new())],
            true => Vec::new(),
            false => wanted.into_iter().map(|range| (range, Vec::new())).collect(),
        };
        Ok(batch)
    }

    /// What has to be read to know where the values of a column are; `None` if there are fewer of them than rows.
    fn wanted_of(&self, column: &Column) -> Option<Vec<Range<u64>>> {
        let (rows, mut wanted) = (self.rows, Vec::new());
        let mut want = |buffer: usize, length: u64, is_read: bool| {
            let range = self.start_of(buffer, length)?;
            if is_read && !range.is_empty() {
                wanted.push(range);
            }
            Some(())
        };
        for (node, bitmap) in &column.present {
            if self.nulls.get(*node) != Some(&0) {
                want(*bitmap, rows.div_ceil(8), true)?;
            }
        }
        match column.values {
            Values::Fixed(size) => want(column.data, rows.checked_mul(size)?, false)?,
            Values::Bits => want(column.data, rows.div_ceil(8), false)?,
            Values::Several { count, size } => {
                want(column.data, rows.checked_mul(count)?.checked_mul(size)?, false)?;
            }
            Values::Offsets { are_wide, .. } if rows > 0 => {
                let width = if are_wide { 8 } else { 4 };
                want(column.offsets?, rows.checked_add(1)?.checked_mul(width)?, true)?;
            }
            Values::Offsets { .. } => {}
        }
        Some(wanted)
    }

    /// Where the first so many bytes of a buffer are; `None` if it has fewer.
    fn start_of(&self, buffer: usize, length: u64) -> Option<Range<u64>> {
        let (start, available) = *self.buffers.get(buffer)?;
        let start = self.body.start + start;
        (length <= available).then(|| start..start + length)
    }

    fn next_range(&self) -> Option<Range<u64>> {
        let (range, read) = self.wanted.get(self.at)?;
        let start = range.start + read.len() as u64;
        Some(start..range.end.min(start + PIECE_BYTES))
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((range, read)) = self.wanted.get_mut(self.at) else { return Ok(()) };
        let no_memory = |_| Error::new(Kind::Exhausted, "no memory was left for the index of its samples");
        read.try_reserve(bytes.len()).map_err(no_memory)?;
        read.extend_from_slice(bytes);
        if read.len() as u64 >= range.end - range.start {
            self.at += 1;
        }
        Ok(())
    }

    /// Bytes of the body that were read.
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let after = self.wanted.partition_point(|(range, _)| range.start <= at);
        // Ranges of columns are in the order of columns, not always in that of places.
        let holds = |(range, _): &&(Range<u64>, Vec<u8>)| range.start <= at && at + N as u64 <= range.end;
        let before = after.checked_sub(1).and_then(|place| self.wanted.get(place)).filter(holds);
        let (range, read) = before.or_else(|| self.wanted.iter().find(holds))?;
        read.get(usize::try_from(at - range.start).ok()?..)?.first_chunk().copied()
    }

    /// Where a value of a row is, or why it cannot be read.
    fn value(&self, column: &Column, row: u64) -> Result<Range<u64>, Lost> {
        for (node, bitmap) in &column.present {
            if self.nulls.get(*node) != Some(&0) {
                let at = self.start_of(*bitmap, 0).ok_or(Lost::Misplaced)?.start + row / 8;
                let [byte] = self.bytes(at).ok_or(Lost::Misplaced)?;
                if byte >> (row % 8) & 1 == 0 {
                    return Err(Lost::Null);
                }
            }
        }
        let data = self.start_of(column.data, 0).ok_or(Lost::Misplaced)?.start;
        let available = self.buffers.get(column.data).map_or(0, |(_, length)| *length);
        Ok(match column.values {
            Values::Fixed(size) => data + row * size..data + (row + 1) * size,
            Values::Several { count, size } => data + row * count * size..data + (row + 1) * count * size,
            // The last byte of the range has the bit; how many are before it says which of its bits.
            Values::Bits => {
                let byte = data + row / 8;
                byte - row % 8..byte + 1
            }
            Values::Offsets { size, are_wide } => {
                let buffer = column.offsets.and_then(|offsets| self.start_of(offsets, 0)).ok_or(Lost::Misplaced)?.start;
                let offset = |row: u64| match are_wide {
                    true => self.bytes(buffer + row * 8).and_then(|word| u64::try_from(i64::from_le_bytes(word)).ok()),
                    false => self.bytes(buffer + row * 4).and_then(|word| u64::try_from(i32::from_le_bytes(word)).ok()),
                };
                let place = |row| offset(row)?.checked_mul(size).filter(|end| *end <= available);
                match (place(row), place(row + 1)) {
                    (Some(start), Some(end)) if start <= end => data + start..data + end,
                    _ => return Err(Lost::Misplaced),
                }
            }
        })
    }
}
