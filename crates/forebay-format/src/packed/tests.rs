use crc_fast::{CrcAlgorithm, checksum};
use forebay_core::hash_words;
use miniz_oxide::deflate::compress_to_vec;
use ruzstd::encoding::{CompressionLevel, compress_to_vec as zstd_frame};

use super::*;

/// Words that are neither random nor all the same.
fn text(bytes: usize, seed: u64) -> Vec<u8> {
    let words = (0..).map(|word| format!("{} ", hash_words(&[seed, word]) % 5000));
    let mut text: Vec<u8> = words.flat_map(String::into_bytes).take(bytes).collect();
    text.iter_mut().step_by(80).for_each(|byte| *byte = b'\n');
    text
}

fn member(content: &[u8], flags: u8, level: u8) -> Vec<u8> {
    let mut bytes = vec![0x1F, 0x8B, 8, flags, 0, 0, 0, 0, 0, 255];
    if flags & 4 != 0 {
        bytes.extend([3, 0, b'x', b'y', b'z']);
    }
    if flags & 8 != 0 {
        bytes.extend(b"name.txt\0");
    }
    if flags & 2 != 0 {
        bytes.extend([1, 2]);
    }
    bytes.extend(compress_to_vec(content, level));
    bytes.extend((checksum(CrcAlgorithm::Crc32IsoHdlc, content) as u32).to_le_bytes());
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes
}

fn scanned(packed: &[u8], piece: usize) -> Result<SeekTable> {
    let mut scanner = PackedScanner::new(packed.len() as u64);
    while let Some(position) = scanner.position() {
        let rest = &packed[position as usize..];
        scanner.feed(&rest[..rest.len().min(piece)])?;
    }
    scanner.finish()
}

/// Every segment unpacks to its part of the content, also by a table that was written and read.
fn check(packed: &[u8], content: &[u8]) -> SeekTable {
    let table = scanned(packed, usize::MAX).unwrap();
    for piece in [1 << 16, 4097] {
        assert_eq!(scanned(packed, piece).unwrap(), table, "in pieces of {piece}");
    }
    let mut written = Vec::new();
    table.write(&mut written);
    assert_eq!(SeekTable::parse(&mut &*written, packed.len() as u64).as_ref(), Some(&table));
    assert_eq!(SeekTable::parse(&mut &written[..written.len() - 1], packed.len() as u64), None);
    assert_eq!(table.size_bytes(), content.len() as u64);
    for segment in 0..table.segment_count() {
        let (range, bytes) = (table.range(segment), table.packed_range(segment));
        let unpacked = table.unpack(segment, &packed[bytes.start as usize..bytes.end as usize]).unwrap();
        assert!(unpacked == content[range.start as usize..range.end as usize], "segment {segment}");
        for position in [range.start, range.end - 1] {
            assert_eq!(table.segment_of(position), segment);
        }
    }
    table
}

#[test]
fn a_gzip_member_is_read_from_between_its_blocks() {
    let content = text(5 << 20, 1);
    for (flags, level) in [(0, 6), (4 | 8 | 2, 1)] {
        let table = check(&member(&content, flags, level), &content);
        assert!((4..=5).contains(&table.segment_count()), "{} segments", table.segment_count());
        assert!(table.segments[1..].iter().all(|segment| matches!(segment.entry, Entry::Inside(_))));
    }
}

#[test]
fn members_follow_each_other_and_zeros_follow_them() {
    let parts: Vec<_> = (0..60).map(|part| text(60_000, part)).collect();
    let mut packed: Vec<u8> = parts.iter().flat_map(|part| member(part, 0, 6)).collect();
    packed.extend(member(b"", 0, 6));
    packed.extend([0; 1000]);
    let table = check(&packed, &parts.concat());
    assert!(table.segments.iter().all(|segment| segment.entry == Entry::Frame));
    assert_eq!(check(&member(b"", 0, 6), b"").segment_count(), 0);
}

#[test]
fn zstd_frames_are_segments_and_skippable_ones_are_skipped() {
    let parts: Vec<_> = (0..6).map(|part| text(700_000, part)).collect();
    let skippable = [&[0x5A, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let frames = parts.iter().flat_map(|part| [zstd_frame(&**part, CompressionLevel::Fastest), skippable.clone()]);
    let packed = [skippable.clone(), frames.flatten().collect()].concat();
    assert_eq!(check(&packed, &parts.concat()).segment_count(), 3);
}

#[test]
fn what_is_cut_or_damaged_is_an_error() {
    let content = text(300_000, 7);
    for packed in [member(&content, 8, 6), zstd_frame(&*content, CompressionLevel::Fastest)] {
        for end in [1, 5, 15, packed.len() / 2, packed.len() - 1] {
            assert!(scanned(&packed[..end], 4096).is_err(), "cut at {end}");
        }
        let table = scanned(&packed, usize::MAX).unwrap();
        for at in (0..packed.len()).step_by(997) {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x10;
            // A flipped bit may not show in what is unpacked; then it is the same.
            if let Ok(unpacked) = table.unpack(0, &damaged) {
                assert!(unpacked == content, "byte {at}");
            }
        }
        let more = [packed.clone(), b"more".to_vec()].concat();
        assert_eq!(scanned(&more, usize::MAX).unwrap_err().kind(), Kind::Corrupt);
    }
    assert_eq!(scanned(b"plain text", 3).unwrap_err().kind(), Kind::Undecodable);
    let mut wrong = member(&content, 0, 6);
    let crc = wrong.len() - 8;
    wrong[crc] ^= 1;
    assert_eq!(scanned(&wrong, 999).unwrap_err().message(), "has damaged gzip data: its own checksum does not fit");
}

#[test]
fn tables_that_lie_are_refused() {
    let content = text(3 << 20, 3);
    let packed = member(&content, 0, 6);
    let table = scanned(&packed, usize::MAX).unwrap();
    let mut written = Vec::new();
    table.write(&mut written);
    // Counts, places and sizes are numbers of 64 bits.
    for word in 0..9 {
        for value in [u64::MAX, u64::MAX / 2, 1 << 40] {
            let mut lies = written.clone();
            lies[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
            let Some(parsed) = SeekTable::parse(&mut &*lies, packed.len() as u64) else { continue };
            for segment in 0..parsed.segment_count() {
                let range = parsed.packed_range(segment);
                assert!(range.end <= packed.len() as u64, "word {word} as {value}");
                let _refused = parsed.unpack(segment, &packed[range.start as usize..range.end as usize]);
            }
        }
    }
}
