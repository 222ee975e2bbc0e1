//! Files of lines, and the indexes that are kept of them.

use forebay_core::hash_words;
use forebay_decode::csv_fields;
use forebay_format::{FileIndex, FileScanner, LineIndex, LineRule, LineScanner, PackedScanner, SeekTable, read_index};

const RULES: [LineRule; 4] = [
    LineRule::Text,
    LineRule::Json,
    LineRule::Csv { delimiter: b',', has_header: false },
    LineRule::Csv { delimiter: b';', has_header: true },
];

/// Records lie inside of the file, one behind the other, and are the same for pieces of any size.
pub(crate) fn run(bytes: &[u8]) {
    for rule in RULES {
        let whole = scan(rule, bytes, |rest| rest);
        assert_eq!(whole, scan(rule, bytes, |rest| 1 + hash_words(&[rest as u64]) as usize % 9), "{rule:?} in pieces");
        let Ok(index) = whole else { continue };
        let mut end = 0;
        for record in 0..index.len() {
            let range = index.range(record);
            assert!(range.start >= end && range.end > range.start, "{rule:?}: record {record} at {range:?}");
            end = range.end;
            if let LineRule::Csv { delimiter, .. } = rule {
                let _malformed = csv_fields(&bytes[range.start as usize..range.end as usize], delimiter);
            }
        }
        assert!(end <= bytes.len() as u64, "{rule:?}: records beyond the end");
        let mut written = Vec::new();
        index.write(&mut written);
        assert_eq!(LineIndex::parse(&mut &*written, bytes.len() as u64), Some(index));
    }
}

/// The index, or the message of its error.
fn scan(rule: LineRule, bytes: &[u8], piece: impl Fn(usize) -> usize) -> Result<LineIndex, String> {
    let mut scanner = LineScanner::new(rule, bytes.len() as u64);
    while let Some(position) = scanner.position() {
        let rest = &bytes[position as usize..];
        scanner.feed(&rest[..piece(rest.len()).min(rest.len())]).map_err(|error| error.to_string())?;
    }
    scanner.finish().map_err(|error| error.to_string())
}

/// What is accepted lies inside of its file. As it is, and with the right checksum: that is no secret.
pub(crate) fn index(bytes: &[u8]) {
    let sealed = [bytes, &xxhash_rust::xxh3::xxh3_64(bytes).to_le_bytes()].concat();
    for rule in RULES {
        for content in [bytes, &sealed] {
            for (version, index) in read_index::<LineIndex>(rule.word(), content).unwrap_or_default() {
                let last = index.len().checked_sub(1).map_or(0, |last| index.range(last).end);
                assert!(last <= version.size_bytes, "records beyond the end of {version:?}");
            }
        }
    }
}

/// Every segment of a compressed file unpacks to what was scanned, also by a table that was written and read.
pub(crate) fn packed(bytes: &[u8]) {
    let table = scan_packed(bytes, bytes.len());
    assert_eq!(table, scan_packed(bytes, 7), "in pieces");
    let Ok(table) = table else { return };
    let mut written = Vec::new();
    table.write(&mut written);
    let parsed = SeekTable::parse(&mut &*written, bytes.len() as u64).expect("what was written is read");
    assert_eq!(parsed, table);
    for segment in 0..table.segment_count() {
        let range = table.packed_range(segment);
        let unpacked = parsed.unpack(segment, &bytes[range.start as usize..range.end as usize]);
        let place = table.range(segment);
        assert_eq!(unpacked.expect("it was scanned").len() as u64, place.end - place.start);
    }
}

fn scan_packed(bytes: &[u8], piece: usize) -> Result<SeekTable, String> {
    let mut scanner = PackedScanner::new(bytes.len() as u64);
    while let Some(position) = scanner.position() {
        let rest = &bytes[position as usize..];
        scanner.feed(&rest[..rest.len().min(piece)]).map_err(|error| error.to_string())?;
    }
    scanner.finish().map_err(|error| error.to_string())
}

/// A table that is accepted may be used on any bytes.
pub(crate) fn seek_table(bytes: &[u8]) {
    let Some((packed_bytes, mut table)) = bytes.split_first_chunk::<2>() else { return };
    let packed_bytes = u64::from(u16::from_le_bytes(*packed_bytes));
    let Some(table) = SeekTable::parse(&mut table, packed_bytes) else { return };
    let packed = vec![0x5A; packed_bytes as usize];
    for segment in 0..table.segment_count() {
        let range = table.packed_range(segment);
        let _refused = table.unpack(segment, &packed[range.start as usize..range.end as usize]);
    }
}
