//! Parquet, as `forebay scan`, pandas, DuckDB and Spark write it: flat columns, found by name, in any order, encoding
//! and row groups. Other columns are ignored.

mod footer;
mod pages;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use parquet::basic::{Compression, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::ColumnDescriptor;

use super::labels::Cell;
use super::rows::{CellError, Row, Rows, checked_size};
use super::{Content, FORMAT, Head, Keeps, Picture, row_name, shown};
use pages::{Chunk, Pages};

/// Rows that are decoded at a time.
const CHUNK: usize = 8192;
/// Fewer rows are decoded at a time if their cells could take more than this.
const MAX_CELL_BYTES: usize = 64 << 20;

/// Rows per byte of the file. Distinct paths cannot be encoded more densely; one repeated row could become 2^31 rows
/// from a few bytes, more than memory holds.
const MAX_ROWS_A_BYTE: u64 = 16;
/// The same for names and classes: a file name has at most 255 bytes.
const MAX_TEXT_A_BYTE: u64 = 256;

/// The error for a file that is not a Parquet file, or is truncated.
pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("is not a whole Parquet file ({what})"))
        .with_hint("it may be truncated: copy it again, or create it again with `forebay scan`")
}

pub(super) fn read(bytes: Bytes, rows: &mut Rows) -> Result<Head> {
    // The library gives no guarantees for hostile input.
    let guarded = catch_unwind(AssertUnwindSafe(|| read_all(bytes, rows)));
    guarded.unwrap_or_else(|panic| Err(damaged(said(panic.as_ref()))))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it made the reader panic".to_owned())
}

fn read_all(bytes: Bytes, rows: &mut Rows) -> Result<Head> {
    footer::check(&bytes).map_err(unreadable)?;
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).map_err(unreadable)?;
    let mut head = head(metadata.file_metadata())?;
    let wanted = wanted(metadata.file_metadata(), rows)?;
    check_compression(&metadata)?;
    check_sizes(&metadata, &wanted, bytes.len() as u64)?;
    head.columns = metadata.file_metadata().schema().get_fields().iter().map(|field| field.name().to_owned()).collect();
    let mut row = 0;
    for group in metadata.row_groups() {
        read_group(&bytes, group, &wanted, rows, &mut row)?;
    }
    let expected = metadata.file_metadata().num_rows();
    if i64::try_from(row) != Ok(expected) {
        return Err(damaged(format!("expected {expected} rows, got {row}")));
    }
    Ok(head)
}

/// Refuses more rows than such a file can have, and column chunks that are outside the file or overlap.
fn check_sizes(metadata: &ParquetMetaData, wanted: &[Wanted], length: u64) -> Result<()> {
    let max_rows = length.saturating_mul(MAX_ROWS_A_BYTE);
    let (mut rows, mut chunks) = (0_u64, 0_u64);
    for group in metadata.row_groups() {
        let count = u64::try_from(group.num_rows());
        rows = rows.saturating_add(count.map_err(|_| damaged(format!("it has {} rows", group.num_rows())))?);
        for (number, ..) in wanted {
            let number = *number;
            let (start, size) = group.column(number).byte_range();
            if start.checked_add(size).is_none_or(|end| end > length) {
                return Err(damaged(format!("a column claims {size} bytes from byte {start} of {length}")));
            }
            chunks = chunks.saturating_add(size);
        }
    }
    if chunks > length {
        return Err(damaged(format!("its columns claim {chunks} bytes of {length}")));
    }
    if rows > max_rows {
        return Err(repeats(format!("more than {max_rows} of them")));
    }
    Ok(())
}

fn repeats(what: String) -> Error {
    Error::config(format!("repeats its rows too often ({what})"))
        .with_hint("list each sample once; to draw some of them more often, use a sampler")
}

fn unreadable(error: ParquetError) -> Error {
    damaged(&error).with_source(error)
}

