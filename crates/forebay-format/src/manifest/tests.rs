use super::*;
use crate::folder::{ScanOptions, scan};
use forebay_core::{Listing, SampleId, Scalars, hash_words};
use std::collections::BTreeSet;
use std::ffi::OsStr;

/// The index of these files below `/r`, scanned with empty classes allowed.
fn index(files: &[&str]) -> FolderIndex {
    let files: Vec<_> = files.iter().map(|file| Path::new("/r").join(file)).collect();
    let list = |directory: &Path| {
        let below = files.iter().filter_map(|file| file.strip_prefix(directory).ok());
        let entries: BTreeSet<_> = below
            .filter_map(|rest| {
                let mut parts = rest.components();
                Some((parts.next()?.as_os_str().to_owned(), parts.next().is_some()))
            })
            .collect();
        let words: Vec<_> = directory.to_str().unwrap().bytes().map(u64::from).collect();
        let mut listing = Listing::new((0, hash_words(&words)));
        entries.iter().for_each(|(name, is_directory)| listing.push(name, *is_directory));
        Ok(listing)
    };
    let options = ScanOptions { allow_empty: true, ..ScanOptions::images() };
    scan(Path::new("/r"), &options, &list, None).unwrap()
}

const FILES: &[&str] =
    &["cat/1.jpg", "cat/b/2.jpg", "cat/b-c/3.jpg", "dog/ü \"x\",y.png", "eel/readme.txt", "fox/a/b/c/d.jpg"];

fn facts(index: &FolderIndex) -> Vec<Facts> {
    let picture = |sample: u64| Picture { width: 10 + sample as u32, height: 20, format: "JPEG".into() };
    let fact = |sample: u64| Facts {
        version: Version {
            size_bytes: (sample != 1).then_some(100 + sample),
            mtime_ns: Some(1_700_000_000_123_456_789 + sample as i64),
            etag: (sample == 2).then(|| "abc".into()),
        },
        content: (sample != 3).then(|| {
            Box::new(Content { xxh3: content_hash(&[sample as u8]), picture: (sample != 0).then(|| picture(sample)) })
        }),
    };
    (0..index.len()).map(fact).collect()
}

fn written(index: &FolderIndex, facts: &[Facts]) -> Bytes {
    let mut bytes = Vec::new();
    write_manifest(&mut bytes, index, facts, "/r").unwrap();
    bytes.into()
}

fn parsed(name: &str, text: impl Into<Bytes>) -> Result<Manifest> {
    read_manifest(text.into(), Path::new(name), None, Keeps::Facts, &Labels::Class)
}

fn samples(index: &FolderIndex) -> Vec<(String, i64)> {
    let sample = |sample| (index.path(SampleId(sample)).to_str().unwrap().to_owned(), index.label(SampleId(sample)));
    (0..index.len()).map(sample).collect()
}

