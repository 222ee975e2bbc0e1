//! Writing a manifest: Parquet that pandas, DuckDB and Spark read, in the order of the index.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, Result, Stage};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use serde_json::json;

use super::{FORMAT, Facts};
use crate::index::{FolderIndex, push_relative};

/// Rows per row group, which is how many are in memory at a time.
const GROUP: usize = 1 << 18;

/// Writes the manifest of an index. `facts` are those of each sample; `root` is what the paths are relative to.
///
/// The column etag, and the columns width, height, format and xxh3, exist if any sample has them.
pub fn write_manifest(to: impl Write + Send, index: &FolderIndex, facts: &[Facts], root: &str) -> Result<()> {
    if facts.len() as u64 != index.len() {
        return Err(Error::internal(format!("a manifest of {} samples has {} facts", index.len(), facts.len())));
    }
    let rows = rows(index)?;
    let written = write(to, &rows, facts, head(index, root)?);
    written.map_err(|error| match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => Error::io("written", *source),
            Err(source) => Error::internal(format!("a manifest could not be made: {source}")).with_source(source),
        },
        error => Error::internal(format!("a manifest could not be made: {error}")).with_source(error),
    })
}

/// Path, and the class as a number.
struct Rows<'a> {
    paths: Vec<ByteArray>,
    labels: Vec<i64>,
    classes: HashMap<i64, &'a str>,
}

fn rows(index: &FolderIndex) -> Result<Rows<'_>> {
    let classes =
        index.class_indices().iter().zip(index.classes()).map(|(&label, name)| (i64::from(label), name.as_str()));
    let (mut paths, mut labels) = (Vec::with_capacity(index.len() as usize), Vec::with_capacity(index.len() as usize));
    for (directory, label, names) in index.runs() {
        for name in names {
            paths.push(ByteArray::from(text(index.root(), directory, name)?));
            labels.push(i64::from(label));
        }
    }
    Ok(Rows { paths, labels, classes: classes.collect() })
}

/// A sample's path below the root. It must be UTF-8, because the column is text.
fn text(root: &Path, directory: &Path, name: &OsStr) -> Result<Vec<u8>> {
    let mut path = Vec::with_capacity(directory.as_os_str().len() + name.len() + 1);
    push_relative(&mut path, directory, name);
    match std::str::from_utf8(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err(Error::config("has a name that is not UTF-8, which a manifest cannot contain")
            .at_path(&root.join(OsStr::from_bytes(&path)))
            .at_stage(Stage::Scan)
            .with_hint("rename the file (`convmv` renames whole trees), or load the folder without a manifest")),
    }
}

fn head(index: &FolderIndex, root: &str) -> Result<Vec<KeyValue>> {
    let met: std::collections::HashSet<u32> = index.runs().map(|(_, label, _)| label).collect();
    let labelled = index.classes().iter().zip(index.class_indices());
    let empty: Vec<_> = labelled.filter(|(_, label)| !met.contains(label)).collect();
    let mut head = vec![
        ("forebay.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("forebay.format", FORMAT.to_string()),
        ("forebay.root", root.to_owned()),
        ("forebay.fingerprint", index.identity().fingerprint),
    ];
    if !empty.is_empty() {
        let empty = serde_json::to_string(&empty)
            .map_err(|error| Error::internal("the names of classes could not be written").with_source(error))?;
        head.push(("forebay.empty_classes", empty));
    }
    Ok(head.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value)).collect())
}

/// Tells pandas to read nullable columns as integers. Otherwise it would make floats of them, which cannot represent a
/// time in nanoseconds.
fn for_pandas(with_contents: bool) -> KeyValue {
    let names: &[&str] =
        if with_contents { &["size_bytes", "mtime_ns", "width", "height"] } else { &["size_bytes", "mtime_ns"] };
    let column = |name: &&str| json!({"name": name, "field_name": name, "pandas_type": "int64", "numpy_type": "Int64", "metadata": null});
    let columns: Vec<_> = names.iter().map(column).collect();
    let creator = json!({"library": "forebay", "version": env!("CARGO_PKG_VERSION")});
    // The first version that has this type.
    let all = json!({
        "index_columns": [], "column_indexes": [], "columns": columns, "creator": creator, "pandas_version": "1.0.0"
    });
    KeyValue::new("pandas".to_owned(), all.to_string())
}

