//! A file that `datasets` wrote, whole and damaged, and files that claim what they do not hold. Values of all types are compared in
//! the tests of Python.

use std::sync::Arc;

use forebay_core::{Element, Kind, Result};

use super::*;
use crate::file_scan::{FileIndex, RangeScanner};
use crate::parquet_pages::Writer;
use crate::shards::{FieldKind, Lost, RecordField, ShardIndex};

const GOLDEN: &[u8] = include_bytes!("../../../../../python/tests/golden/shards/parquet/train-00000-of-00002.parquet");

fn schema(file: &[u8]) -> Result<ParquetSchema> {
    parquet_schema(file.len() as u64, file).map(|schema| schema.expect("the whole file was given"))
}

fn all_of(file: &[u8]) -> Arc<[RecordField]> {
    schema(file).unwrap().read_fields().cloned().collect()
}

fn scan(file: &[u8], fields: Arc<[RecordField]>) -> Result<ShardIndex> {
    let mut scanner = ParquetScanner::new(file.len() as u64, fields);
    let mut reads = 0;
    while let Some(range) = scanner.next_range() {
        assert!(!range.is_empty() && range.end <= file.len() as u64, "{range:?} of {}", file.len());
        scanner.feed(&file[range.start as usize..range.end as usize])?;
        reads += 1;
        assert!(reads <= 100 + file.len() / 100, "without end");
    }
    scanner.finish()
}

/// A value, from the file or from a page of it.
fn value(file: &[u8], index: &ShardIndex, row: u64, name: &str) -> Result<Vec<u8>, Lost> {
    let number = index.fields().iter().position(|field| field == name).unwrap() as u16;
    let (_, part) = index.find(row, &[number]).unwrap();
    if let Some(lost) = part.lost {
        return Err(lost);
    }
    let (mut bytes, mut position) = (Vec::new(), part.range.start);
    while position < part.range.end && part.range.start >= file.len() as u64 {
        let pages = index.pages().unwrap();
        let page = pages.page_of(position);
        let content = unpack(file, pages, page).map_err(|_| Lost::Unreadable)?;
        let from = (position - pages.range(page).start) as usize;
        bytes.extend(&content[from..]);
        position = pages.range(page).end;
    }
    bytes.truncate((part.range.end - part.range.start) as usize);
    if part.range.start < file.len() as u64 {
        bytes = file[part.range.start as usize..part.range.end as usize].to_vec();
    }
    if part.is(&bytes) { Ok(bytes) } else { Err(Lost::Misplaced) }
}

fn unpack(file: &[u8], pages: &PageTable, page: usize) -> Result<Vec<u8>> {
    let dictionary = pages.dictionary(page).map(|page| unpack(file, pages, page)).transpose()?;
    let packed = pages.packed_range(page);
    pages.unpack(page, &file[packed.start as usize..packed.end as usize], dictionary.as_deref())
}

fn everything(file: &[u8], index: &ShardIndex, fields: &[RecordField]) -> Vec<Result<Vec<u8>, Lost>> {
    let row = |row| fields.iter().map(move |field| value(file, index, row, &field.name));
    (0..index.len()).flat_map(row).collect()
}

#[test]
fn rows_are_where_the_pages_say() {
    let fields = all_of(GOLDEN);
    let index = scan(GOLDEN, Arc::clone(&fields)).unwrap();
    assert_eq!((index.len(), index.notes()), (4, Vec::new()));
    let text = |row| value(GOLDEN, &index, row, "text").unwrap();
    assert_eq!(text(2), "größer 2".repeat(2).as_bytes());
    assert_eq!(text(3), b"", "the first row of the second row group");
    let labels: Vec<_> = (0..4).map(|row| value(GOLDEN, &index, row, "label").unwrap()).collect();
    assert_eq!(labels, [1i64, 2, 3, 0].map(|label| label.to_le_bytes().to_vec()));
    let ids: Vec<u8> = [0i32, 1, 2].into_iter().flat_map(i32::to_le_bytes).collect();
    assert_eq!(value(GOLDEN, &index, 3, "ids"), Ok(ids));
    // Numbers of 8 bits are stored in 32, and pictures lie in the file as they are.
    assert_eq!(value(GOLDEN, &index, 3, "bytes"), Ok(vec![0, 1, 2]));
    let (_, picture) = index.find(0, &index.fields_of(0)[..1]).unwrap();
    assert!(picture.range.end <= GOLDEN.len() as u64 && GOLDEN[picture.range.start as usize..].starts_with(b"\x89PNG"));
    assert_eq!(index.blocks(), [3, 1], "row groups");
    let mut written = Vec::new();
    index.write(&mut written);
    assert_eq!(ShardIndex::parse(&mut &*written, GOLDEN.len() as u64), Some(index));
    for end in 0..written.len() {
        assert_eq!(ShardIndex::parse(&mut &written[..end], GOLDEN.len() as u64), None, "{end}");
    }
}

