use super::*;
use crate::file_scan::{FileIndex, FileScanner};
use forebay_core::{Kind, Result, hash_words};

const CSV: LineRule = LineRule::Csv { delimiter: b',', has_header: false };
const WITH_HEADER: LineRule = LineRule::Csv { delimiter: b',', has_header: true };

/// Scans bytes in pieces whose sizes are drawn from a seed; 0 for all at once.
fn scanned(rule: LineRule, bytes: &[u8], seed: u64) -> Result<LineIndex> {
    let mut scanner = LineScanner::new(rule, bytes.len() as u64);
    let mut piece = 0;
    while let Some(position) = scanner.position() {
        let rest = &bytes[position as usize..];
        piece += 1;
        let most = if seed == 0 { rest.len() } else { 1 + (hash_words(&[seed, piece]) % 7) as usize };
        scanner.feed(&rest[..rest.len().min(most)])?;
    }
    scanner.finish()
}

fn index(rule: LineRule, bytes: &[u8]) -> LineIndex {
    let whole = scanned(rule, bytes, 0).unwrap();
    for seed in 1..6 {
        assert_eq!(scanned(rule, bytes, seed).unwrap(), whole, "{rule:?} of {:?}", bytes.escape_ascii().to_string());
    }
    whole
}

/// Each record's line and bytes.
fn records(rule: LineRule, bytes: &[u8]) -> Vec<(u64, &str)> {
    let index = index(rule, bytes);
    let record = |record| {
        let range = index.range(record);
        (index.line(record), std::str::from_utf8(&bytes[range.start as usize..range.end as usize]).unwrap())
    };
    (0..index.len()).map(record).collect()
}

#[test]
fn every_line_of_text_is_a_record() {
    assert_eq!(records(LineRule::Text, b""), []);
    assert_eq!(records(LineRule::Text, b"\n"), [(1, "\n")]);
    assert_eq!(records(LineRule::Text, b"a"), [(1, "a")]);
    assert_eq!(
        records(LineRule::Text, b"a\n\r\n\nb c\r\nd"),
        [(1, "a\n"), (2, "\r\n"), (3, "\n"), (4, "b c\r\n"), (5, "d")]
    );
    assert_eq!(records(LineRule::Text, b"a\rb\n"), [(1, "a\rb\n")]);
}

#[test]
fn a_mark_at_the_beginning_is_no_part_of_a_record() {
    for rule in [LineRule::Text, LineRule::Json, CSV] {
        assert_eq!(records(rule, b"\xEF\xBB\xBFa\nb\n"), [(1, "a\n"), (2, "b\n")]);
        assert_eq!(index(rule, b"\xEF\xBB\xBF").len(), 0);
        for not_one in [&b"\xEF\xBB"[..], b"\xEF", b"\xEF\xBBx\n"] {
            let index = index(rule, not_one);
            assert_eq!((index.len(), index.range(0)), (1, 0..not_one.len() as u64), "{rule:?} {not_one:?}");
        }
    }
}

#[test]
fn blank_lines_are_no_json() {
    let text = b"\n \n{}\n\n\t\r\n[1]\n 2 \n\n";
    assert_eq!(records(LineRule::Json, text), [(3, "{}\n\n\t\r\n"), (6, "[1]\n"), (7, " 2 \n\n")]);
    assert_eq!(records(LineRule::Json, b" \n\n "), []);
    assert_eq!(records(LineRule::Json, b"{}"), [(1, "{}")]);
}

#[test]
fn line_breaks_in_quotes_are_csv() {
    let text = b"a,\"x\ny\"\r\n\n\"\"\"q\"\"\n\",2\nb\"c,5\"\nlast";
    assert_eq!(
        records(CSV, text),
        [(1, "a,\"x\ny\"\r\n\n"), (4, "\"\"\"q\"\"\n\",2\n"), (6, "b\"c,5\"\n"), (7, "last")]
    );
}

