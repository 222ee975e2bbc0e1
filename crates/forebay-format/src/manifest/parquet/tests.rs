//! Files that claim what their bytes cannot hold. Each differs by one number from a good one, and the library would
//! allocate or recurse until the process ends: so they are read in a child process without much memory.

use super::*;
use crate::manifest::Labels;
use crate::parquet_pages::Writer;
use std::path::Path;
use std::process::Command;

const PLAIN: i32 = 0;
const DELTA_LENGTHS: i32 = 6;
const DELTA_STRINGS: i32 = 7;
const DICTIONARY: i32 = 8;

/// A page as it lies in the file: kind 0 is data, 2 a dictionary.
fn page(kind: i32, values: i32, encoding: i32, uncompressed: i32, body: &[u8]) -> Vec<u8> {
    let inner = Writer::default().i32(1, values).i32(2, encoding);
    let (id, inner) = if kind == 2 { (7, inner) } else { (5, inner.i32(3, 3).i32(4, 3)) };
    let header = Writer::default().i32(1, kind).i32(2, uncompressed).i32(3, body.len() as i32).structure(id, inner);
    [&header.ended()[..], body].concat()
}

fn data(rows: i32, encoding: i32, body: &[u8]) -> Vec<u8> {
    page(0, rows, encoding, body.len() as i32, body)
}

/// Numbers packed as differences of nothing: as many as are claimed, all the same.
fn same(count: u64, number: i64) -> Vec<u8> {
    let mut writer = Writer::default();
    let block = count.div_ceil(128).max(1) * 128;
    [block, 1, count].into_iter().for_each(|number| writer.varint(number));
    writer.zigzag(number);
    if count > 1 {
        writer.zigzag(0);
        writer.0.push(0);
    }
    writer.0
}

fn column(kind: i32, name: &str) -> Writer {
    Writer::default().i32(1, kind).i32(3, 0).text(4, name)
}

/// A manifest: the pages of its paths, and of as many labels, in so many row groups that are all the same.
struct File {
    paths: Vec<u8>,
    rows: i32,
    /// 1 is Snappy.
    codec: i32,
    groups: usize,
    columns: i32,
    depth: usize,
}

impl File {
    fn of(paths: Vec<u8>, rows: i32) -> Self {
        Self { paths, rows, codec: 0, groups: 1, columns: 2, depth: 0 }
    }

    fn bytes(&self) -> Bytes {
        // One label, and an index into it that is repeated without a bit each.
        let mut runs = Writer::default();
        runs.0.push(0);
        runs.varint((self.rows as u64) << 1);
        let labels = [page(2, 1, PLAIN, 4, &[0; 4]), data(self.rows, DICTIONARY, &runs.0)].concat();
        let mut file = [b"PAR1", &self.paths[..], &labels].concat();
        let chunk = |codec: i32, start: usize, pages: &[u8]| {
            let encodings = {
                let mut list = Writer::default();
                list.field(2, 9);
                list.0.extend_from_slice(&[0x15, 0]);
                list.i32(1, 6)
            };
            let size = pages.len() as i64;
            let metadata =
                encodings.i32(4, codec).i64(5, self.rows.into()).i64(6, size).i64(7, size).i64(9, start as i64);
            Writer::default().i64(2, 0).structure(3, metadata)
        };
        let group = || {
            let chunks = vec![chunk(self.codec, 4, &self.paths), chunk(0, 4 + self.paths.len(), &labels)];
            Writer::default().list(1, chunks).i64(2, 0).i64(3, self.rows.into())
        };
        let mut schema =
            vec![Writer::default().text(4, "schema").i32(5, self.columns), column(6, "path"), column(1, "label")];
        for _ in 0..self.depth {
            schema.push(Writer::default().i32(3, 0).text(4, "a").i32(5, 1));
        }
        if self.depth > 0 {
            schema.push(column(1, "a"));
        }
        let footer = Writer::default()
            .i32(1, 1)
            .list(2, schema)
            .i64(3, i64::from(self.rows) * self.groups as i64)
            .list(4, (0..self.groups).map(|_| group()).collect())
            .ended();
        file.extend_from_slice(&footer);
        file.extend_from_slice(&(footer.len() as u32).to_le_bytes());
        file.extend_from_slice(b"PAR1");
        file.into()
    }
}

fn strings(count: usize, text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat().repeat(count)
}

fn deltas(count: u64, lengths: u64, text: &str) -> Vec<u8> {
    [same(lengths, text.len() as i64), text.as_bytes().repeat(count as usize)].concat()
}

/// Each string is the one before it, the first is `text`.
fn repeated(count: u64, text: &str) -> Vec<u8> {
    let length = text.len() as i64;
    [&then(count, 0, length)[..], &then(count, length, 0), text.as_bytes()].concat()
}

