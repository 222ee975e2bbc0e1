//! Shards of tokens that an `index.json` lists: MosaicML's MDS, and LitData's chunks.
//!
//! Both begin with `u32 samples`, `u32 first byte of each`, and one more offset, which is where the last one ends.

use forebay_core::{Element, Error, Kind, Result};
use serde::Deserialize;

use super::{Run, Runs, check_element, damaged, room};

/// An `index.json`: which shards there are, and what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenShardIndex {
    /// The type of all tokens.
    pub element: Element,
    /// The shards, in their order.
    pub shards: Vec<ShardSpec>,
}

/// A shard as its index describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    /// Its file, relative to the index.
    pub name: String,
    /// Its size, where that is written down.
    pub size_bytes: Option<u64>,
    /// The compression of the file that is stored in place of this one.
    pub compression: Option<String>,
    samples: u64,
    column: Column,
}

/// Where the tokens of a sample are between its two offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column {
    /// Bytes of the sample before its tokens, and behind them.
    before: u64,
    after: u64,
    /// An array whose shape is in front of its elements.
    has_shape: bool,
}

/// Where the tokens of a shard are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenShard {
    /// The tokens.
    pub runs: Runs,
    /// Where each sample ends, in tokens.
    pub ends: Vec<u64>,
}

#[derive(Deserialize)]
struct Json {
    shards: Option<Vec<MdsShard>>,
    chunks: Option<Vec<Chunk>>,
    config: Option<ChunkConfig>,
}

#[derive(Deserialize)]
struct MdsShard {
    version: u64,
    format: String,
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u64>>,
    compression: Option<String>,
    raw_data: MdsFile,
    zip_data: Option<MdsFile>,
    samples: u64,
}

#[derive(Deserialize)]
struct MdsFile {
    basename: String,
    bytes: u64,
}

#[derive(Deserialize)]
struct Chunk {
    filename: String,
    chunk_size: u64,
    chunk_bytes: u64,
}

#[derive(Deserialize)]
struct ChunkConfig {
    compression: Option<String>,
    data_format: Option<Vec<String>>,
    encryption: Option<serde_json::Value>,
    item_loader: Option<String>,
}

/// Whether a file of this name is an index of shards.
pub fn is_token_index(name: &std::path::Path) -> bool {
    name.file_name().is_some_and(|name| name == "index.json")
}

impl TokenShardIndex {
    /// Reads an `index.json`. `column` is the column of MDS that has the tokens, `given` the type of tokens that are written as
    /// mere bytes.
    pub fn parse(json: &[u8], column: Option<&str>, given: Option<Element>) -> Result<Self> {
        let parsed: Json = serde_json::from_slice(json).map_err(|error| {
            damaged("is no index of shards").with_detail(error.to_string()).with_hint("expected that of MDS or LitData")
        })?;
        match (parsed.shards, parsed.chunks, parsed.config) {
            (Some(shards), None, _) => mds(shards, column, given),
            (None, Some(chunks), Some(config)) => litdata(chunks, &config, given),
            _ => Err(damaged(
                "is no index of shards: it has neither \"shards\", as of MDS, nor \"chunks\", as of LitData",
            )),
        }
    }
}

fn mds(shards: Vec<MdsShard>, column: Option<&str>, given: Option<Element>) -> Result<TokenShardIndex> {
    let mut element = None;
    let shards = shards.into_iter().map(|shard| {
        let (own, column) = mds_column(&shard, column, given)?;
        if element.replace(own).is_some_and(|other| other != own) {
            return Err(damaged(format!("has shards of {} and of other elements", own.name())));
        }
        let compression = shard.zip_data.and(Some(shard.compression.unwrap_or_else(|| "something".to_owned())));
        let name = inside(shard.raw_data.basename)?;
        Ok(ShardSpec { name, size_bytes: Some(shard.raw_data.bytes), compression, samples: shard.samples, column })
    });
    let shards = shards.collect::<Result<Vec<_>>>()?;
    let element = element.ok_or_else(|| damaged("has no shards"))?;
    Ok(TokenShardIndex { element, shards })
}

