//! Finds the rows of a Parquet file: its footer first, then the pages of the columns that are asked for, one after the other.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};

use super::chunk::{ChunkReader, Next, Parts};
use super::footer::{Footer, TAIL_BYTES, encrypted, footer_bytes};
use super::page::{Codec, MAX_PAGE_BYTES};
use super::schema::{Column, ParquetSchema};
use super::table::PageTable;
use crate::file_scan::RangeScanner;
use crate::shards::numbers::push;
use crate::shards::{Lost, RecordField, ShardIndex, ShardIndexBuilder};

/// The first read: the whole footer of most files.
const FIRST_BYTES: u64 = 64 << 10;
/// Every other one, at most.
const PIECE_BYTES: u64 = 4 << 20;
/// Chunks that lie closer to each other are read as one.
const GAP_BYTES: u64 = 64 << 10;
/// Fields of samples for each byte of a file, and as many for none. A run of one value takes no bytes, and each sample takes memory.
const MAX_PARTS_A_BYTE: u64 = 64;
const MIN_PARTS: u64 = 1 << 17;
/// Bytes that come of each byte of a file when it is unpacked, beside one page.
const MAX_UNPACKED_A_BYTE: u64 = 4000;

/// Rows that are best read together take as many bytes, if a row group has more.
const BLOCK_BYTES: u64 = 2 << 20;
/// The rows of a page of large values, as pyarrow writes them.
const MIN_BLOCK_ROWS: u64 = 1024;

/// In front of what a column held when the index was made, among the names of fields.
const KIND_MARK: char = '\0';

/// Finds the samples of a Parquet file.
#[derive(Debug)]
pub struct ParquetScanner {
    size_bytes: u64,
    wanted: Arc<[RecordField]>,
    state: State,
    /// Bytes of the file that are there, from this place on.
    start: u64,
    bytes: Vec<u8>,
    /// Those that are needed next, and how far it is worth to read.
    need: Range<u64>,
    ahead: u64,
    rows: ShardIndexBuilder,
    table: PageTable,
    blocks: Vec<u64>,
    notes: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// The end of the file is read, and then the footer.
    Tail,
    Footer,
    Chunks(Box<Plan>),
    End,
}

/// What is read of a file, and what was read of its row group.
#[derive(Debug)]
struct Plan {
    columns: Vec<Column>,
    /// Rows of each group, and of each block of it.
    groups: Vec<u64>,
    block_rows: Vec<u64>,
    chunks: Vec<PlannedChunk>,
    /// The one that is read.
    at: usize,
    open: Option<ChunkReader>,
    /// The group whose chunks are read, the rows before it, and what was found of each column.
    group: usize,
    rows_before: u64,
    parts: Vec<Option<Parts>>,
    budget: Budget,
}

#[derive(Debug)]
struct PlannedChunk {
    group: usize,
    column: usize,
    codec: Codec,
    /// Where its pages are, or why that is not known.
    range: Result<Range<u64>, &'static str>,
    /// Where this chunk ends and those behind it that follow at once.
    run_end: u64,
}

/// What a file may still cost.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) unpacked_bytes: u64,
    pub(super) entries: u64,
}

/// The schema at the end of a file; `Err` with the bytes of it that are needed, where these are too few. `tail` is the end of a
/// file of this size. A file without a schema is an error.
pub fn parquet_schema(size_bytes: u64, tail: &[u8]) -> Result<Result<ParquetSchema, u64>> {
    let damaged = |why: String| {
        let hint = "copy the file again, or leave it out: without its footer nothing says what is in it";
        Error::new(Kind::Corrupt, format!("has no footer that can be read ({why})")).with_hint(hint)
    };
    let length = footer_bytes(size_bytes, tail)?.map_err(damaged)?;
    let end = tail.len() - TAIL_BYTES as usize;
    let Some(footer) = end.checked_sub(length as usize).and_then(|start| tail.get(start..end)) else {
        return Ok(Err(length + TAIL_BYTES));
    };
    let footer = Footer::read(footer)?.map_err(damaged)?;
    if footer.is_manifest {
        let error = Error::new(Kind::Undecodable, "is a manifest: its rows are names of files, and no samples");
        return Err(error.with_hint("give it as `manifest` in place of the first argument"));
    }
    let mut schema = ParquetSchema::read(&footer).map_err(damaged)?;
    schema.leave_out_unknown_codecs(&footer);
    Ok(Ok(schema))
}

