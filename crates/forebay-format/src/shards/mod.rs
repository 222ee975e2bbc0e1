//! Shards: files with many samples, each of several fields. Formats differ in how the index is made; the index is the same.

mod annotations;
mod arrow;
mod builder;
mod directory;
mod field;
#[cfg(test)]
mod hostile;
mod litdata;
mod mds;
mod numbers;
mod parquet;
mod table;
mod tar;
mod tfrecord;
mod wds2idx;

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::extents::{Extents, take_word};
use crate::file_scan::FileIndex;
use annotations::{Annotations, AnnotationsBuilder};
use numbers::{Numbers, parse_words, write_words};

pub use arrow::{ArrowScanner, ArrowSchema, arrow_schema};
pub use builder::ShardIndexBuilder;
pub use directory::{Directory, read_saved_dataset};
pub use field::{FieldKind, RecordField};
pub use litdata::litdata_elements;
pub use parquet::{PageTable, ParquetScanner, ParquetSchema, parquet_schema};
pub use table::{Listed, TableScanner};
pub use tar::TarScanner;
pub use tfrecord::TfRecordScanner;
pub use wds2idx::read_wds2idx;

/// The number of shards' indexes in an index file (decisions/0048). One file has those of shards of every format.
pub const SHARD_RULE: u64 = 0x1_0000_0000;

/// The largest text that a written index may hold in one piece: a name, a note.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// The samples of one shard: the fields of each, and where their bytes are.
///
/// A sample takes 18 bytes for each of its fields, as long as offsets and sizes fit into 32 bits, two or three more, and its
/// key. Without checksums a field takes 10. With annotations it takes one or two more, and its annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardIndex {
    /// The names of all fields that occur, as they are written in the shard.
    fields: Vec<String>,
    /// The parts of each sample.
    samples: Extents,
    /// The bytes of each one's key; none where samples have only numbers.
    keys: Option<Extents>,
    key_text: String,
    /// Of each part: its field, by number; where it begins; its length; the checksum of its bytes, where those are known.
    part_fields: Vec<u16>,
    offsets: Numbers,
    sizes: Numbers,
    hashes: Option<Vec<u64>>,
    /// What was learnt of each part, where that was asked for.
    annotations: Option<Annotations>,
    /// Parts that are known to be there, and cannot be read, in order.
    lost: Vec<(u64, Lost)>,
    notes: Vec<String>,
    /// What has to be unpacked before it can be read: offsets behind the end of the file are places in it.
    pages: Option<Arc<PageTable>>,
}

/// Why a part cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// The file ends before it does.
    Cut,
    /// It is stored without its zeros, as `tar --sparse` does.
    Sparse,
    /// Behind it is no next member, so that bytes are missing in it, or too many.
    Displaced,
    /// The table of its shard gives it a place that makes no sense.
    Misplaced,
    /// Its shard says that it has no value.
    Null,
    /// It is in a part of its shard that cannot be read.
    Unreadable,
}

impl Lost {
    const ALL: [Self; 6] = [Self::Cut, Self::Sparse, Self::Displaced, Self::Misplaced, Self::Null, Self::Unreadable];

    /// What there is to say about it, as a predicate about the part.
    pub fn predicate(self) -> &'static str {
        match self {
            Self::Cut => "was cut off at the end of its shard",
            Self::Sparse => "is a sparse file, which is not supported",
            Self::Displaced => "is damaged: no member follows where it should end",
            Self::Misplaced => "has no place in its shard, whose table is damaged",
            Self::Null => "has no value (null)",
            Self::Unreadable => "is in a part of its shard that cannot be read",
        }
    }
}

/// One field of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its bytes in the shard; none where it is lost.
    pub range: Range<u64>,
    /// The XXH3 checksum of its bytes, where it is known.
    pub hash: Option<u64>,
    /// Why it cannot be read.
    pub lost: Option<Lost>,
}

impl Part {
    /// Whether these are its bytes. They are, where no checksum is known.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.hash.is_none_or(|hash| hash == xxh3_64(bytes))
    }
}

impl ShardIndex {
    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.samples.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The names of all fields that occur, as they are written in the shard, by number.
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// The fields of a sample by number, in the order of the shard. It has to be one of the samples.
    pub fn fields_of(&self, sample: u64) -> &[u16] {
        let parts = self.samples.range(sample);
        &self.part_fields[parts.start as usize..parts.end as usize]
    }

    /// The first of these fields that a sample has, with its number.
    pub fn find(&self, sample: u64, wanted: &[u16]) -> Option<(u16, Part)> {
        self.place_of(sample, wanted).map(|(field, part)| (field, self.part(part)))
    }