#[test]
fn what_is_written_is_read_again() {
    let index = index(FILES);
    let facts = facts(&index);
    let manifest =
        read_manifest(written(&index, &facts), Path::new("m.parquet"), None, Keeps::Facts, &Labels::Class).unwrap();
    assert_eq!(samples(&manifest.index), samples(&index));
    assert_eq!(manifest.index.identity(), index.identity(), "a state of the folder is one of the manifest");
    assert_eq!(manifest.index.classes(), ["cat", "dog", "eel", "fox"], "eel has no samples");
    assert_eq!(manifest.index.class_indices(), [0, 1, 2, 3]);
    assert_eq!(manifest.facts, facts);
    assert_eq!(manifest.recorded_root.as_deref(), Some(Path::new("/r")));
    assert_eq!(manifest.written_by.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    let columns = ["path", "class", "label", "size_bytes", "mtime_ns", "etag", "width", "height", "format", "xxh3"];
    assert_eq!(manifest.columns, columns);
    assert!(manifest.index.notes().is_empty());
    let expected = manifest.index.expected(SampleId(0)).unwrap();
    assert_eq!((expected.size_bytes, expected.stamp_ns), (Some(100), Some(1_700_000_000_123_456_789)));
    assert_eq!(manifest.index.expected(SampleId(1)).unwrap().size_bytes, None);
}

#[test]
fn a_plain_scan_has_no_columns_of_what_is_not_known() {
    let index = index(FILES);
    let facts = vec![Facts::default(); index.len() as usize];
    let manifest = parsed("m.parquet", written(&index, &facts)).unwrap();
    assert_eq!(manifest.columns, ["path", "class", "label", "size_bytes", "mtime_ns"]);
    assert_eq!(manifest.index.expected(SampleId(0)), None);
}

#[test]
fn of_a_copy_only_sizes_are_compared() {
    let index = index(FILES);
    let bytes = written(&index, &facts(&index));
    let open = |root: &str| {
        read_manifest(bytes.clone(), Path::new("m.parquet"), Some(Path::new(root)), Keeps::Names, &Labels::Class)
            .unwrap()
    };
    let expected = |manifest: &Manifest| manifest.index.expected(SampleId(0)).unwrap();
    assert!(expected(&open("/r")).stamp_ns.is_some());
    assert!(expected(&open("/r/")).stamp_ns.is_some());
    assert!(
        is_same(Path::new("x/y"), &std::path::absolute("x/y").unwrap()) && !is_same(Path::new("x"), Path::new("/q"))
    );
    let copy = open("s3://elsewhere");
    assert_eq!((expected(&copy).size_bytes, expected(&copy).stamp_ns), (Some(100), None));
    assert_eq!(copy.index.path(SampleId(0)), Path::new("s3://elsewhere/cat/1.jpg"));
    assert_eq!(copy.index.identity(), index.identity());
}

#[test]
fn a_million_samples_take_few_bytes_each() {
    let mut rows = Rows::new(Keeps::Names, &Labels::Class);
    for number in 0..100_000_u64 {
        let path = format!("n{:08}/n{:08}_{:05}.JPEG", number / 1000, number / 1000, number % 1000);
        let version = Version { size_bytes: Some(number), mtime_ns: Some(number as i64), etag: None };
        let class = format!("n{:08}", number / 1000);
        rows.push(rows::Row { path: &path, class: Some(&class), version, ..rows::Row::default() }).unwrap();
    }
    let index = rows.finish(Vec::new()).unwrap().index;
    let each = index.memory_bytes() as f64 / 100_000.0 - "n00000000_00000.JPEG".len() as f64;
    assert!(each < 16.2, "{each} bytes beside the name");
}

#[test]
fn rows_in_any_order_keep_their_order_and_each_directory_once() {
    let mut text = "path,class\n".to_owned();
    for number in 0..1000 {
        text.push_str(&format!("a-long-name-of-a-directory-{}/{number}.jpg,{}\n", number % 7, number % 7));
    }
    let manifest = parsed("/d/m.csv", text).unwrap();
    assert_eq!(manifest.index.path(SampleId(8)), Path::new("/d/a-long-name-of-a-directory-1/8.jpg"));
    assert_eq!(manifest.index.label(SampleId(8)), 1);
    let each = manifest.index.memory_bytes() as f64 / 1000.0;
    assert!(each < 64.0, "{each}: every row begins another run, but no path is kept twice");
}

#[test]
fn csv_has_quotes_line_breaks_and_byte_order_marks() {
    let text = "\u{feff}label,path,note\r\n3,\"a,\"\"b\"\"\r\n.jpg\",x\r\n\r\n1,./c/d.jpg,\"\"\r\n3,e.jpg,";
    let manifest = parsed("/d/m.CSV", text).unwrap();
    let expected = [("/d/a,\"b\"\r\n.jpg", 3), ("/d/c/d.jpg", 1), ("/d/e.jpg", 3)];
    assert_eq!(samples(&manifest.index), expected.map(|(path, label)| (path.to_owned(), label)));
    assert_eq!(
        (manifest.index.classes(), manifest.index.class_indices()),
        (&["1".to_owned(), "3".to_owned()][..], &[1, 3][..])
    );
    assert_eq!(manifest.columns, ["label", "path", "note"]);
    let sized = parsed("m.csv", "path,class,size_bytes,mtime_ns\na.jpg,x,5,\n").unwrap();
    assert_eq!(sized.facts[0].version, Version { size_bytes: Some(5), ..Version::default() });
}

#[test]
fn json_lines_are_rows() {
    let text = "{\"path\": \"b/1.jpg\", \"class\": \"b\", \"more\": [1]}\n\n{\"class\":\"a\",\"path\":\"a/\\u00fc.jpg\",\"size_bytes\":7}";
    let manifest = parsed("/d/m.jsonl", text).unwrap();
    let expected = [("/d/b/1.jpg", 1), ("/d/a/ü.jpg", 0)];
    assert_eq!(samples(&manifest.index), expected.map(|(path, label)| (path.to_owned(), label)));
    assert_eq!(manifest.facts[1].version.size_bytes, Some(7));
}

#[test]
fn what_is_wrong_is_named_by_place_and_column() {
    for (name, text, said) in [
        (
            "m.csv",
            "path,label\n/etc/passwd,0",
            "in line 2, column \"path\": expected a path below the root, got an absolute one: \"/etc/passwd\"",
        ),
        (
            "m.csv",
            "path,label\na.jpg,0\n\n../x.jpg,0",
            "in line 4, column \"path\": expected a path below the root, got one that leads out of it (..): \"../x.jpg\"",
        ),
        ("m.csv", "path,label\na/../../x.jpg,0", "leads out of it"),
        ("m.csv", "path,label\ns3://b/x.jpg,0", "got a URL"),
        ("m.csv", "path,label\na//x.jpg,0", "an empty component"),
        ("m.csv", "path,label\n,0", "got nothing"),
        ("m.csv", "path,label\na\0.jpg,0", "a NUL"),
        ("m.csv", "path,label\nx.jpg,cat", "in line 2, column \"label\": expected a whole number, got \"cat\""),
        ("m.csv", "path,label\nx.jpg,-1", "expected a whole number from 0 to 4294967295, got -1"),
        ("m.csv", "path,label\nx.jpg,", "column \"class\": expected a class or a label, got neither"),
        ("m.csv", "path,label\nx.jpg", "has 1 fields in line 2 (expected 2, as in its header)"),
        ("m.csv", "path,label\n\"x.jpg,0", "an unterminated quote in line 2"),
        (
            "m.csv",
            "path,label,class\nx.jpg,1,a\ny.jpg,2,a",
            "in line 3, column \"label\": expected 1 as in earlier rows of class \"a\", got 2",
        ),
        ("m.csv", "path,class,size_bytes\nx.jpg,a,-5", "column \"size_bytes\": expected at least 0, got -5"),
        ("m.csv", "file;label\n", "has no column path in its header"),
        ("m.csv", "path,name\nx,y", "has no column class or label in its header"),
        ("m.csv", "path,label\n", "has no rows"),
        ("m.csv", "", "is empty (expected a header"),
        ("m.jsonl", "{\"path\": 5, \"label\": 1}", "in line 1, column \"path\": expected text, got \"5\""),
        ("m.jsonl", "{\"label\": 1}", "column \"path\": expected text, got none"),
        ("m.jsonl", "{\"path\": \"a\", \"label\": \"1\"}", "column \"label\": expected a whole number"),
        (
            "m.jsonl",
            "{\"path\": \"a\", \"label\": 1}\n{\"path\": \"b\", \"class\": \"x\"}",
            "in line 2, column \"label\": expected a label in every row",
        ),
        ("m.jsonl", "{\"path\": \"a\"", "is not JSON in line 1"),
        ("m.jsonl", "[]", "has no object in line 1"),
        ("m.txt", "path,label\na,0", "expected .parquet, .csv or .jsonl, got .txt"),
        ("m.parquet", "hello", "is not a whole Parquet file (its first bytes are not those of a Parquet file)"),
        ("m.parquet", "PAR1", "is not a whole Parquet file"),
        ("m.parquet", "", "is not a whole Parquet file (it is empty)"),
    ] {
        let error = parsed(name, text).unwrap_err();
        assert!(error.to_string().contains(said), "{text:?}: {error}");
        assert_eq!((error.path(), error.stage()), (Some(Path::new(name)), Some(Stage::Scan)), "{text:?}");
    }
    let long = parsed("m.csv", format!("path,label\n{},0", "x".repeat(5000))).unwrap_err();
    assert!(long.to_string().contains("5000 bytes (at most 4096)") && long.to_string().len() < 300, "{long}");
    let latin = parsed("m.csv", Bytes::from_static(b"path,label\na\xfc.jpg,0")).unwrap_err();
    assert!(latin.to_string().contains("is not UTF-8 in line 2"), "{latin}");
}

#[test]
fn a_damaged_parquet_file_is_refused_or_read_and_never_panics() {
    let index = index(FILES);
    let bytes = written(&index, &facts(&index));
    for length in 0..bytes.len() {
        let error = parsed("m.parquet", bytes.slice(..length)).unwrap_err();
        assert!(matches!(error.kind(), Kind::Corrupt | Kind::Config), "{length} bytes: {error}");
    }
    let mut refused = 0;
    for place in 0..bytes.len() {
        for bit in [0x01, 0x80, 0xff] {
            let mut flipped = bytes.to_vec();
            flipped[place] ^= bit;
            match parsed("m.parquet", flipped) {
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.path(), Some(Path::new("m.parquet")), "{error}");
                }
                // If it can be read, all paths stay below the root.
                Ok(manifest) => assert!(samples(&manifest.index).iter().all(|(path, _)| !path.contains("/../"))),
            }
        }
    }
    assert!(refused > bytes.len(), "{refused} of {} were noticed", 3 * bytes.len());
}