/// Only Snappy is built in (decisions/0021). Files with other compressions are valid, too, so the error says so.
fn check_compression(metadata: &ParquetMetaData) -> Result<()> {
    let columns = metadata.row_groups().iter().flat_map(|group| group.columns());
    let mut others = columns.map(|column| column.compression());
    let other = others.find(|other| !matches!(other, Compression::UNCOMPRESSED | Compression::SNAPPY));
    let Some(other) = other else { return Ok(()) };
    let name = format!("{other}").to_lowercase();
    let name = name.split('(').next().unwrap_or_default();
    Err(Error::config(format!(
        "uses a compression that forebay does not support (expected snappy or none, got {name})"
    ))
    .with_hint("write it with compression=\"snappy\", which is the default of pandas and Spark"))
}

/// The metadata that forebay wrote.
fn head(metadata: &FileMetaData) -> Result<Head> {
    let mut head = Head::default();
    for entry in metadata.key_value_metadata().into_iter().flatten() {
        let Some(value) = &entry.value else { continue };
        match entry.key.as_str() {
            "forebay.root" => head.root = Some(value.clone()),
            "forebay.version" => head.version = Some(value.clone()),
            "forebay.fingerprint" => head.fingerprint = Some(value.clone()),
            "forebay.empty_classes" => {
                head.empty_classes = serde_json::from_str(value).map_err(|_| {
                    Error::config(format!(
                        "is invalid in its metadata, forebay.empty_classes: expected a list of names and labels, got {}",
                        shown(value)
                    ))
                })?;
            }
            "forebay.format" if value.parse::<u32>().is_ok_and(|format| format > FORMAT) => {
                let message = format!(
                    "has a newer format than this version of forebay reads (expected {FORMAT}, got {})",
                    shown(value)
                );
                return Err(
                    Error::config(message).with_hint("upgrade forebay, or create the manifest again with this version")
                );
            }
            _ => {}
        }
    }
    Ok(head)
}

/// A column to read: its number, its name, and its role.
type Wanted = (usize, String, Role);

/// The columns to read.
fn wanted(metadata: &FileMetaData, rows: &Rows) -> Result<Vec<Wanted>> {
    let keeps = rows.keeps();
    let schema = metadata.schema_descr();
    let mut wanted = Vec::new();
    for (number, column) in schema.columns().iter().enumerate() {
        let [name] = column.path().parts() else { continue };
        if let Some(at) = rows.label_columns().iter().position(|chosen| chosen == name) {
            wanted.push((number, name.clone(), chosen_column(column, at)?));
            continue;
        }
        let Some(&(name, role, is_text)) = ROLES.iter().find(|(known, ..)| known == name) else { continue };
        if !rows.has_classes() && matches!(role, Role::Class | Role::Label) {
            continue;
        }
        let physical = column.physical_type();
        let fits = match is_text {
            true => physical == Physical::BYTE_ARRAY,
            false => matches!(physical, Physical::INT32 | Physical::INT64 | Physical::DOUBLE | Physical::FLOAT),
        };
        let is_flat = column.max_rep_level() == 0 && column.max_def_level() <= 1;
        let is_content = matches!(role, Role::Width | Role::Height | Role::Format | Role::Xxh3);
        if !fits || !is_flat {
            let expected = if is_text { "text" } else { "whole numbers" };
            let got = format!("{physical}").to_lowercase();
            let message = format!("has a column {name:?} of the wrong type (expected {expected}, got {got})");
            return Err(Error::config(message)
                .with_hint("rename that column, or create the manifest again with `forebay scan`"));
        }
        if !is_content || keeps == Keeps::Facts || (keeps == Keeps::Checksums && role == Role::Xxh3) {
            wanted.push((number, name.to_owned(), role));
        }
    }
    let has = |name: &str| wanted.iter().any(|(_, column, _)| column == name);
    if let Some(lacking) = rows.label_columns().iter().find(|chosen| !has(chosen)) {
        let got: Vec<_> = schema.columns().iter().take(20).map(|column| column.name().to_owned()).collect();
        return Err(Error::config(format!("has no column {lacking:?} (got {})", got.join(", "))));
    }
    if !has("path") || !(!rows.has_classes() || has("class") || has("label")) {
        let got: Vec<_> = schema.columns().iter().take(20).map(|column| column.name().to_owned()).collect();
        let lacking = if has("path") { "class or label" } else { "path" };
        let message = format!("has no column {lacking} (expected path, and class or label; got {})", got.join(", "));
        return Err(Error::config(message).with_hint("make one with `forebay scan ROOT -o NAME.parquet`"));
    }
    Ok(wanted)
}

