//! Files with parity as if they were whole: a store that makes damaged bytes again once they are doubted.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Listing, Result, Stage};
use forebay_format::{GroupRecord, GroupRun};
use forebay_store::{
    Allot, CacheStats, Capabilities, Object, ReadRequest, Readers, Repairs, Stat, Stop, Store, Sum, Traffic,
};

use super::reader::{Examined, FileReader, is_lost, sidecar_of};
use super::sidecars::Sidecars;

/// Records that a read holds at a time: a sample of many runs comes back to the same sixteen groups.
const MAX_RECORDS: usize = 16;

/// A store of files some of which have sidecars.
///
/// Reads go through to the store behind it, until a range is doubted: the loader found that it differs from its checksum, or a
/// read of it failed as reads of lost bytes do. Its next read is one of its blocks, which are compared with their
/// checksums and made again if need be. What parity does not carry is given as it is.
#[derive(Debug)]
pub struct Repairing {
    inner: Arc<dyn Store>,
    /// Of each dataset that it is for. A file that is in several of them is repaired by the first one's.
    sidecars: Arc<[Arc<Sidecars>]>,
    /// The same without the cache of `inner`; that one's own is `None`.
    origin: Option<Box<Repairing>>,
    is_origin: bool,
}

/// Bytes of a range, put together.
enum Assembled {
    /// All of them are what the file has.
    Whole,
    /// These blocks are not.
    Repaired(Vec<u64>),
    /// Some have to be made again, which takes more memory.
    Damaged,
    /// They cannot be made again, because of this.
    Beyond(String),
}

/// A read that is compared with the checksums of its blocks.
struct Doubted<'a> {
    sidecars: &'a Sidecars,
    file: &'a Examined<'a>,
    path: &'a Path,
    range: Range<u64>,
}

impl Repairing {
    /// The files of a store, repaired where they have a sidecar.
    pub fn new(inner: Arc<dyn Store>, sidecars: impl Into<Arc<[Arc<Sidecars>]>>) -> Self {
        let sidecars = sidecars.into();
        let origin = inner.origin().is_some().then(|| {
            Box::new(Self { inner: Arc::clone(&inner), sidecars: Arc::clone(&sidecars), origin: None, is_origin: true })
        });
        Self { inner, sidecars, origin, is_origin: false }
    }

    fn find(&self, path: &Path) -> Option<(&Sidecars, u64)> {
        self.sidecars.iter().find_map(|sidecars| Some((&**sidecars, sidecars.file_bytes(path)?)))
    }

    /// Where reads go.
    fn reads_from(&self) -> &dyn Store {
        if self.is_origin { self.storage() } else { &*self.inner }
    }

    /// Where blocks are read: a cache has nothing of them, and would be filled with them.
    fn storage(&self) -> &dyn Store {
        self.inner.origin().unwrap_or(&*self.inner)
    }

    /// A read of a doubted range.
    fn examine(
        &self,
        (sidecars, range): (&Sidecars, Range<u64>),
        request: &ReadRequest<'_>,
        allot: &mut Allot<'_>,
    ) -> Result<Object> {
        request.check_cancel()?;
        let (path, size_bytes) = (request.path, range.end - range.start);
        let reader = FileReader::new(self.storage(), path, request.within, request.cancel);
        let layout = match reader.layout() {
            Ok(layout) if layout.file_bytes() >= range.end => layout,
            Ok(_) => return self.give_up(sidecars, request, allot, "is of another version of the file"),
            // Gone, forbidden, no sidecar: what is wrong with the sample is something else.
            Err(error) if !error.is_transient() && error.kind() != Kind::Stopped => {
                return self.give_up(sidecars, request, allot, error.message());
            }
            Err(error) if is_lost(&error) => return self.give_up(sidecars, request, allot, error.message()),
            Err(error) => return Err(error),
        };
        let file = reader.examine(layout)?;
        let doubted = Doubted { sidecars, file: &file, path, range };
        // The first time for the recipe's limit, which is about the sample alone.
        drop(allot(size_bytes)?);
        let held = 2 * layout.run_bytes() + MAX_RECORDS as u64 * layout.record_bytes();
        let mut buffer = allot(size_bytes + held)?;
        let mut assembled = doubted.assemble(&mut buffer, false)?;
        if matches!(assembled, Assembled::Damaged) {
            drop(buffer);
            let made = u64::from(layout.parity_blocks()) * layout.block_bytes();
            buffer = match allot(size_bytes + held + layout.work_bytes() + made) {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == Kind::Exhausted && !error.is_transient() => {
                    let why = format!("takes more memory than a sample may ({})", error.message());
                    return self.give_up(sidecars, request, allot, &why);
                }
                Err(error) => return Err(error),
            };
            assembled = doubted.assemble(&mut buffer, true)?;
        }
        match assembled {
            Assembled::Whole => sidecars.trust(path, &doubted.range),
            Assembled::Repaired(blocks) => sidecars.count(path, &blocks),
            Assembled::Damaged => return Err(Error::internal("parity was asked for twice")),
            Assembled::Beyond(why) => return self.give_up(sidecars, request, allot, &why),
        }
        let spare = allot(size_bytes)?;
        drop(spare);
        let stat = file.stat.unwrap_or(Stat { size_bytes: layout.file_bytes(), mtime_ns: 0 });
        Ok(Object { bytes: buffer.into(), stat })
    }

