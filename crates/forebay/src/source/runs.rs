//! Runs of fields: neighbouring fields of a sample that one request reads.
//!
//! In an archive the fields of a sample lie beside each other, with headers between them. Reading them together saves requests, which
//! is most of what small fields cost, and reads the bytes between them.

use std::ops::Range;
use std::time::Duration;

use forebay_core::{Error, Field, Kind, Locator, SampleId};
use forebay_store::ReadRequest;
use smallvec::SmallVec;

use crate::source::{Dataset, Source, check_size};

/// Bytes between two fields that cost less to read than a request: a header of tar is one of 512 to 1,023. Not measured.
const NEAR_BYTES: u64 = 4 << 10;
/// Between all fields of a run over a network, where a request takes as long as a few hundred kilobytes, provided that they are no
/// more than a part of what is wanted: bandwidth is shared by all requests. Not measured.
const FAR_BYTES: u64 = 64 << 10;
/// That part is one in four.
const PART_OF_WANTED: u64 = 4;

/// Fields of a sample that one request reads: one field of any object, or several in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first of them; the others follow in their order.
    pub(crate) first: Field,
    /// The bytes that are read; all of the object's if `None`.
    pub(crate) range: Option<Range<u64>>,
    /// Those of each field, where there are several.
    parts: SmallVec<[Range<u64>; 4]>,
    wanted_bytes: u64,
    unwanted_bytes: u64,
}

impl Run {
    /// A field that is read by itself.
    pub(crate) fn of_one(first: Field, locator: &Locator) -> Self {
        let wanted_bytes = locator.range.as_ref().map_or(0, |range| range.end.saturating_sub(range.start));
        Self { first, range: locator.range.clone(), parts: SmallVec::new(), wanted_bytes, unwanted_bytes: 0 }
    }

    /// The read of it. The locator is that of its first field.
    pub(crate) fn request<'a>(&self, locator: &'a Locator, within: Duration) -> ReadRequest<'a> {
        ReadRequest { range: self.range.clone(), ..ReadRequest::new(&locator.path, within) }
    }

    /// How many fields it has.
    pub(crate) fn field_count(&self) -> u32 {
        self.parts.len().max(1) as u32
    }

    /// Its fields.
    pub(crate) fn fields(&self) -> Range<u32> {
        self.first.0..self.first.0 + self.field_count()
    }

    /// Whether a field is read by itself.
    pub(crate) fn is_single(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether an error of reading it may be about one of its fields only, and would come again: an object that ends within the run.
    /// Then each field is read by itself, so that those that are there are read, and the others are named.
    pub(crate) fn is_about_one(&self, error: &Error) -> bool {
        !self.is_single() && error.kind() == Kind::Corrupt && !error.is_transient()
    }

    /// Where each field is in what is read.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let start = self.range.as_ref().map_or(0, |range| range.start);
        // An empty field may lie anywhere: nothing is read of it.
        let within = move |at: u64| at.saturating_sub(start) as usize;
        self.parts.iter().map(move |part| if part.is_empty() { 0..0 } else { within(part.start)..within(part.end) })
    }

    /// The same run with one more field of the object, unless it is too far away.
    fn with(&self, part: &Range<u64>, is_remote: bool, most_bytes: u64) -> Option<Self> {
        let range = self.range.as_ref()?;
        if range.start > range.end || part.start > part.end {
            return None; // the store refuses it
        }
        let whole = match (range.is_empty(), part.is_empty()) {
            (_, true) => range.clone(),
            (true, false) => part.clone(),
            (false, false) => range.start.min(part.start)..range.end.max(part.end),
        };
        // Fields that overlap have none between them.
        let gap = if range.is_empty() || part.is_empty() {
            0
        } else {
            part.start.saturating_sub(range.end).max(range.start.saturating_sub(part.end))
        };
        let wanted_bytes = self.wanted_bytes.saturating_add(part.end - part.start);
        let unwanted_bytes = self.unwanted_bytes.saturating_add(gap);
        let is_near = gap <= NEAR_BYTES
            || (is_remote && unwanted_bytes <= FAR_BYTES && unwanted_bytes <= wanted_bytes / PART_OF_WANTED);
        if !is_near || whole.end - whole.start > most_bytes {
            return None;
        }
        let mut parts = self.parts.clone();
        if parts.is_empty() {
            parts.push(range.clone());
        }
        parts.push(part.clone());
        Some(Self { first: self.first, range: Some(whole), parts, wanted_bytes, unwanted_bytes })
    }
}

/// How the fields of a sample are read.
pub(crate) struct Runs<'a> {
    source: &'a Source,
    sample: SampleId,
    field_count: u32,
    /// Runs may be of several fields.
    are_joined: bool,
    is_remote: bool,
    most_bytes: u64,
}

impl<'a> Runs<'a> {
    /// Those of a sample, each of at most so many bytes.
    pub(crate) fn of(source: &'a Source, sample: SampleId, field_count: u32, most_bytes: u64) -> Self {
        let are_joined = field_count > 1 && !source.dataset.is_unpacked(sample);
        let is_remote = are_joined && source.store.capabilities().is_remote;
        Self { source, sample, field_count, are_joined, is_remote, most_bytes }
    }