fn read_group(
    bytes: &Bytes,
    group: &RowGroupMetaData,
    wanted: &[Wanted],
    rows: &mut Rows,
    row: &mut u64,
) -> Result<()> {
    let mut columns = Vec::with_capacity(wanted.len());
    let mut longest_cell = 1;
    for (number, name, role) in wanted {
        let column = group.column(*number);
        let is_optional = column.column_descr().max_def_level() > 0;
        let chunk = Chunk {
            physical: column.column_type(),
            is_optional,
            is_snappy: column.compression() == Compression::SNAPPY,
            rows: group.num_rows() as u64,
        };
        let (start, size) = column.byte_range();
        let pages = Pages::new(chunk, bytes.slice(start as usize..(start + size) as usize)).map_err(unreadable)?;
        longest_cell = longest_cell.max(pages.longest_cell());
        let reader = get_column_reader(column.column_descr_ptr(), Box::new(pages));
        columns.push(Column { name: name.clone(), role: *role, reader, is_optional, cells: Cells::default() });
    }
    let (chunk, max_text) = ((MAX_CELL_BYTES / longest_cell).clamp(1, CHUNK), bytes.len() as u64 * MAX_TEXT_A_BYTE);
    loop {
        let mut count = None;
        for column in &mut columns {
            let filled = column.fill(chunk).map_err(unreadable)?;
            if *count.get_or_insert(filled) != filled {
                return Err(damaged(format!("column {:?} has another number of rows", column.name)));
            }
        }
        let count = count.unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            let pushed = take(&mut columns).and_then(|row| rows.push(row));
            pushed.map_err(|wrong| wrong.at(&row_name(*row)))?;
            if rows.text_bytes() > max_text {
                return Err(repeats(format!("more than {max_text} bytes of names")));
            }
            *row += 1;
        }
    }
}

/// A column of a row group, and its decoded cells.
struct Column {
    name: String,
    role: Role,
    reader: ColumnReader,
    is_optional: bool,
    cells: Cells,
}

#[derive(Default)]
struct Cells {
    text: Vec<ByteArray>,
    whole: Vec<i64>,
    real: Vec<f64>,
    /// For each row, whether there is a cell.
    levels: Vec<i16>,
    next_row: usize,
    next_cell: usize,
}

impl Column {
    /// Decodes the cells of the next rows, at most so many. Returns the number of rows.
    fn fill(&mut self, chunk: usize) -> Result<usize, ParquetError> {
        let Self { reader, is_optional, cells, .. } = self;
        *cells = Cells { text: std::mem::take(&mut cells.text), ..Cells::default() };
        cells.text.clear();
        let (levels, is_optional) = (&mut cells.levels, *is_optional);
        match reader {
            ColumnReader::ByteArrayColumnReader(reader) => {
                read_some(reader, chunk, is_optional, levels, &mut cells.text)
            }
            ColumnReader::Int64ColumnReader(reader) => read_some(reader, chunk, is_optional, levels, &mut cells.whole),
            ColumnReader::Int32ColumnReader(reader) => {
                let mut values = Vec::new();
                let count = read_some(reader, chunk, is_optional, levels, &mut values)?;
                cells.whole.extend(values.into_iter().map(i64::from));
                Ok(count)
            }
            ColumnReader::DoubleColumnReader(reader) => read_some(reader, chunk, is_optional, levels, &mut cells.real),
            ColumnReader::FloatColumnReader(reader) => {
                let mut values = Vec::new();
                let count = read_some(reader, chunk, is_optional, levels, &mut values)?;
                cells.real.extend(values.into_iter().map(f64::from));
                Ok(count)
            }
            ColumnReader::BoolColumnReader(reader) => {
                let mut values = Vec::new();
                let count = read_some(reader, chunk, is_optional, levels, &mut values)?;
                cells.whole.extend(values.into_iter().map(i64::from));
                Ok(count)
            }
            _ => Err(ParquetError::General("a column of a type that was not asked for".to_owned())),
        }
    }