#[test]
fn the_header_of_csv_is_no_record() {
    let text = b"\n\"a\nb\",c\n1,2\n";
    assert_eq!(records(WITH_HEADER, text), [(4, "1,2\n")]);
    assert_eq!(index(WITH_HEADER, text).header(), b"\"a\nb\",c\n");
    assert_eq!(index(WITH_HEADER, b"a,b\n").len(), 0);
    assert_eq!(index(WITH_HEADER, b"a,\"b\n1,2\n").header(), b"a,\"b\n");
    let long = [&b"a"[..], &vec![b'x'; 2 << 20]].concat();
    assert_eq!(scanned(WITH_HEADER, &long, 0).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn quotes_that_are_not_closed_cost_the_record_they_are_in() {
    let text = b"a,b\n1,\"2\n3,4\n5,6\n";
    assert_eq!(records(CSV, text), [(1, "a,b\n"), (2, "1,\"2\n"), (3, "3,4\n"), (4, "5,6\n")]);
    assert!(index(CSV, text).notes()[0].starts_with("has 1 quotes that are not closed"));
    assert_eq!(records(CSV, b"1,\"2"), [(1, "1,\"2")]);
    // The quote of a later field does not close them.
    assert_eq!(records(CSV, b"\"1,2\n3,4\n\"D\nE\",5\n"), [(1, "\"1,2\n"), (2, "3,4\n"), (3, "\"D\nE\",5\n")]);
    assert_eq!(records(CSV, b"\"a\"b,\"c\nd\"\n1\n"), [(1, "\"a\"b,\"c\nd\"\n"), (3, "1\n")]);
    // A closed field with a line break is before them.
    assert_eq!(records(CSV, b"\"x\ny\",\"z\n1\n"), [(1, "\"x\ny\",\"z\n"), (3, "1\n")]);
    // Every line ends in quotes, whether it begins in quotes or not: each costs one line.
    let hostile = b"a\"b,\"c\n".repeat(3_000_000);
    assert_eq!(scanned(CSV, &hostile, 0).unwrap().len(), 3_000_000);
}

#[test]
fn what_is_odd_is_counted_once() {
    let text = b"\xEF\xBB\xBFa\0\r\n\"b\0\nc\r\nd";
    for rule in [LineRule::Text, CSV] {
        let notes = index(rule, text).notes().join("; ");
        assert!(notes.contains("byte order mark") && notes.contains("has 2 lines that end with CR LF"), "{notes}");
        assert!(notes.contains("has 2 NUL bytes") && notes.contains("no line end after its last line"), "{notes}");
    }
    assert_eq!(index(LineRule::Text, b"a\n").notes(), Vec::<String>::new());
    assert_eq!(index(LineRule::Json, b"\n").notes(), ["has no records"]);
}

#[test]
fn random_files_are_what_a_plain_reader_makes_of_them() {
    for seed in 0..2_000u64 {
        let byte = |at| b"\n\n\r\",, ab1{}\0\xEF"[(hash_words(&[seed, at]) % 14) as usize];
        let bytes: Vec<_> = (0..hash_words(&[seed]) % 60).map(byte).collect();
        let expected: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let lines = index(LineRule::Text, &bytes);
        assert_eq!(lines.len(), expected.len() as u64);
        let mut at = 0;
        for (number, line) in (0..).zip(&expected) {
            assert_eq!(lines.range(number), at..at + line.len() as u64);
            at += line.len() as u64;
        }
        let is_json = |line: &&&[u8]| !line.iter().all(u8::is_ascii_whitespace);
        let numbered: Vec<_> = (1..).zip(&expected).filter(|(_, line)| is_json(line)).map(|(line, _)| line).collect();
        let json = index(LineRule::Json, &bytes);
        assert_eq!((0..json.len()).map(|record| json.line(record)).collect::<Vec<_>>(), numbered);
        // Records of CSV lie one behind the other, up to the end.
        let csv = index(CSV, &bytes);
        let mut before = None;
        for record in 0..csv.len() {
            let range = csv.range(record);
            let breaks = bytes[..range.start as usize].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(csv.line(record), 1 + breaks as u64, "seed {seed}");
            assert!(before.is_none_or(|end| end == range.start) && !range.is_empty(), "seed {seed}");
            before = Some(range.end);
        }
        assert!(before.is_none_or(|end| end == bytes.len() as u64), "seed {seed}");
    }
}

#[test]
fn an_index_is_written_and_read() {
    let text = b"\xEF\xBB\xBFa,b\n1,\"x\ny\"\n\n2,3\r\n";
    for rule in [LineRule::Text, LineRule::Json, CSV, WITH_HEADER] {
        let (index, mut bytes) = (index(rule, text), Vec::new());
        index.write(&mut bytes);
        let size_bytes = text.len() as u64;
        let mut rest = &*bytes;
        assert_eq!(LineIndex::parse(&mut rest, size_bytes), Some(index));
        assert!(rest.is_empty());
        assert_eq!(LineIndex::parse(&mut &*bytes, size_bytes - 1), None, "a shorter file");
        for end in 0..bytes.len() {
            assert_eq!(LineIndex::parse(&mut &bytes[..end], size_bytes), None, "{end}");
        }
    }
}