/// The element type of the column of tokens, and its place in a sample.
fn mds_column(shard: &MdsShard, wanted: Option<&str>, given: Option<Element>) -> Result<(Element, Column)> {
    if (shard.version, &*shard.format) != (2, "mds") {
        return Err(damaged(format!(
            "has a shard of {:?}, version {} (expected mds, version 2)",
            shard.format, shard.version
        )));
    }
    let (names, sizes) = (&shard.column_names, &shard.column_sizes);
    if names.len() != sizes.len() || names.len() != shard.column_encodings.len() {
        return Err(damaged("has a shard whose columns have not as many names, encodings and sizes"));
    }
    let is_wanted =
        |name: &&String| wanted.map_or(["tokens", "input_ids"].contains(&&***name), |wanted| **name == *wanted);
    let only = (wanted.is_none() && names.len() == 1).then_some(0);
    let place = only.or_else(|| names.iter().position(|name| is_wanted(&name))).ok_or_else(|| {
        let expected = wanted.unwrap_or("tokens");
        Error::config(format!("column: expected one of {names:?}, which the index has, got {expected:?}"))
    })?;
    let is_other_variable = |(at, size): (usize, &Option<u64>)| at != place && size.is_none();
    if let Some((other, _)) = sizes.iter().enumerate().find(|(at, size)| is_other_variable((*at, size))) {
        let message = format!("has a column {:?} of variable size beside {:?}", names[other], names[place]);
        return Err(Error::new(Kind::Undecodable, message)
            .with_hint("forebay reads tokens from MDS where they are the only column whose size varies"));
    }
    let fixed = |range: &[Option<u64>]| range.iter().try_fold(0u64, |sum, size| sum.checked_add(size.unwrap_or(0)));
    let too_large = || damaged("has columns of more than 2^64 bytes");
    let before = fixed(&sizes[..place]).and_then(|sum| sum.checked_add(if sizes[place].is_none() { 4 } else { 0 }));
    let (before, after) = before.zip(fixed(&sizes[place + 1..])).ok_or_else(too_large)?;
    let encoding = &*shard.column_encodings[place];
    let (element, has_shape) = match encoding.strip_prefix("ndarray:") {
        Some(array) => {
            let (name, shape) = array.split_once(':').map_or((array, None), |(name, shape)| (name, Some(shape)));
            let element = Element::from_name(name).ok_or_else(|| damaged(format!("has tokens of {name:?}")))?;
            (check_element(element)?, shape.is_none())
        }
        // As LLM Foundry has always read them.
        None if encoding == "bytes" => (given.unwrap_or(Element::I64), false),
        None => {
            let message = format!("has {:?} encoded as {encoding:?} (expected ndarray:… or bytes)", names[place]);
            return Err(Error::new(Kind::Undecodable, message));
        }
    };
    Ok((agreed(element, given)?, Column { before, after, has_shape }))
}

fn litdata(chunks: Vec<Chunk>, config: &ChunkConfig, given: Option<Element>) -> Result<TokenShardIndex> {
    let refused = |what: &str| Error::new(Kind::Undecodable, format!("lists chunks that are {what}"));
    if config.encryption.as_ref().is_some_and(|encryption| !encryption.is_null()) {
        return Err(refused("encrypted, which forebay does not read"));
    }
    if let Some(compression) = &config.compression {
        let hint = "write them without compression: single tokens cannot be read from a compressed file";
        return Err(refused(&format!("compressed with {compression}")).with_hint(hint));
    }
    if config.item_loader.as_deref() != Some("TokensLoader") {
        let loader = config.item_loader.as_deref().unwrap_or("nothing");
        let hint = "optimize(…, item_loader=TokensLoader()) writes tokens";
        return Err(refused(&format!("for {loader} (expected TokensLoader)")).with_hint(hint));
    }
    let format = match config.data_format.as_deref() {
        Some([format]) => format,
        other => return Err(damaged(format!("has chunks of {} columns (expected one)", other.map_or(0, <[_]>::len)))),
    };
    let element =
        litdata_element(format).ok_or_else(|| damaged(format!("has chunks of {format:?}, which is no token")))?;
    let column = Column { before: 0, after: 0, has_shape: false };
    let shards = chunks.into_iter().map(|Chunk { filename, chunk_size, chunk_bytes }| {
        let name = inside(filename)?;
        Ok(ShardSpec { name, size_bytes: Some(chunk_bytes), compression: None, samples: chunk_size, column })
    });
    Ok(TokenShardIndex { element: agreed(element, given)?, shards: shards.collect::<Result<_>>()? })
}

