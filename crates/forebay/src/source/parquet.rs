//! The samples of Parquet files.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result, SampleId, Stage};
use forebay_format::{FieldKind, ParquetScanner, ParquetSchema, RecordField, ShardIndex, parquet_schema};
use forebay_store::{ReadRequest, Store};

use crate::scan::once;
use crate::scan::ranges::index_ranges_by_threads;
use crate::scan::sequential::buffer;
use crate::source::Dataset;
use crate::source::defaults::retry_of;
use crate::source::indexes::Indexes;
use crate::source::shards::{IndexPlace, Shards};

/// The footer of most files is shorter.
const FOOTER_BYTES: u64 = 64 << 10;

/// The samples of files, and all fields that these have. Of fields that are not wanted nothing is read, unless the index is kept:
/// it is for later runs as well, which may want others.
pub(crate) fn open(
    files: Arc<dyn Dataset>,
    store: &Arc<dyn Store>,
    (root, place): (&Path, &IndexPlace),
    wanted: Option<&[Vec<String>]>,
) -> Result<(Shards, Vec<RecordField>)> {
    let schema = first_schema(&*files, store)?;
    let is_asked_for = |field: &&RecordField| {
        let is_own = |name: &String| field.name.to_lowercase() == name.to_lowercase();
        wanted.is_none_or(|wanted| wanted.iter().flatten().any(is_own))
    };
    let read: Vec<_> = schema.read_fields().filter(is_asked_for).cloned().collect();
    let indexed: Arc<[_]> = match place {
        IndexPlace::KeptBeside | IndexPlace::In(_) => schema.read_fields().cloned().collect(),
        // A name that nothing has, and columns that are not read, are refused where fields are made of them.
        _ if read.is_empty() => schema.read_fields().take(1).cloned().collect(),
        _ => read.iter().cloned().collect(),
    };
    if indexed.is_empty() {
        let columns = schema.fields.iter().take(20).map(|field| &*field.name).collect::<Vec<_>>().join(", ");
        let error = Error::new(Kind::Undecodable, format!("has no column of a type that is read, among {columns}"));
        return Err(error.at_path(&files.path(SampleId(0))).at_stage(Stage::Scan));
    }
    let indexes = place.indexes(&*files, store, root, |unread| {
        let scanner = |file: &crate::scan::sequential::UnreadFile| {
            ParquetScanner::new(file.stat.size_bytes, Arc::clone(&indexed))
        };
        index_ranges_by_threads(store, scanner, unread)
    })?;
    check_columns(&*files, &indexes, &read)?;
    Ok((Shards::of(files, indexes, "expected Parquet files with rows in them")?, schema.fields))
}

/// Indexes that were kept may be of files with other columns.
fn check_columns(files: &dyn Dataset, indexes: &Indexes<ShardIndex>, read: &[RecordField]) -> Result<()> {
    for (file, index) in (0..).zip(&indexes.indexes) {
        if ParquetScanner::is_left_out(index) {
            continue;
        }
        let Some(field) = read.iter().find(|field| ParquetScanner::has_kind(index, field) != Some(true)) else {
            continue;
        };
        let message = format!("has other columns, or other types of them, than the first file ({:?})", field.name);
        let hint = "name files of one dataset, write them again with the same types, or remove the index that was kept";
        let error = Error::new(Kind::Undecodable, message).with_hint(hint);
        return Err(error.at_path(&files.path(SampleId(file))).at_stage(Stage::Scan));
    }
    Ok(())
}

/// The schema of the first file that has one.
fn first_schema(files: &dyn Dataset, store: &Arc<dyn Store>) -> Result<ParquetSchema> {
    let mut first = None;
    for file in (0..files.len()).map(SampleId) {
        let path = files.path(file);
        match schema_of(store, &path).map_err(|error| error.at_path(&path).at_stage(Stage::Scan)) {
            Ok(schema) => return Ok(schema),
            Err(error) if error.kind() == Kind::Corrupt => first = first.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(first.unwrap_or_else(|| Error::new(Kind::NotFound, "no files were given")))
}

fn schema_of(store: &Arc<dyn Store>, path: &Path) -> Result<ParquetSchema> {
    let (size_bytes, tail) = read_end(store, path, FOOTER_BYTES)?;
    let needed = match parquet_schema(size_bytes, &tail)? {
        Ok(schema) => return Ok(schema),
        Err(needed) => needed,
    };
    let (size_bytes, tail) = read_end(store, path, needed)?;
    match parquet_schema(size_bytes, &tail)? {
        Ok(schema) => Ok(schema),
        Err(_) => Err(Error::new(Kind::Corrupt, "ends in its footer")),
    }
}

/// Whether a Parquet file is a manifest, and its rows are names of files: by what forebay writes into its footer, or because it has a
/// column of paths.
pub fn is_parquet_manifest(store: &Arc<dyn Store>, path: &Path) -> Result<bool> {
    match schema_of(store, path) {
        Ok(schema) => Ok(schema.fields.iter().any(|field| field.name == "path" && field.kind == FieldKind::Text)),
        // What is damaged or refused says so where it is read as what it is.
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Undecodable) => Ok(true),
        Err(error) => Err(error.at_path(path).at_stage(Stage::Scan)),
    }
}

/// The length of a file, and its last bytes.
fn read_end(store: &Arc<dyn Store>, path: &Path, most: u64) -> Result<(u64, Vec<u8>)> {
    let (reader, owned, retry) = (Arc::clone(store), path.to_owned(), retry_of(&**store));
    once(store, path, retry, move |_| {
        let stat = reader.stat(&owned)?;
        let range = stat.size_bytes.saturating_sub(most)..stat.size_bytes;
        let request = ReadRequest::new(&owned, retry.deadline).with_range(range).with_expected(stat);
        let object = reader.fetch(&request, &mut |size| buffer(size))?;
        Ok((stat.size_bytes, object.bytes.into_vec()))
    })
}
