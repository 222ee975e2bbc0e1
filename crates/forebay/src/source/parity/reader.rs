//! Reading a file and its sidecar where some of it cannot be read: what is there is compared with its checksum, and what is not is
//! an erasure.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result, Stage};
use forebay_format::{GroupRecord, GroupRepair, GroupRun, PARITY_HEADER_BYTES, ParityLayout};
use forebay_store::{Cancel, ReadRequest, Stat, Store, late};

use crate::scan::sequential::buffer;

/// Parity blocks that one read gives: as many bytes as a run.
const PARITY_AT_A_TIME: u32 = 16;

/// The sidecar of a file.
pub(crate) fn sidecar_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".parity");
    name.into()
}

/// Whether a failed read says that these bytes are lost on the storage: it may be whole elsewhere.
pub(crate) fn is_lost(error: &Error) -> bool {
    /// What disks and file systems say of bad sectors and of their own checksums.
    const LOST: &[i32] = &[libc::EIO, libc::EREMOTEIO, libc::EUCLEAN, libc::EBADMSG, libc::ENODATA, libc::EILSEQ];
    error.kind() == Kind::Corrupt || error.errno().is_some_and(|errno| LOST.contains(&errno))
}

/// Is offered what may be a block, with its numbers in its group and in the file; says whether it is.
type Take<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<bool> + 'a;

/// Reads of one file, all of them within one deadline.
pub(crate) struct FileReader<'a> {
    store: &'a dyn Store,
    path: &'a Path,
    sidecar: PathBuf,
    within: Duration,
    until: Instant,
    cancel: Option<&'a Cancel>,
}

/// A file as it is, beside what its sidecar says.
pub(crate) struct Examined<'a> {
    reader: FileReader<'a>,
    pub(crate) layout: ParityLayout,
    /// As the file is now; `None` if even that cannot be read.
    pub(crate) stat: Option<Stat>,
}

/// Blocks of a run that are not in their place.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// They are nowhere.
    pub(crate) lost: Vec<u64>,
    /// They are as far from their place as the file is longer or shorter.
    pub(crate) moved: Vec<u64>,
}

/// What the blocks of a group are, as far as they could be read.
pub(crate) struct Gathered<'r> {
    pub(crate) repair: GroupRepair<'r>,
    pub(crate) missing: Missing,
    pub(crate) damaged_parity: u64,
}

impl<'a> FileReader<'a> {
    pub(crate) fn new(store: &'a dyn Store, path: &'a Path, within: Duration, cancel: Option<&'a Cancel>) -> Self {
        let now = Instant::now();
        let until = now.checked_add(within).unwrap_or(now + Duration::from_secs(1 << 30));
        Self { store, path, sidecar: sidecar_of(path), within, until, cancel }
    }

