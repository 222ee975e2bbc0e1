//! What files of tokens are: found out from their names, their headers and the files beside them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Element, Error, Kind, Result, SampleId, Stage};
use forebay_format::{
    MEGATRON_HEADER_BYTES, MegatronHeader, MegatronIndex, Note, PlainTokens, Runs, ShardSpec, TOKEN_HEADER_BYTES,
    TokenShardIndex, is_token_index, npy_tokens, plain_tokens,
};
use forebay_store::{ReadRequest, Stat, Store};

use super::{DocumentMode, TokenOptions};
use crate::scan::call_pool::CallPool;
use crate::scan::pieces::{FileRange, read_in_order};
use crate::scan::sequential::buffer;
use crate::scan::{max_threads, once};
use crate::source::Dataset;
use crate::source::defaults::retry_of;

/// An `index.json` is read as a whole, and no longer one.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// A file of tokens.
pub(super) struct Examined {
    pub(super) path: PathBuf,
    pub(super) stat: Stat,
    pub(super) element: Element,
    pub(super) runs: Runs,
    /// Where each document ends, in tokens of the file, where that matters.
    pub(super) ends: Option<Vec<u64>>,
}

/// A file that is to be examined, with what its index says of it.
#[derive(Clone)]
struct Asked {
    file: usize,
    path: PathBuf,
    shard: Option<(Element, ShardSpec)>,
}

impl AsRef<Path> for Asked {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// What one file turned out to be.
struct Found {
    stat: Stat,
    element: Element,
    runs: Runs,
    note: Option<String>,
    boundaries: Boundaries,
}

/// Where it is written where documents end.
enum Boundaries {
    Nowhere,
    /// In a Megatron index beside the file.
    Megatron(MegatronHeader, PathBuf, Stat),
    /// In an index of datatrove's beside the file.
    Numbers(PathBuf, Stat),
    Known(Vec<u64>),
}

/// Examines every file, in order.
pub(super) fn examine(
    files: &dyn Dataset,
    store: &Arc<dyn Store>,
    options: &TokenOptions,
) -> Result<(Vec<Examined>, Vec<Note>)> {
    let asked = listed(files, store, options)?;
    let given = options.element;
    let with_documents = options.documents != DocumentMode::Ignored;
    let found = found(store, &asked, given)?;
    let (mut examined, mut notes) = (Vec::with_capacity(found.len()), Vec::new());
    let mut boundaries = Vec::new();
    for (Asked { path, .. }, found) in asked.into_iter().zip(found) {
        notes.extend(found.note.map(|message| Note { path: path.clone(), message }));
        boundaries.push(found.boundaries);
        examined.push(Examined { path, stat: found.stat, element: found.element, runs: found.runs, ends: None });
    }
    if with_documents {
        match (options.document_end, options.documents) {
            (None, _) => read_boundaries(store, &mut examined, boundaries)?,
            (Some(end), DocumentMode::Packed(_)) => find_ends(store, &mut examined, end)?,
            // Windows find them in their own tokens.
            (Some(_), _) => {}
        }
    }
    Ok((examined, notes))
}

/// The files of tokens among those that were found: shards are those that their index lists.
fn listed(files: &dyn Dataset, store: &Arc<dyn Store>, options: &TokenOptions) -> Result<Vec<Asked>> {
    let paths: Vec<_> = (0..files.len()).map(|file| files.path(SampleId(file))).collect();
    let is_index = |path: &&PathBuf| is_token_index(path);
    let indexed: HashSet<&Path> = paths.iter().filter(is_index).filter_map(|path| path.parent()).collect();
    let (mut asked, mut known) = (Vec::new(), HashSet::new());
    let mut add = |path: PathBuf, shard| {
        if known.insert(path.clone()) {
            asked.push(Asked { file: asked.len(), path, shard });
        }
    };
    for path in &paths {
        if is_token_index(path) {
            let directory = path.parent().unwrap_or(Path::new(""));
            let TokenShardIndex { element, shards } = shard_index(store, path, options)?;
            shards.into_iter().for_each(|shard| add(directory.join(&shard.name), Some((element, shard))));
        } else if path.parent().is_none_or(|directory| !indexed.contains(directory)) {
            let is_megatron = path.extension().is_some_and(|ending| ending == "idx");
            add(if is_megatron { path.with_extension("bin") } else { path.clone() }, None);
        }
    }
    Ok(asked)
}

fn shard_index(store: &Arc<dyn Store>, path: &Path, options: &TokenOptions) -> Result<TokenShardIndex> {
    let (reader, retry) = (Arc::clone(store), retry_of(&**store));
    let read = once(store, path, retry, move |path| {
        let object = reader.fetch(&ReadRequest::new(path, retry.deadline), &mut |size_bytes| match size_bytes {
            0..=MAX_INDEX_BYTES => buffer(size_bytes),
            _ => {
                let message =
                    format!("is too large for an index (expected at most {MAX_INDEX_BYTES} bytes, got {size_bytes})");
                Err(Error::new(Kind::Corrupt, message))
            }
        })?;
        Ok(object.bytes.into_vec())
    });
    let parsed = read.and_then(|json| TokenShardIndex::parse(&json, options.column.as_deref(), options.element));
    parsed.map_err(|error| error.at_path(path).at_stage(Stage::Scan))
}

/// What each file is.
fn found(store: &Arc<dyn Store>, asked: &[Asked], given: Option<Element>) -> Result<Vec<Found>> {
    let (threads, retry, keeps_deadlines) =
        (max_threads(&**store), retry_of(&**store), store.capabilities().keeps_deadlines);
    let reader = Arc::clone(store);
    let mut pool = CallPool::new(threads, retry, keeps_deadlines, move |asked: &Asked| {
        let reader = Reader { store: &*reader, within: retry.deadline };
        reader.examine(asked, given).map_err(|error| error.at_path(&asked.path))
    });
    asked.iter().for_each(|file| pool.ask(file.clone()));
    let mut found: Vec<Option<Found>> = asked.iter().map(|_| None).collect();
    while let Some((Asked { file, .. }, one)) = pool.next()? {
        found[file] = Some(one.map_err(|error| error.at_stage(Stage::Scan))?);
    }
    found.into_iter().map(|one| one.ok_or_else(|| Error::internal("a file was asked for and not told"))).collect()
}

/// Reads headers.
struct Reader<'a> {
    store: &'a dyn Store,
    within: Duration,
}