#[test]
fn rows_that_are_not_those_that_were_written_are_noted() {
    let (one, other) = (index(&["cat/1.jpg"]), index(&["cat/2.jpg"]));
    let bytes = written(&one, &[Facts::default()]);
    let from = one.identity().fingerprint;
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    let mut edited = bytes.to_vec();
    edited[at..at + from.len()].copy_from_slice(other.identity().fingerprint.as_bytes());
    let manifest = parsed("m.parquet", edited).unwrap();
    assert!(manifest.index.notes()[0].message.starts_with("was changed after `forebay scan` wrote it"));
}

#[test]
fn a_name_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let mut index = FolderIndex::new(Path::new("/r"), vec!["cat".to_owned()], vec![0]);
    index.push_directory(Path::new("cat"), 0, b"\xff.jpg", &[5]);
    let error = write_manifest(Vec::new(), &index, &[Facts::default()], "/r").unwrap_err();
    assert_eq!(error.path(), Some(&*Path::new("/r/cat").join(OsStr::from_bytes(b"\xff.jpg"))));
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}

#[test]
fn what_changed_is_told_and_what_did_not_keeps_its_content() {
    let before = index(FILES);
    let earlier = parsed("m.parquet", written(&before, &facts(&before))).unwrap();
    let now = index(&["cat/1.jpg", "cat/b/2.jpg", "cat/b-c/3.jpg", "cat/new.jpg", "dog/ü \"x\",y.png"]);
    let known = facts(&before);
    let mut fresh: Vec<_> = (0..now.len())
        .map(|sample| {
            let path = now.path(SampleId(sample));
            let same = (0..before.len()).find(|&other| before.path(SampleId(other)) == path);
            Facts {
                version: same.map_or(Version::default(), |same| known[same as usize].version.clone()),
                content: None,
            }
        })
        .collect();
    // Number 1 had no size; number 2 gets another etag.
    fresh[3].version.etag = Some("other".into());
    let difference = Difference::since(&earlier, &now, &mut fresh);
    let names = |index: &FolderIndex, samples: &[SampleId]| -> Vec<String> {
        samples.iter().map(|sample| index.path(*sample).to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&now, &difference.added), ["/r/cat/new.jpg"]);
    assert_eq!(names(&earlier.index, &difference.deleted), ["/r/fox/a/b/c/d.jpg"]);
    assert_eq!(names(&now, &difference.changed), ["/r/cat/b/2.jpg", "/r/cat/b-c/3.jpg"]);
    assert_eq!(fresh[0].content, known[0].content);
    assert!(fresh[1..4].iter().all(|facts| facts.content.is_none()));
}

