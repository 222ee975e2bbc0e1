//! A read request: a whole object, or a range of its bytes.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use forebay_core::{Error, Kind, Result, Stage};

use crate::store::{Cancel, CancelSignals, Stat, check_unchanged};

/// One read of a store: see [`crate::Store::fetch`].
///
/// # Example
/// ```
/// use std::{path::Path, time::Duration};
/// use forebay_store::{ReadRequest, Stat};
///
/// let shard = Stat { size_bytes: 4_096, mtime_ns: 0 };
/// let request = ReadRequest::new(Path::new("train-0000.tar"), Duration::from_secs(60)).with_range(512..1_024);
/// assert_eq!(request.bytes_of(shard).unwrap(), 512..1_024);
/// assert!(request.with_range(4_000..5_000).bytes_of(shard).is_err(), "the shard is shorter");
/// ```
#[derive(Clone, Debug)]
pub struct ReadRequest<'a> {
    /// The object.
    pub path: &'a Path,
    /// The bytes to read; `None` for all of them. An empty range is valid.
    pub range: Option<Range<u64>>,
    /// The version that the object must have; `None` for any version.
    pub expected: Option<Stat>,
    /// How long the read may take, if the store keeps deadlines.
    pub within: Duration,
    /// Ends the read early.
    pub cancel: Option<&'a Cancel>,
}

impl<'a> ReadRequest<'a> {
    /// A read of a whole object, of any version.
    pub fn new(path: &'a Path, within: Duration) -> Self {
        Self { path, range: None, expected: None, within, cancel: None }
    }

    /// The same, of these bytes only.
    pub fn with_range(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }

    /// The same, for this version only; any other version is `Kind::Changed`.
    pub fn with_expected(self, expected: Stat) -> Self {
        Self { expected: Some(expected), ..self }
    }

    /// The same, for a read that may be cancelled.
    pub fn with_cancel(self, cancel: &'a Cancel) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    /// Whether the range is empty: a sample may have no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.as_ref().is_some_and(Range::is_empty)
    }

    /// Fails if the read was cancelled. Every store calls this before it begins.
    pub fn check_cancel(&self) -> Result<()> {
        match self.cancel.is_some_and(Cancel::is_raised) {
            true => Err(CancelSignals::error().at_path(self.path).at_stage(Stage::Fetch)),
            false => Ok(()),
        }
    }

    /// The bytes of this object to read. Fails if it is not the expected version, or too short.
    pub fn bytes_of(&self, stat: Stat) -> Result<Range<u64>> {
        if let Some(expected) = self.expected {
            check_unchanged(expected, stat).map_err(|error| error.at_path(self.path))?;
        }
        let Some(range) = self.range.clone() else { return Ok(0..stat.size_bytes) };
        if range.start > range.end {
            return Err(
                Error::internal(format!("was requested with the invalid byte range {range:?}")).at_path(self.path)
            );
        }
        if range.end > stat.size_bytes {
            let (expected, got) = (range.end, stat.size_bytes);
            let message = format!("is truncated (expected at least {expected} bytes, got {got})");
            return Err(Error::new(Kind::Corrupt, message)
                .at_path(self.path)
                .with_hint("the file is shorter than its index says: copy it again, or rebuild the index"));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_behind_the_end_are_a_truncated_or_a_changed_object() {
        let (path, stat) = (Path::new("/a"), Stat { size_bytes: 10, mtime_ns: 1 });
        let request = || ReadRequest::new(path, Duration::ZERO);
        assert_eq!(request().bytes_of(stat).unwrap(), 0..10);
        for range in [0..0, 0..10, 9..10, 10..10] {
            assert_eq!(request().with_range(range.clone()).with_expected(stat).bytes_of(stat).unwrap(), range);
        }
        for range in [0..11, 10..11, 11..11, 20..30] {
            let error = request().with_range(range.clone()).bytes_of(stat).unwrap_err();
            let message = format!("is truncated (expected at least {} bytes, got 10)", range.end);
            assert_eq!((error.kind(), error.message()), (Kind::Corrupt, &*message));
            let longer = Stat { size_bytes: 40, ..stat };
            let error = request().with_range(range).with_expected(longer).bytes_of(stat).unwrap_err();
            assert_eq!((error.kind(), error.path()), (Kind::Changed, Some(path)), "{error}");
        }
        #[allow(clippy::reversed_empty_ranges, reason = "it is what is refused")]
        let error = request().with_range(5..3).bytes_of(stat).unwrap_err();
        assert_eq!(error.kind(), Kind::Internal, "{error}");
    }

    #[test]
    fn a_cancelled_read_does_not_begin() {
        let cancel = Cancel::default();
        let request = ReadRequest::new(Path::new("/a"), Duration::ZERO).with_cancel(&cancel);
        assert!(request.check_cancel().is_ok());
        cancel.raise();
        assert_eq!(request.check_cancel().unwrap_err().kind(), Kind::Stopped);
    }
}
