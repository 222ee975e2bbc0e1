//! The geometry of a sidecar: which blocks are a group, and where its record and its parity are.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};
use reed_solomon_simd::ReedSolomonDecoder;

use crate::content_hash;

/// A header's length.
pub const PARITY_HEADER_BYTES: u64 = 64;

const MAGIC: &[u8; 8] = b"FBPARITY";
const VERSION: u32 = 1;

/// The smallest piece that disks and page caches lose. Smaller ones carry no more of such damage and need more checksums:
/// these take 0.4 % of the file.
const BLOCK_BYTES: u32 = 4096;
/// A read of 64 KiB takes little longer than one of a block.
const RUN_BLOCKS: u32 = 16;
/// A lost mebibyte is one run of each group.
const GROUPS: u32 = 16;
/// At least so many blocks are a group, and less than twice as many: with the parity of up to 6 % they are fewer than 2048,
/// a power of two, to which memory for a repair (8 MiB) is rounded up.
const GROUP_BLOCKS: u64 = 992;
/// One lost byte range may cross the border of two blocks.
const MIN_PARITY_BLOCKS: u32 = 2;

/// No file is longer, whatever a header says.
const MAX_FILE_BYTES: u64 = 1 << 48;
/// Memory that making or repairing a group may take, whatever a header says.
const MAX_WORK_BYTES: u64 = 64 << 20;

/// How a file is cut into groups, and what its sidecar has where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityLayout {
    file_bytes: u64,
    block_bytes: u32,
    run_blocks: u32,
    /// In each region.
    groups: u32,
    regions: u32,
    /// Of each group.
    parity_blocks: u32,
}

/// Neighbouring blocks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRun {
    /// The number that its first block has in the group.
    pub first: u32,
    /// The blocks.
    pub blocks: Range<u64>,
    /// Their bytes in the file.
    pub bytes: Range<u64>,
}

