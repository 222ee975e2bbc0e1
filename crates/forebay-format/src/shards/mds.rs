//! `index.json` of MosaicML's MDS: which shards there are, and what columns their samples have.

use std::path::{Component, Path};

use forebay_core::{Element, Error, Kind, Result};
use serde::Deserialize;

use super::{Directory, FieldKind, Listed, RecordField};

#[derive(Deserialize)]
struct Index {
    version: u64,
    shards: Vec<Shard>,
}

#[derive(Deserialize)]
struct Shard {
    format: String,
    version: u64,
    raw_data: Option<File>,
    zip_data: Option<File>,
    #[serde(default)]
    compression: Option<String>,
    samples: u64,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u64>>,
}

#[derive(Deserialize)]
struct File {
    basename: String,
    bytes: Option<u64>,
}

/// Reads an `index.json` of streaming's. Its hashes are of whole shards, which are not read as a whole.
pub(super) fn read(bytes: &[u8]) -> Result<Directory> {
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|error| corrupt("is no index of MDS shards").with_detail(error.to_string()))?;
    if let Some(version) =
        [index.version].into_iter().chain(index.shards.iter().map(|shard| shard.version)).find(|v| *v != 2)
    {
        let message = format!("is an index of a version that is not known (expected 2, got {version})");
        return Err(Error::new(Kind::Undecodable, message));
    }
    let mut fields: Option<Vec<RecordField>> = None;
    let mut files = Vec::with_capacity(index.shards.len());
    let mut compression = None;
    for shard in index.shards {
        if shard.format != "mds" {
            return Err(of_other_format(&shard.format));
        }
        let own = columns(&shard)?;
        match &fields {
            Some(fields) if *fields != own => {
                let message =
                    format!("lists shards of different columns (expected {}, got {})", names(fields), names(&own));
                return Err(
                    corrupt(message).with_hint("give each part of the dataset a directory and an index of its own")
                );
            }
            Some(_) => {}
            None => fields = Some(own),
        }
        let file = shard.raw_data.ok_or_else(|| corrupt("lists a shard without a file (raw_data)"))?;
        if shard.zip_data.is_some() {
            let name = shard.compression.as_deref().unwrap_or("an algorithm without a name");
            compression.get_or_insert_with(|| name.chars().take(40).collect());
        }
        files.push((checked_name(file.basename)?, Listed { samples: shard.samples, size_bytes: file.bytes }));
    }
    Ok(Directory { files, fields: fields.unwrap_or_default(), is_tuple: false, has_rows_behind: false, compression })
}

/// A file's name below the directory: an index must not lead out of it.
pub(super) fn checked_name(name: String) -> Result<String> {
    let is_below = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !is_below || name.contains('\0') {
        return Err(corrupt(format!("names a file that is not below its directory ({name:?})")));
    }
    Ok(name)
}

pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, message)
}

pub(super) fn names(fields: &[RecordField]) -> String {
    fields.iter().map(|field| &*field.name).collect::<Vec<_>>().join(", ")
}

fn of_other_format(format: &str) -> Error {
    let error = Error::new(Kind::Undecodable, format!("lists shards of another format (expected mds, got {format:?})"));
    match format {
        "json" | "jsonl" => error.with_hint("read its shards as lines, with fb.JsonLines"),
        "csv" | "tsv" | "xsv" => error.with_hint("read its shards as tables, with fb.Csv"),
        _ => error,
    }
}

fn columns(shard: &Shard) -> Result<Vec<RecordField>> {
    let Shard { column_names, column_encodings, column_sizes, .. } = shard;
    if column_names.is_empty()
        || column_names.len() != column_encodings.len()
        || column_names.len() != column_sizes.len()
    {
        let counts = (column_names.len(), column_encodings.len(), column_sizes.len());
        return Err(corrupt(format!(
            "does not say what the columns of its shards are (names, encodings and sizes: {counts:?})"
        )));
    }
    let each = column_names.iter().zip(column_encodings).zip(column_sizes);
    each.map(|((name, encoding), size)| {
        let kind = kind_of(encoding).ok_or_else(|| {
            let message = format!("has a column {name:?} of an encoding that is not known ({encoding:?})");
            Error::new(Kind::Undecodable, message)
        })?;
        // As in streaming, a size of 0 is none.
        Ok(RecordField { name: name.clone(), kind, size_bytes: size.filter(|size| *size > 0) })
    })
    .collect()
}