fn write(to: impl Write + Send, rows: &Rows<'_>, facts: &[Facts], mut head: Vec<KeyValue>) -> Result<(), ParquetError> {
    let has_etags = facts.iter().any(|facts| facts.version.etag.is_some());
    let has_contents = facts.iter().any(|facts| facts.content.is_some());
    head.push(for_pandas(has_contents));
    let mut schema = "message forebay {
        REQUIRED BYTE_ARRAY path (STRING);
        REQUIRED BYTE_ARRAY class (STRING);
        REQUIRED INT64 label;
        OPTIONAL INT64 size_bytes;
        OPTIONAL INT64 mtime_ns;"
        .to_owned();
    if has_etags {
        schema.push_str("OPTIONAL BYTE_ARRAY etag (STRING);");
    }
    if has_contents {
        schema.push_str(
            "OPTIONAL INT64 width; OPTIONAL INT64 height;
            OPTIONAL BYTE_ARRAY format (STRING); OPTIONAL BYTE_ARRAY xxh3 (STRING);",
        );
    }
    schema.push('}');
    let mut properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_key_value_metadata(Some(head));
    // Values of these hardly ever repeat, so a dictionary would be tried in vain.
    for column in ["path", "size_bytes", "mtime_ns", "etag", "xxh3"] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(column), false);
    }
    let schema = Arc::new(parse_message_type(&schema)?);
    let mut writer = SerializedFileWriter::new(to, schema, Arc::new(properties.build()))?;
    for start in (0..facts.len()).step_by(GROUP) {
        let end = facts.len().min(start + GROUP);
        let (facts, labels) = (&facts[start..end], &rows.labels[start..end]);
        let mut group = writer.next_row_group()?;
        texts(&mut group, &rows.paths[start..end])?;
        // One allocation per class, however many rows it has.
        let names: HashMap<i64, ByteArray> =
            rows.classes.iter().map(|(&label, &name)| (label, ByteArray::from(name))).collect();
        let classes: Vec<_> = labels.iter().map(|label| names.get(label).cloned().unwrap_or_default()).collect();
        texts(&mut group, &classes)?;
        next(&mut group, |column| column.typed::<Int64Type>().write_batch(labels, None, None))?;
        wholes(&mut group, facts.iter().map(|facts| facts.version.size_bytes.and_then(|size| size.try_into().ok())))?;
        wholes(&mut group, facts.iter().map(|facts| facts.version.mtime_ns))?;
        if has_etags {
            let etag = |facts: &Facts| facts.version.etag.as_deref().map(ByteArray::from);
            some_texts(&mut group, facts.iter().map(etag))?;
        }
        if has_contents {
            let contents = || facts.iter().map(|facts| facts.content.as_deref());
            let pictures = || contents().map(|content| content.and_then(|content| content.picture.as_ref()));
            wholes(&mut group, pictures().map(|picture| picture.map(|picture| picture.width.into())))?;
            wholes(&mut group, pictures().map(|picture| picture.map(|picture| picture.height.into())))?;
            some_texts(&mut group, pictures().map(|picture| picture.map(|picture| ByteArray::from(&*picture.format))))?;
            let hex = |xxh3: u64| ByteArray::from(format!("{xxh3:016x}").as_str());
            some_texts(&mut group, contents().map(|content| content.map(|content| hex(content.xxh3))))?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

fn next<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    write: impl FnOnce(&mut parquet::file::writer::SerializedColumnWriter<'_>) -> Result<usize, ParquetError>,
) -> Result<(), ParquetError> {
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("more columns than the schema has".to_owned()))?;
    write(&mut column)?;
    column.close()
}

fn texts<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: &[ByteArray],
) -> Result<(), ParquetError> {
    next(group, |column| column.typed::<ByteArrayType>().write_batch(cells, None, None))
}

fn some_texts<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = Option<ByteArray>>,
) -> Result<(), ParquetError> {
    let (levels, cells) = split(cells);
    next(group, |column| column.typed::<ByteArrayType>().write_batch(&cells, Some(&levels), None))
}

fn wholes<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = Option<i64>>,
) -> Result<(), ParquetError> {
    let (levels, cells) = split(cells);
    next(group, |column| column.typed::<Int64Type>().write_batch(&cells, Some(&levels), None))
}

/// Which rows have a value, and the values.
fn split<T>(cells: impl Iterator<Item = Option<T>>) -> (Vec<i16>, Vec<T>) {
    let (mut levels, mut there) = (Vec::new(), Vec::new());
    for cell in cells {
        levels.push(i16::from(cell.is_some()));
        there.extend(cell);
    }
    (levels, there)
}
