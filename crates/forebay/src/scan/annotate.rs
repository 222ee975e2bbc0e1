//! Learning what is to be known of pictures before they are decoded: each is read and walked through once, and its index has it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Result, Stage};
use forebay_decode::Annotator;
use forebay_format::{Part, ShardIndex};
use forebay_store::{ReadRequest, Stat, Store};

use super::call_pool::CallPool;
use super::max_threads;
use super::sequential::{UnreadFile, buffer};
use crate::source::defaults::retry_of;

/// Parts that are read together take as much memory, for each thread, unless one alone is larger.
const STRETCH_BYTES: u64 = 4 << 20;
/// Bytes between two of them that are read and thrown away. Not measured.
const MAX_GAP_BYTES: u64 = 64 << 10;
/// A larger picture has no annotation.
const MAX_PART_BYTES: u64 = 256 << 20;
/// The names of fields that may be JPEGs, after their last dot.
const ENDINGS: [&str; 2] = ["jpg", "jpeg"];

/// Consecutive parts of a file.
#[derive(Clone)]
struct Stretch {
    file: usize,
    path: PathBuf,
    stat: Stat,
    range: Range<u64>,
    parts: Arc<Vec<(u64, Part)>>,
}

impl AsRef<Path> for Stretch {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Annotates the pictures of those files whose index has no annotations; says whether there were any. Several stretches of files are
/// read and walked through at a time, and a file has to stay what its `stat` says.
pub(crate) fn annotate(store: &Arc<dyn Store>, files: &[UnreadFile], indexes: &mut [ShardIndex]) -> Result<bool> {
    let is_open = |index: &ShardIndex| index.has_hashes() && !index.has_annotations();
    let open: Vec<_> = (0..indexes.len()).filter(|&file| is_open(&indexes[file])).collect();
    let (threads, retry) = (max_threads(&**store), retry_of(&**store));
    let (reader, keeps_deadlines) = (Arc::clone(store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(threads, retry, keeps_deadlines, move |stretch: &Stretch| {
        let request = ReadRequest::new(&stretch.path, retry.deadline).with_range(stretch.range.clone());
        let object = reader.fetch(&request.with_expected(stretch.stat), &mut |size_bytes| buffer(size_bytes))?;
        Ok(annotations(stretch, &object.bytes))
    });
    let mut found: Vec<Vec<(u64, Vec<u8>)>> = indexes.iter().map(|_| Vec::new()).collect();
    let mut waiting =
        open.iter().flat_map(|&file| Stretches { file, of: &files[file], index: &indexes[file], next: 0 });
    loop {
        // Enough that no thread waits for this one.
        while pool.waiting() < 2 * threads
            && let Some(stretch) = waiting.next()
        {
            pool.ask(stretch);
        }
        let Some((stretch, annotated)) = pool.next()? else { break };
        found[stretch.file].extend(annotated.map_err(|error| error.at_path(&stretch.path).at_stage(Stage::Scan))?);
    }
    for file in &open {
        let found = &mut found[*file];
        found.sort_unstable_by_key(|(part, _)| *part);
        let of_file = found.iter().map(|(part, annotation)| (*part, &**annotation));
        indexes[*file]
            .annotate(of_file)
            .map_err(|error: Error| error.at_path(&files[*file].path).at_stage(Stage::Scan))?;
        found.clear();
    }
    Ok(!open.is_empty())
}

/// The annotations of those parts of a stretch that have one. Bytes that are not what the index says have none.
fn annotations(stretch: &Stretch, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut annotator = Annotator::default();
    let annotated = |(number, part): &(u64, Part)| {
        let place = (part.range.start - stretch.range.start) as usize..(part.range.end - stretch.range.start) as usize;
        let own = bytes.get(place).filter(|own| part.is(own))?;
        Some((*number, annotator.annotate(own))).filter(|(_, annotation)| !annotation.is_empty())
    };
    stretch.parts.iter().filter_map(annotated).collect()
}

/// The pictures of a file, as stretches.
struct Stretches<'a> {
    file: usize,
    of: &'a UnreadFile,
    index: &'a ShardIndex,
    next: u64,
}

impl Iterator for Stretches<'_> {
    type Item = Stretch;

    fn next(&mut self) -> Option<Stretch> {
        let mut parts: Vec<(u64, Part)> = Vec::new();
        let mut range = 0..0;
        while self.next < self.index.part_count() {
            let number = self.next;
            let part = self.index.part(number);
            if is_picture(self.index.field_of(number), &part) {
                let Range { start, end } = part.range.clone();
                let fits =
                    start >= range.end && start - range.end <= MAX_GAP_BYTES && end - range.start <= STRETCH_BYTES;
                match parts.is_empty() {
                    true => range = start..end,
                    false if fits => range.end = end,
                    false => break,
                }
                parts.push((number, part));
            }
            self.next += 1;
        }
        let UnreadFile { path, stat } = self.of;
        let stretch = Stretch { file: self.file, path: path.clone(), stat: *stat, range, parts: Arc::new(parts) };
        (!stretch.parts.is_empty()).then_some(stretch)
    }
}

/// Whether a part may be a JPEG that can be read.
fn is_picture(field: &str, part: &Part) -> bool {
    let ending = field.rsplit('.').next().unwrap_or(field);
    let size = part.range.end - part.range.start;
    part.lost.is_none()
        && (1..=MAX_PART_BYTES).contains(&size)
        && ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
}