/// `first`, and then `other` as often as it takes, packed as differences in blocks of 4 times 32.
fn then(count: u64, first: i64, other: i64) -> Vec<u8> {
    let mut writer = Writer::default();
    [128, 4, count].into_iter().for_each(|number| writer.varint(number));
    writer.zigzag(first);
    let (step, left) = (other - first, count - 1);
    let least = step.min(0);
    let width = 64 - step.unsigned_abs().leading_zeros() as usize;
    writer.zigzag(least);
    writer.0.extend([width as u8; 4]);
    let mut bits = vec![0_u8; left.div_ceil(32).min(4) as usize * 32 * width / 8];
    for at in 0..bits.len() * 8 / width {
        let packed = if at == 0 { step - least } else { -least };
        for place in (0..width).filter(|bit| packed >> bit & 1 == 1).map(|bit| at * width + bit) {
            bits[place / 8] |= 1 << (place % 8);
        }
    }
    writer.0.extend(bits);
    // No differences.
    (1..left.div_ceil(128)).for_each(|_| writer.0.extend([0; 5]));
    writer.0
}

fn parsed(file: &File) -> Result<crate::manifest::Manifest> {
    crate::manifest::read_manifest(file.bytes(), Path::new("m.parquet"), None, Keeps::Facts, &Labels::Class)
}

fn dictionary(claimed: i32, rows: i32) -> File {
    let mut runs = Writer::default();
    runs.0.push(0);
    runs.varint((rows as u64) << 1);
    let entries = strings(1, "a/1.jpg");
    let page = page(2, claimed, PLAIN, entries.len() as i32, &entries);
    File::of([page, data(rows, DICTIONARY, &runs.0)].concat(), rows)
}

fn snappy(claimed: i32) -> File {
    let whole = strings(1, "a/1.jpg");
    let coded = snap::raw::Encoder::new().compress_vec(&whole).unwrap();
    File { codec: 1, ..File::of(page(0, 1, PLAIN, claimed, &coded), 1) }
}

#[test]
fn what_the_claims_are_made_of_is_read() {
    for (name, file, rows) in [
        ("plain", File::of(data(2, PLAIN, &strings(2, "a/1.jpg")), 2), 2),
        ("dictionary", dictionary(1, 3), 3),
        ("snappy", snappy(11), 1),
        ("lengths", File::of(data(3, DELTA_LENGTHS, &deltas(3, 3, "a/1.jpg")), 3), 3),
        ("prefixes", File::of(data(40, DELTA_STRINGS, &repeated(40, "a/1.jpg")), 40), 40),
        ("nested", File { columns: 3, depth: 5, ..dictionary(1, 2) }, 2),
    ] {
        // A column more than the row groups have is found after the schema was read.
        match parsed(&file) {
            Ok(manifest) => assert_eq!(manifest.index.len(), rows, "{name}"),
            Err(error) => assert!(name == "nested" && error.to_string().contains("Column count"), "{name}: {error}"),
        }
    }
}

#[test]
fn claims_that_the_bytes_cannot_hold_are_refused_before_memory_is_taken() {
    // An abort, a stack that overflows and memory beyond this end the child, and not the tests.
    let limited = "ulimit -v 1000000; exec \"$0\" \"$@\"";
    let child = Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "manifest::parquet::tests::refuse_all", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(child.status.success() && said.contains("1 passed"), "{}: {said}", child.status);
}

#[test]
#[ignore = "run by claims_that_the_bytes_cannot_hold_are_refused_before_memory_is_taken, with a limit of memory"]
fn refuse_all() {
    let most = i32::MAX;
    let long = "x".repeat(4000);
    for (name, file, said) in [
        ("dictionary", dictionary(most, 1), "a dictionary claims 2147483647 values (its 11 bytes hold at most 2)"),
        ("snappy", snappy(most), "a page claims 2147483647 bytes, which 13 bytes cannot hold"),
        ("columns", File { columns: most, ..dictionary(1, 1) }, "its schema claims more columns than the 3 it has"),
        ("depth", File { columns: 3, depth: 200_000, ..dictionary(1, 1) }, "its schema is nested more than 64 deep"),
        ("lengths", File::of(data(2, DELTA_LENGTHS, &deltas(2, 1 << 31, "a")), 2), "claims 2147483648 lengths"),
        ("suffixes", File::of(data(2, DELTA_STRINGS, &[same(2, 0), deltas(2, 1 << 31, "a")].concat()), 2), "lengths"),
        ("rows", dictionary(1, most), "repeats its rows too often"),
        ("values", File { rows: 1, ..dictionary(1, most) }, "a page claims 2147483647 values of 1 rows"),
        ("groups", File { groups: 5000, ..File::of(data(1, PLAIN, &strings(1, &long)), 1) }, "bytes of"),
        (
            "cells",
            File::of(data(8000, DELTA_STRINGS, &repeated(8000, &"x".repeat(1 << 20))), 8000),
            "got one of 1048576 bytes",
        ),
        ("names", File::of(data(60_000, DELTA_STRINGS, &repeated(60_000, &long)), 60_000), "bytes of names"),
    ] {
        let error = parsed(&file).expect_err(name);
        assert!(error.to_string().contains(said), "{name}: {error}");
    }
}
