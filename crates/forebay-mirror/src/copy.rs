//! Copies one file from the source to the target.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use forebay_core::{Error, Kind, Result};
use forebay_store::{Object, ReadRequest, Stat, Writing};

use super::transfer::{End, Transfer};
use super::walk::Found;

/// Files up to this size are read at once; larger ones in pieces of this size, so that memory use does not depend on
/// them. Not measured.
const PIECE_BYTES: u64 = 8 << 20;

/// A failure, and at which end.
type Failed = (End, Error);

impl Transfer {
    /// Copies a file. If it is written to meanwhile, its new version is copied in a second attempt.
    pub(super) fn copy(&self, file: &Found) -> std::result::Result<(), Failed> {
        let path = self.root.join(&file.name);
        match self.copy_version(file) {
            Err((End::Source, error)) if error.kind() == Kind::Changed => {
                let again = self.sleep(self.retry_source.first_pause);
                let stat = again.and_then(|()| self.with_retries(End::Source, |_| self.source.stat(&path)));
                let stat = stat.map_err(|error| (End::Source, error))?;
                self.copy_version(&Found { name: file.name.clone(), stat })
            }
            other => other,
        }
    }

    fn copy_version(&self, file: &Found) -> std::result::Result<(), Failed> {
        let piece_bytes = self.rate_limit.as_ref().map_or(PIECE_BYTES, |rate_limit| rate_limit.piece_bytes());
        if file.stat.size_bytes <= piece_bytes && !self.is_left(file) {
            return self.copy_whole(file);
        }
        let mut doubt = None;
        match self.copy_pieces(file, piece_bytes, &mut doubt) {
            // Starts over from the first byte.
            Err((End::Source, error)) if error.kind() == Kind::Corrupt => {
                self.copy_pieces(file, piece_bytes, &mut doubt)
            }
            other => other,
        }
    }

    /// Whether an earlier run has left a part file of it.
    fn is_left(&self, file: &Found) -> bool {
        let Some(leftovers) = self.leftovers.get().filter(|leftovers| !leftovers.is_empty()) else { return false };
        self.sink.part(&file.name, file.stat).is_some_and(|part| leftovers.contains(&part))
    }

    fn copy_whole(&self, file: &Found) -> std::result::Result<(), Failed> {
        let path = self.root.join(&file.name);
        let read = || -> Result<Object> {
            self.wait_for(file.stat.size_bytes)?;
            self.with_retries(End::Source, |within| {
                // It was small when it was listed. If it is large now, or claims to be, it is not read into memory as a
                // whole.
                self.source.read(&path, within, &mut |size| match size <= PIECE_BYTES {
                    true => Ok(Vec::new()),
                    false => Err(Error::new(Kind::Changed, format!("grew to {size} bytes since it was listed"))),
                })
            })
        };
        let object = read().map_err(|error| (End::Source, error))?;
        let size = object.bytes.len() as u64;
        self.meters.read_bytes.fetch_add(size, Relaxed);
        let put = self.with_retries(End::Target, |_| self.sink.put(&file.name, &object.bytes, object.stat));
        put.map_err(|error| (End::Target, error))?;
        self.meters.copied_bytes.fetch_add(size, Relaxed);
        Ok(())
    }

    fn copy_pieces(
        &self,
        file: &Found,
        piece_bytes: u64,
        doubt: &mut Option<String>,
    ) -> std::result::Result<(), Failed> {
        let begun = self.with_retries(End::Target, |_| self.sink.begin(&file.name, file.stat));
        let mut writing = begun.map_err(|error| (End::Target, error))?;
        let copied = self.copy_into(file, &mut *writing, piece_bytes, doubt);
        if let Err((_, error)) = &copied
            && (writing.piece_bytes().is_some()
                || matches!(error.kind(), Kind::Changed | Kind::Corrupt | Kind::NotFound))
        {
            // A copy that cannot be resumed is not left behind. A failure to remove it would hide the original error.
            let _removed = writing.discard();
        }
        copied
    }

    fn copy_into(
        &self,
        file: &Found,
        writing: &mut dyn Writing,
        piece_bytes: u64,
        doubt: &mut Option<String>,
    ) -> std::result::Result<(), Failed> {
        let (path, Stat { size_bytes, .. }) = (self.root.join(&file.name), file.stat);
        let mut sum =
            self.with_retries(End::Source, |_| self.source.sum(&path)).map_err(|error| (End::Source, error))?;
        let mut done = writing.have_bytes();
        let shown = writing.show(&mut |bytes| sum.iter_mut().for_each(|sum| sum.update(bytes)));
        shown.map_err(|error| (End::Target, error))?;
        self.meters.resumed_bytes.fetch_add(done, Relaxed);
        while done < size_bytes {
            let end = size_bytes.min(done + writing.piece_bytes().unwrap_or(piece_bytes));
            let bytes = self.read_piece(file, done..end, piece_bytes).map_err(|error| (End::Source, error))?;
            sum.iter_mut().for_each(|sum| sum.update(&bytes));
            self.with_retries(End::Target, |_| writing.write(done, &bytes)).map_err(|error| (End::Target, error))?;
            self.meters.copied_bytes.fetch_add(end - done, Relaxed);
            done = end;
        }
        if let Some(sum) = sum {
            let (name, expected) = sum.expected();
            let message = format!(
                "failed its checksum: the {size_bytes} bytes received are not the bytes stored ({name}: expected {expected}, got"
            );
            if let Some(got) = sum.doubt(doubt.as_deref()) {
                let error = Error::new(Kind::Corrupt, format!("{message} {got})")).at_path(&path);
                *doubt = Some(got);
                let hint = "a proxy, the network or a damaged copy on the server changed it; if the server's checksums are wrong, \
                     set `storage_options.verify_checksums=false`";
                return Err((End::Source, error.with_hint(hint)));
            }
        }
        self.with_retries(End::Target, |_| writing.finish()).map_err(|error| (End::Target, error))
    }

    /// A piece for the target, which may take several reads of the source.
    fn read_piece(&self, file: &Found, range: Range<u64>, piece_bytes: u64) -> Result<Vec<u8>> {
        let path = self.root.join(&file.name);
        let mut bytes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + piece_bytes);
            self.wait_for(end - at)?;
            let piece = self.with_retries(End::Source, |within| {
                let request = ReadRequest::new(&path, within).with_range(at..end).with_expected(file.stat);
                self.source.fetch(&request, &mut |_| Ok(Vec::new()))
            })?;
            self.meters.read_bytes.fetch_add(end - at, Relaxed);
            if bytes.is_empty() {
                bytes = piece.bytes.into_vec()
            } else {
                bytes.extend_from_slice(&piece.bytes)
            }
            at = end;
        }
        Ok(bytes)
    }

    /// Waits until the bandwidth limit allows this many bytes.
    fn wait_for(&self, bytes: u64) -> Result<()> {
        match &self.rate_limit {
            Some(rate_limit) => self.sleep(rate_limit.reserve(bytes, Instant::now())),
            None => Ok(()),
        }
    }
}
