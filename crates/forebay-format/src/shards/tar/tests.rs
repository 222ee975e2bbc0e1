use super::*;
use crate::file_scan::{FileIndex, FileScanner};
use crate::shards::ShardIndex;
use forebay_core::{Kind, Result, hash_words};

/// A header: ustar's, with the fields in octal digits.
fn header(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sealed(block)
}

/// The same with the right checksum.
fn sealed(mut block: [u8; 512]) -> [u8; 512] {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn padded(content: &[u8]) -> Vec<u8> {
    let mut bytes = content.to_vec();
    bytes.resize(content.len().next_multiple_of(512), 0);
    bytes
}

fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    [&header(name, content.len() as u64, kind)[..], &padded(content)].concat()
}

fn file(name: &str, content: &[u8]) -> Vec<u8> {
    member(name, b'0', content)
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

/// Scans bytes in pieces whose sizes are drawn from a seed; 0 for all at once.
fn scanned(bytes: &[u8], seed: u64) -> Result<ShardIndex> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut piece = 0;
    while let Some(position) = scanner.position() {
        let rest = &bytes[position as usize..];
        piece += 1;
        let most = if seed == 0 { rest.len() } else { 1 + (hash_words(&[seed, piece]) % 700) as usize };
        scanner.feed(&rest[..rest.len().min(most)])?;
    }
    scanner.finish()
}

fn index(bytes: &[u8]) -> ShardIndex {
    let whole = scanned(bytes, 0).unwrap();
    for seed in 1..3 {
        assert_eq!(scanned(bytes, seed).unwrap(), whole, "in pieces");
    }
    let mut written = Vec::new();
    whole.write(&mut written);
    let mut rest = &written[..];
    assert_eq!(ShardIndex::parse(&mut rest, bytes.len() as u64).as_ref(), Some(&whole));
    assert!(rest.is_empty());
    whole
}

/// The name of a field and its bytes; none of one that is lost.
type FieldBytes<'a> = (String, Option<&'a [u8]>);

/// Each sample's key and fields.
fn samples<'a>(index: &ShardIndex, bytes: &'a [u8]) -> Vec<(String, Vec<FieldBytes<'a>>)> {
    let sample = |sample| {
        let mut key = String::new();
        index.write_key(sample, &mut key);
        let field = |number: &u16| {
            let (_, part) = index.find(sample, &[*number]).unwrap();
            let own = &bytes[part.range.start as usize..part.range.end as usize];
            assert!(part.lost.is_some() || (part.hash.is_some() && part.is(own)), "{key}");
            (index.fields()[usize::from(*number)].clone(), part.lost.is_none().then_some(own))
        };
        let fields = index.fields_of(sample).iter().map(field).collect();
        (key, fields)
    };
    (0..index.len()).map(sample).collect()
}

/// The same as text: `key: field=bytes …`.
fn shown(bytes: &[u8]) -> Vec<String> {
    let field = |(name, bytes): &FieldBytes<'_>| match bytes {
        Some(bytes) => format!(" {name}={}", bytes.escape_ascii()),
        None => format!(" {name} lost"),
    };
    let sample = |(key, fields): &(String, Vec<_>)| format!("{key}:{}", fields.iter().map(field).collect::<String>());
    samples(&index(bytes), bytes).iter().map(sample).collect()
}

#[test]
fn consecutive_members_with_one_key_are_a_sample() {
    let members = ["a/b.c/1.jpg", "a/b.c/1.seg.png", "2.jpg", "1.jpg", "1.JPG", "1.jpg", "2.cls"];
    let bytes = archive(&members.map(|name| file(name, name.as_bytes())));
    let expected = [
        "a/b.c/1: jpg=a/b.c/1.jpg seg.png=a/b.c/1.seg.png",
        "2: jpg=2.jpg",
        "1: jpg=1.jpg JPG=1.JPG",
        "1@5120: jpg=1.jpg",
        "2@6144: cls=2.cls",
    ];
    assert_eq!(shown(&bytes), expected);
    assert!(index(&bytes).notes().iter().any(|note| note.starts_with("has 2 samples with the key of another one")));
}

