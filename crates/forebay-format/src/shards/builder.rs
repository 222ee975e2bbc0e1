//! Puts the index of a shard together, sample by sample.

use std::collections::{HashMap, HashSet};

use forebay_core::{Error, Kind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::annotations::AnnotationsBuilder;
use super::numbers::{Numbers, no_memory, push};
use super::{Lost, ShardIndex};
use crate::extents::ExtentsBuilder;

/// More kinds of fields than that are something else than kinds.
const MAX_FIELDS: usize = 1 << 16;
/// Notes beyond these are counted.
const MAX_NOTES: usize = 100;

/// Makes a [`ShardIndex`].
///
/// ```
/// use forebay_format::ShardIndexBuilder;
///
/// let mut shard = ShardIndexBuilder::new(false);
/// shard.push_part("text", 100, 7, None, None)?;
/// shard.push_part("label", 107, 1, None, None)?;
/// shard.end_sample(None)?;
/// let shard = shard.finish(Vec::new())?;
/// let (_, label) = shard.find(0, &[1]).unwrap();
/// assert_eq!((shard.len(), shard.fields().join(" "), label.range), (1, "text label".to_owned(), 107..108));
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ShardIndexBuilder {
    made: ShardIndex,
    samples: ExtentsBuilder,
    keys: Option<ExtentsBuilder>,
    numbers: HashMap<String, u16>,
    /// Hashes of the keys so far.
    seen: HashSet<u64>,
    repeated_keys: u64,
    annotations: Option<AnnotationsBuilder>,
    /// Where the parts of the sample begin that is not complete.
    first: usize,
}

impl ShardIndexBuilder {
    /// For samples that have keys of their own, or only numbers.
    pub fn new(has_keys: bool) -> Self {
        let made = ShardIndex { offsets: Numbers::of_blocks(), hashes: Some(Vec::new()), ..ShardIndex::default() };
        let keys = has_keys.then(|| ExtentsBuilder::new(0));
        let (samples, numbers, seen) = (ExtentsBuilder::new(0), HashMap::new(), HashSet::new());
        Self { made, samples, keys, numbers, seen, repeated_keys: 0, annotations: None, first: 0 }
    }

    /// How many parts the sample has that is not complete.
    pub fn open_parts(&self) -> usize {
        self.made.part_fields.len() - self.first
    }

    /// Adds a field of the sample that is not complete. Without a checksum of each part the index has none.
    pub fn push_part(
        &mut self,
        field: &str,
        offset: u64,
        size: u64,
        hash: Option<u64>,
        lost: Option<Lost>,
    ) -> Result<()> {
        let number = self.number_of(field)?;
        let made = &mut self.made;
        if let Some(lost) = lost {
            push(&mut made.lost, (made.part_fields.len() as u64, lost))?;
        }
        push(&mut made.part_fields, number)?;
        made.offsets.push(offset)?;
        made.sizes.push(size)?;
        match (hash, lost, &mut made.hashes) {
            (None, None, _) => made.hashes = None,
            (hash, _, Some(hashes)) => push(hashes, hash.unwrap_or(0))?,
            (_, _, None) => {}
        }
        Ok(())
    }

    /// Gives the last part its annotation: what was learnt of its bytes ([`ShardIndex::annotation`]). Parts that are given none
    /// have an empty one, once any part has one.
    ///
    /// ```
    /// use forebay_format::{ShardIndexBuilder, content_hash};
    ///
    /// let mut shard = ShardIndexBuilder::new(false);
    /// shard.push_part("jpg", 512, 7, Some(content_hash(b"picture")), None)?;
    /// shard.annotate_last(b"landmarks")?;
    /// shard.push_part("cls", 1536, 1, Some(content_hash(b"3")), None)?;
    /// shard.end_sample(None)?;
    /// let shard = shard.finish(Vec::new())?;
    /// assert_eq!([shard.annotation(0, &[0]), shard.annotation(0, &[1])], [Some(&b"landmarks"[..]), Some(&[])]);
    /// # Ok::<(), forebay_core::Error>(())
    /// ```
    pub fn annotate_last(&mut self, annotation: &[u8]) -> Result<()> {
        let part = self.made.part_fields.len().checked_sub(1).filter(|part| *part >= self.first);
        let part = part.ok_or_else(|| Error::internal("a part of a complete sample was annotated"))? as u64;
        self.annotations.get_or_insert_default().push(part, annotation)
    }

    /// Whether the sample that is not complete has this field.
    pub fn has_open(&self, field: &str) -> bool {
        let number = self.numbers.get(field);
        number.is_some_and(|number| self.made.part_fields[self.first..].contains(number))
    }

    /// The last part, which has to be of the sample that is not complete, cannot be read after all.
    pub fn lose_last(&mut self, why: Lost) -> Result<()> {
        let part = self.made.part_fields.len().checked_sub(1).filter(|part| *part >= self.first);
        let part = part.ok_or_else(|| Error::internal("a part of a complete sample was lost"))? as u64;
        match self.made.lost.last() {
            Some((last, _)) if *last == part => Ok(()),
            _ => push(&mut self.made.lost, (part, why)),
        }
    }

    /// The sample is complete, and there is another one or none. One without parts is none. A key that was there before has
    /// `@` and a number behind it: what samples go by are names that differ.
    pub fn end_sample(&mut self, key: Option<(&str, u64)>) -> Result<()> {
        if self.open_parts() == 0 {
            return Ok(());
        }
        self.samples.push(self.open_parts() as u64)?;
        self.first = self.made.part_fields.len();
        let Some(keys) = &mut self.keys else { return Ok(()) };
        let (key, number) = key.ok_or_else(|| Error::internal("a sample without its key"))?;
        self.seen.try_reserve(1).map_err(no_memory)?;
        let own;
        let name = if self.seen.insert(xxh3_64(key.as_bytes())) {
            key
        } else {
            self.repeated_keys += 1;
            own = format!("{key}@{number}");
            &own
        };
        self.made.key_text.try_reserve(name.len()).map_err(no_memory)?;
        self.made.key_text.push_str(name);
        keys.push(name.len() as u64)
    }

    /// Gives the index, with what was noticed: predicates about the shard's path.
    pub fn finish(self, notes: Vec<String>) -> Result<ShardIndex> {
        let Self { mut made, samples, keys, repeated_keys, annotations, .. } = self;
        made.samples = samples.finish()?;
        made.keys = keys.map(ExtentsBuilder::finish).transpose()?;
        let parts = made.part_count();
        made.annotations = annotations.map(|annotations| annotations.finish(parts)).transpose()?;
        made.notes = notes;
        if made.notes.len() > MAX_NOTES {
            let more = made.notes.len() - MAX_NOTES;
            made.notes.truncate(MAX_NOTES);
            made.notes.push(format!("has {more} more such places"));
        }
        if repeated_keys > 0 {
            made.notes.push(format!("has {repeated_keys} samples with the key of another one, which stay samples"));
        }
        if made.samples.is_empty() {
            made.notes.push("has no samples".to_owned());
        }
        made.offsets.shrink();
        made.sizes.shrink();
        made.part_fields.shrink_to_fit();
        made.key_text.shrink_to_fit();
        made.hashes.iter_mut().for_each(Vec::shrink_to_fit);
        Ok(made)
    }

    /// Adds a name to those of fields, which no part has.
    pub(super) fn name_field(&mut self, name: &str) -> Result<()> {
        self.number_of(name).map(|_| ())
    }

    fn number_of(&mut self, field: &str) -> Result<u16> {
        if let Some(number) = self.numbers.get(field) {
            return Ok(*number);
        }
        let number = u16::try_from(self.made.fields.len()).map_err(|_| {
            let message = format!("has more than {MAX_FIELDS} kinds of fields (expected names like 00042.jpg)");
            let hint = "a field is what follows the first dot of a name: name members by a key without dots";
            Error::new(Kind::Corrupt, message).with_hint(hint)
        })?;
        self.made.fields.push(field.to_owned());
        self.numbers.insert(field.to_owned(), number);
        Ok(number)
    }
}