    /// What the storage has, damaged as it is. The hint about it names the sidecar.
    fn give_up(
        &self,
        sidecars: &Sidecars,
        request: &ReadRequest<'_>,
        allot: &mut Allot<'_>,
        why: &str,
    ) -> Result<Object> {
        let hint = format!(
            "its parity did not repair it: {:?} {why}; restore the file, or, if it was changed on purpose, make its index and \
             its parity again (`forebay parity`)",
            sidecar_of(request.path)
        );
        sidecars.set_hint(request.path, request.range.as_ref(), hint.clone());
        let read = self.reads_from().fetch(request, allot);
        read.map_err(|error| if is_lost(&error) { error.with_hint(hint) } else { error })
    }
}

impl Doubted<'_> {
    /// Puts the range into the buffer, block by block.
    fn assemble(&self, buffer: &mut Vec<u8>, may_repair: bool) -> Result<Assembled> {
        let (layout, size_bytes) = (&self.file.layout, self.range.end - self.range.start);
        buffer.clear();
        buffer
            .try_reserve_exact(size_bytes as usize)
            .map_err(|_| Error::new(Kind::Exhausted, format!("no memory was left for {size_bytes} bytes of it")))?;
        buffer.resize(size_bytes as usize, 0);
        let (mut repaired, mut records) = (Vec::new(), HashMap::new());
        let around = layout.blocks_around(&self.range);
        for (group, run) in layout.runs_around(&self.range) {
            let run = layout.part_of(&run, around.clone());
            let Some(record) = self.record(&mut records, group)? else {
                return Ok(Assembled::Beyond(
                    "has no checksums of it any more: both copies of them are damaged".into(),
                ));
            };
            let known = self.put_known(&run, buffer);
            let missing = self.file.offer(&run, &mut |number, block, bytes| {
                let is_good = known.contains(&block) || record.is_block(number, bytes);
                if is_good && !known.contains(&block) {
                    self.put(block, bytes, buffer);
                }
                Ok(is_good)
            })?;
            repaired.extend(missing.moved.iter().chain(&known));
            let lost: Vec<_> = missing.lost.into_iter().filter(|block| !known.contains(block)).collect();
            if lost.is_empty() {
                continue;
            }
            if !may_repair {
                return Ok(Assembled::Damaged);
            }
            match self.repair(record, &lost, buffer)? {
                Some(why) => return Ok(Assembled::Beyond(why)),
                None => repaired.extend(lost),
            }
        }
        repaired.sort_unstable();
        repaired.dedup();
        Ok(if repaired.is_empty() { Assembled::Whole } else { Assembled::Repaired(repaired) })
    }

    fn record<'r>(&self, records: &'r mut HashMap<u64, GroupRecord>, group: u64) -> Result<Option<&'r GroupRecord>> {
        if !records.contains_key(&group) {
            let Some(record) = self.file.record(group)?.0 else { return Ok(None) };
            if records.len() >= MAX_RECORDS {
                records.clear();
            }
            records.insert(group, record);
        }
        Ok(records.get(&group))
    }

    /// Puts the blocks of a run in place that were made again before.
    fn put_known(&self, run: &GroupRun, buffer: &mut [u8]) -> Vec<u64> {
        let mut known = Vec::new();
        for block in run.blocks.clone() {
            if let Some(bytes) = self.sidecars.find(self.path, block) {
                self.put(block, &bytes, buffer);
                known.push(block);
            }
        }
        known
    }

    /// Puts what a block has of the range in its place.
    fn put(&self, block: u64, bytes: &[u8], buffer: &mut [u8]) {
        let own = self.file.layout.block_range(block);
        let both = own.start.max(self.range.start)..own.end.min(self.range.end);
        let within = |of: u64| (both.start - of) as usize..(both.end - of) as usize;
        if let (Some(from), Some(to)) = (bytes.get(within(own.start)), buffer.get_mut(within(self.range.start))) {
            to.copy_from_slice(from);
        }
    }

    /// Makes the lost blocks of a group again, and puts those in place that are wanted. Says why if it cannot.
    fn repair(&self, record: &GroupRecord, wanted: &[u64], buffer: &mut [u8]) -> Result<Option<String>> {
        let gathered = self.file.gather(record, false)?;
        let (lost, carried) = (gathered.missing.lost.len(), self.file.layout.parity_blocks());
        let Some(made) = gathered.repair.finish()? else {
            return Ok(Some(match lost > carried as usize {
                true => format!("carries {carried} damaged blocks of each group, and more differ"),
                false => format!("is damaged as well: {lost} blocks differ, and it has too few that are whole"),
            }));
        };
        for (block, bytes) in &made {
            self.sidecars.keep(self.path, *block, bytes);
            if wanted.contains(block) {
                self.put(*block, bytes, buffer);
            }
        }
        let is_made = |block: &u64| made.iter().any(|(made, _)| made == block);
        // It was whole when it was read a second time.
        for block in wanted.iter().filter(|block| !is_made(block)) {
            let run = self.file.layout.runs_around(&self.file.layout.block_range(*block)).next();
            let Some((_, run)) = run else { return Err(Error::internal("a block lies in no run")) };
            let run = self.file.layout.part_of(&run, *block..block + 1);
            let missing = self.file.offer(&run, &mut |number, block, bytes| {
                let is_good = record.is_block(number, bytes);
                if is_good {
                    self.put(block, bytes, buffer);
                }
                Ok(is_good)
            })?;
            if !missing.lost.is_empty() {
                let message = "gave other bytes each time it was read";
                return Err(Error::new(Kind::Unavailable, message).transient().at_stage(Stage::Fetch));
            }
        }
        Ok(None)
    }
}