    /// The number of that field, and of its part.
    fn place_of(&self, sample: u64, wanted: &[u16]) -> Option<(u16, u64)> {
        let (first, fields) = (self.samples.range(sample).start, self.fields_of(sample));
        let find = |field: &u16| fields.iter().position(|own| own == field).map(|at| (*field, first + at as u64));
        wanted.iter().find_map(find)
    }

    /// How many parts all samples have.
    pub fn part_count(&self) -> u64 {
        self.part_fields.len() as u64
    }

    /// One of the parts, in the order of the samples.
    pub fn part(&self, part: u64) -> Part {
        let lost = self.lost.binary_search_by_key(&part, |(part, _)| *part).ok().map(|at| self.lost[at].1);
        let (offset, at) = (self.offsets.get(part as usize), part as usize);
        let size = if lost.is_some() { 0 } else { self.sizes.get(at) };
        let hash = self.hashes.as_ref().filter(|_| lost.is_none()).map(|hashes| hashes[at]);
        Part { range: offset..offset + size, hash, lost }
    }

    /// The name of the field that a part is.
    pub fn field_of(&self, part: u64) -> &str {
        &self.fields[usize::from(self.part_fields[part as usize])]
    }

    /// Whether parts have annotations: what was learnt of their bytes when the index was made.
    pub fn has_annotations(&self) -> bool {
        self.annotations.is_some()
    }

    /// The annotation of the first of these fields that a sample has, which may be empty; `None` where there are none. It holds
    /// for bytes of the part's checksum, so without checksums there is none.
    pub fn annotation(&self, sample: u64, wanted: &[u16]) -> Option<&[u8]> {
        let annotations = self.annotations.as_ref().filter(|_| self.hashes.is_some())?;
        self.place_of(sample, wanted).map(|(_, part)| annotations.get(part))
    }

    /// Gives parts their annotations, by their numbers and in this order; the others have none.
    pub fn annotate<'a>(&mut self, annotations: impl IntoIterator<Item = (u64, &'a [u8])>) -> Result<()> {
        let mut made = AnnotationsBuilder::default();
        for (part, annotation) in annotations {
            made.push(part, annotation)?;
        }
        let made = made.finish(self.part_count())?;
        if made.len() != self.part_count() {
            return Err(Error::internal("an annotation of a part that is not there"));
        }
        self.annotations = Some(made);
        Ok(())
    }

    /// Forgets all annotations, and their memory.
    pub fn forget_annotations(&mut self) {
        self.annotations = None;
    }

    /// Adds what a sample goes by: its key, or its number.
    pub fn write_key(&self, sample: u64, out: &mut String) {
        match &self.keys {
            Some(keys) => {
                let range = keys.range(sample);
                out.push_str(&self.key_text[range.start as usize..range.end as usize]);
            }
            // Writing to a string does not fail.
            None => _ = write!(out, "{sample}"),
        }
    }

    /// Whether a checksum of every part is known.
    pub fn has_hashes(&self) -> bool {
        self.hashes.is_some()
    }

    /// The pages that have to be unpacked before what is in them is read, where there are any.
    pub fn pages(&self) -> Option<&Arc<PageTable>> {
        self.pages.as_ref().filter(|pages| !pages.is_empty())
    }

    /// The samples that are best read together: how many there are in each block.
    pub fn blocks(&self) -> Vec<u64> {
        match &self.pages {
            Some(pages) if !pages.blocks().is_empty() => pages.blocks().to_vec(),
            _ => vec![self.len()],
        }
    }

    fn with_pages(self, pages: PageTable) -> Self {
        Self { pages: Some(Arc::new(pages)), ..self }
    }

    /// Memory that it takes.
    pub fn size_bytes(&self) -> usize {
        let lists = self.part_fields.len() * 2 + self.hashes.as_ref().map_or(0, Vec::len) * 8;
        let keys = self.keys.as_ref().map_or(0, Extents::size_bytes) + self.key_text.len();
        let annotations = self.annotations.as_ref().map_or(0, Annotations::size_bytes);
        let pages = self.pages.as_ref().map_or(0, |pages| pages.memory_bytes());
        let numbers = self.samples.size_bytes() + self.offsets.size_bytes() + self.sizes.size_bytes();
        lists + keys + annotations + pages + numbers
    }

    /// Whether everything in it fits together, and into a file of this size.
    fn is_sound(&self, size_bytes: u64) -> bool {
        let parts = self.part_fields.len();
        let size_bytes = self.pages.as_ref().map_or(size_bytes, |pages| pages.end());
        let fits =
            |at: usize| self.offsets.get(at).checked_add(self.sizes.get(at)).is_some_and(|end| end <= size_bytes);
        let is_lost = |at: usize| self.lost.binary_search_by_key(&(at as u64), |(part, _)| *part).is_ok();
        let keys_fit = |keys: &Extents| {
            keys.len() == self.len()
                && keys.end() == self.key_text.len() as u64
                && (0..keys.len()).all(|sample| self.key_text.is_char_boundary(keys.range(sample).start as usize))
        };
        self.samples.end() == parts as u64
            && (self.samples.is_empty() || self.samples.range(0).start == 0)
            && self.offsets.len() == parts
            && self.sizes.len() == parts
            && self.hashes.as_ref().is_none_or(|hashes| hashes.len() == parts)
            && self.annotations.as_ref().is_none_or(|annotations| annotations.len() == parts as u64)
            && self.part_fields.iter().all(|field| usize::from(*field) < self.fields.len())
            && self.lost.is_sorted_by(|(one, _), (other, _)| one < other)
            && self.lost.last().is_none_or(|(part, _)| *part < parts as u64)
            && self.keys.as_ref().is_none_or(keys_fit)
            && self.pages.as_ref().is_none_or(|pages| {
                pages.blocks().iter().try_fold(0u64, |sum, rows| sum.checked_add(*rows)) == Some(self.len())
            })
            && (0..parts).all(|at| fits(at) || (is_lost(at) && self.offsets.get(at) <= size_bytes))
    }
}