impl ParityLayout {
    /// For a file of this size, with parity of about this fraction of it.
    pub fn new(file_bytes: u64, fraction: f64) -> Result<Self> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            let message = format!("parity: expected a fraction above 0 and up to 1 (100 %), got {fraction}");
            return Err(Error::config(message));
        }
        if file_bytes == 0 || file_bytes > MAX_FILE_BYTES {
            let message = format!("cannot have parity (expected 1 to {MAX_FILE_BYTES} bytes, got {file_bytes})");
            return Err(Error::new(Kind::Undecodable, message));
        }
        let blocks = file_bytes.div_ceil(u64::from(BLOCK_BYTES));
        let groups = (blocks / GROUP_BLOCKS).clamp(1, u64::from(GROUPS)) as u32;
        let regions = (blocks / (GROUP_BLOCKS * u64::from(GROUPS))).max(1) as u32;
        let layout = Self {
            file_bytes,
            block_bytes: BLOCK_BYTES,
            run_blocks: RUN_BLOCKS,
            groups,
            regions,
            parity_blocks: MIN_PARITY_BLOCKS,
        };
        let wanted = (layout.max_group_blocks() as f64 * fraction).ceil() as u32;
        let layout = Self { parity_blocks: wanted.max(MIN_PARITY_BLOCKS), ..layout };
        layout.check().map_err(|why| Error::internal(format!("parity has a wrong geometry: {why}")))?;
        Ok(layout)
    }

    /// What a header says, if all of it is possible. `Err` has the predicate.
    pub fn parse(header: &[u8]) -> std::result::Result<Self, String> {
        let Some(header) = header.first_chunk::<{ PARITY_HEADER_BYTES as usize }>() else {
            return Err(format!("ends in its header (expected {PARITY_HEADER_BYTES} bytes, got {})", header.len()));
        };
        if !header.starts_with(MAGIC) {
            return Err("does not begin as a parity sidecar of forebay's".to_owned());
        }
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if content_hash(&header[..56]) != long(56) {
            return Err("has a header with a wrong checksum".to_owned());
        }
        if word(8) != VERSION {
            return Err(format!("is of another version (expected {VERSION}, got {})", word(8)));
        }
        let layout = Self {
            file_bytes: long(16),
            block_bytes: word(24),
            run_blocks: word(28),
            groups: word(32),
            regions: word(36),
            parity_blocks: word(40),
        };
        layout.check().map(|()| layout)
    }

    /// Whether every number is possible, so that arithmetic with them neither overflows nor takes much memory.
    fn check(&self) -> std::result::Result<(), String> {
        let Self { file_bytes, block_bytes, run_blocks, groups, regions, parity_blocks } = *self;
        let within = |name: &str, value: u64, most: u64| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("has an impossible header ({name}: expected 1 to {most}, got {value})")),
        };
        within("file_bytes", file_bytes, MAX_FILE_BYTES)?;
        if !block_bytes.is_power_of_two() || !(512..=65_536).contains(&block_bytes) {
            return Err(format!(
                "has an impossible header (block_bytes: expected a power of two from 512 to 65536, got {block_bytes})"
            ));
        }
        within("run_blocks", run_blocks.into(), 1 << 10)?;
        within("groups", groups.into(), 1 << 10)?;
        within("run_bytes", self.run_bytes(), 4 << 20)?;
        // Then no group is empty.
        within("regions", regions.into(), (self.run_count() / u64::from(groups)).max(1))?;
        within("groups", groups.into(), self.run_count())?;
        within("group_blocks", self.max_group_blocks(), 1 << 16)?;
        within("parity_blocks", parity_blocks.into(), self.max_group_blocks().max(MIN_PARITY_BLOCKS.into()))?;
        if !ReedSolomonDecoder::supports(self.max_group_blocks() as usize, parity_blocks as usize) {
            let (blocks, parity) = (self.max_group_blocks(), parity_blocks);
            return Err(format!("has an impossible header ({blocks} blocks with {parity} of parity)"));
        }
        within("work_bytes", self.work_bytes(), MAX_WORK_BYTES)
    }

    /// The bytes of a header.
    pub fn header(&self) -> [u8; PARITY_HEADER_BYTES as usize] {
        let mut header = [0; PARITY_HEADER_BYTES as usize];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.file_bytes.to_le_bytes());
        let words = [self.block_bytes, self.run_blocks, self.groups, self.regions, self.parity_blocks];
        for (place, word) in header[24..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = content_hash(&header[..56]);
        header[56..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// The file's size.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// A block's size; the last one of the file may be shorter.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes.into()
    }

    /// How many blocks the file has.
    pub fn block_count(&self) -> u64 {
        self.file_bytes.div_ceil(self.block_bytes())
    }

    /// How many blocks of a group may be lost.
    pub fn parity_blocks(&self) -> u32 {
        self.parity_blocks
    }

    /// How many groups there are.
    pub fn group_count(&self) -> u64 {
        u64::from(self.regions) * u64::from(self.groups)
    }

    /// The most bytes that a run has.
    pub fn run_bytes(&self) -> u64 {
        self.block_bytes() * u64::from(self.run_blocks)
    }

    fn run_count(&self) -> u64 {
        self.block_count().div_ceil(self.run_blocks.into())
    }

    /// The first run of a region.
    fn region_start(&self, region: u64) -> u64 {
        (u128::from(region) * u128::from(self.run_count()) / u128::from(self.regions)) as u64
    }

    fn max_group_blocks(&self) -> u64 {
        let runs = self.run_count().div_ceil(self.regions.into()).div_ceil(self.groups.into());
        (runs * u64::from(self.run_blocks)).min(self.block_count())
    }

    /// Memory that making or repairing a group takes: the code rounds up to a power of two.
    pub fn work_bytes(&self) -> u64 {
        let (blocks, parity) = (self.max_group_blocks(), u64::from(self.parity_blocks));
        let (fewer, more) = (blocks.min(parity), blocks.max(parity));
        (fewer.next_power_of_two() + more).next_power_of_two() * self.block_bytes()
    }

    /// The group of a run.
    fn group_of_run(&self, run: u64) -> u64 {
        let region = (u128::from(run + 1) * u128::from(self.regions)).saturating_sub(1) / u128::from(self.run_count());
        let region = region as u64;
        region * u64::from(self.groups) + (run - self.region_start(region)) % u64::from(self.groups)
    }

    /// The run with this number in the file; `first` is its place in its group.
    fn run(&self, run: u64) -> GroupRun {
        let region = self.group_of_run(run) / u64::from(self.groups);
        let place = (run - self.region_start(region)) / u64::from(self.groups);
        let start = run * u64::from(self.run_blocks);
        let blocks = start..(start + u64::from(self.run_blocks)).min(self.block_count());
        let bytes = start * self.block_bytes()..self.block_range(blocks.end - 1).end;
        GroupRun { first: (place * u64::from(self.run_blocks)) as u32, blocks, bytes }
    }

    /// The bytes of a block in the file.
    pub fn block_range(&self, block: u64) -> Range<u64> {
        let start = block * self.block_bytes();
        start..(start + self.block_bytes()).min(self.file_bytes)
    }

    /// Some blocks of a run.
    pub fn part_of(&self, run: &GroupRun, blocks: Range<u64>) -> GroupRun {
        let blocks = blocks.start.max(run.blocks.start)..blocks.end.min(run.blocks.end);
        let first = run.first + (blocks.start - run.blocks.start) as u32;
        let bytes = blocks.start * self.block_bytes()..(blocks.end * self.block_bytes()).min(self.file_bytes);
        GroupRun { first, blocks, bytes }
    }

    /// The blocks that a range of the file touches.
    pub fn blocks_around(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.block_bytes()..range.end.min(self.file_bytes).div_ceil(self.block_bytes())
    }

    /// The runs of a group, in their order.
    pub fn runs_of(&self, group: u64) -> impl Iterator<Item = GroupRun> + use<> {
        let (layout, region) = (*self, group / u64::from(self.groups));
        let first = self.region_start(region) + group % u64::from(self.groups);
        let runs = first..self.region_start(region + 1);
        runs.step_by(self.groups as usize).map(move |run| layout.run(run))
    }

    /// The number in the file of a block of a group.
    pub fn block_of(&self, group: u64, number: u32) -> u64 {
        let (groups, run_blocks) = (u64::from(self.groups), u64::from(self.run_blocks));
        let (place, within) = (u64::from(number) / run_blocks, u64::from(number) % run_blocks);
        (self.region_start(group / groups) + group % groups + place * groups) * run_blocks + within
    }

    /// How many blocks a group has.
    pub fn group_blocks(&self, group: u64) -> u32 {
        let last = self.runs_of(group).last();
        last.map_or(0, |run| run.first + (run.blocks.end - run.blocks.start) as u32)
    }

    /// The runs that a range of the file touches, in their order, each with its group.
    pub fn runs_around(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, GroupRun)> + use<> {
        let (layout, end) = (*self, range.end.min(self.file_bytes));
        let runs = range.start / self.run_bytes()..end.div_ceil(self.run_bytes());
        runs.map(move |run| (layout.group_of_run(run), layout.run(run)))
    }

    /// A record's length.
    pub fn record_bytes(&self) -> u64 {
        (self.max_group_blocks() + u64::from(self.parity_blocks) + 1) * 8
    }

    fn section_bytes(&self) -> u64 {
        self.record_bytes() + u64::from(self.parity_blocks) * self.block_bytes()
    }

    /// Where a group's record is, and its copy.
    pub fn record_ranges(&self, group: u64) -> [Range<u64>; 2] {
        let first = PARITY_HEADER_BYTES + group * self.section_bytes();
        let copies = PARITY_HEADER_BYTES + self.group_count() * self.section_bytes();
        [first, copies + group * self.record_bytes()].map(|start| start..start + self.record_bytes())
    }

    /// Where a parity block of a group is.
    pub fn parity_range(&self, group: u64, parity: Range<u32>) -> Range<u64> {
        let start = PARITY_HEADER_BYTES + group * self.section_bytes() + self.record_bytes();
        start + u64::from(parity.start) * self.block_bytes()..start + u64::from(parity.end) * self.block_bytes()
    }

    /// The sidecar's size.
    pub fn sidecar_bytes(&self) -> u64 {
        2 * PARITY_HEADER_BYTES + self.group_count() * (self.section_bytes() + self.record_bytes())
    }
}