/// LitData's number of an element type.
fn litdata_element(format: &str) -> Option<Element> {
    use Element::{I8, I16, I32, I64, U8, U16, U32, U64};
    let (serializer, number) = format.split_once(':')?;
    match (serializer, number.parse::<usize>().ok()?) {
        ("no_header_tensor", number) => {
            [(11, U8), (12, I8), (13, I16), (14, I16), (15, I32), (16, I32), (17, I64), (18, I64), (20, U16)]
                .into_iter()
                .find(|(code, _)| *code == number)
                .map(|(_, element)| element)
        }
        ("no_header_numpy", number) => [I8, I16, I32, I64, U8, U16, U32, U64].get(number).copied(),
        _ => None,
    }
}

fn agreed(element: Element, given: Option<Element>) -> Result<Element> {
    match given.filter(|given| *given != element) {
        Some(given) => {
            let (expected, got) = (element.name(), given.name());
            Err(Error::config(format!("dtype: expected {expected}, which the index says, got {got}")))
        }
        None => check_element(element),
    }
}

/// A name that stays below the directory of its index.
fn inside(name: String) -> Result<String> {
    let is_plain = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    match !name.is_empty() && !name.contains('\0') && std::path::Path::new(&name).components().all(is_plain) {
        true => Ok(name),
        false => Err(damaged(format!("names the file {name:?} (expected one below its own directory)"))),
    }
}

impl ShardSpec {
    /// Bytes of the table at the beginning of a shard of this size.
    pub fn table_bytes(&self, size_bytes: u64) -> Result<u64> {
        if let Some(expected) = self.size_bytes.filter(|expected| *expected != size_bytes) {
            return Err(damaged(format!(
                "is not what its index describes (expected {expected} bytes, got {size_bytes})"
            )));
        }
        let table = self.samples.checked_add(2).and_then(|words| words.checked_mul(4));
        table.filter(|table| *table <= size_bytes).ok_or_else(|| {
            damaged(format!("is truncated (expected {} samples by its index, got {size_bytes} bytes)", self.samples))
        })
    }

    /// Where the tokens of a shard are, by its table and, where they are arrays with a shape, by the first byte of the first one.
    pub fn tokens(&self, table: &[u8], first: Option<u8>, size_bytes: u64, element: Element) -> Result<TokenShard> {
        let words = table.as_chunks::<4>().0;
        let word = |at: usize| words.get(at).map(|word| u64::from(u32::from_le_bytes(*word)));
        if word(0) != Some(self.samples) || words.len() as u64 != self.samples + 2 {
            let got = word(0).unwrap_or(0);
            return Err(damaged(format!("has {got} samples (expected {} by its index)", self.samples)));
        }
        if self.column.has_shape && first.is_some_and(|first| first >> 2 != 1) {
            let dimensions = first.unwrap_or(0) >> 2;
            return Err(damaged(format!("holds arrays of {dimensions} dimensions (expected one)")));
        }
        let (item, mut ends, mut runs) = (element.size_bytes() as u64, room(self.samples)?, Vec::<Run>::new());
        let (mut end, mut next) = (0, None);
        for sample in 0..self.samples as usize {
            let (start, stop) = word(sample + 1).zip(word(sample + 2)).unwrap_or_default();
            let outside = || damaged(format!("puts sample {sample} at bytes {start} to {stop}, in {size_bytes}"));
            if start < table.len() as u64 || stop < start || stop > size_bytes {
                return Err(outside());
            }
            let body = (stop - start).checked_sub(self.column.before + self.column.after).ok_or_else(outside)?;
            let shape = if self.column.has_shape { shape_bytes(body, item) } else { Some(0) };
            let bytes = shape.map(|shape| body - shape).filter(|bytes| bytes.is_multiple_of(item));
            let (shape, bytes) = shape.zip(bytes).ok_or_else(|| {
                damaged(format!("has {body} bytes of tokens in sample {sample}, which is no row of {}", element.name()))
            })?;
            let offset = start + self.column.before + shape;
            end += bytes / item;
            ends.push(end);
            match runs.last_mut() {
                Some(run) if next == Some(offset) => run.end = end,
                _ => runs.push(Run { offset, end }),
            }
            next = Some(offset + bytes);
        }
        runs.shrink_to_fit();
        let runs = match *runs {
            [] => Runs::One { offset: table.len() as u64, tokens: 0 },
            [Run { offset, end }] => Runs::One { offset, tokens: end },
            _ => Runs::Many(runs),
        };
        Ok(TokenShard { runs, ends })
    }