impl FileIndex for ShardIndex {
    fn sample_count(&self) -> u64 {
        self.len()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flags = [self.keys.is_some(), self.hashes.is_some(), self.annotations.is_some(), self.pages.is_some()];
        let flags = (0..).zip(flags).map(|(at, is_there)| u64::from(is_there) << at).sum();
        let words = [flags, self.fields.len() as u64, self.notes.len() as u64, self.lost.len() as u64];
        words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        for text in self.fields.iter().chain(&self.notes) {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
        for (part, lost) in &self.lost {
            out.extend(part.to_le_bytes());
            out.push(*lost as u8);
        }
        self.samples.write(out);
        if let Some(keys) = &self.keys {
            keys.write(out);
            out.extend(self.key_text.as_bytes());
        }
        out.extend((self.part_fields.len() as u64).to_le_bytes());
        self.part_fields.iter().for_each(|field| out.extend(field.to_le_bytes()));
        self.offsets.write(out);
        self.sizes.write(out);
        self.hashes.iter().for_each(|hashes| write_words(hashes, out));
        self.annotations.iter().for_each(|annotations| annotations.write(out));
        self.pages.iter().for_each(|pages| pages.write(out));
    }

    fn parse(bytes: &mut &[u8], size_bytes: u64) -> Option<Self> {
        let [mut flags, mut fields, mut notes, mut lost] = [0; 4];
        for word in [&mut flags, &mut fields, &mut notes, &mut lost] {
            *word = take_word(bytes)?;
        }
        let mut found = Self::default();
        // Each of them takes bytes, so a count that the bytes do not hold ends soon.
        for _ in 0..fields {
            found.fields.push(take_text(bytes)?);
        }
        for _ in 0..notes {
            found.notes.push(take_text(bytes)?);
        }
        for _ in 0..lost {
            let part = take_word(bytes)?;
            let why = bytes.split_off_first()?;
            found.lost.push((part, *Lost::ALL.get(usize::from(*why))?));
        }
        found.samples = Extents::parse(bytes)?;
        if flags & 1 != 0 {
            let keys = Extents::parse(bytes)?;
            let text = bytes.split_off(..usize::try_from(keys.end()).ok()?)?;
            found.key_text = std::str::from_utf8(text).ok()?.to_owned();
            found.keys = Some(keys);
        }
        let parts = usize::try_from(take_word(bytes)?).ok()?;
        let part_fields = bytes.split_off(..parts.checked_mul(2)?)?.as_chunks::<2>().0;
        found.part_fields = part_fields.iter().map(|field| u16::from_le_bytes(*field)).collect();
        found.offsets = Numbers::parse(bytes)?;
        found.sizes = Numbers::parse(bytes)?;
        if flags & 2 != 0 {
            found.hashes = Some(parse_words(bytes)?);
        }
        if flags & 4 != 0 {
            found.annotations = Some(Annotations::parse(bytes)?);
        }
        if flags & 8 != 0 {
            found.pages = Some(Arc::new(PageTable::parse(bytes, size_bytes)?));
        }
        (flags <= 15 && found.is_sound(size_bytes)).then_some(found)
    }
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let length = take_word(bytes).filter(|length| *length <= MAX_TEXT_BYTES)?;
    String::from_utf8(bytes.split_off(..length as usize)?.to_vec()).ok()
}
