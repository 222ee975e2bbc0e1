//! Shards that claim what cannot be: names that lead out, sizes that overflow, counts that no memory holds. Each is refused
//! or noted, with a message, in a process whose memory is limited.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_core::Kind;

use super::{ArrowScanner, arrow_schema};
use super::{Directory, Listed, ShardIndex, TableScanner, TarScanner, read_saved_dataset};
use crate::file_scan::{FileIndex, FileScanner, RangeScanner};

/// For each input; all together take less.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn hostile_shards_are_refused_in_little_memory_and_time() {
    // An abort, a stack that overflows and memory beyond this end the child, and not the tests.
    let limited = "ulimit -v 1500000; exec \"$0\" \"$@\"";
    let child = Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "shards::hostile::refuse_all", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(child.status.success() && said.contains("1 passed"), "{}: {said}", child.status);
}

#[test]
#[ignore = "run by hostile_shards_are_refused_in_little_memory_and_time, with a limit of memory"]
fn refuse_all() {
    for check in [
        names_that_lead_out,
        sizes_of_members,
        links_and_names_in_archives,
        counts_of_tables,
        lengths_of_arrow,
        as_many_shards_as_anyone_likes,
        as_many_columns_as_anyone_likes,
    ] {
        let started = Instant::now();
        check();
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    }
}

fn mds(name: &str) -> String {
    let raw = format!(r#"{{"basename": {name:?}, "bytes": 9, "hashes": {{}}}}"#);
    format!(
        r#"{{"version": 2, "shards": [{{"format": "mds", "version": 2, "raw_data": {raw}, "zip_data": null,
            "samples": 1000000000, "column_names": ["a"], "column_encodings": ["bytes"], "column_sizes": [null]}}]}}"#
    )
}

