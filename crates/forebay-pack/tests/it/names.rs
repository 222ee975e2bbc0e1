//! Names of files that are none in archives, and names in archives that lead elsewhere.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_pack::Pack;

use crate::{Ends, members, picture, tree};

#[test]
fn every_name_becomes_a_key_of_its_own_with_its_bytes() {
    let ends = Ends::new(&[]);
    let long = "n".repeat(200);
    let names = [
        "a.ppm",
        "a.PPM",
        "a.b.ppm",
        "a.b.c.ppm",
        "a%2Eb.ppm",
        "..a.ppm",
        "...ppm",
        ".ppm",
        "a b\n\t.ppm",
        "a\\..\\b.ppm",
        "\u{732b}\u{fc}.ppm",
        "a.pgm",
        "a%%ppm.ppm",
        "__a__.ppm",
        "CON.ppm",
        &format!("{long}.ppm"),
        "-rf.ppm",
    ];
    for (number, name) in (0..).zip(names) {
        for class in ["v1.2", "__meta__"] {
            ends.put(&format!("source/{class}/{name}"), &picture(number));
        }
    }
    let odd = ends.path("source/v1.2").join(OsStr::from_bytes(b"\xFF\xFE.ppm"));
    std::fs::write(odd, picture(99)).unwrap();
    ends.run(&ends.pack());
    let (members, source) = (ends.members(), tree(&ends.path("source")));
    assert_eq!(members.len(), 2 * source.len());
    let pictures: Vec<_> = members.iter().filter(|(_, field, _)| field != "cls").map(|(_, _, bytes)| bytes).collect();
    // Sorted by the names of files, as a folder is read.
    let mut expected: Vec<_> = source.iter().collect();
    expected.sort_by_key(|(name, _)| name.as_os_str().as_bytes().to_vec());
    let mut sorted: Vec<_> = pictures.clone();
    let mut bytes: Vec<_> = expected.iter().map(|(_, bytes)| *bytes).collect();
    sorted.sort();
    bytes.sort();
    assert_eq!(sorted, bytes);
    let mut keys = ends.keys();
    assert_eq!(keys.len(), source.len(), "{keys:?}");
    for key in &keys {
        let (class, name) = key.split_once('/').unwrap();
        assert!(class == "v1.2" || class == "%5F_meta__", "{key}");
        assert!(!name.contains(['.', '\\', '\n', '/']), "{key}");
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), source.len());
    // Bytes stay with their names.
    let found = members.iter().find(|(key, field, _)| key == "v1.2/a%2Eb%2Ec" && field == "ppm").unwrap();
    assert_eq!(found.2, picture(3));
    let found = members.iter().find(|(key, field, _)| key == "v1.2/%FF%FE" && field == "ppm").unwrap();
    assert_eq!(found.2, picture(99));
    let found = members.iter().find(|(key, field, _)| key == "v1.2/a%%pgm" && field == "pgm").unwrap();
    assert_eq!(found.2, picture(11));
}

/// An archive of one file, by a writer that takes any name.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    block[148..156].copy_from_slice(b"        ");
    block[156] = b'0';
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut made = [&block[..], content].concat();
    made.resize(made.len().next_multiple_of(512) + 1024, 0);
    made
}

#[test]
fn names_in_archives_that_lead_elsewhere_do_so_no_more() {
    let ends = Ends::new(&[]);
    let names = ["../../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "./fine.txt", "..\\evil.txt", "fine.seg.txt"];
    for (number, name) in names.iter().enumerate() {
        ends.put(&format!("source/{number}.tar"), &archive(name, name.as_bytes()));
    }
    ends.run(&ends.pack());
    let expected = [
        ("%2E%2E/%2E%2E/evil", "txt"),
        ("%/etc/evil", "txt"),
        ("a/%2E%2E/%2E%2E/evil", "txt"),
        ("%2E/fine", "txt"),
        // It begins with a dot, so that it has no key: as readers have it.
        ("fine", "seg.txt"),
    ];
    let found = ends.members();
    let keys: Vec<_> = found.iter().map(|(key, field, _)| (key.as_str(), field.as_str())).collect();
    assert_eq!(keys, expected);
}

#[test]
fn keys_of_several_archives_stay_apart() {
    let ends = Ends::new(&[]);
    for (name, content) in [("a", "one"), ("b", "two")] {
        ends.put(&format!("source/{name}.tar"), &archive("00001.txt", content.as_bytes()));
    }
    ends.put("source/c.tar", &archive("00002.txt", b"three"));
    ends.run(&ends.pack());
    assert_eq!(ends.keys(), ["00001%%a%2Etar", "00001%%b%2Etar", "00002"]);
    let again = Pack::new(ends.path("target"), ends.path("other"));
    ends.run(&again);
    let other = tree(&ends.path("other"));
    assert_eq!(members(&other[std::path::Path::new("shard-000000.tar")]), ends.members(), "and stay so");
}
