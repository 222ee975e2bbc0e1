//! Shards of other formats than tar as a source, as their own writers have written them (python/tests/golden/make_shards.py).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_core::Kind;
use forebay_pack::{Coding, Pack, Recoding, Source};

use crate::{Ends, tree};

/// The golden formats, with the fields that are packed of each: `None` are all.
const FORMATS: [(&str, Option<&[&str]>); 6] = [
    ("mds", None),
    ("litdata", None),
    ("litdata_rows", None),
    ("tfrecord", Some(&["box", "image/class/label", "image/encoded", "weight", "ids[]"])),
    ("arrow", Some(&["image", "text", "long", "ids", "box", "weight", "flag", "raw", "small"])),
    (
        "parquet",
        Some(&[
            "image",
            "text",
            "long",
            "ids",
            "box",
            "weight",
            "flag",
            "raw",
            "small",
            "bytes",
            "meta.source",
            "meta.year",
        ]),
    ),
];

fn golden(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/golden/shards").join(format)
}

/// A golden source that is packed into the target of `ends`.
fn pack(ends: &Ends, format: &str, fields: Option<&[&str]>) -> Pack {
    let fields = fields.map(|fields| fields.iter().map(|field| vec![(*field).to_owned()]).collect());
    let plain = Pack::new(golden(format), ends.path("target"));
    Pack { source: Source { fields, ..plain.source.clone() }, ..plain }
}

/// The fields of each sample, by its key.
fn samples(ends: &Ends) -> BTreeMap<String, BTreeMap<String, Vec<u8>>> {
    let mut samples: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for (key, field, bytes) in ends.members() {
        assert!(samples.entry(key).or_default().insert(field, bytes).is_none());
    }
    samples
}

#[test]
fn every_format_is_packed_with_its_fields() {
    for (format, fields) in FORMATS {
        let ends = Ends::new(&[]);
        let packed = ends.run(&pack(&ends, format, fields));
        assert_eq!((packed.samples, packed.packed, packed.notes.len()), (7, 7, 0), "{format}");
        let keys = ends.keys();
        assert!(keys.is_sorted() && keys.len() == 7, "{format}: {keys:?}");
        let wanted = fields.map(<[_]>::len);
        for (key, fields) in samples(&ends) {
            let (_, number) = key.rsplit_once('/').unwrap();
            assert!(number.len() == 6 && number.bytes().all(|byte| byte.is_ascii_digit()), "{format}: {key}");
            assert!(wanted.is_none_or(|wanted| wanted == fields.len()), "{format}: {:?}", fields.keys());
        }
    }
}

#[test]
fn fields_are_named_by_what_they_hold() {
    let ends = Ends::new(&[]);
    ends.run(&pack(&ends, "mds", None));
    let found = samples(&ends);
    let first = &found["shard.00000/000000"];
    let names: Vec<_> = first.keys().map(String::as_str).collect();
    let expected = [
        "any.npy",
        "digits.npy",
        "fixed.npy",
        "grey.png",
        "half.npy",
        "jpeg.jpg",
        "label.cls",
        "meta.json",
        "number.npy",
        "pixels.png",
        "png",
        "raw.bin",
        "small.npy",
        "text.txt",
        "typed.npy",
        "weight.npy",
    ];
    assert_eq!(names, expected);
    assert_eq!(first["label.cls"], b"-3");
    for (field, magic) in [("jpeg.jpg", &b"\xFF\xD8\xFF"[..]), ("pixels.png", b"\x89PNG"), ("any.npy", b"\x93NUMPY")] {
        assert!(first[field].starts_with(magic), "{field}");
    }
    let ends = Ends::new(&[]);
    ends.run(&pack(&ends, "tfrecord", FORMATS[3].1));
    let found = samples(&ends);
    let first = &found["train.tfrecord-00000-of-00002/000000"];
    let names: Vec<_> = first.keys().map(String::as_str).collect();
    let expected = ["box.npy", "ids.npy", "image%2fclass%2flabel.cls", "image%2fencoded.png", "weight.npy"];
    assert!(names == expected || names.contains(&"image%2fencoded.jpg"), "{names:?}");
}

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    for (format, fields) in FORMATS {
        let mut first = None;
        for threads in [1, 2, 7] {
            let ends = Ends::new(&[]);
            let pack = Pack {
                threads: Some(threads),
                samples_per_shard: Some(3),
                shuffle: Some(5),
                ..pack(&ends, format, fields)
            };
            let packed = ends.run(&pack);
            assert_eq!(packed.shards.iter().map(|(_, _, samples)| *samples).collect::<Vec<_>>(), [3, 3, 1]);
            let target = ends.target();
            assert!(*first.get_or_insert_with(|| target.clone()) == target, "{format}, {threads} threads");
            // One shard is made anew like it was.
            fs::remove_file(ends.path("target/shard-000001.tar")).unwrap();
            assert_eq!(ends.run(&pack).kept_shards, 2);
            assert!(ends.target() == target, "{format}");
        }
    }
}

#[test]
fn columns_that_are_not_read_are_refused_before_anything_is_written() {
    let ends = Ends::new(&[]);
    for (format, said) in [("arrow", "\"nested\" (a struct)"), ("parquet", "\" (")] {
        let error = pack(&ends, format, None).run(&mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.message().starts_with("source: has columns that are not read: "), "{error}");
        assert!(error.message().contains(said) && error.hint().contains("--fields"), "{error}: {}", error.hint());
    }
    let error = pack(&ends, "mds", Some(&["nothing"])).run(&mut |_| {}).unwrap_err();
    assert!(error.message().contains("expected names among any, digits"), "{error}");
    let recoding = Some(Recoding { max_side: Some(4), format: None, quality: 90 });
    let error = Pack { recoding, ..pack(&ends, "mds", None) }.run(&mut |_| {}).unwrap_err();
    assert!(error.message().contains("expected one column of pictures, got grey, jpeg, pixels, png"), "{error}");
    assert!(!ends.path("target").exists());
}