impl ParquetScanner {
    /// For a file of this size, whose fields are these in its footer as well.
    pub fn new(size_bytes: u64, wanted: Arc<[RecordField]>) -> Self {
        let mut scanner = Self {
            size_bytes,
            wanted,
            state: State::Tail,
            start: size_bytes,
            bytes: Vec::new(),
            need: size_bytes.saturating_sub(FIRST_BYTES)..size_bytes,
            ahead: 0,
            rows: ShardIndexBuilder::new(false),
            table: PageTable::new(size_bytes),
            blocks: Vec::new(),
            notes: Vec::new(),
        };
        if size_bytes < TAIL_BYTES {
            scanner.leave_out(&format!("it has {size_bytes} bytes"));
        }
        scanner
    }

    /// Whether a column of a file was of the same kind when its index was made; `None` where it was left out of it.
    pub fn has_kind(index: &ShardIndex, field: &RecordField) -> Option<bool> {
        let mut marks = index.fields().iter().filter_map(|name| name.strip_prefix(KIND_MARK)?.split_once(KIND_MARK));
        marks.find(|(name, _)| *name == field.name).map(|(_, kind)| kind == format!("{:?}", field.kind))
    }

    /// Whether nothing was read of a file, because its footer could not be.
    pub fn is_left_out(index: &ShardIndex) -> bool {
        index.is_empty() && !index.fields().iter().any(|name| name.starts_with(KIND_MARK))
    }

    /// Nothing of the file is read.
    fn leave_out(&mut self, why: &str) {
        self.notes.push(format!("is damaged: its samples are left out ({why})"));
        self.state = State::End;
    }

    /// Bytes that are there.
    fn have(&self, range: &Range<u64>) -> Option<&[u8]> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start + usize::try_from(range.end - range.start).ok()?)
    }

    /// Where reading begins: behind what is there, if that is of use.
    fn next_start(&self) -> u64 {
        let end = self.start + self.bytes.len() as u64;
        if (self.start..=end).contains(&self.need.start) { end } else { self.need.start }
    }

    fn advance(&mut self) -> Result<()> {
        while !matches!(self.state, State::End) && self.have(&self.need).is_some() {
            match &self.state {
                State::Tail => self.read_tail()?,
                State::Footer => self.read_footer()?,
                State::Chunks(_) => self.read_chunk()?,
                State::End => {}
            }
        }
        Ok(())
    }

    fn read_tail(&mut self) -> Result<()> {
        let tail = self.have(&self.need).unwrap_or_default();
        match footer_bytes(self.size_bytes, tail)? {
            Ok(length) => {
                let end = self.size_bytes - TAIL_BYTES;
                (self.need, self.ahead, self.state) = (end - length..end, end, State::Footer);
            }
            Err(why) => self.leave_out(&why),
        }
        Ok(())
    }

    fn read_footer(&mut self) -> Result<()> {
        let footer = Footer::read(self.have(&self.need).unwrap_or_default())?;
        let planned = match footer.and_then(|footer| ParquetSchema::read(&footer).map(|schema| (footer, schema))) {
            Ok((footer, schema)) => Plan::new(&footer, schema, &self.wanted, self.size_bytes)?,
            Err(why) => Err(why),
        };
        match planned {
            Ok(plan) => {
                for RecordField { name, kind, .. } in &*self.wanted {
                    self.rows.name_field(&format!("{KIND_MARK}{name}{KIND_MARK}{kind:?}"))?;
                }
                self.state = State::Chunks(Box::new(plan));
                self.need = self.need.start..self.need.start;
            }
            Err(why) => self.leave_out(&why),
        }
        Ok(())
    }

    /// Reads on where the plan is: the next part of a chunk, or what follows the last one of a group.
    fn read_chunk(&mut self) -> Result<()> {
        let State::Chunks(mut plan) = std::mem::replace(&mut self.state, State::End) else { return Ok(()) };
        if let Some(reader) = &mut plan.open {
            // What is there behind it, too: pages are most often smaller than pieces.
            let bytes = &self.bytes[(self.need.start - self.start) as usize..];
            match reader.read(self.need.start, bytes, &mut self.table, &mut plan.budget)? {
                Next::Need(range) => self.need = range,
                Next::Done => plan.close_chunk(&mut self.notes),
            }
        } else if plan.chunks.get(plan.at).is_some_and(|chunk| chunk.group == plan.group) {
            if let Some((need, ahead)) = plan.open_chunk(&mut self.notes)? {
                (self.need, self.ahead) = (need, ahead);
            }
        } else if plan.group < plan.groups.len() {
            self.close_group(&mut plan)?;
        } else {
            return Ok(());
        }
        self.state = State::Chunks(plan);
        Ok(())
    }

    /// Makes samples of the rows of a group, all of whose chunks were read.
    fn close_group(&mut self, plan: &mut Plan) -> Result<()> {
        let rows = plan.groups[plan.group];
        let parts: Vec<_> = plan.parts.iter_mut().map(|parts| parts.take().unwrap_or_default()).collect();
        for row in 0..rows {
            for (column, parts) in plan.columns.iter().zip(&parts) {
                let (name, (offset, size, hash)) = (&column.field.name, parts.get(row));
                match size {
                    Ok(size) => self.rows.push_part(name, offset, u64::from(size), Some(hash), None)?,
                    Err(lost) => self.rows.push_part(name, 0, 0, None, Some(lost))?,
                }
            }
            self.rows.end_sample(None)?;
        }
        let each = plan.block_rows[plan.group].max(1);
        let mut left = rows;
        while left > 0 {
            // What would be left of it is no block of its own.
            let block = if left < each.saturating_mul(2) { left } else { each };
            push(&mut self.blocks, block)?;
            left -= block;
        }
        plan.rows_before += rows;
        plan.group += 1;
        Ok(())
    }
}