#[test]
fn a_full_disk_is_told_as_what_it_is() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::from_raw_os_error(28))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let index = index(FILES);
    let error = write_manifest(Full, &index, &facts(&index), "/r").unwrap_err();
    assert_eq!((error.kind(), error.errno()), (Kind::Exhausted, Some(28)), "{error}");
}

#[test]
fn whatever_the_order_the_difference_is_the_same() {
    let all: Vec<String> = (0..1000).map(|number| format!("c{}/{number:04}.jpg", number % 7)).collect();
    let some = |keep: &dyn Fn(usize) -> bool, is_reversed: bool| {
        let mut rows: Vec<_> =
            all.iter().enumerate().filter(|(number, _)| keep(*number)).map(|(_, path)| path).collect();
        if is_reversed {
            rows.reverse();
        }
        let text: String = rows.iter().map(|path| format!("{path},{},5,7\n", &path[..2])).collect();
        parsed("m.csv", format!("path,class,size_bytes,mtime_ns\n{text}")).unwrap()
    };
    for is_reversed in [false, true] {
        // A long gap, a short one, and some that are new.
        let earlier = some(&|number| number % 10 != 3, is_reversed);
        let mut now = some(&|number| !(200..500).contains(&number) && number % 100 != 7, false);
        let difference = Difference::since(&earlier, &now.index, &mut now.facts);
        let count = |is_in: &dyn Fn(usize) -> bool| (0..1000).filter(|&number| is_in(number)).count();
        let is_before = |number: usize| number % 10 != 3;
        let is_now = |number: usize| !(200..500).contains(&number) && number % 100 != 7;
        assert_eq!(difference.added.len(), count(&|number| is_now(number) && !is_before(number)));
        assert_eq!(difference.deleted.len(), count(&|number| is_before(number) && !is_now(number)));
        assert!(difference.changed.is_empty());
        assert!(difference.added.is_sorted() && difference.deleted.is_sorted());
    }
}

