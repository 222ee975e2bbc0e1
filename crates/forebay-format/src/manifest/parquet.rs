//! Parquet, as `forebay scan`, pandas, DuckDB and Spark write it: flat columns, found by name, whatever their order,
//! encoding and row groups. Columns of other names are left alone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use parquet::basic::{Compression, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, ParquetMetaData};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;

use super::rows::{Row, Rows, Wrong, checked_size};
use super::{Content, FORMAT, Head, Picture, row_name, shown};

/// Rows that are in memory as cells at a time.
const CHUNK: usize = 8192;

/// Of rows with paths of their own no encoding makes as many; of one row repeated it makes 2^31 out of a few bytes, for which
/// there is no memory.
const MAX_ROWS_A_BYTE: u64 = 100;

/// A file that is no Parquet file, or not a whole one.
pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("is not a whole Parquet file ({what})"))
        .with_hint("was it cut short while it was copied? copy it again, or make it again with `forebay scan`")
}

pub(super) fn read(bytes: Bytes, rows: &mut Rows) -> Result<Head> {
    // The library promises nothing about hostile bytes.
    let guarded = catch_unwind(AssertUnwindSafe(|| read_all(bytes, rows)));
    guarded.unwrap_or_else(|panic| Err(damaged(said(panic.as_ref()))))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it made the reader panic".to_owned())
}

fn read_all(bytes: Bytes, rows: &mut Rows) -> Result<Head> {
    let max_rows = (bytes.len() as u64).saturating_mul(MAX_ROWS_A_BYTE);
    let reader = SerializedFileReader::new(bytes).map_err(unreadable)?;
    let metadata = reader.metadata();
    let mut head = head(metadata.file_metadata())?;
    let wanted = wanted(metadata.file_metadata(), rows.keeps_facts())?;
    check_compression(metadata)?;
    head.columns = metadata.file_metadata().schema().get_fields().iter().map(|field| field.name().to_owned()).collect();
    let mut row = 0;
    for group in 0..metadata.num_row_groups() {
        let group = reader.get_row_group(group).map_err(unreadable)?;
        read_group(&*group, &wanted, rows, &mut row, max_rows)?;
    }
    let expected = metadata.file_metadata().num_rows();
    if i64::try_from(row) != Ok(expected) {
        return Err(damaged(format!("expected {expected} rows, got {row}")));
    }
    Ok(head)
}

fn unreadable(error: ParquetError) -> Error {
    damaged(&error).with_source(error)
}

/// Only Snappy is built in (decisions/0021). Others are whole files all the same.
fn check_compression(metadata: &ParquetMetaData) -> Result<()> {
    let columns = metadata.row_groups().iter().flat_map(|group| group.columns());
    let mut others = columns.map(|column| column.compression());
    let other = others.find(|other| !matches!(other, Compression::UNCOMPRESSED | Compression::SNAPPY));
    let Some(other) = other else { return Ok(()) };
    let name = format!("{other}").to_lowercase();
    let name = name.split('(').next().unwrap_or_default();
    Err(Error::config(format!(
        "is compressed in a way that forebay does not read (expected snappy or none, got {name})"
    ))
    .with_hint(
        "write it with compression=\"snappy\": what pandas and Spark do unasked, polars and others do when told",
    ))
}

/// What forebay wrote beside the rows.
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
                        "has something wrong in its metadata, forebay.empty_classes: expected a list of names and labels, got {}",
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
                    Error::config(message).with_hint("upgrade forebay, or make the manifest again with this version")
                );
            }
            _ => {}
        }
    }
    Ok(head)
}

/// The columns to read, by their number.
fn wanted(metadata: &FileMetaData, with_content: bool) -> Result<Vec<(usize, &'static str, Role)>> {
    let schema = metadata.schema_descr();
    let mut wanted = Vec::new();
    for (number, column) in schema.columns().iter().enumerate() {
        let [name] = column.path().parts() else { continue };
        let Some(&(name, role, is_text)) = ROLES.iter().find(|(known, ..)| known == name) else { continue };
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
            let message = format!("has a column {name:?} of another type (expected {expected}, got {got})");
            return Err(
                Error::config(message).with_hint("rename that column, or make the manifest again with `forebay scan`")
            );
        }
        if !is_content || with_content {
            wanted.push((number, name, role));
        }
    }
    let has = |name: &str| wanted.iter().any(|(_, column, _)| *column == name);
    if !has("path") || !(has("class") || has("label")) {
        let got: Vec<_> = schema.columns().iter().take(20).map(|column| column.name().to_owned()).collect();
        let lacking = if has("path") { "class or label" } else { "path" };
        let message = format!("has no column {lacking} (expected path, and class or label; got {})", got.join(", "));
        return Err(Error::config(message).with_hint("make one with `forebay scan ROOT -o NAME.parquet`"));
    }
    Ok(wanted)
}