fn names_that_lead_out() {
    for name in ["../x", "/etc/passwd", "a/../../x", "..", "./../x", "", "/"] {
        let state = format!(r#"{{"_data_files": [{{"filename": {name:?}}}]}}"#);
        for refused in [Directory::read(mds(name).as_bytes()).err(), read_saved_dataset(state.as_bytes()).err()] {
            let error = refused.unwrap_or_else(|| panic!("{name:?} is taken"));
            let message = format!("names a file that is not below its directory ({name:?})");
            assert_eq!((error.kind(), error.message()), (Kind::Corrupt, &*message));
        }
    }
    // A billion samples are a claim, which takes no memory before the shard has them.
    assert_eq!(Directory::read(mds("a.mds").as_bytes()).unwrap().files[0].1.samples, 1_000_000_000);
}

/// A header of ustar with this name, this field of a size, and of this kind.
fn header(name: &str, size: [u8; 12], kind: u8) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(&size);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn octal(size: u64) -> [u8; 12] {
    format!("{size:011o}\0").as_bytes().try_into().unwrap()
}

fn scanned(bytes: &[u8]) -> ShardIndex {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    while let Some(position) = scanner.position() {
        scanner.feed(&bytes[position as usize..]).unwrap();
    }
    scanner.finish().unwrap()
}

/// The parts that can be read.
fn readable(index: &ShardIndex) -> usize {
    let parts = |sample| index.fields_of(sample).iter().filter_map(move |field| index.find(sample, &[*field]));
    (0..index.len()).flat_map(parts).filter(|(_, part)| part.lost.is_none()).count()
}

fn sizes_of_members() {
    let base256 = |first: u8, rest: u8| {
        let mut size = [rest; 12];
        size[0] = first;
        size
    };
    for size in [
        *b"77777777777\0",
        *b"777777777777",
        base256(0x80, 0xFF),
        base256(0xFF, 0xFF),
        base256(0x80, 0x7F),
        *b"99999999999\0",
        *b"-0000000001\0",
        [0xFF; 12],
    ] {
        for kind in [b'0', b'x', b'L', b'g'] {
            let good = [header("1.txt", octal(3), b'0'), b"one".to_vec(), vec![0; 509]].concat();
            let bytes = [&*good, &header("2.txt", size, kind), &[1; 512], &[0; 1024]].concat();
            let index = scanned(&bytes);
            assert_eq!(readable(&index), 1, "{size:?} of kind {kind}");
            assert!(!index.notes().is_empty(), "{size:?} of kind {kind}");
        }
    }
    // A name that claims a gigabyte, and one that has half of the file.
    let long = [header("././@LongLink", octal(1 << 30), b'L'), vec![b'a'; 4 << 20], vec![0; 1024]].concat();
    assert!(!scanned(&long).notes().is_empty());
}

fn links_and_names_in_archives() {
    let content = [b"one".to_vec(), vec![0; 509]].concat();
    let mut bytes = Vec::new();
    for name in ["../../../etc/x.txt", "/etc/y.txt"] {
        bytes.extend([header(name, octal(3), b'0'), content.clone()].concat());
    }
    for kind in [b'1', b'2', b'3', b'6'] {
        let mut link = header("z.txt", octal(0), kind);
        link[157..168].copy_from_slice(b"/etc/passwd");
        link[148..156].fill(b' ');
        let sum: u32 = link.iter().map(|byte| u32::from(*byte)).sum();
        link[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(link);
    }
    bytes.extend([0; 1024]);
    let index = scanned(&bytes);
    let keys: Vec<_> = (0..index.len())
        .map(|sample| {
            let mut key = String::new();
            index.write_key(sample, &mut key);
            key
        })
        .collect();
    // Names are names: nothing is ever opened by them.
    assert_eq!(keys, ["../../../etc/x", "/etc/y"]);
    // Links, devices, and names that lead out.
    assert_eq!((readable(&index), index.notes().len()), (2, 3), "{:?}", index.notes());
    for (sample, place) in [(0, 512..515), (1, 1536..1539)] {
        let (_, part) = index.find(sample, &[0]).unwrap();
        assert_eq!(part.range, place, "a part lies in its archive");
    }
}

fn ranged<S: RangeScanner<Index = ShardIndex>>(mut scanner: S, bytes: &[u8]) -> forebay_core::Result<ShardIndex> {
    while let Some(range) = scanner.next_range() {
        assert!(!range.is_empty() && range.end <= bytes.len() as u64, "{range:?} of {}", bytes.len());
        scanner.feed(&bytes[range.start as usize..range.end as usize])?;
    }
    scanner.finish()
}

fn counts_of_tables() {
    for count in [1_000_000_000u32, u32::MAX, u32::MAX - 1, 0x4000_0000, 300] {
        let bytes = [&count.to_le_bytes()[..], &[0xFF; 1000]].concat();
        let listed = Listed { samples: 1_000_000_000, size_bytes: Some(u64::MAX) };
        let index = ranged(TableScanner::new(bytes.len() as u64, listed), &bytes).unwrap();
        let said = index.notes().join("; ");
        assert!(said.contains(&format!("{count} records need a table of")), "{said}");
        assert_eq!(readable(&index), 0);
    }
}

fn lengths_of_arrow() {
    let golden = include_bytes!("../../../../python/tests/golden/shards/arrow/data-00000-of-00002.arrow").to_vec();
    let whole = ranged(ArrowScanner::new(golden.len() as u64), &golden).unwrap();
    assert!(readable(&whole) > 0);
    // Every word of the file, one after the other, is a length, a count or an offset that nothing can hold.
    for at in (0..golden.len() - 8).step_by(4) {
        for claim in [1_000_000_000u64, u64::MAX, 1 << 63, i64::MAX as u64, i32::MAX as u64] {
            for width in [4, 8] {
                let mut bytes = golden.clone();
                bytes[at..at + width].copy_from_slice(&claim.to_le_bytes()[..width]);
                let schema = arrow_schema(&bytes);
                assert!(!matches!(schema, Ok(Err(needed)) if needed > 65 << 20), "{at}: {schema:?}");
                match ranged(ArrowScanner::new(bytes.len() as u64), &bytes) {
                    // What it says of its samples may be another truth, and no more than the bytes can be.
                    Ok(index) => assert!(index.len() <= 8 * bytes.len() as u64, "{at}: {} samples", index.len()),
                    Err(error) => assert_ne!(error.kind(), Kind::Internal, "{at}: {error}"),
                }
            }
        }
    }
}

fn as_many_shards_as_anyone_likes() {
    const SHARDS: usize = 1_000_000;
    let config = r#""config": {"compression": null, "data_format": ["bytes"],
        "data_spec": "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]"}"#;
    let mut text = format!("{{{config}, \"chunks\": [");
    for number in 0..SHARDS {
        let comma = if number == 0 { "" } else { "," };
        write!(text, r#"{comma}{{"filename": "{number}.bin", "chunk_size": 1000000000, "chunk_bytes": 9}}"#).unwrap();
    }
    text.push_str("]}");
    assert_eq!(Directory::read(text.as_bytes()).unwrap().files.len(), SHARDS);
}

fn as_many_columns_as_anyone_likes() {
    const COLUMNS: usize = 300_000;
    let list = |each: &dyn Fn(usize) -> String| (0..COLUMNS).map(each).collect::<Vec<_>>().join(",");
    let index = |last: &str| {
        let names = list(&|number| match number {
            _ if number + 1 == COLUMNS => format!("{last:?}"),
            _ => format!("\"{number:09}\""),
        });
        let (encodings, sizes) = (list(&|_| "\"int\"".to_owned()), list(&|_| "8".to_owned()));
        format!(
            r#"{{"version": 2, "shards": [{{"format": "mds", "version": 2, "samples": 1, "zip_data": null,
                "raw_data": {{"basename": "a.mds", "bytes": 9, "hashes": {{}}}},
                "column_names": [{names}], "column_encodings": [{encodings}], "column_sizes": [{sizes}]}}]}}"#
        )
    };
    assert_eq!(Directory::read(index("another").as_bytes()).unwrap().fields.len(), COLUMNS);
    let error = Directory::read(index("000000007").as_bytes()).unwrap_err();
    assert_eq!(error.message(), "names a column twice (\"000000007\")");
}