#[test]
fn pictures_of_a_column_are_written_again() {
    for (format, field, made) in
        [("mds", "jpeg", "jpeg.webp"), ("mds", "pixels", "pixels.webp"), ("parquet", "image", "image.webp")]
    {
        let ends = Ends::new(&[]);
        let recoding = Some(Recoding { max_side: Some(4), format: Some(Coding::WebP), quality: 90 });
        let packed = ends.run(&Pack { recoding, ..pack(&ends, format, Some(&[field])) });
        assert_eq!(packed.saved.pictures, 7);
        assert!(samples(&ends).values().all(|fields| fields.keys().eq([made]) && fields[made].starts_with(b"RIFF")));
    }
}

#[test]
fn what_is_null_or_damaged_is_in_the_ledger() {
    // One label is null.
    for format in ["arrow", "parquet"] {
        let ends = Ends::new(&[]);
        let packed = pack(&ends, format, Some(&["label", "text"])).run(&mut |_| {}).unwrap();
        assert_eq!((packed.packed, packed.failed), (6, 1), "{format}");
        assert!(packed.failures[0].message.contains("has no value (null)"), "{:?}", packed.failures);
        assert!(samples(&ends).values().all(|fields| fields.keys().eq(["label.cls", "text.txt"])));
    }
    let damaged = [
        ("tfrecord", "train.tfrecord-00000-of-00002", "checksum"),
        ("parquet", "train-00000-of-00002.parquet", ""),
        ("mds", "shard.00001.mds", ""),
    ];
    for (format, name, said) in damaged {
        let ends = Ends::new(&[]);
        for (file, bytes) in tree(&golden(format)) {
            ends.put(&format!("source/{}", file.display()), &bytes);
        }
        let mut bytes = fs::read(golden(format).join(name)).unwrap();
        let mut places = bytes.windows(4).enumerate().filter(|(_, bytes)| *bytes == b"\x89PNG").map(|(at, _)| at);
        // Not in the first record of TFRecords: it says what their fields are.
        let magic = if format == "tfrecord" { places.next_back() } else { places.next() }.unwrap();
        bytes[magic + 20..magic + 40].fill(0xA5);
        ends.put(&format!("source/{name}"), &bytes);
        let fields: &[&str] = match format {
            "tfrecord" => &["image/encoded", "ids[]"],
            "parquet" => &["image", "text"],
            _ => &["png", "text"],
        };
        let plain = pack(&ends, format, Some(fields));
        let pack = Pack { source: Source { path: ends.path("source"), ..plain.source.clone() }, ..plain };
        let packed = pack.run(&mut |_| {}).unwrap();
        assert_eq!((packed.packed, packed.failed), (6, 1), "{format}: {:?}", packed.failures);
        assert!(packed.failures[0].message.contains(said), "{:?}", packed.failures);
        assert_eq!(packed.ledger.as_deref(), Some(&*ends.path("target/forebay-ledger.jsonl")));
    }
}

#[test]
fn archives_are_packed_with_the_fields_that_are_named() {
    let ends = Ends::of_pictures(2, 5);
    ends.run(&ends.pack());
    let again = |fields: &[&[&str]], target: &str| {
        let fields = fields.iter().map(|names| names.iter().map(|name| (*name).to_owned()).collect()).collect();
        let plain = Pack::new(ends.path("target"), ends.path(target));
        Pack { source: Source { fields: Some(fields), ..plain.source.clone() }, ..plain }
    };
    ends.run(&again(&[&["CLS"]], "labels"));
    let labels = tree(&ends.path("labels"));
    let members = crate::members(&labels[Path::new("shard-000000.tar")]);
    assert!(members.len() == 10 && members.iter().all(|(_, field, _)| field == "cls"));
    ends.run(&again(&[&["jpg", "ppm"], &["cls"]], "both"));
    let all = tree(&ends.path("both"));
    assert_eq!(crate::members(&all[Path::new("shard-000000.tar")]), ends.members());
    let packed = again(&[&["jpg"]], "none").run(&mut |_| {}).unwrap();
    assert!(
        packed.failures.iter().all(|failure| failure.message.contains("has no field (expected jpg, got ppm, cls)"))
    );
    assert_eq!((packed.packed, packed.failed), (0, 10));
    let plain = ends.pack();
    let fields = Some(vec![vec!["ppm".to_owned()]]);
    let error = Pack { source: Source { fields, ..plain.source.clone() }, ..plain }.run(&mut |_| {}).unwrap_err();
    assert!(error.message().starts_with("--fields: expected shards"), "{error}");
}

#[test]
fn a_file_alone_is_what_its_columns_say() {
    let ends = Ends::new(&[]);
    let file = golden("parquet").join("train-00001-of-00002.parquet");
    let plain = pack(&ends, "parquet", Some(&["text"]));
    ends.run(&Pack { source: Source { path: file, ..plain.source.clone() }, ..plain });
    let keys = ends.keys();
    assert!(!keys.is_empty() && keys.iter().all(|key| key.starts_with("train-00001-of-00002/")), "{keys:?}");
}