/// How many rows of a group are a block: all of it, or about two megabytes, and so many that pages of large values are not divided.
/// That depends on nothing but the footer: the order of an epoch is the same whichever columns are read.
fn block_rows(rows: u64, size_bytes: i64) -> u64 {
    let parts = u64::try_from(size_bytes).unwrap_or(0).div_ceil(BLOCK_BYTES).max(1);
    rows.div_ceil(parts).max(MIN_BLOCK_ROWS)
}

fn lost_note(name: &str, rows: Range<u64>, why: &str) -> String {
    format!("is damaged: {name:?} of rows {}..{} is lost ({why})", rows.start, rows.end)
}

impl Plan {
    /// What is to be read; or why nothing can be.
    fn new(
        footer: &Footer,
        schema: ParquetSchema,
        wanted: &[RecordField],
        size_bytes: u64,
    ) -> Result<Result<Self, String>> {
        let own = |field: &RecordField| {
            let found = schema.columns.iter().find(|column| column.field == *field);
            found.cloned().ok_or_else(|| {
                let message =
                    format!("has other columns, or other types of them, than the first file ({:?})", field.name);
                let hint = "name files of one dataset, or write them again with the same types";
                Error::new(Kind::Undecodable, message).with_hint(hint)
            })
        };
        let columns: Vec<_> = wanted.iter().map(own).collect::<Result<_>>()?;
        let mut plan = Self {
            groups: Vec::new(),
            block_rows: Vec::new(),
            chunks: Vec::new(),
            at: 0,
            open: None,
            group: 0,
            rows_before: 0,
            parts: columns.iter().map(|_| None).collect(),
            budget: Budget {
                unpacked_bytes: size_bytes.saturating_mul(MAX_UNPACKED_A_BYTE).saturating_add(MAX_PAGE_BYTES),
                entries: size_bytes.saturating_mul(MAX_PARTS_A_BYTE).saturating_add(MAX_PAGE_BYTES >> 2),
            },
            columns,
        };
        let (mut rows, mut chunk_bytes) = (0u64, 0u64);
        for (number, group) in footer.groups.iter().enumerate() {
            let Ok(own) = u64::try_from(group.rows) else {
                return Ok(Err("a row group of a negative length".to_owned()));
            };
            rows = rows.saturating_add(own);
            plan.groups.push(own);
            plan.block_rows.push(block_rows(own, group.size_bytes));
            if own == 0 {
                continue;
            }
            for (at, column) in plan.columns.iter().enumerate() {
                let chunk = group.chunks.get(column.leaf).filter(|_| group.chunks.len() == schema.leaves);
                let (codec, range) = match chunk {
                    Some(chunk) if chunk.is_encrypted => return Err(encrypted()),
                    Some(chunk) if chunk.is_elsewhere => (Codec::None, Err("its values are in another file")),
                    Some(chunk) => match Codec::of(chunk.codec) {
                        Ok(codec) => (codec, chunk.range(size_bytes).ok_or("its values lie outside of the file")),
                        Err(name) => return Err(unknown_codec(&column.field.name, &name)),
                    },
                    None => (Codec::None, Err("its row group has other columns")),
                };
                chunk_bytes = chunk_bytes.saturating_add(range.as_ref().map_or(0, |range| range.end - range.start));
                plan.chunks.push(PlannedChunk { group: number, column: at, codec, range, run_end: 0 });
            }
        }
        let parts = rows.saturating_mul(plan.columns.len().max(1) as u64);
        if parts > size_bytes.saturating_mul(MAX_PARTS_A_BYTE).saturating_add(MIN_PARTS) {
            return Ok(Err(format!("it claims {rows} rows in {size_bytes} bytes")));
        }
        if chunk_bytes > size_bytes {
            return Ok(Err("its columns overlap".to_owned()));
        }
        plan.order();
        Ok(Ok(plan))
    }