#[test]
fn the_schema_says_what_columns_are() {
    let schema = schema(GOLDEN).unwrap();
    let kind = |name: &str| schema.fields.iter().find(|field| field.name == name).unwrap().kind.clone();
    assert_eq!(kind("image"), FieldKind::Picture);
    assert_eq!(kind("label"), FieldKind::Number(Element::I64));
    assert_eq!(kind("ids"), FieldKind::Numbers(Element::I32));
    assert_eq!(kind("bytes"), FieldKind::Numbers(Element::U8));
    assert_eq!(kind("box"), FieldKind::Array { element: Some(Element::F32), shape: Some(vec![2]) });
    assert_eq!(kind("meta.year"), FieldKind::Number(Element::I16));
    assert!(matches!(kind("nested"), FieldKind::Other(_)));
    let tail = &GOLDEN[GOLDEN.len() - 100..];
    let needed = parquet_schema(GOLDEN.len() as u64, tail).unwrap().unwrap_err();
    let tail = &GOLDEN[GOLDEN.len() - needed as usize..];
    assert!(parquet_schema(GOLDEN.len() as u64, tail).unwrap().is_ok());
}

#[test]
fn only_the_columns_that_are_asked_for_are_read() {
    let label: Arc<[_]> = all_of(GOLDEN).iter().filter(|field| field.name == "label").cloned().collect();
    let mut scanner = ParquetScanner::new(GOLDEN.len() as u64, Arc::clone(&label));
    let other = Arc::new([RecordField { name: "label".to_owned(), kind: FieldKind::Text, size_bytes: None }]);
    while let Some(range) = scanner.next_range() {
        scanner.feed(&GOLDEN[range.start as usize..range.end as usize]).unwrap();
    }
    let index = scanner.finish().unwrap();
    assert_eq!(value(GOLDEN, &index, 1, "label"), Ok(2i64.to_le_bytes().to_vec()));
    assert_eq!((index.fields_of(0).len(), ParquetScanner::has_kind(&index, &label[0])), (1, Some(true)));
    assert_eq!(ParquetScanner::has_kind(&index, &other[0]), Some(false));
    assert_eq!(scan(GOLDEN, other).unwrap_err().kind(), Kind::Undecodable);
}

#[test]
fn damage_costs_the_rows_that_it_is_in() {
    let fields = all_of(GOLDEN);
    let good = everything(GOLDEN, &scan(GOLDEN, Arc::clone(&fields)).unwrap(), &fields);
    let (mut wrong, mut whole) = (0, 0);
    for at in 0..GOLDEN.len() {
        for change in [0x01, 0x80, 0xFF] {
            let mut damaged = GOLDEN.to_vec();
            damaged[at] ^= change;
            let Ok(index) = scan(&damaged, Arc::clone(&fields)) else { continue };
            let mut written = Vec::new();
            index.write(&mut written);
            assert!(ShardIndex::parse(&mut &*written, GOLDEN.len() as u64).is_some(), "{at} ^ {change}");
            let found = everything(&damaged, &index, &fields);
            // Pages have no checksums: what is damaged before the index is made may be another value.
            wrong += usize::from(found.len() == good.len() && found != good);
            whole += usize::from(found == good);
        }
    }
    assert!(wrong > 1000 && whole > 100, "{wrong} with damage, {whole} without");
}

#[test]
fn damage_after_the_index_was_made_is_one_failed_value() {
    let fields = all_of(GOLDEN);
    let index = scan(GOLDEN, Arc::clone(&fields)).unwrap();
    let good = everything(GOLDEN, &index, &fields);
    let mut failed = 0;
    for at in 0..GOLDEN.len() {
        let mut damaged = GOLDEN.to_vec();
        damaged[at] ^= 0x11;
        for (own, good) in everything(&damaged, &index, &fields).into_iter().zip(&good) {
            failed += usize::from(own.is_err() && good.is_ok());
            assert!(own.is_err() || own == *good, "a value that was changed at byte {at}");
        }
    }
    assert!(failed > 1000, "{failed}");
}

