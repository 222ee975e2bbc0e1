//! What members of an archive are: fields of samples, or something that is left out and counted.

use std::ops::Range;

use forebay_core::Result;
use xxhash_rust::xxh3::Xxh3;

use super::{split_name, text_of};
use crate::shards::{Lost, ShardIndex, ShardIndexBuilder};

/// Longer names, and longer fields, belong to no samples.
const MAX_NAME_BYTES: usize = 4096;
const MAX_FIELD_BYTES: usize = 255;
/// Places of damage beyond these are counted.
const MAX_LOSSES: usize = 100;

/// The samples of an archive so far.
#[derive(Debug)]
pub(super) struct Members {
    shard: ShardIndexBuilder,
    /// The key of the sample that is not complete, and where its first header is.
    open: Option<(Vec<u8>, u64)>,
    losses: Vec<String>,
    more_losses: u64,
    lost_bytes: u64,
    counts: Counts,
}

/// What is not in any sample, or odd.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) links: u64,
    pub(super) others: u64,
    pub(super) nameless: u64,
    pub(super) long_names: u64,
    pub(super) escaping: u64,
    pub(super) padded: u64,
}

/// A field whose bytes are being read.
pub(super) struct OpenPart {
    field: String,
    hasher: Box<Xxh3>,
}

impl std::fmt::Debug for OpenPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPart").field("field", &self.field).finish_non_exhaustive()
    }
}

impl OpenPart {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }
}

impl Members {
    pub(super) fn new() -> Self {
        let (shard, counts) = (ShardIndexBuilder::new(true), Counts::default());
        Self { shard, open: None, losses: Vec::new(), more_losses: 0, lost_bytes: 0, counts }
    }

    pub(super) fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// A file begins, whose header is there. `None` if it belongs to no sample.
    pub(super) fn begin(&mut self, name: &[u8], header_at: u64) -> Result<Option<OpenPart>> {
        self.counts.escaping +=
            u64::from(name.starts_with(b"/") || name.split(|byte| *byte == b'/').any(|it| it == b".."));
        let Some((key, field)) = split_name(name) else {
            self.counts.nameless += 1;
            return Ok(None);
        };
        if name.len() > MAX_NAME_BYTES || field.len() > MAX_FIELD_BYTES {
            self.counts.long_names += 1;
            return Ok(None);
        }
        let field = text_of(field);
        // The same field again begins another sample: nothing that is there is left out.
        if self.open.as_ref().is_none_or(|(open, _)| open != key) || self.shard.has_open(&field) {
            self.end_sample()?;
            self.open = Some((key.to_vec(), header_at));
        }
        Ok(Some(OpenPart { field, hasher: Box::new(Xxh3::new()) }))
    }

    /// All bytes of a file were seen.
    pub(super) fn end(&mut self, part: &OpenPart, range: Range<u64>) -> Result<()> {
        let size = range.end - range.start;
        self.shard.push_part(&part.field, range.start, size, Some(part.hasher.digest()), None)
    }

    /// A file that is there and cannot be read.
    pub(super) fn end_lost(&mut self, part: &OpenPart, start: u64, why: Lost) -> Result<()> {
        self.shard.push_part(&part.field, start, 0, None, Some(why))
    }

    /// The file before cannot be read after all.
    pub(super) fn lose_last(&mut self, why: Lost) -> Result<()> {
        self.shard.lose_last(why)
    }

    /// Bytes that belong to no member, or to those of these names.
    pub(super) fn lose(&mut self, range: Range<u64>, why: &str, names: &[String]) {
        self.lost_bytes += range.end.saturating_sub(range.start);
        if self.losses.len() == MAX_LOSSES {
            self.more_losses += 1;
            return;
        }
        let of = if names.is_empty() { String::new() } else { format!(", among them of {}", names.join(", ")) };
        self.losses.push(format!("is damaged: bytes {}..{} are lost ({why}){of}", range.start, range.end));
    }

    fn end_sample(&mut self) -> Result<()> {
        match self.open.take() {
            Some((key, header_at)) => self.shard.end_sample(Some((&text_of(&key), header_at))),
            None => Ok(()),
        }
    }

    /// The index, and what there is to say.
    pub(super) fn finish(mut self, mut notes: Vec<String>) -> Result<ShardIndex> {
        self.end_sample()?;
        let Counts { links, others, nameless, long_names, escaping, padded } = self.counts;
        let mut all = self.losses;
        if self.more_losses > 0 {
            let (more, bytes) = (self.more_losses, self.lost_bytes);
            all.push(format!("is damaged at {more} more places: {bytes} bytes are lost in all"));
        }
        all.append(&mut notes);
        let counted = [
            (links, "links, which are left out"),
            (others, "members that are no files, which are left out"),
            (nameless, "files whose names have no key and field, which are left out"),
            (long_names, "files with names that are too long, which are left out"),
            (escaping, "names that lead out of it, which are names and nothing else"),
            (padded, "members followed by bytes where padding should be zeros"),
        ];
        all.extend(counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("has {count} {what}")));
        self.shard.finish(all)
    }
}