impl Store for Repairing {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let Some((sidecars, file_bytes)) = self.find(request.path) else {
            return self.reads_from().fetch(request, allot);
        };
        let range = request.range.clone().unwrap_or(0..file_bytes);
        // A read of one version, and one of nothing, are as they are.
        let is_covered = request.expected.is_none() && range.start < range.end && range.end <= file_bytes;
        if is_covered && sidecars.is_doubted(request.path, &range) {
            return self.examine((sidecars, range), request, allot);
        }
        self.reads_from().fetch(request, allot).map_err(|error| {
            if !is_covered || !is_lost(&error) {
                return error;
            }
            // It may be had in another way: whether that is tried, the caller decides.
            sidecars.doubt(request.path, &range);
            error.transient()
        })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.reads_from().stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.reads_from().list(directory)
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        self.reads_from().sum(path)
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        let (inner, stop) = self.inner.stoppable()?;
        Some((Arc::new(Self::new(inner, Arc::clone(&self.sidecars))), stop))
    }

    fn rest(&self) {
        self.inner.rest();
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn hangs_for(&self, within: Duration) -> Option<Duration> {
        self.inner.hangs_for(within)
    }

    fn readers(&self) -> Option<Readers> {
        self.inner.readers()
    }

    fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn origin(&self) -> Option<&dyn Store> {
        self.origin.as_deref().map(|origin| origin as &dyn Store)
    }

    fn doubt(&self, path: &Path) {
        if let Some((sidecars, file_bytes)) = self.find(path) {
            sidecars.doubt(path, &(0..file_bytes));
        }
        self.inner.doubt(path);
    }

    fn doubt_range(&self, path: &Path, range: Range<u64>) {
        if let Some((sidecars, _)) = self.find(path) {
            sidecars.doubt(path, &range);
        }
        self.inner.doubt_range(path, range);
    }

    fn cache(&self) -> Option<CacheStats> {
        self.inner.cache()
    }

    fn cache_notice(&self) -> Option<String> {
        self.inner.cache_notice()
    }

    fn repairs(&self) -> Option<Repairs> {
        let all = self.sidecars.iter().filter(|sidecars| !sidecars.is_empty()).map(|sidecars| sidecars.repairs());
        all.reduce(|mut one, other| {
            one.files.extend(other.files);
            Repairs { reads: one.reads + other.reads, blocks: one.blocks + other.blocks, files: one.files }
        })
    }

    fn repair_hint(&self, path: &Path, range: Option<&Range<u64>>) -> Option<String> {
        self.find(path).and_then(|(sidecars, _)| sidecars.hint(path, range))
    }
}