#[test]
fn a_file_that_was_cut_is_left_out() {
    let fields = all_of(GOLDEN);
    for end in 0..GOLDEN.len() {
        let Ok(index) = scan(&GOLDEN[..end], Arc::clone(&fields)) else { continue };
        assert!(index.is_empty() && ParquetScanner::is_left_out(&index), "{end}");
        assert!(index.notes()[0].contains("its samples are left out"), "{end}: {:?}", index.notes());
        assert_eq!(schema(&GOLDEN[..end]).unwrap_err().kind(), Kind::Corrupt);
    }
}

/// A file of one column of 64-bit numbers.
struct File {
    rows: i64,
    pages: Vec<u8>,
    codec: i32,
    groups: usize,
    start: i64,
    size: Option<i64>,
}

impl File {
    fn of(rows: i64, pages: Vec<u8>) -> Self {
        Self { rows, pages, codec: 0, groups: 1, start: 4, size: None }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut file = [b"PAR1", &self.pages[..]].concat();
        let metadata = Writer::default()
            .i32(1, 2)
            .i32(4, self.codec)
            .i64(5, self.rows)
            .i64(7, self.size.unwrap_or(self.pages.len() as i64))
            .i64(9, self.start);
        let chunk = Writer::default().i64(2, 0).structure(3, metadata).ended();
        let group = || {
            let mut list = Writer::default();
            list.field(1, 9);
            list.0.push(0x1C);
            list.0.extend(&chunk);
            list.i64(2, 0).i64(3, self.rows)
        };
        let root = Writer::default().text(4, "schema").i32(5, 1);
        let leaf = Writer::default().i32(1, 2).i32(3, 0).text(4, "x");
        let footer = Writer::default()
            .i32(1, 1)
            .list(2, vec![root, leaf])
            .i64(3, self.rows)
            .list(4, (0..self.groups).map(|_| group()).collect())
            .ended();
        file.extend(&footer);
        file.extend((footer.len() as u32).to_le_bytes());
        file.extend(b"PAR1");
        file
    }
}

/// Kind 0 is data, 2 a dictionary.
fn page(kind: i32, values: i32, encoding: i32, uncompressed: i32, body: &[u8]) -> Vec<u8> {
    let inner = Writer::default().i32(1, values).i32(2, encoding);
    let (id, inner) = if kind == 2 { (7, inner) } else { (5, inner.i32(3, 3).i32(4, 3)) };
    let header = Writer::default().i32(1, kind).i32(2, uncompressed).i32(3, body.len() as i32).structure(id, inner);
    [&header.ended()[..], body].concat()
}

fn numbers(count: i64) -> Vec<u8> {
    (0..count).flat_map(i64::to_le_bytes).collect()
}

fn scanned(file: &File) -> ShardIndex {
    let bytes = file.bytes();
    let field = RecordField { name: "x".to_owned(), kind: FieldKind::Number(Element::I64), size_bytes: None };
    scan(&bytes, Arc::new([field])).unwrap()
}