/// What an encoding is, by its name.
fn kind_of(encoding: &str) -> Option<FieldKind> {
    Some(match encoding {
        "bytes" => FieldKind::Bytes,
        "str" | "str_decimal" => FieldKind::Text,
        "int" => FieldKind::Number(Element::I64),
        "str_int" => FieldKind::Integer,
        "str_float" => FieldKind::Decimal,
        "json" => FieldKind::Json,
        "jpeg" | "png" => FieldKind::Picture,
        "pil" => FieldKind::Pixels,
        "jpeg_array" | "jpegarray" | "list[jpeg]" | "list[png]" | "list[pil]" => {
            FieldKind::Other("a list of pictures".to_owned())
        }
        "pkl" => FieldKind::Other("a pickled object".to_owned()),
        "ndarray" => FieldKind::Array { element: None, shape: None },
        _ => match encoding.strip_prefix("ndarray:") {
            Some(arguments) => array(arguments)?,
            None => FieldKind::Number(element(encoding)?),
        },
    })
}

/// `int32`, or `int32:3,4`.
fn array(arguments: &str) -> Option<FieldKind> {
    let (name, shape) = arguments.split_once(':').map_or((arguments, None), |(name, shape)| (name, Some(shape)));
    let element = Some(element(name)?);
    let extent = |extent: &str| extent.parse().ok().filter(|extent| *extent > 0);
    let shape = shape.map(|shape| shape.split(',').map(extent).collect::<Option<Vec<usize>>>());
    match shape {
        Some(shape) => Some(FieldKind::Array { element, shape: Some(shape?) }),
        None => Some(FieldKind::Array { element, shape: None }),
    }
}

fn element(name: &str) -> Option<Element> {
    Element::from_name(name).filter(|element| !matches!(element, Element::Bool | Element::BF16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(encodings: &str, sizes: &str, basename: &str) -> String {
        let names: Vec<_> = (0..encodings.split("\", \"").count()).map(|at| format!("\"c{at}\"")).collect();
        format!(
            r#"{{"version": 2, "shards": [{{"column_encodings": [{encodings}], "column_names": [{}], "column_sizes": [{sizes}],
            "compression": null, "format": "mds", "hashes": ["sha1"], "raw_data": {{"basename": "{basename}", "bytes": 99,
            "hashes": {{}}}}, "samples": 7, "size_limit": 67108864, "version": 2, "zip_data": null}}]}}"#,
            names.join(", ")
        )
    }

    #[test]
    fn an_index_says_what_the_columns_are() {
        let text = index(
            r#""int", "str", "ndarray:float32:3,4", "ndarray", "pil""#,
            "8, null, 48, null, 0",
            "a/shard.00000.mds",
        );
        let directory = read(text.as_bytes()).unwrap();
        assert_eq!(directory.files, [("a/shard.00000.mds".to_owned(), Listed { samples: 7, size_bytes: Some(99) })]);
        let kinds: Vec<_> = directory.fields.iter().map(|field| (field.kind.clone(), field.size_bytes)).collect();
        let array = FieldKind::Array { element: Some(Element::F32), shape: Some(vec![3, 4]) };
        let any = FieldKind::Array { element: None, shape: None };
        let expected = [
            (FieldKind::Number(Element::I64), Some(8)),
            (FieldKind::Text, None),
            (array, Some(48)),
            (any, None),
            (FieldKind::Pixels, None),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(kind_of("pkl"), Some(FieldKind::Other("a pickled object".to_owned())));
        for unknown in ["", "int128", "ndarray:", "ndarray:int8:0", "ndarray:int8:3,", "ndarray:bool", "str:4"] {
            assert_eq!(kind_of(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn an_index_does_not_lead_out_of_its_directory() {
        for name in ["../shard.mds", "/etc/passwd", "a/../../b", "", ".", "a/\\u0000"] {
            let error = read(index("\"int\"", "8", name).as_bytes()).err().unwrap();
            assert!(error.message().contains("not below its directory"), "{name}: {error}");
        }
    }

    #[test]
    fn what_is_not_read_says_why() {
        let good = index("\"int\"", "8", "x.mds");
        for (from, to, part) in [
            ("\"mds\"", "\"jsonl\"", "got \"jsonl\""),
            ("\"version\": 2", "\"version\": 3", "expected 2, got 3"),
            ("[8]", "[8, 8]", "what the columns"),
            ("\"int\"", "\"quaternion\"", "\"quaternion\""),
            ("\"shards\"", "\"shard\"", "is no index"),
        ] {
            let error = read(good.replace(from, to).as_bytes()).err().unwrap();
            assert!(error.message().contains(part), "{error}");
        }
        let zipped = good.replace("\"zip_data\": null", r#""zip_data": {"basename": "x.mds.zstd", "bytes": 5}"#);
        let zipped = zipped.replace("\"compression\": null", "\"compression\": \"zstd:7\"");
        assert_eq!(read(zipped.as_bytes()).unwrap().compression.as_deref(), Some("zstd:7"));
    }
}