fn read_group(
    group: &dyn RowGroupReader,
    wanted: &[(usize, &'static str, Role)],
    rows: &mut Rows,
    row: &mut u64,
    max_rows: u64,
) -> Result<()> {
    let mut columns = Vec::with_capacity(wanted.len());
    for &(number, name, role) in wanted {
        let is_optional = group.metadata().column(number).column_descr().max_def_level() > 0;
        let reader = group.get_column_reader(number).map_err(unreadable)?;
        columns.push(Column { name, role, reader, is_optional, cells: Cells::default() });
    }
    loop {
        let mut count = None;
        for column in &mut columns {
            let filled = column.fill().map_err(unreadable)?;
            if *count.get_or_insert(filled) != filled {
                return Err(damaged(format!("column {:?} has another number of rows", column.name)));
            }
        }
        let count = count.unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        if *row + count as u64 > max_rows {
            return Err(Error::config(format!("repeats its rows without end (more than {max_rows} of them)"))
                .with_hint("a sample is wanted once: a sampler shows some of them more often"));
        }
        for _ in 0..count {
            let pushed = take(&mut columns).and_then(|row| rows.push(row));
            pushed.map_err(|wrong| wrong.at(&row_name(*row)))?;
            *row += 1;
        }
    }
}

/// A column of a row group, and the cells of it that are in memory.
struct Column {
    name: &'static str,
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
    /// Reads the next cells; of how many rows.
    fn fill(&mut self) -> Result<usize, ParquetError> {
        let Self { reader, is_optional, cells, .. } = self;
        *cells = Cells { text: std::mem::take(&mut cells.text), ..Cells::default() };
        cells.text.clear();
        let (levels, is_optional) = (&mut cells.levels, *is_optional);
        match reader {
            ColumnReader::ByteArrayColumnReader(reader) => read_some(reader, is_optional, levels, &mut cells.text),
            ColumnReader::Int64ColumnReader(reader) => read_some(reader, is_optional, levels, &mut cells.whole),
            ColumnReader::Int32ColumnReader(reader) => {
                let mut values = Vec::new();
                let count = read_some(reader, is_optional, levels, &mut values)?;
                cells.whole.extend(values.into_iter().map(i64::from));
                Ok(count)
            }
            ColumnReader::DoubleColumnReader(reader) => read_some(reader, is_optional, levels, &mut cells.real),
            ColumnReader::FloatColumnReader(reader) => {
                let mut values = Vec::new();
                let count = read_some(reader, is_optional, levels, &mut values)?;
                cells.real.extend(values.into_iter().map(f64::from));
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

    fn text(&mut self) -> Result<Option<&str>, Wrong> {
        if self.is_null() {
            return Ok(None);
        }
        self.cells.next_cell += 1;
        let cell = self.cells.text.get(self.cells.next_cell - 1);
        let bytes = cell.map(ByteArray::data).ok_or_else(|| Wrong::new(self.name, "expected a cell, got none"))?;
        std::str::from_utf8(bytes).map(Some).map_err(|_| {
            let got = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
            Wrong::new(self.name, format!("expected text in UTF-8, got {}", shown(&got)))
        })
    }

    fn whole(&mut self) -> Result<Option<i64>, Wrong> {
        if self.is_null() {
            return Ok(None);
        }
        let at = self.cells.next_cell;
        self.cells.next_cell += 1;
        if let Some(whole) = self.cells.whole.get(at) {
            return Ok(Some(*whole));
        }
        match self.cells.real.get(at) {
            // What pandas makes of whole numbers where some are missing.
            Some(real) if real.is_nan() => Ok(None),
            Some(real) if real.fract() == 0.0 && real.abs() < 9e15 => Ok(Some(*real as i64)),
            Some(real) if real.fract() == 0.0 => Err(Wrong::new(
                self.name,
                format!("expected a whole number, got a float too large to be exact ({real})"),
            )
            .with_hint("leave the column out, or write it as whole numbers: in pandas, dtype \"Int64\"")),
            Some(real) => Err(Wrong::new(self.name, format!("expected a whole number, got {real}"))),
            None => Err(Wrong::new(self.name, "expected a cell, got none")),
        }
    }
}

/// Reads up to a chunk of rows, from as many pages as that takes.
fn read_some<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    is_optional: bool,
    levels: &mut Vec<i16>,
    values: &mut Vec<T::T>,
) -> Result<usize, ParquetError> {
    let mut rows = 0;
    while rows < CHUNK {
        let (records, _, _) = reader.read_records(CHUNK - rows, is_optional.then_some(&mut *levels), None, values)?;
        if records == 0 {
            break;
        }
        rows += records;
    }
    Ok(rows)
}

/// What a column is for.
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
}

/// Name, what it is for, and whether it is text, of every column that means something.
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

/// The next row of all columns.
fn take(columns: &mut [Column]) -> Result<Row<'_>, Wrong> {
    let mut row = Row::default();
    let (mut width, mut height, mut format, mut xxh3) = (None, None, None, None);
    for column in columns {
        let name = column.name;
        match column.role {
            Role::Path => row.path = column.text()?.ok_or_else(|| Wrong::new(name, "expected a path, got none"))?,
            Role::Class => row.class = column.text()?,
            Role::Label => row.label = column.whole()?,
            Role::SizeBytes => row.version.size_bytes = column.whole()?.map(checked_size).transpose()?,
            Role::MtimeNs => row.version.mtime_ns = column.whole()?,
            Role::Etag => row.version.etag = column.text()?.filter(|etag| !etag.is_empty()).map(Box::from),
            Role::Width => width = edge(name, column.whole()?)?,
            Role::Height => height = edge(name, column.whole()?)?,
            Role::Format => format = column.text()?.map(Box::from),
            Role::Xxh3 => xxh3 = column.text()?.map(hash).transpose()?,
        }
    }
    if let Some(xxh3) = xxh3 {
        let picture = match (width, height, format) {
            (Some(width), Some(height), Some(format)) => Some(Picture { width, height, format }),
            _ => None,
        };
        row.content = Some(Content { xxh3, picture });
    }
    Ok(row)
}

fn edge(name: &str, value: Option<i64>) -> Result<Option<u32>, Wrong> {
    let convert =
        |value| u32::try_from(value).map_err(|_| Wrong::new(name, format!("expected a number of pixels, got {value}")));
    value.map(convert).transpose()
}

fn hash(text: &str) -> Result<u64, Wrong> {
    let parsed = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    parsed.ok_or_else(|| Wrong::new("xxh3", format!("expected 16 hexadecimal digits, got {}", shown(text))))
}