#[test]
fn names_are_split_as_webdataset_does() {
    for (name, expected) in [
        ("a.b", Some(("a", "b"))),
        ("x.y/a.b.c", Some(("x.y/a", "b.c"))),
        ("./a.b", Some(("./a", "b"))),
        ("__a__.json", Some(("__a__", "json"))),
        ("__key__", None),
        ("__meta__/a.json", None),
        ("a/.hidden", None),
        ("a", None),
        ("a/b", None),
        ("a.", None),
        ("", None),
    ] {
        let split = split_name(name.as_bytes()).map(|(key, field)| (text_of(key), text_of(field)));
        assert_eq!(split, expected.map(|(key, field)| (key.to_owned(), field.to_owned())), "{name}");
    }
}

#[test]
fn names_and_sizes_are_those_of_every_format() {
    let long = format!("{}/00001.txt", "directory".repeat(30));
    let pax = |records: &str, kind| member("PaxHeaders/x", kind, records.as_bytes());
    let mut prefixed = header("00002.txt", 2, b'0');
    prefixed[345..350].copy_from_slice(b"below");
    let mut base256 = header("00004.txt", 0, b'0');
    base256[124..136].copy_from_slice(b"\x80\0\0\0\0\0\0\0\0\0\0\x04");
    let bytes = archive(&[
        member("././@LongLink", b'L', &[long.as_bytes(), b"\0"].concat()),
        file("cut/", b"1"),
        [&sealed(prefixed)[..], &padded(b"22")].concat(),
        pax("17 path=3/ö.txt\n9 size=3\n", b'x'),
        [&header("short", 0, b'0')[..], &padded(b"333")].concat(),
        [&sealed(base256)[..], &padded(b"4444")].concat(),
        file("00005.txt", b"5"),
        member("00006.txt", b'7', b""),
    ]);
    let key = long.strip_suffix(".txt").unwrap();
    let first = format!("{key}: txt=1");
    let expected = [&first, "below/00002: txt=22", "3/ö: txt=333", "00004: txt=4444", "00005: txt=5", "00006: txt="];
    assert_eq!(shown(&bytes), expected);
    assert_eq!(index(&bytes).notes(), Vec::<String>::new());
}

#[test]
fn headers_from_before_ustar_are_those_of_old_archives() {
    let old = |name: &str| {
        let mut block = header(name, 1, 0);
        block[257..265].fill(0);
        [&sealed(block)[..], &padded(b"x")].concat()
    };
    let mut bytes = archive(&[old("1.txt"), old("2.txt"), old("3.txt")]);
    assert_eq!(shown(&bytes), ["1: txt=x", "2: txt=x", "3: txt=x"]);
    bytes[1024] ^= 1;
    assert_eq!(shown(&bytes), ["1: txt=x", "3: txt=x"]);
    // A header whose first byte is missing may have the right checksum for one of those.
    assert_eq!(shown(&archive(&[file("1.txt", b"1"), old("2.txt"), file("3.txt", b"3")])), ["1: txt=1", "3: txt=3"]);
}

