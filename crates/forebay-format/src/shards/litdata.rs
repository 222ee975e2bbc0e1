//! `index.json` of LitData: which chunks there are, and what the leaves of a sample's tree are.

use forebay_core::{Element, Error, Kind, Result};
use serde::Deserialize;
use serde_json::Value as Json;

use super::mds::{checked_name, corrupt};
use super::{Directory, FieldKind, Listed, RecordField};

#[derive(Deserialize)]
struct Index {
    chunks: Vec<Chunk>,
    config: Config,
}

#[derive(Deserialize)]
struct Chunk {
    filename: String,
    chunk_size: u64,
    chunk_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    compression_level: Option<String>,
    encryption: Option<Json>,
    data_format: Option<Vec<String>>,
    data_spec: Option<String>,
    item_loader: Option<String>,
    #[serde(default)]
    types: Option<Json>,
}

/// One node of a sample's tree.
#[derive(Deserialize)]
struct Tree {
    r#type: Option<String>,
    context: Option<String>,
    #[serde(default)]
    children_spec: Vec<Tree>,
}

/// LitData's numbers of torch's types.
const TORCH: [Option<Element>; 21] = [
    Some(Element::F32),
    Some(Element::F32),
    Some(Element::F64),
    Some(Element::F64),
    None,
    None,
    None,
    None,
    Some(Element::F16),
    Some(Element::F16),
    Some(Element::BF16),
    Some(Element::U8),
    Some(Element::I8),
    Some(Element::I16),
    Some(Element::I16),
    Some(Element::I32),
    Some(Element::I32),
    Some(Element::I64),
    Some(Element::I64),
    Some(Element::Bool),
    Some(Element::U16),
];

/// LitData's numbers of NumPy's types.
const NUMPY: [Option<Element>; 14] = [
    Some(Element::I8),
    Some(Element::I16),
    Some(Element::I32),
    Some(Element::I64),
    Some(Element::U8),
    Some(Element::U16),
    Some(Element::U32),
    Some(Element::U64),
    Some(Element::F16),
    Some(Element::F32),
    Some(Element::F64),
    None,
    None,
    Some(Element::Bool),
];

/// The types of elements by the numbers that LitData has for those of NumPy, or of torch.
pub fn litdata_elements(is_numpy: bool) -> &'static [Option<Element>] {
    if is_numpy { &NUMPY } else { &TORCH }
}

/// Reads an `index.json` of LitData's.
pub(super) fn read(bytes: &[u8]) -> Result<Directory> {
    let Index { chunks, config } = serde_json::from_slice(bytes)
        .map_err(|error| corrupt("is no index of LitData chunks").with_detail(error.to_string()))?;
    let refused = |message: String, hint: &'static str| Err(Error::new(Kind::Undecodable, message).with_hint(hint));
    if config.encryption.is_some_and(|encryption| !encryption.is_null()) {
        return refused("lists chunks that are encrypted".to_owned(), "write them again without encryption");
    }
    match config.item_loader.as_deref() {
        None | Some("PyTreeLoader") => {}
        Some(other) => {
            let message = format!("lists chunks of another kind (expected PyTreeLoader, got {other:?})");
            return refused(message, "only chunks of whole samples are read");
        }
    }
    if let Some(name) = config.compression {
        let level = config.compression_level.as_deref().unwrap_or("chunk");
        let message = format!("lists chunks that are compressed ({name:?}, by {level})");
        return refused(message, "write them again without compression");
    }
    let Some(formats) = config.data_format.filter(|formats| !formats.is_empty()) else {
        return Err(corrupt("does not say of what samples are made (data_format)"));
    };
    let names = names(config.data_spec.as_deref(), formats.len())?;
    let is_tuple = names.iter().enumerate().all(|(at, name)| *name == at.to_string());
    let fields = names.into_iter().zip(&formats).map(|(name, format)| RecordField {
        kind: kind_of(format).unwrap_or_else(|| FieldKind::Other(format.chars().take(80).collect())),
        name,
        size_bytes: None,
    });
    let fields = fields.collect();
    let file = |chunk: Chunk| {
        Ok((checked_name(chunk.filename)?, Listed { samples: chunk.chunk_size, size_bytes: chunk.chunk_bytes }))
    };
    let files = chunks.into_iter().map(file).collect::<Result<_>>()?;
    // Rows of nothing but bytes, texts, numbers and lists of them are written so by the versions that tell types.
    let has_rows_behind = config.types.is_some();
    Ok(Directory { files, fields, is_tuple, has_rows_behind, compression: None })
}

/// The names of a tree's leaves: keys and places, with dots between them.
fn names(spec: Option<&str>, count: usize) -> Result<Vec<String>> {
    let Some(spec) = spec else { return Ok((0..count).map(|at| at.to_string()).collect()) };
    let (_, tree): (u64, Tree) = serde_json::from_str(spec).map_err(|error| {
        corrupt("has a tree of samples that cannot be read (data_spec)").with_detail(error.to_string())
    })?;
    let mut found = Vec::new();
    collect(&tree, "", &mut found)?;
    if found.len() != count {
        let got = found.len();
        return Err(corrupt(format!(
            "has another number of leaves in data_spec than in data_format (expected {count}, got {got})"
        )));
    }
    Ok(found)
}