    /// The byte of a shard that says how many dimensions its arrays have, by its table.
    pub fn shape_at(&self, table: &[u8]) -> Option<u64> {
        let first = table.get(4..8)?.first_chunk().map(|word| u64::from(u32::from_le_bytes(*word)))?;
        (self.column.has_shape && self.samples > 0).then(|| first + self.column.before)
    }
}

/// Bytes of the shape in front of an array of one dimension, whose extent is written in as few bytes as it needs.
fn shape_bytes(body: u64, item: u64) -> Option<u64> {
    let widths = [(2, 0..1 << 8), (3, 1 << 8..1 << 16), (5, 1 << 16..1 << 32)];
    let fits = |(bytes, counts): &(u64, std::ops::Range<u64>)| {
        body.checked_sub(*bytes).is_some_and(|rest| rest.is_multiple_of(item) && counts.contains(&(rest / item)))
    };
    widths.iter().find(|width| fits(width)).map(|(bytes, _)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mds_index(columns: &[(&str, &str, Option<u64>)], more: &str) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let names = list(columns.iter().map(|(name, ..)| format!("{name:?}")).collect());
        let encodings = list(columns.iter().map(|(_, encoding, _)| format!("{encoding:?}")).collect());
        let sizes =
            list(columns.iter().map(|(.., size)| size.map_or("null".to_owned(), |size| size.to_string())).collect());
        format!(
            r#"{{"version": 2, "shards": [{{"version": 2, "format": "mds", "column_names": {names}, "column_encodings": {encodings},
            "column_sizes": {sizes}, "compression": null, "hashes": [], "samples": 2,
            "raw_data": {{"basename": "shard.00000.mds", "bytes": 64, "hashes": {{}}}}, "zip_data": null{more}}}]}}"#
        )
    }

    fn shard(index: &TokenShardIndex, offsets: &[u32]) -> Result<TokenShard> {
        let words = [2].iter().chain(offsets).flat_map(|word: &u32| word.to_le_bytes());
        index.shards[0].tokens(&words.collect::<Vec<_>>(), Some(1 << 2), 64, index.element)
    }

    #[test]
    fn columns_of_mds_are_found_in_their_samples() {
        let parse = |columns: &[_]| TokenShardIndex::parse(mds_index(columns, "").as_bytes(), None, None);
        let fixed = parse(&[("tokens", "ndarray:uint16:4", Some(8))]).unwrap();
        assert_eq!(fixed.element, Element::U16);
        let tokens = shard(&fixed, &[16, 24, 32]).unwrap();
        assert_eq!((tokens.runs, tokens.ends), (Runs::One { offset: 16, tokens: 8 }, vec![4, 8]));
        let bytes = parse(&[("id", "int", Some(8)), ("tokens", "bytes", None)]).unwrap();
        assert_eq!(bytes.element, Element::I64);
        let tokens = shard(&bytes, &[16, 36, 64]).unwrap();
        let runs = Runs::Many(vec![Run { offset: 28, end: 1 }, Run { offset: 48, end: 3 }]);
        assert_eq!((tokens.runs, tokens.ends), (runs, vec![1, 3]));
        let arrays = parse(&[("tokens", "ndarray:int32", None)]).unwrap();
        let tokens = shard(&arrays, &[16, 30, 40]).unwrap();
        assert_eq!(tokens.runs, Runs::Many(vec![Run { offset: 22, end: 2 }, Run { offset: 36, end: 3 }]));
        assert!(shard(&arrays, &[16, 31, 40]).is_err());
    }

    #[test]
    fn chunks_of_litdata_keep_their_tails() {
        let json = |config: &str| {
            let chunks = r#"[{"filename": "chunk-0-0.bin", "chunk_size": 2, "chunk_bytes": 64, "dim": 11}]"#;
            TokenShardIndex::parse(format!(r#"{{"chunks": {chunks}, "config": {{{config}}}}}"#).as_bytes(), None, None)
        };
        let good = r#""data_format": ["no_header_tensor:20"], "item_loader": "TokensLoader", "compression": null, "encryption": null"#;
        let index = json(good).unwrap();
        let tokens = shard(&index, &[16, 32, 38]).unwrap();
        assert_eq!((tokens.runs, tokens.ends), (Runs::One { offset: 16, tokens: 11 }, vec![8, 11]));
        for (from, to, part) in [
            ("\"encryption\": null", "\"encryption\": {}", "encrypted"),
            ("\"compression\": null", "\"compression\": \"zstd\"", "compressed with zstd"),
            ("TokensLoader", "PyTreeLoader", "for PyTreeLoader"),
            ("tensor:20", "tensor:0", "no token"),
            ("tensor:20", "tensor:-1", "no token"),
            ("[\"no_header_tensor:20\"]", "[]", "0 columns"),
        ] {
            let error = json(&good.replace(from, to)).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let columns = [("tokens", "ndarray:uint16:4", Some(8))];
        let index = TokenShardIndex::parse(mds_index(&columns, "").as_bytes(), None, None).unwrap();
        for offsets in [&[16, 24, 65][..], &[15, 24, 32], &[24, 16, 32], &[16, 24], &[16, 24, 32, 40], &[16, 19, 32]] {
            assert_eq!(shard(&index, offsets).unwrap_err().kind(), Kind::Corrupt, "{offsets:?}");
        }
        assert_eq!(index.shards[0].table_bytes(64).unwrap(), 16);
        assert!(index.shards[0].table_bytes(63).is_err());
        let huge = ShardSpec { samples: u64::MAX, size_bytes: None, ..index.shards[0].clone() };
        assert!(huge.table_bytes(u64::MAX).is_err());
        let parse = |json: &str| TokenShardIndex::parse(json.as_bytes(), None, None).unwrap_err();
        let two = mds_index(&[("tokens", "bytes", None), ("text", "str", None)], "");
        let many =
            mds_index(&[("tokens", "bytes", Some(u64::MAX)), ("a", "int", Some(u64::MAX)), ("b", "int", Some(8))], "");
        for json in [
            "",
            "[]",
            "{}",
            "{\"shards\": []}",
            "{\"chunks\": []}",
            "{\"shards\": [{}]}",
            &two,
            &many,
            &mds_index(&columns, "").replace("shard.00000.mds", "../secret"),
            &mds_index(&columns, "").replace("shard.00000.mds", "/etc/passwd"),
            &mds_index(&columns, "").replace("\"mds\"", "\"csv\""),
            &mds_index(&columns, "").replace("uint16", "float16"),
        ] {
            assert!(matches!(parse(json).kind(), Kind::Corrupt | Kind::Undecodable), "{json}");
        }
        let json = mds_index(&columns, "");
        assert_eq!(TokenShardIndex::parse(json.as_bytes(), Some("text"), None).unwrap_err().kind(), Kind::Config);
        assert_eq!(TokenShardIndex::parse(json.as_bytes(), None, Some(Element::I64)).unwrap_err().kind(), Kind::Config);
    }
}