impl Reader<'_> {
    /// Some bytes of a file that is as `stat` says.
    fn bytes(&self, path: &Path, stat: Stat, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let request = ReadRequest::new(path, self.within).with_range(range).with_expected(stat);
        Ok(self.store.fetch(&request, &mut |size_bytes| buffer(size_bytes))?.bytes.into_vec())
    }

    /// The first bytes.
    fn head(&self, path: &Path, stat: Stat, most: u64) -> Result<Vec<u8>> {
        self.bytes(path, stat, 0..most.min(stat.size_bytes))
    }

    /// Size and time of a file that need not be there.
    fn beside(&self, path: &Path) -> Result<Option<Stat>> {
        match self.store.stat(path) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn examine(&self, asked: &Asked, given: Option<Element>) -> Result<Found> {
        let path = &asked.path;
        let stat = self.store.stat(path).map_err(|error| {
            match asked.shard.as_ref().and_then(|(_, shard)| shard.compression.as_ref()) {
                Some(compression) if error.kind() == Kind::NotFound => {
                    let hint = "decompress its shards first: single tokens cannot be read from a compressed file";
                    Error::new(Kind::Undecodable, format!("is there only compressed with {compression}"))
                        .with_hint(hint)
                }
                _ => error,
            }
        })?;
        if let Some((element, shard)) = &asked.shard {
            let table = self.bytes(path, stat, 0..shard.table_bytes(stat.size_bytes)?)?;
            let shape_at = shard.shape_at(&table).filter(|at| *at < stat.size_bytes);
            let first = shape_at.map(|at| self.bytes(path, stat, at..at + 1)).transpose()?;
            let shard =
                shard.tokens(&table, first.and_then(|byte| byte.first().copied()), stat.size_bytes, *element)?;
            let boundaries = Boundaries::Known(shard.ends);
            return Ok(Found { stat, element: *element, runs: shard.runs, note: None, boundaries });
        }
        let plain = |plain: PlainTokens, boundaries| {
            let PlainTokens { element, runs, note } = plain;
            Found { stat, element, runs, note, boundaries }
        };
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("npy") => {
                let head = self.head(path, stat, TOKEN_HEADER_BYTES)?;
                Ok(plain(npy_tokens(&head, stat.size_bytes, given)?, Boundaries::Nowhere))
            }
            Some("ds") => {
                let index = with_ending(path, ".index");
                let Some(index_stat) = self.beside(&index)? else {
                    return Ok(plain(plain_tokens(&[], stat.size_bytes, given)?, Boundaries::Nowhere));
                };
                let element = self.datatrove_element(&index, index_stat, stat, given)?;
                let tokens = plain_tokens(&[], stat.size_bytes, Some(element))?;
                Ok(plain(tokens, Boundaries::Numbers(index, index_stat)))
            }
            _ => {
                let index = path.with_extension("idx");
                match self.beside(&index)?.filter(|_| index != *path) {
                    Some(index_stat) => self.megatron(stat, index, index_stat, given),
                    None => {
                        let head = self.head(path, stat, TOKEN_HEADER_BYTES)?;
                        Ok(plain(plain_tokens(&head, stat.size_bytes, given)?, Boundaries::Nowhere))
                    }
                }
            }
        }
    }

    /// The type of tokens in a file of datatrove's: its index says how many there are.
    fn datatrove_element(&self, index: &Path, index_stat: Stat, stat: Stat, given: Option<Element>) -> Result<Element> {
        let size = index_stat.size_bytes;
        if !size.is_multiple_of(8) {
            let error = Error::new(Kind::Corrupt, format!("has {size} bytes, which are no row of 64-bit numbers"));
            return Err(error.at_path(index));
        }
        let fallback = given.unwrap_or(Element::U16);
        if size == 0 {
            return Ok(fallback);
        }
        let last = self.bytes(index, index_stat, size - 8..size)?;
        let count = last.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let is_of = |element: &Element| count.checked_mul(element.size_bytes() as u64) == Some(stat.size_bytes);
        [fallback, Element::U16, Element::U32].into_iter().find(is_of).ok_or_else(|| {
            let message = format!("has {} bytes (expected {count} tokens by its index)", stat.size_bytes);
            Error::new(Kind::Corrupt, message)
                .with_hint("the file and its index do not belong together, or one is truncated")
        })
    }

    fn megatron(&self, stat: Stat, index: PathBuf, index_stat: Stat, given: Option<Element>) -> Result<Found> {
        let of_index = |error: Error| error.at_path(&index);
        let head = self.head(&index, index_stat, MEGATRON_HEADER_BYTES)?;
        let header = MegatronHeader::parse(&head, index_stat.size_bytes).map_err(of_index)?;
        let element = header.element;
        if let Some(given) = given.filter(|given| *given != element) {
            let (expected, got) = (element.name(), given.name());
            return Err(Error::config(format!("dtype: expected {expected}, which its index says, got {got}")));
        }
        let tokens = match header.outer() {
            Some([first, last]) => {
                let (first, last) = (self.bytes(&index, index_stat, first)?, self.bytes(&index, index_stat, last)?);
                let (Some(first), Some(last)) = (first.first_chunk(), last.first_chunk()) else {
                    return Err(Error::internal("a store gave fewer bytes than were asked for").at_path(&index));
                };
                header.tokens_by(first, last, stat.size_bytes).map_err(of_index)?
            }
            None => 0,
        };
        let note = match stat.size_bytes - tokens * element.size_bytes() as u64 {
            _ if tokens == 0 => Some("has no tokens".to_owned()),
            0 => None,
            rest => Some(format!("ends with {rest} bytes that its index does not name, which are left out")),
        };
        let boundaries = Boundaries::Megatron(header, index, index_stat);
        Ok(Found { stat, element, runs: Runs::One { offset: 0, tokens }, note, boundaries })
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Reads where documents end, of files that have indexes of them.
fn read_boundaries(store: &Arc<dyn Store>, files: &mut [Examined], boundaries: Vec<Boundaries>) -> Result<()> {
    enum Reading {
        Megatron(MegatronIndex),
        Numbers(Vec<u64>),
    }
    let (mut ranges, mut readings) = (Vec::new(), Vec::new());
    for (file, (examined, boundaries)) in files.iter_mut().zip(boundaries).enumerate() {
        match boundaries {
            Boundaries::Known(ends) => examined.ends = Some(ends),
            Boundaries::Megatron(header, path, stat) => {
                ranges.push(FileRange { path, stat, range: header.arrays() });
                readings.push((file, Reading::Megatron(MegatronIndex::new(header, examined.stat.size_bytes)?)));
            }
            Boundaries::Numbers(path, stat) => {
                ranges.push(FileRange { path, stat, range: 0..stat.size_bytes });
                readings.push((file, Reading::Numbers(Vec::new())));
            }
            Boundaries::Nowhere => {
                let message = "has no index of its documents";
                let hint = "give `eod`, the token that ends documents, or `documents=false`";
                return Err(Error::config(message).with_hint(hint).at_path(&examined.path).at_stage(Stage::Scan));
            }
        }
    }
    read_in_order(store, &ranges, |range, bytes| match &mut readings[range].1 {
        Reading::Megatron(index) => index.feed(bytes),
        Reading::Numbers(ends) => {
            let words = bytes.as_chunks::<8>().0;
            ends.try_reserve(words.len()).map_err(|_| no_memory())?;
            ends.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
            Ok(())
        }
    })?;
    for ((file, reading), FileRange { path, .. }) in readings.into_iter().zip(&ranges) {
        let ends = match reading {
            Reading::Megatron(index) => index.finish().map_err(|error| error.at_path(path).at_stage(Stage::Scan))?,
            Reading::Numbers(ends) => ends,
        };
        files[file].ends = Some(ends);
    }
    Ok(())
}

/// Reads all tokens, and keeps where the one is that ends documents. A file ends a document, too.
fn find_ends(store: &Arc<dyn Store>, files: &mut [Examined], end: i64) -> Result<()> {
    let (mut ranges, mut of) = (Vec::new(), Vec::new());
    for (file, Examined { path, stat, element, runs, .. }) in files.iter().enumerate() {
        let item = element.size_bytes() as u64;
        let mut add = |offset: u64, tokens: u64| {
            ranges.push(FileRange { path: path.clone(), stat: *stat, range: offset..offset + tokens * item });
            of.push(file);
        };
        match runs {
            Runs::One { offset, tokens } => add(*offset, *tokens),
            Runs::Many(runs) => {
                let starts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
                runs.iter().zip(starts).for_each(|(run, start)| add(run.offset, run.end - start));
            }
        }
    }
    // Each with how many of its tokens were looked at.
    let mut found: Vec<(Vec<u64>, u64)> = files.iter().map(|_| (Vec::new(), 0)).collect();
    let elements: Vec<_> = files.iter().map(|file| file.element).collect();
    read_in_order(store, &ranges, |range, bytes| {
        let file = of[range];
        let ((ends, seen), item) = (&mut found[file], elements[file].size_bytes());
        // As it is written in the file; one that does not fit its type is nowhere.
        let wanted = end.to_le_bytes();
        let fill = if end < 0 && item < 8 && !is_unsigned(elements[file]) { 0xFF } else { 0 };
        let fits = wanted[item..].iter().all(|byte| *byte == fill);
        for token in bytes.chunks_exact(item) {
            *seen += 1;
            if fits && *token == wanted[..item] {
                ends.try_reserve(1).map_err(|_| no_memory())?;
                ends.push(*seen);
            }
        }
        Ok(())
    })?;
    for (file, (mut ends, seen)) in files.iter_mut().zip(found) {
        if ends.last() != Some(&seen) && seen > 0 {
            ends.push(seen);
        }
        file.ends = Some(ends);
    }
    Ok(())
}

fn is_unsigned(element: Element) -> bool {
    matches!(element, Element::U8 | Element::U16 | Element::U32 | Element::U64)
}

fn no_memory() -> Error {
    Error::new(Kind::Exhausted, "no memory was left for an index of its documents")
}