/// Depth is bounded by the JSON parser.
fn collect(tree: &Tree, name: &str, found: &mut Vec<String>) -> Result<()> {
    let Some(kind) = &tree.r#type else {
        found.push(if name.is_empty() { "0".to_owned() } else { name.to_owned() });
        return Ok(());
    };
    let keys: Option<Vec<Json>> = match kind.as_str() {
        "builtins.dict" | "collections.OrderedDict" => {
            tree.context.as_deref().and_then(|context| serde_json::from_str(context).ok())
        }
        _ => None,
    };
    let keys = keys.filter(|keys| keys.len() == tree.children_spec.len());
    for (at, child) in tree.children_spec.iter().enumerate() {
        let own = match keys.as_ref().map(|keys| &keys[at]) {
            Some(Json::String(key)) => key.clone(),
            Some(key) => key.to_string(),
            None => at.to_string(),
        };
        collect(child, &if name.is_empty() { own } else { format!("{name}.{own}") }, found)?;
    }
    Ok(())
}

/// What a leaf is, by the name of its serializer.
fn kind_of(format: &str) -> Option<FieldKind> {
    let (name, argument) = format.split_once(':').map_or((format, None), |(name, argument)| (name, Some(argument)));
    let element = |is_numpy| {
        let number = argument.and_then(|number| number.parse::<usize>().ok())?;
        litdata_elements(is_numpy).get(number).copied().flatten()
    };
    Some(match name {
        "str" | "string" | "text" => FieldKind::Text,
        "bool" | "boolean" => FieldKind::Number(Element::Bool),
        "int" => FieldKind::Number(Element::I64),
        "float" => FieldKind::Number(Element::F64),
        "jpeg" | "image" | "tiff" | "tifffile" => FieldKind::Picture,
        "pil" => FieldKind::Pixels,
        "bytes" | "file" | "pdf" => FieldKind::Bytes,
        "numpy" => FieldKind::NumpyArray,
        "tensor" => FieldKind::Tensor,
        "no_header_numpy" => FieldKind::Numbers(element(true)?),
        "no_header_tensor" => FieldKind::Numbers(element(false)?),
        "jpeg_array" => FieldKind::Other("a list of pictures".to_owned()),
        "pickle" => FieldKind::Other("a pickled object".to_owned()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(config: &str) -> String {
        format!(
            r#"{{"chunks": [{{"chunk_bytes": 9, "chunk_size": 3, "dim": null, "filename": "chunk-0-0.bin"}}], "config": {{{config}}}}}"#
        )
    }

    fn leaf() -> &'static str {
        r#"{\"type\": null, \"context\": null, \"children_spec\": []}"#
    }

    #[test]
    fn leaves_are_named_by_their_place_in_the_tree() {
        let leaf = leaf();
        let spec = format!(
            r#"[1, {{\"type\": \"builtins.dict\", \"context\": \"[\\\"image\\\", \\\"more\\\"]\", \"children_spec\": [{leaf},
            {{\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": [{leaf}, {leaf}]}}]}}]"#
        )
        .replace('\n', " ");
        let text = index(&format!(r#""data_format": ["jpeg", "int", "no_header_tensor:18"], "data_spec": "{spec}""#));
        let directory = Directory::read(text.as_bytes()).unwrap();
        let fields: Vec<_> = directory.fields.iter().map(|field| (&*field.name, field.kind.clone())).collect();
        let expected = [
            ("image", FieldKind::Picture),
            ("more.0", FieldKind::Number(Element::I64)),
            ("more.1", FieldKind::Numbers(Element::I64)),
        ];
        assert_eq!(fields, expected);
        assert!(!directory.is_tuple);
        let numbered = Directory::read(index(r#""data_format": ["pil", "video:mp4"]"#).as_bytes()).unwrap();
        assert!(numbered.is_tuple);
        assert_eq!(numbered.fields[1].kind, FieldKind::Other("video:mp4".to_owned()));
    }

    #[test]
    fn what_is_not_read_says_why() {
        let formats = r#""data_format": ["int"]"#;
        for (config, part) in [
            (format!(r#"{formats}, "encryption": {{"algorithm": "fernet"}}"#), "encrypted"),
            (format!(r#"{formats}, "compression": "zstd", "compression_level": "batch""#), "by batch"),
            (format!(r#"{formats}, "compression": "zstd""#), "by chunk"),
            (format!(r#"{formats}, "item_loader": "TokensLoader""#), "TokensLoader"),
            (r#""data_format": []"#.to_owned(), "data_format"),
            (format!(r#"{formats}, "data_spec": "[1, {{\"type\": \"x\"}}]""#), "expected 1, got 0"),
            (format!(r#"{formats}, "data_spec": "?""#), "data_spec"),
        ] {
            let error = Directory::read(index(&config).as_bytes()).err().unwrap();
            assert!(error.message().contains(part), "{error}");
        }
        assert!(Directory::read(b"{}").is_err() && Directory::read(b"[").is_err());
    }
}