    /// The same, with each field by itself.
    #[must_use]
    pub(crate) fn apart(self) -> Self {
        Self { are_joined: false, ..self }
    }

    /// The run that begins with a field, which is at `locator`.
    pub(crate) fn from(&self, first: Field, locator: &Locator) -> Run {
        let mut run = Run::of_one(first, locator);
        // What is refused is refused by itself.
        if !self.are_joined || locator.range.is_none() || !self.is_taken(locator) {
            return run;
        }
        let dataset: &dyn Dataset = &*self.source.dataset;
        let mut next = Locator::default();
        for field in (first.0 + 1..self.field_count).map(Field) {
            dataset.locate(self.sample, field, &mut next);
            let Some(part) = next.range.as_ref().filter(|_| next.path == locator.path && self.is_taken(&next)) else {
                break;
            };
            if dataset.expected(self.sample, field) != dataset.expected(self.sample, first) {
                break;
            }
            let Some(longer) = run.with(part, self.is_remote, self.most_bytes) else { break };
            run = longer;
        }
        run
    }

    /// Whether the recipe takes a field of this size.
    fn is_taken(&self, locator: &Locator) -> bool {
        let size_bytes = locator.range.as_ref().map_or(0, |range| range.end.saturating_sub(range.start));
        check_size(self.source.recipe_of(self.sample), size_bytes).is_ok()
    }

    /// The run that a field is read in, and its object, as `locator` has it then.
    pub(crate) fn containing(&self, field: Field, locator: &mut Locator) -> Run {
        let mut first = Field(0);
        loop {
            self.source.dataset.locate(self.sample, first, locator);
            let run = self.from(first, locator);
            if run.fields().contains(&field.0) || run.fields().end >= self.field_count {
                return run;
            }
            first = Field(run.fields().end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1 << 30;

    fn run(first: Range<u64>) -> Run {
        Run::of_one(Field(0), &Locator { path: "/a.tar".into(), range: Some(first), member: None })
    }

    fn joined<const N: usize>(
        first: Range<u64>,
        others: [&Range<u64>; N],
        is_remote: bool,
    ) -> Option<(Range<u64>, Vec<Range<usize>>)> {
        let run = others.iter().try_fold(run(first), |run, part| run.with(part, is_remote, MOST))?;
        Some((run.range.clone()?, run.parts().collect()))
    }

    #[test]
    fn neighbours_are_read_together_in_any_order() {
        let expected = |parts: [Range<usize>; 2]| Some((512..66_000, parts.to_vec()));
        assert_eq!(joined(512..514, [&(1_536..66_000)], false), expected([0..2, 1_024..65_488]));
        assert_eq!(joined(1_536..66_000, [&(512..514)], false), expected([1_024..65_488, 0..2]));
        // Between two others, the same one again, and a part of it.
        let three = joined(0..10, [&(600..610), &(100..110)], false);
        assert_eq!(three, Some((0..610, vec![0..10, 600..610, 100..110])));
        assert_eq!(joined(5..10, [&(5..10), &(6..12)], false), Some((5..12, vec![0..5, 0..5, 1..7])));
    }

    #[test]
    fn what_is_far_away_is_read_by_itself() {
        let far = 100..100 + NEAR_BYTES;
        assert!(joined(0..100, [&(far.end..far.end + 1)], false).is_some());
        assert!(joined(0..100, [&(far.end + 1..far.end + 2)], false).is_none());
        // Over a network it depends on how much is wanted.
        let (picture, caption) = (0..200_000, 240_000..240_100);
        assert!(joined(picture.clone(), [&caption], true).is_some());
        assert!(joined(picture, [&caption], false).is_none());
        assert!(joined(0..100, [&(10_000..10_100)], true).is_none());
        assert!(joined(0..10 << 20, [&((10 << 20) + FAR_BYTES + 1..11 << 20)], true).is_none());
        // The limit is for all that is between them.
        let half = FAR_BYTES / 2 + 1;
        let size = 1 << 20;
        let (second, third) = (size + half..2 * size + half, 2 * size + 2 * half..3 * size);
        assert!(joined(0..size, [&second], true).is_some());
        assert!(joined(0..size, [&second, &third], true).is_none());
        assert!(run(0..100).with(&(100..200), false, 199).is_none(), "it would be larger than a sample may be");
    }

    #[test]
    fn nothing_is_read_of_empty_fields_and_wrong_ranges_are_left_to_the_store() {
        assert_eq!(joined(9_000..9_100, [&(0..0)], false), Some((9_000..9_100, vec![0..100, 0..0])));
        assert_eq!(joined(0..0, [&(9_000..9_100)], false), Some((9_000..9_100, vec![0..0, 0..100])));
        assert_eq!(joined(0..0, [&(0..0)], false), Some((0..0, vec![0..0, 0..0])));
        #[allow(clippy::reversed_empty_ranges, reason = "it is what is refused")]
        let wrong = 9..3;
        assert!(run(0..10).with(&wrong, false, MOST).is_none() && run(wrong).with(&(0..10), false, MOST).is_none());
        let end = u64::MAX - 1..u64::MAX;
        assert!(run(0..10).with(&end, true, MOST).is_none());
    }
}
