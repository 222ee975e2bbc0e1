//! Archives with samples, and the indexes of them.

use forebay_core::hash_words;
use forebay_format::{FileIndex, FileScanner, SHARD_RULE, ShardIndex, TarScanner, read_index, read_wds2idx};

/// Parts lie inside of the archive, have their checksum, and are the same for pieces of any size. Where bytes are looked at
/// again, it is not without end.
pub(crate) fn tar(bytes: &[u8]) {
    let whole = scan(bytes, |rest| rest);
    assert_eq!(whole, scan(bytes, |rest| 1 + hash_words(&[rest as u64]) as usize % 1500), "in pieces");
    let Ok(index) = whole else { return };
    check(&index, bytes.len() as u64, |part| {
        let own = &bytes[part.range.start as usize..part.range.end as usize];
        assert!(part.is(own) && (part.hash.is_some() || part.lost.is_some()), "a part with another checksum");
    });
    let mut written = Vec::new();
    index.write(&mut written);
    assert_eq!(ShardIndex::parse(&mut &*written, bytes.len() as u64), Some(index));
}

/// The index, or the message of its error.
fn scan(bytes: &[u8], piece: impl Fn(usize) -> usize) -> Result<ShardIndex, String> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut fed = 0;
    while let Some(position) = scanner.position() {
        let rest = &bytes[position as usize..];
        let taken = &rest[..piece(rest.len()).min(rest.len())];
        let before = (position, fed);
        scanner.feed(taken).map_err(|error| error.to_string())?;
        // What is looked at again is at most the archive once more, and 16 MiB.
        fed += scanner.position().map_or(taken.len() as u64, |now| now.saturating_sub(before.0));
        assert!(fed <= 3 * bytes.len() as u64 + (32 << 20), "{fed} bytes read");
    }
    scanner.finish().map_err(|error| error.to_string())
}

/// Every part of every sample, by its field.
fn check(index: &ShardIndex, size_bytes: u64, part_is_good: impl Fn(&forebay_format::Part)) {
    for sample in 0..index.len() {
        index.write_key(sample, &mut String::new());
        for field in index.fields_of(sample) {
            let (_, part) = index.find(sample, &[*field]).expect("a field that the sample has");
            assert!(part.range.start <= part.range.end && part.range.end <= size_bytes, "beyond the end: {part:?}");
            part_is_good(&part);
        }
    }
}

/// What is accepted lies inside of its file. As it is, and with the right checksum: that is no secret.
pub(crate) fn index(bytes: &[u8]) {
    let sealed = [bytes, &xxhash_rust::xxh3::xxh3_64(bytes).to_le_bytes()].concat();
    for content in [bytes, &sealed] {
        for (version, index) in read_index::<ShardIndex>(SHARD_RULE, content).unwrap_or_default() {
            check(&index, version.size_bytes, |_| {});
        }
    }
}

/// What is accepted lies inside of the archive.
pub(crate) fn wds2idx(bytes: &[u8]) {
    for size_bytes in [10_240, u64::MAX] {
        if let Ok(index) = read_wds2idx(bytes, size_bytes) {
            check(&index, size_bytes, |_| {});
        }
    }
}