    /// A range of the file or of its sidecar.
    fn read(&self, path: &Path, range: Range<u64>) -> Result<(Vec<u8>, Stat)> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late(self.path, self.within).at_path(self.path).at_stage(Stage::Fetch));
        }
        let request = ReadRequest { cancel: self.cancel, ..ReadRequest::new(path, left) };
        let object = self.store.fetch(&request.with_range(range), &mut |size| buffer(size))?;
        Ok((object.bytes.into_vec(), object.stat))
    }

    /// The same where it may be lost.
    fn try_read(&self, path: &Path, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        match self.read(path, range) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if is_lost(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The layout, by the header or by its copy at the end.
    pub(crate) fn layout(&self) -> Result<ParityLayout> {
        let unusable = |why: &str| {
            let hint = "make it again with `forebay parity`, of a file that is whole";
            let error = Error::new(Kind::Corrupt, format!("cannot be used: it {why}")).with_hint(hint);
            error.at_path(&self.sidecar).at_stage(Stage::Fetch)
        };
        // Work is bounded by what is there, not by what it says; half of it may be cut off.
        let checked = |layout: ParityLayout, size_bytes: u64| match layout.sidecar_bytes() / 2 <= size_bytes {
            true => Ok(layout),
            false => Err(format!("is cut (expected {} bytes, got {size_bytes})", layout.sidecar_bytes())),
        };
        let why = match self.read(&self.sidecar, 0..PARITY_HEADER_BYTES) {
            Ok((header, stat)) => {
                match ParityLayout::parse(&header).and_then(|layout| checked(layout, stat.size_bytes)) {
                    Ok(layout) => return Ok(layout),
                    Err(why) => why,
                }
            }
            Err(error) if is_lost(&error) => error.message().to_owned(),
            Err(error) => return Err(error),
        };
        let size_bytes = self.store.stat(&self.sidecar)?.size_bytes;
        let start = size_bytes.checked_sub(PARITY_HEADER_BYTES).ok_or_else(|| unusable(&why))?;
        let copy = self.try_read(&self.sidecar, start..size_bytes)?.ok_or_else(|| unusable(&why))?;
        ParityLayout::parse(&copy).and_then(|layout| checked(layout, size_bytes)).map_err(|_| unusable(&why))
    }

    /// The file as it is, by this layout.
    pub(crate) fn examine(self, layout: ParityLayout) -> Result<Examined<'a>> {
        let stat = match self.store.stat(self.path) {
            Ok(stat) => Some(stat),
            Err(error) if is_lost(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Examined { reader: self, layout, stat })
    }
}

impl Examined<'_> {
    /// How many bytes the file has now.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.stat.map_or(self.layout.file_bytes(), |stat| stat.size_bytes)
    }

    /// The record of a group, and how many of its copies are damaged.
    pub(crate) fn record(&self, group: u64) -> Result<(Option<GroupRecord>, u64)> {
        let mut damaged = 0;
        for range in self.layout.record_ranges(group) {
            let bytes = self.reader.try_read(&self.reader.sidecar, range)?;
            match bytes.and_then(|bytes| GroupRecord::parse(&self.layout, group, &bytes)) {
                Some(record) => return Ok((Some(record), damaged)),
                None => damaged += 1,
            }
        }
        Ok((None, damaged))
    }

    /// Whether both copies of a record are whole.
    pub(crate) fn damaged_copies(&self, group: u64) -> Result<u64> {
        let mut damaged = 0;
        for range in self.layout.record_ranges(group) {
            let bytes = self.reader.try_read(&self.reader.sidecar, range)?;
            let is_whole = bytes.is_some_and(|bytes| GroupRecord::parse(&self.layout, group, &bytes).is_some());
            damaged += u64::from(!is_whole);
        }
        Ok(damaged)
    }

    /// Offers each block of a run, by its number in its group, until it is taken: what is in its place, and then what is as far
    /// from there as the file is longer or shorter. Bytes that were put in or taken out somewhere move all that follows.
    pub(crate) fn offer(&self, run: &GroupRun, take: &mut Take<'_>) -> Result<Missing> {
        let shift = i128::from(self.size_bytes()) - i128::from(self.layout.file_bytes());
        let mut left: Vec<u64> = run.blocks.clone().collect();
        self.offer_at(run, 0, &mut left, take)?;
        let mut missing = Missing::default();
        if shift != 0 && !left.is_empty() {
            let before = left.clone();
            self.offer_at(run, shift, &mut left, take)?;
            missing.moved = before.into_iter().filter(|block| !left.contains(block)).collect();
        }
        missing.lost = left;
        Ok(missing)
    }

    /// Offers the blocks in `left` that are so far behind their place. Those that were taken leave it.
    fn offer_at(&self, run: &GroupRun, shift: i128, left: &mut Vec<u64>, take: &mut Take<'_>) -> Result<()> {
        let place = |block: u64| {
            let Range { start, end } = self.layout.block_range(block);
            let moved = |at: u64| u64::try_from(i128::from(at) + shift).ok();
            moved(start).zip(moved(end)).filter(|(_, end)| *end <= self.size_bytes())
        };
        let places: Vec<_> = left.iter().filter_map(|&block| Some((block, place(block)?))).collect();
        let (Some((_, (start, _))), Some((_, (_, end)))) = (places.first(), places.last()) else { return Ok(()) };
        let all = self.reader.try_read(self.reader.path, *start..*end)?;
        let mut taken = Vec::new();
        for (block, range) in &places {
            let own;
            let bytes = match &all {
                Some(bytes) => bytes.get((range.0 - start) as usize..(range.1 - start) as usize),
                // Some of it cannot be read: which blocks those are, each of them says by itself.
                None if places.len() > 1 => {
                    own = self.reader.try_read(self.reader.path, range.0..range.1)?;
                    own.as_deref()
                }
                None => None,
            };
            let number = run.first + (block - run.blocks.start) as u32;
            if let Some(bytes) = bytes
                && take(number, *block, bytes)?
            {
                taken.push(*block);
            }
        }
        left.retain(|block| !taken.contains(block));
        Ok(())
    }

    /// Reads the blocks of a group and as much of its parity as its lost blocks need. Unless `reads_all`, it ends as soon as more
    /// is lost than can be repaired.
    pub(crate) fn gather<'r>(&self, record: &'r GroupRecord, reads_all: bool) -> Result<Gathered<'r>> {
        let (layout, group) = (&self.layout, record.group());
        let mut repair = GroupRepair::new(layout, record)?;
        let mut missing = Missing::default();
        for run in layout.runs_of(group) {
            let found = self.offer(&run, &mut |number, _, bytes| repair.offer(number, bytes))?;
            missing.lost.extend(found.lost);
            missing.moved.extend(found.moved);
            if missing.lost.len() > layout.parity_blocks() as usize && !reads_all {
                return Ok(Gathered { repair, missing, damaged_parity: 0 });
            }
        }
        let (mut damaged_parity, mut next) = (0, 0);
        while next < layout.parity_blocks() && (reads_all || repair.needs_parity() > 0) {
            let numbers = next..(next + PARITY_AT_A_TIME).min(layout.parity_blocks());
            next = numbers.end;
            damaged_parity += self.offer_parity(&mut repair, group, numbers)?;
        }
        Ok(Gathered { repair, missing, damaged_parity })
    }

    /// Offers some parity blocks; gives how many are damaged.
    fn offer_parity(&self, repair: &mut GroupRepair<'_>, group: u64, numbers: Range<u32>) -> Result<u64> {
        let sidecar = &self.reader.sidecar;
        let all = self.reader.try_read(sidecar, self.layout.parity_range(group, numbers.clone()))?;
        let block_bytes = self.layout.block_bytes() as usize;
        let mut damaged = 0;
        for (place, number) in numbers.enumerate() {
            let own;
            let bytes = match &all {
                Some(bytes) => bytes.get(place * block_bytes..(place + 1) * block_bytes),
                None => {
                    own = self.reader.try_read(sidecar, self.layout.parity_range(group, number..number + 1))?;
                    own.as_deref()
                }
            };
            let is_taken = bytes.map_or(Ok(false), |bytes| repair.offer_parity(number, bytes))?;
            damaged += u64::from(!is_taken);
        }
        Ok(damaged)
    }
}
