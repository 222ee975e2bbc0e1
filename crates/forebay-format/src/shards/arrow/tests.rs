//! A file that pyarrow wrote, whole and damaged. Values are compared in the tests of Python.

use super::*;
use crate::file_scan::{FileIndex, RangeScanner};
use crate::shards::{FieldKind, Lost, ShardIndex};
use forebay_core::{Element, Result};

const GOLDEN: &[u8] = include_bytes!("../../../../../python/tests/golden/shards/arrow/data-00001-of-00002.arrow");

fn scan(file: &[u8]) -> Result<ShardIndex> {
    let mut scanner = ArrowScanner::new(file.len() as u64);
    let mut reads = 0;
    while let Some(range) = scanner.next_range() {
        assert!(!range.is_empty() && range.end <= file.len() as u64, "{range:?}");
        scanner.feed(&file[range.start as usize..range.end as usize])?;
        reads += 1;
        assert!(reads <= file.len(), "without end");
    }
    scanner.finish()
}

fn text(index: &ShardIndex, row: u64, name: &str) -> Result<Vec<u8>, Lost> {
    let number = index.fields().iter().position(|field| field == name).unwrap() as u16;
    let (_, part) = index.find(row, &[number]).unwrap();
    part.lost.map_or_else(|| Ok(GOLDEN[part.range.start as usize..part.range.end as usize].to_vec()), Err)
}

#[test]
fn rows_are_where_the_record_batches_say() {
    let index = scan(GOLDEN).unwrap();
    assert_eq!((index.len(), index.notes().len()), (3, 0));
    assert_eq!(text(&index, 0, "text"), Ok("größer 4".as_bytes().to_vec()));
    assert_eq!(text(&index, 1, "label"), Ok(2i64.to_le_bytes().to_vec()));
    assert_eq!(text(&index, 2, "label"), Err(Lost::Null));
    // A bit is in the last byte, and as many bytes are before that.
    let flags: Vec<_> = (0..3).map(|row| text(&index, row, "flag").unwrap()).collect();
    let bits: Vec<_> = flags.iter().map(|bytes| bytes[bytes.len() - 1] >> (bytes.len() - 1) & 1).collect();
    assert_eq!(bits, [1, 0, 1]);
    let mut written = Vec::new();
    index.write(&mut written);
    assert_eq!(ShardIndex::parse(&mut &*written, GOLDEN.len() as u64), Some(index));
}

#[test]
fn the_schema_says_what_columns_are() {
    let schema = arrow_schema(GOLDEN).unwrap().unwrap();
    let kind = |name: &str| schema.fields.iter().find(|field| field.name == name).unwrap().kind.clone();
    assert_eq!(kind("image"), FieldKind::Picture);
    assert_eq!(kind("label"), FieldKind::Number(Element::I64));
    assert_eq!(kind("ids"), FieldKind::Numbers(Element::I32));
    assert_eq!(kind("box"), FieldKind::Array { element: Some(Element::F32), shape: Some(vec![2]) });
    assert_eq!(kind("flag"), FieldKind::Number(Element::Bool));
    assert!(matches!(kind("nested"), FieldKind::Other(_)));
    assert_eq!(arrow_schema(&GOLDEN[..100]).unwrap().unwrap_err() % 8, 0);
    assert!(arrow_schema(b"text").is_err() && arrow_schema(&[0; 100]).is_err());
}

#[test]
fn a_file_that_was_cut_keeps_what_is_whole() {
    for end in 0..GOLDEN.len() {
        let Ok(index) = scan(&GOLDEN[..end]) else { continue };
        assert!(index.len() <= 3 && !index.notes().is_empty(), "{end}: {:?}", index.notes());
    }
    let cut = scan(&GOLDEN[..GOLDEN.len() - 100]).unwrap();
    assert!(cut.notes().iter().any(|note| note.contains("ends in")), "{:?}", cut.notes());
}

#[test]
fn damage_never_leads_out_of_the_file() {
    for at in 0..GOLDEN.len() {
        for change in [0x00, 0x01, 0x7F, 0x80, 0xFF] {
            let mut damaged = GOLDEN.to_vec();
            damaged[at] ^= change;
            let Ok(index) = scan(&damaged) else { continue };
            let mut written = Vec::new();
            index.write(&mut written);
            assert!(ShardIndex::parse(&mut &*written, GOLDEN.len() as u64).is_some(), "{at} ^ {change}");
        }
    }
}
