//! Parity sidecars: headers, checksums and parity blocks that come from a file.

use std::ops::Range;

use forebay_format::{GroupRecord, GroupRepair, PARITY_HEADER_BYTES, ParityLayout};

/// Groups of a sidecar that are looked at: the others are alike.
const MAX_GROUPS: u64 = 4;
/// More than that takes long under a sanitizer, and is the same.
const MAX_WORK_BYTES: u64 = 4 << 20;

/// A sidecar, as it is and with the right checksum in its header: that is no secret. Whatever it says, its places lie behind each
/// other, and a block that is made again has its checksum.
pub(crate) fn run(bytes: &[u8]) {
    check(bytes);
    let header = PARITY_HEADER_BYTES as usize;
    if bytes.len() >= header {
        let mut sealed = bytes.to_vec();
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..header - 8]);
        sealed[header - 8..header].copy_from_slice(&sum.to_le_bytes());
        check(&sealed);
    }
}

fn check(bytes: &[u8]) {
    let Ok(layout) = ParityLayout::parse(bytes) else { return };
    assert_eq!(ParityLayout::parse(&layout.header()), Ok(layout), "a header that is not written as it is read");
    assert!(layout.work_bytes() <= 64 << 20, "{} bytes of memory", layout.work_bytes());
    let groups = layout.group_count();
    for group in (0..groups.min(MAX_GROUPS)).chain(groups.saturating_sub(1)..groups) {
        let mut next = 0;
        for run in layout.runs_of(group) {
            assert!(run.first == next && run.bytes.start < run.bytes.end && run.bytes.end <= layout.file_bytes());
            assert_eq!(layout.block_of(group, run.first), run.blocks.start);
            next += (run.blocks.end - run.blocks.start) as u32;
        }
        assert_eq!(next, layout.group_blocks(group));
        let [record, copy] = layout.record_ranges(group);
        let parity = layout.parity_range(group, 0..layout.parity_blocks());
        assert!(record.end <= parity.start && parity.end <= copy.start && copy.end <= layout.sidecar_bytes());
        let found = slice(bytes, &record).and_then(|bytes| GroupRecord::parse(&layout, group, bytes));
        if let Some(record) = found.filter(|_| layout.work_bytes() <= MAX_WORK_BYTES) {
            repair(bytes, &layout, &record);
        }
    }
}

/// All blocks are offered from the sidecar itself: most are damage.
fn repair(bytes: &[u8], layout: &ParityLayout, record: &GroupRecord) {
    let Ok(mut repair) = GroupRepair::new(layout, record) else { return };
    for number in 0..record.block_count() {
        let range = layout.block_range(layout.block_of(record.group(), number));
        let zeros = vec![0; (range.end - range.start) as usize];
        let offered = slice(bytes, &range).unwrap_or(&zeros);
        let is_taken = repair.offer(number, offered).expect("counts were checked");
        assert_eq!(is_taken, record.is_block(number, offered));
    }
    for number in 0..layout.parity_blocks() {
        if let Some(parity) = slice(bytes, &layout.parity_range(record.group(), number..number + 1)) {
            repair.offer_parity(number, parity).expect("counts were checked");
        }
    }
    let needed = repair.needs_parity();
    let made = repair.finish().expect("counts were checked");
    assert!(made.is_none() || needed == 0, "blocks without parity");
}

fn slice<'a>(bytes: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}