#[test]
fn columns_of_the_users_choice_become_labels_in_every_format() {
    let columns = Labels::Columns(["score", "label"].map(str::to_owned).to_vec());
    let read_as = |name: &str, text: &str, labels: &Labels| {
        read_manifest(text.to_owned().into(), Path::new(name), None, Keeps::Names, labels)
    };
    let csv = "path,label,score\na/1.txt,cat,1\n2.txt,dog,2.5\n";
    let jsonl = "{\"path\": \"a/1.txt\", \"label\": \"cat\", \"score\": 1}\n{\"path\": \"2.txt\", \"label\": \"dog\", \"score\": 2.5}\n";
    for (name, text) in [("m.csv", csv), ("m.jsonl", jsonl)] {
        let Manifest { index, labels, .. } = read_as(name, text, &columns).unwrap();
        assert!(!index.has_classes() && index.len() == 2, "{name}");
        let named: Vec<_> = labels.iter().map(|column| (&*column.name, &column.values)).collect();
        let expected = (Scalars::F64(vec![1.0, 2.5]), Scalars::Text(["cat", "dog"].map(str::to_owned).to_vec()));
        assert_eq!(named, [("score", &expected.0), ("label", &expected.1)], "{name}");
        let none = read_as(name, text, &Labels::Columns(Vec::new())).unwrap();
        assert!(none.labels.is_empty() && none.index.len() == 2, "{name}");
        assert!(read_as(name, text, &Labels::Class).is_err(), "{name}: a label that is no number");
        let error = read_as(name, text, &Labels::Columns(vec!["colour".to_owned()]));
        match name {
            "m.csv" => assert!(error.unwrap_err().message().starts_with("has no column colour in its header")),
            _ => assert!(
                matches!(&error.unwrap().labels[0].values, Scalars::F64(all) if all.iter().all(|one| one.is_nan()))
            ),
        }
    }
    let mixed = "{\"path\": \"1\", \"x\": \"a\"}\n{\"path\": \"2\", \"x\": 1}\n";
    let error = read_as("m.jsonl", mixed, &Labels::Columns(vec!["x".to_owned()])).unwrap_err();
    assert!(error.message().contains("line 2, column \"x\": expected text as in the rows before, got 1"), "{error}");
}