#[test]
fn claims_that_the_bytes_do_not_hold_cost_no_memory() {
    let good = File::of(3, page(0, 3, 0, 24, &numbers(3)));
    let index = scanned(&good);
    assert_eq!((index.len(), index.notes()), (3, Vec::new()));
    assert_eq!(value(&good.bytes(), &index, 2, "x"), Ok(2i64.to_le_bytes().to_vec()));
    let left_out = |file: File, why: &str| {
        let index = scanned(&file);
        assert!(index.is_empty() && index.notes()[0].contains(why), "{why}: {:?}", index.notes());
    };
    let pages = || page(0, 3, 0, 24, &numbers(3));
    left_out(File { rows: 1 << 31, ..File::of(0, pages()) }, "rows in");
    left_out(File { rows: i64::MAX, groups: 3, ..File::of(0, pages()) }, "rows in");
    left_out(File { rows: -3, ..File::of(0, pages()) }, "negative");
    left_out(File { groups: 50, ..File::of(3, pages()) }, "overlap");
    let lost = |file: File, why: &str| {
        let index = scanned(&file);
        assert_eq!(index.len(), file.rows as u64);
        assert!(index.notes().iter().any(|note| note.contains(why)), "{why}: {:?}", index.notes());
        let last = index.find(index.len() - 1, &[1]).or_else(|| index.find(index.len() - 1, &[0])).unwrap().1;
        assert_eq!(last.lost, Some(Lost::Unreadable), "{why}");
    };
    lost(File { start: -4, ..File::of(3, pages()) }, "outside of the file");
    lost(File { size: Some(-1), ..File::of(3, pages()) }, "outside of the file");
    lost(File { size: Some(1 << 40), ..File::of(3, pages()) }, "outside of the file");
    lost(File::of(4, pages()), "fewer values than rows");
    lost(File::of(2, pages()), "more values than rows");
    lost(File::of(3, page(0, 3, 0, 16, &numbers(2))), "fewer values than it says");
    lost(File::of(3, page(0, 3, 0, 1 << 30, &numbers(3))), "two sizes");
    lost(File::of(3, page(0, 3, 0, -1, &numbers(3))), "header");
    lost(File::of(3, page(0, 3, 77, 24, &numbers(3))), "header");
    lost(File::of(3, [page(2, i32::MAX, 0, 8, &numbers(1)), page(0, 3, 8, 3, &[1, 6, 0])].concat()), "dictionary");
    // A dictionary entry that is not there, and numbers of 33 bits.
    lost(File::of(3, [page(2, 1, 0, 8, &numbers(1)), page(0, 3, 8, 3, &[1, 6, 1])].concat()), "does not have");
    lost(File::of(3, [page(2, 1, 0, 8, &numbers(1)), page(0, 3, 8, 3, &[33, 6, 0])].concat()), "32 bits");
}

#[test]
fn pages_that_become_too_large_are_not_unpacked() {
    let packed = snap::raw::Encoder::new().compress_vec(&numbers(3)).unwrap();
    let file = |claimed, body: &[u8]| File { codec: 1, ..File::of(3, page(0, 3, 0, claimed, body)) };
    let good = scanned(&file(24, &packed));
    assert_eq!(value(&file(24, &packed).bytes(), &good, 1, "x"), Ok(1i64.to_le_bytes().to_vec()));
    // As the page says, and as its own first bytes say.
    let claims = [0xFF, 0xFF, 0xFF, 0xFF, 0x07, 0];
    for (claimed, body) in [(i32::MAX, &packed[..]), (24, &claims), (i32::MAX, &claims), (25, &packed)] {
        let index = scanned(&file(claimed, body));
        assert_eq!(index.find(0, &[1]).or(index.find(0, &[0])).unwrap().1.lost, Some(Lost::Unreadable));
    }
    // Sixty-four kilobytes of zeros in a few bytes, again and again.
    let zeros = snap::raw::Encoder::new().compress_vec(&[0; 1 << 16]).unwrap();
    let one = page(0, 1 << 13, 0, 1 << 16, &zeros);
    let many = File { codec: 1, ..File::of(20 << 13, one.repeat(20)) };
    assert_eq!(scanned(&many).len(), 20 << 13);
}

#[test]
fn values_of_every_encoding_are_read() {
    use parquet::basic::Encoding;
    let layout = schema::Layout {
        physical: schema::Physical::Fixed { bytes: 8 },
        width: 8,
        is_integer: true,
        max_def: 0,
        list_def: 0,
    };
    // Parquet's own example: 7, 5, 3, 1, 2, 3, 4, 5 as differences of at least -2, in two bits each.
    let mut deltas = vec![128, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0b1100_0000, 0b0011_1111];
    deltas.extend([0; 6]);
    let read = values::read(&layout, Encoding::DELTA_BINARY_PACKED, &deltas, 8, None).unwrap();
    assert_eq!(read.bytes, [7i64, 5, 3, 1, 2, 3, 4, 5].map(i64::to_le_bytes).concat());
    assert!(values::read(&layout, Encoding::DELTA_BINARY_PACKED, &deltas, 9, None).is_err());
    let split: Vec<u8> = (0..16).collect();
    let read = values::read(&layout, Encoding::BYTE_STREAM_SPLIT, &split, 2, None).unwrap();
    assert_eq!(read.bytes, [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]].concat());
    for length in 0..deltas.len() {
        for encoding in [Encoding::DELTA_BINARY_PACKED, Encoding::DELTA_BYTE_ARRAY, Encoding::PLAIN] {
            let _refused = values::read(&layout, encoding, &deltas[..length], 8, None);
        }
    }
}