    /// Chunks of a group come in the order of the file, and each knows how far it is worth to read.
    fn order(&mut self) {
        let start = |chunk: &PlannedChunk| chunk.range.as_ref().map_or(0, |range| range.start);
        self.chunks.sort_by_key(|chunk| (chunk.group, start(chunk)));
        let mut next: Option<(u64, u64)> = None;
        for chunk in self.chunks.iter_mut().rev() {
            let Ok(range) = &chunk.range else { continue };
            let follows = next.filter(|(start, _)| (range.end..=range.end + GAP_BYTES).contains(start));
            chunk.run_end = follows.map_or(range.end, |(_, end)| end);
            next = Some((range.start, chunk.run_end));
        }
    }

    /// Begins with a chunk: gives what it needs first, and how far it is worth to read. One that is nowhere is lost.
    fn open_chunk(&mut self, notes: &mut Vec<String>) -> Result<Option<(Range<u64>, u64)>> {
        let Some(PlannedChunk { column, codec, range, run_end, .. }) = self.chunks.get(self.at) else {
            return Ok(None);
        };
        let (rows, column) = (self.groups[self.group], *column);
        match range {
            Ok(range) => {
                let reader = ChunkReader::new(self.columns[column].layout, *codec, range.clone(), rows);
                let need = reader.first_need();
                self.open = Some(reader);
                Ok(Some((need, *run_end)))
            }
            Err(why) => {
                let mut parts = Parts::default();
                parts.lose_up_to(rows, Lost::Unreadable)?;
                let (from, name) = (self.rows_before, &self.columns[column].field.name);
                notes.push(lost_note(name, from..from + rows, why));
                self.parts[column] = Some(parts);
                self.at += 1;
                Ok(None)
            }
        }
    }

    fn close_chunk(&mut self, notes: &mut Vec<String>) {
        let (Some(reader), Some(chunk)) = (self.open.take(), self.chunks.get(self.at)) else { return };
        let name = &self.columns[chunk.column].field.name;
        let (parts, lost) = reader.finish();
        let moved = |rows: Range<u64>| self.rows_before + rows.start..self.rows_before + rows.end;
        notes.extend(lost.into_iter().map(|(rows, why)| lost_note(name, moved(rows), why)));
        self.parts[chunk.column] = Some(parts);
        self.at += 1;
    }
}

fn unknown_codec(column: &str, name: &str) -> Error {
    let message =
        format!("holds {column:?} compressed with {name}, which is not read (expected snappy, gzip, zstd or none)");
    let hint = "write it again with compression=\"snappy\" or \"zstd\", or name other fields";
    Error::new(Kind::Undecodable, message).with_hint(hint)
}

impl RangeScanner for ParquetScanner {
    type Index = ShardIndex;

    fn next_range(&self) -> Option<Range<u64>> {
        if matches!(self.state, State::End) {
            return None;
        }
        let start = self.next_start();
        let end = self.need.end.max(self.ahead).min(start + PIECE_BYTES);
        (start < end).then_some(start..end)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let no_memory = |_| Error::new(Kind::Exhausted, "no memory was left for the index of its samples");
        let next = self.next_start();
        if next == self.start + self.bytes.len() as u64 {
            self.bytes.drain(..(self.need.start - self.start) as usize);
        } else {
            self.bytes.clear();
        }
        self.start = next - self.bytes.len() as u64;
        self.bytes.try_reserve(bytes.len()).map_err(no_memory)?;
        self.bytes.extend_from_slice(bytes);
        self.advance()
    }

    fn finish(mut self) -> Result<ShardIndex> {
        if let Some(range) = self.next_range() {
            return Err(Error::internal(format!("an index of Parquet without its bytes from {}", range.start)));
        }
        self.table.set_blocks(self.blocks);
        Ok(self.rows.finish(self.notes)?.with_pages(self.table))
    }
}