#[test]
fn what_is_no_field_is_left_out_and_said() {
    let link = |kind| {
        let mut block = header("1.lnk", 0, kind);
        block[157..170].copy_from_slice(b"../../passwd\0");
        sealed(block).to_vec()
    };
    let mut sparse = header("2.bin", 3, b'S');
    sparse[482] = 1;
    let bytes = archive(&[
        member("a/", b'5', b""),
        file("1.txt", b"one"),
        link(b'1'),
        link(b'2'),
        member("1.dev", b'3', b""),
        member("1.vol", b'V', b"volume"),
        file("README", b"no key"),
        file("1.cls", b"7"),
        [&sealed(sparse)[..], &[0; 512], &padded(b"map")].concat(),
        file("../../etc/3.txt", b"three"),
    ]);
    assert_eq!(shown(&bytes), ["1: txt=one cls=7", "2: bin lost", "../../etc/3: txt=three"]);
    let notes = index(&bytes).notes().join("\n");
    for expected in [
        "(a sparse file, which is not supported), among them of 2.bin",
        "has 2 links",
        "has 2 members that are no files",
        "has 1 files whose names have no key",
        "has 1 names that lead out of it",
    ] {
        assert!(notes.contains(expected), "{expected} in {notes}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_cut_members() {
    for size in [b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", b"77777777777\0"] {
        let mut block = header("2.txt", 0, b'0');
        block[124..136].copy_from_slice(size);
        let bytes = [file("1.txt", b"one"), sealed(block).to_vec(), vec![b'x'; 100]].concat();
        assert_eq!(shown(&bytes), ["1: txt=one", "2: txt lost"]);
    }
    // Beyond 64 bits, below zero, no number: no header.
    for size in [b"\x80\x01\0\0\0\0\0\0\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"999999999999"]
    {
        let mut block = header("2.txt", 0, b'0');
        block[124..136].copy_from_slice(size);
        let bytes = archive(&[file("1.txt", b"one"), sealed(block).to_vec(), file("3.txt", b"three")]);
        assert_eq!(shown(&bytes), ["1: txt=one", "3: txt=three"]);
    }
    let huge = archive(&[member("x", b'x', b"25 size=18446744073709551615\n".as_slice()), file("1.txt", b"")]);
    assert_eq!(index(&huge).notes()[0], "is damaged: bytes 0..1536 are lost (a pax header that cannot be read)");
}

#[test]
fn what_says_more_and_cannot_be_read_costs_its_member() {
    for records in
        [&b"5 a=b\n"[..], b"x path=1\n", b"-1 a=b\n", b"12345678901234567890123 a=b\n", b"9 path=1.", b" =\n"]
    {
        let bytes =
            archive(&[file("1.txt", b"1"), member("x", b'x', records), file("2.txt", b"2"), file("3.txt", b"3")]);
        assert_eq!(shown(&bytes), ["1: txt=1", "3: txt=3"], "{:?}", records.escape_ascii().to_string());
        assert!(
            index(&bytes).notes()[0].contains("bytes 1024..2561 are lost (a pax header"),
            "{:?}",
            index(&bytes).notes()
        );
    }
    let name = "n".repeat(2 << 20);
    let bytes = archive(&[member("x", b'L', name.as_bytes()), file("2.txt", b"2"), file("3.txt", b"3")]);
    assert_eq!(shown(&bytes), ["3: txt=3"]);
}

#[test]
fn many_kinds_of_fields_are_refused() {
    let members: Vec<_> = (0..65_537).map(|number| header(&format!("a.{number}"), 0, b'0').to_vec()).collect();
    let error = scanned(&archive(&members), 0).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.message().contains("kinds of fields"), "{error}");
}

#[test]
fn the_end_is_looked_at() {
    let (one, two) = (file("1.txt", b"1"), file("2.txt", b"2"));
    let notes = |bytes: &[u8]| index(bytes).notes().join("; ");
    assert_eq!(notes(&[&one[..], &two].concat()), "has no end-of-archive blocks: it may have been cut off");
    assert_eq!(notes(b""), "has no samples");
    assert_eq!(notes(&[0; 10_240]), "has no samples");
    assert_eq!(notes(&[&one[..], &[0; 512]].concat()), "");
    let both = [archive(std::slice::from_ref(&one)), archive(&[two])].concat();
    assert_eq!(shown(&both), ["1: txt=1", "2: txt=2"]);
    assert!(notes(&both).contains("goes on behind what looks like its end, at byte 2048"), "{}", notes(&both));
    let behind = [&archive(&[one])[..], b"more"].concat();
    assert_eq!(notes(&behind), "is damaged: bytes 2048..2052 are lost (behind what looks like the end of the archive)");
    let text = notes(&b"no archive at all".repeat(100));
    assert!(text.starts_with("is damaged: bytes 0..1700 are lost (a header with a wrong checksum)"), "{text}");
}

/// Where the members of [`pairs`] begin, and their names and bytes.
type Members = Vec<(usize, String, Vec<u8>)>;

/// Two fields for each of some samples, of sizes and bytes drawn from a seed.
fn pairs(seed: u64) -> (Vec<u8>, Members) {
    let (mut bytes, mut members) = (Vec::new(), Vec::new());
    for number in 0..16 {
        let name = format!("{:03}.{}", number / 2, ["jpg", "cls"][number % 2]);
        let word = hash_words(&[seed, number as u64]);
        let size = [word % 2000, word % 20, 512 * (word % 3), 500 + word % 24][number % 4] as usize;
        let content: Vec<_> = (0..size as u64).map(|at| (hash_words(&[word, at]) % 255 + 1) as u8).collect();
        members.push((bytes.len(), name.clone(), content.clone()));
        bytes.extend(file(&name, &content));
    }
    bytes.resize(bytes.len() + 1024, 0);
    (bytes, members)
}

/// Whatever is not lost is what it was, and members with these numbers are not lost.
fn check(damaged: &[u8], members: &Members, is_kept: impl Fn(usize) -> bool, what: &str) {
    let index = index(damaged);
    let mut delivered = Vec::new();
    let mut planned = 0;
    for (key, fields) in samples(&index, damaged) {
        for (field, content) in fields {
            planned += 1;
            let name = format!("{key}.{field}");
            let own = members.iter().position(|(_, own, _)| *own == name).unwrap_or_else(|| panic!("{what}: {name}"));
            if let Some(content) = content {
                assert!(content == members[own].2, "{what}: {name} is not what it was");
                delivered.push(own);
            }
        }
    }
    let lost = (0..index.len()).flat_map(|sample| index.fields_of(sample)).count() - delivered.len();
    assert_eq!(delivered.len() + lost, planned, "{what}");
    for number in (0..members.len()).filter(|number| is_kept(*number)) {
        assert!(delivered.contains(&number), "{what}: {} is lost: {:?}", members[number].1, index.notes());
    }
    assert!(delivered.len() == members.len() || !index.notes().is_empty(), "{what}: a loss without a note");
}

#[test]
fn damage_costs_the_members_it_is_in() {
    for seed in 0..200u64 {
        let (bytes, members) = pairs(seed);
        let draw = |kind, most: usize| (hash_words(&[seed, 77, kind]) % most as u64) as usize;
        let at = draw(0, bytes.len() - 1024);
        let hit = members.iter().rposition(|(start, ..)| *start <= at).unwrap();
        check(&bytes, &members, |_| true, "no damage");

        // Of a header, which has a checksum: another byte costs that member.
        let mut flipped = bytes.clone();
        flipped[members[hit].0 + draw(1, 512)] ^= 1 << draw(2, 8);
        check(&flipped, &members, |number| number != hit, &format!("seed {seed}: a flip in header {hit}"));

        let cut = &bytes[..at];
        check(cut, &members, |number| number < hit, &format!("seed {seed}: cut at {at}"));

        // Bytes more or less cost the members next to them at most.
        let garbage: Vec<_> = (0..1 + draw(3, 3000) as u64).map(|at| hash_words(&[seed, at]) as u8).collect();
        let inserted = [&bytes[..at], &garbage, &bytes[at..]].concat();
        let is_far = |number: usize| number.abs_diff(hit) > 1;
        check(&inserted, &members, is_far, &format!("seed {seed}: {} bytes at {at}", garbage.len()));

        let end = (at + 1 + draw(4, 700)).min(bytes.len() - 1024);
        // Whole blocks less in the last file are zeros like those behind it.
        let end = if hit == 15 && (end - at).is_multiple_of(512) { end - 1 } else { end };
        let last = members.iter().rposition(|(start, ..)| *start <= end).unwrap();
        let removed = [&bytes[..at], &bytes[end..]].concat();
        let is_outside = |number: usize| number + 1 < hit || number > last + 1;
        check(&removed, &members, is_outside, &format!("seed {seed}: without {at}..{end}"));

        let mut zeroed = bytes.clone();
        zeroed[members[hit].0..members[hit].0 + 512].fill(0);
        check(&zeroed, &members, |number| number != hit, &format!("seed {seed}: zeros in place of header {hit}"));
    }
}

#[test]
fn damage_everywhere_is_met_in_bounded_time() {
    // Every other header is damaged, and what follows a file is never a header.
    let mut members: Vec<_> = (0..3000).map(|number| file(&format!("{number}.txt"), &[7; 512])).collect();
    members.iter_mut().for_each(|member| member.extend([9; 100]));
    let bytes = archive(&members);
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut fed = 0;
    while let Some(position) = scanner.position() {
        let piece = &bytes[position as usize..];
        let piece = &piece[..piece.len().min(4096)];
        fed += piece.len();
        scanner.feed(piece).unwrap();
    }
    assert_eq!(scanner.finish().unwrap().len(), 3000);
    assert!(fed < bytes.len() * 12, "{fed} bytes read of {}", bytes.len());
}