    fn is_null(&mut self) -> bool {
        let row = self.cells.next_row;
        self.cells.next_row += 1;
        self.is_optional && self.cells.levels.get(row) == Some(&0)
    }

    fn text(&mut self) -> Result<Option<&str>, CellError> {
        if self.is_null() {
            return Ok(None);
        }
        self.cells.next_cell += 1;
        let cell = self.cells.text.get(self.cells.next_cell - 1);
        let bytes =
            cell.map(ByteArray::data).ok_or_else(|| CellError::new(&self.name, "expected a value, got none"))?;
        std::str::from_utf8(bytes).map(Some).map_err(|_| {
            let got = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
            CellError::new(&self.name, format!("expected text in UTF-8, got {}", shown(&got)))
        })
    }

    /// The next cell of a user-defined label column.
    fn cell(&mut self, kind: CellKind) -> Result<Cell<'_>, CellError> {
        match kind {
            CellKind::Text => Ok(self.text()?.map_or(Cell::Missing, Cell::Text)),
            CellKind::Bool => Ok(self.whole()?.map_or(Cell::Missing, |value| Cell::Bool(value != 0))),
            CellKind::Whole => Ok(self.whole()?.map_or(Cell::Missing, Cell::I64)),
            CellKind::Real => {
                if self.is_null() {
                    return Ok(Cell::Missing);
                }
                self.cells.next_cell += 1;
                let cell = self.cells.real.get(self.cells.next_cell - 1);
                cell.map(|real| Cell::F64(*real))
                    .ok_or_else(|| CellError::new(&self.name, "expected a value, got none"))
            }
        }
    }

    fn whole(&mut self) -> Result<Option<i64>, CellError> {
        if self.is_null() {
            return Ok(None);
        }
        let at = self.cells.next_cell;
        self.cells.next_cell += 1;
        if let Some(whole) = self.cells.whole.get(at) {
            return Ok(Some(*whole));
        }
        match self.cells.real.get(at) {
            // pandas writes NaN for missing integers.
            Some(real) if real.is_nan() => Ok(None),
            Some(real) if real.fract() == 0.0 && real.abs() < 9e15 => Ok(Some(*real as i64)),
            Some(real) if real.fract() == 0.0 => Err(CellError::new(
                &self.name,
                format!("expected a whole number, got a float too large to be exact ({real})"),
            )
            .with_hint("leave the column out, or write it as whole numbers: in pandas, dtype \"Int64\"")),
            Some(real) => Err(CellError::new(&self.name, format!("expected a whole number, got {real}"))),
            None => Err(CellError::new(&self.name, "expected a value, got none")),
        }
    }
}

/// Decodes up to a chunk of rows, from as many pages as necessary.
fn read_some<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    chunk: usize,
    is_optional: bool,
    levels: &mut Vec<i16>,
    values: &mut Vec<T::T>,
) -> Result<usize, ParquetError> {
    let mut rows = 0;
    while rows < chunk {
        let (records, _, _) = reader.read_records(chunk - rows, is_optional.then_some(&mut *levels), None, values)?;
        if records == 0 {
            break;
        }
        rows += records;
    }
    Ok(rows)
}

/// The role of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Path,
    Class,
    Label,
    SizeBytes,
    MtimeNs,
    Etag,
    Width,
    Height,
    Format,
    Xxh3,
    /// A user-defined label column, by its position among those.
    Chosen(usize, CellKind),
}

/// The cell type of a user-defined label column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellKind {
    Text,
    Bool,
    Whole,
    Real,
}

fn chosen_column(column: &ColumnDescriptor, at: usize) -> Result<Role> {
    let kind = match column.physical_type() {
        Physical::BYTE_ARRAY => Some(CellKind::Text),
        Physical::BOOLEAN => Some(CellKind::Bool),
        Physical::INT32 | Physical::INT64 => Some(CellKind::Whole),
        Physical::FLOAT | Physical::DOUBLE => Some(CellKind::Real),
        _ => None,
    };
    let is_flat = column.max_rep_level() == 0 && column.max_def_level() <= 1;
    kind.filter(|_| is_flat).map(|kind| Role::Chosen(at, kind)).ok_or_else(|| {
        let (name, got) = (column.name(), format!("{}", column.physical_type()).to_lowercase());
        let message =
            format!("has a column {name:?} that cannot be a label (expected numbers, text or booleans, got {got})");
        Error::config(message)
    })
}

/// Name, role, and whether it is text, of every known column.
const ROLES: [(&str, Role, bool); 10] = [
    ("path", Role::Path, true),
    ("class", Role::Class, true),
    ("label", Role::Label, false),
    ("size_bytes", Role::SizeBytes, false),
    ("mtime_ns", Role::MtimeNs, false),
    ("etag", Role::Etag, true),
    ("width", Role::Width, false),
    ("height", Role::Height, false),
    ("format", Role::Format, true),
    ("xxh3", Role::Xxh3, true),
];

/// Reads the next row of all columns.
fn take(columns: &mut [Column]) -> Result<Row<'_>, CellError> {
    let mut row = Row::default();
    let (mut width, mut height, mut format, mut xxh3) = (None, None, None, None);
    let mut chosen = Vec::new();
    for column in columns {
        match column.role {
            Role::Path => {
                row.path = column.text()?.ok_or_else(|| CellError::new("path", "expected a path, got none"))?
            }
            Role::Class => row.class = column.text()?,
            Role::Label => row.label = column.whole()?,
            Role::SizeBytes => row.version.size_bytes = column.whole()?.map(checked_size).transpose()?,
            Role::MtimeNs => row.version.mtime_ns = column.whole()?,
            Role::Etag => row.version.etag = column.text()?.filter(|etag| !etag.is_empty()).map(Box::from),
            Role::Width => width = edge("width", column.whole()?)?,
            Role::Height => height = edge("height", column.whole()?)?,
            Role::Format => format = column.text()?.map(Box::from),
            Role::Xxh3 => xxh3 = column.text()?.map(hash).transpose()?,
            Role::Chosen(at, kind) => chosen.push((at, column.cell(kind)?)),
        }
    }
    chosen.sort_by_key(|(at, _)| *at); // in the requested order
    row.cells = chosen.into_iter().map(|(_, cell)| cell).collect();
    if let Some(xxh3) = xxh3 {
        let picture = match (width, height, format) {
            (Some(width), Some(height), Some(format)) => Some(Picture { width, height, format }),
            _ => None,
        };
        row.content = Some(Content { xxh3, picture });
    }
    Ok(row)
}

fn edge(name: &str, value: Option<i64>) -> Result<Option<u32>, CellError> {
    let convert = |value| {
        u32::try_from(value).map_err(|_| CellError::new(name, format!("expected a number of pixels, got {value}")))
    };
    value.map(convert).transpose()
}

fn hash(text: &str) -> Result<u64, CellError> {
    let parsed = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    parsed.ok_or_else(|| CellError::new("xxh3", format!("expected 16 hexadecimal digits, got {}", shown(text))))
}

#[cfg(test)]
mod tests;
