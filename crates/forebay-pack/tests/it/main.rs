//! Packing as it is called: what is in shards, in which order, and what is left when something goes wrong.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, of files")]

mod names;
mod order;
mod resume;
mod trouble;
mod typed;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_format::{FileScanner, FileVersion, SHARD_RULE, ShardIndex, TarScanner, read_index, write_index};
use forebay_pack::{Pack, Packed};

/// A source and a target in a folder that is removed at the end.
struct Ends {
    folder: tempfile::TempDir,
}

impl Ends {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let ends = Self { folder: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(name, content)| ends.put(&format!("source/{name}"), content));
        ends
    }

    /// Pictures of several classes, all different.
    fn of_pictures(classes: u32, each: u32) -> Self {
        let ends = Self::new(&[]);
        for number in 0..classes * each {
            let (class, picture) = (number % classes, picture(number));
            ends.put(&format!("source/class{class}/{number:04}.ppm"), &picture);
        }
        ends
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn pack(&self) -> Pack {
        Pack { shard_bytes: Some(20_000), ..Pack::new(self.path("source"), self.path("target")) }
    }

    /// Packs, which has to go well.
    fn run(&self, pack: &Pack) -> Packed {
        let packed = pack.run(&mut |_| {}).unwrap();
        assert!(packed.is_complete(), "{packed:?}");
        packed
    }

    fn target(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        tree(&self.path("target"))
    }

    /// Everything in the shards: key, field and bytes, in order.
    fn members(&self) -> Vec<(String, String, Vec<u8>)> {
        let shards = self.target();
        shards.iter().filter(|(name, _)| is_shard(name)).flat_map(|(_, bytes)| members(bytes)).collect()
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.members().into_iter().map(|(key, _, _)| key).collect();
        keys.dedup();
        keys
    }
}

fn is_shard(name: &Path) -> bool {
    name.extension().is_some_and(|ending| ending == "tar")
}

/// A picture of 24×18 pixels.
fn picture(seed: u32) -> Vec<u8> {
    let pixels = (0..24 * 18 * 3_u32).map(|at| (at.wrapping_mul(seed * 2 + 7) >> 3) as u8);
    b"P6 24 18 255\n".iter().copied().chain(pixels).collect()
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut files, mut waiting) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => waiting.push(path),
                false => drop(files.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap())),
            }
        }
    }
    files
}

fn scan(archive: &[u8]) -> ShardIndex {
    let mut scanner = TarScanner::new(archive.len() as u64);
    while let Some(position) = scanner.position() {
        scanner.feed(&archive[position as usize..]).unwrap();
    }
    scanner.finish().unwrap()
}

/// The same index with the landmarks of its JPEGs.
fn annotated(archive: &[u8]) -> ShardIndex {
    let (mut index, mut annotator) = (scan(archive), forebay_decode::Annotator::default());
    let mut found = Vec::new();
    for number in 0..index.part_count() {
        let range = index.part(number).range;
        let bytes = &archive[range.start as usize..range.end as usize];
        let annotation = if index.field_of(number) == "jpg" { annotator.annotate(bytes) } else { Vec::new() };
        found.push((number, annotation));
    }
    let found = found.iter().filter(|(_, annotation)| !annotation.is_empty());
    index.annotate(found.map(|(number, annotation)| (*number, &**annotation))).unwrap();
    index
}

fn members(archive: &[u8]) -> Vec<(String, String, Vec<u8>)> {
    let (index, mut found) = (scan(archive), Vec::new());
    for sample in 0..index.len() {
        let mut key = String::new();
        index.write_key(sample, &mut key);
        for number in index.fields_of(sample) {
            let (_, part) = index.find(sample, &[*number]).unwrap();
            let bytes = archive[part.range.start as usize..part.range.end as usize].to_vec();
            found.push((key.clone(), index.fields()[usize::from(*number)].clone(), bytes));
        }
    }
    found
}

#[test]
fn a_folder_becomes_shards_with_its_labels_and_their_index() {
    let ends = Ends::of_pictures(3, 12);
    let packed = ends.run(&ends.pack());
    assert_eq!((packed.samples, packed.packed, packed.failed), (36, 36, 0));
    assert!(packed.shards.len() > 2, "{:?}", packed.shards);
    let classes = [("class0".to_owned(), 0), ("class1".to_owned(), 1), ("class2".to_owned(), 2)];
    assert_eq!(packed.classes, classes);
    let target = ends.target();
    let source = tree(&ends.path("source"));
    let mut expected = Vec::new();
    for (name, bytes) in &source {
        let key = name.with_extension("").to_str().unwrap().to_owned();
        let label = key.strip_prefix("class").unwrap()[..1].to_owned();
        expected.push((key.clone(), "ppm".to_owned(), bytes.clone()));
        expected.push((key, "cls".to_owned(), label.into_bytes()));
    }
    assert_eq!(ends.members(), expected);
    let kept = read_index::<ShardIndex>(SHARD_RULE, &target[Path::new("forebay.index")]).unwrap();
    let names: Vec<_> = target.keys().filter(|name| is_shard(name)).collect();
    assert_eq!((kept.len(), names.len()), (packed.shards.len(), packed.shards.len()));
    // The file is what is written of the archives when they are read, at any time that they have.
    let scanned: Vec<_> = names.iter().map(|name| annotated(&target[*name])).collect();
    let version =
        |name: &Path| FileVersion::new(name.to_str().unwrap().as_bytes(), target[name].len() as u64, 7).of_any_time();
    let versions = names.iter().map(|name| version(name));
    let written = write_index(SHARD_RULE, versions.zip(&scanned).collect::<Vec<_>>().into_iter());
    assert!(written == target[Path::new("forebay.index")]);
    let manifest = String::from_utf8(target[Path::new("shard.jsonl")].clone()).unwrap();
    assert_eq!(manifest.lines().count(), names.len());
    let (name, bytes, samples) = &packed.shards[0];
    let line = format!("{{\"path\":\"{name}\",\"size_bytes\":{bytes},\"samples\":{samples}}}");
    assert_eq!(manifest.lines().next(), Some(&*line));
    let others: Vec<_> = target.keys().filter(|name| !is_shard(name)).map(|name| name.to_str().unwrap()).collect();
    assert_eq!(others, ["classes.json", "forebay-pack.json", "forebay.index", "shard.jsonl"]);
}

#[test]
fn the_index_has_the_landmarks_of_jpegs_and_shards_their_parity() {
    let ends = Ends::new(&[]);
    for number in 0..20_u32 {
        // As large as it takes for landmarks.
        let pixels = (0..300 * 200 * 3_u32).map(|at| (at.wrapping_mul(number * 2 + 7) >> 3) as u8);
        let picture: Vec<_> = b"P6 300 200 255\n".iter().copied().chain(pixels).collect();
        ends.put(&format!("source/class{}/{number}.ppm", number % 2), &picture);
    }
    let recoding =
        Some(forebay_pack::Recoding { max_side: None, format: Some(forebay_pack::Coding::Jpeg), quality: 90 });
    let pack = Pack { recoding, parity: Some(0.1), shard_bytes: Some(1_000_000), ..ends.pack() };
    ends.run(&pack);
    // How long pictures took to decode is another time each time.
    let lasting = || {
        let mut target = ends.target();
        target.remove(Path::new("forebay-pack.json"));
        target
    };
    let mut target = lasting();
    let mut kept = read_index::<ShardIndex>(SHARD_RULE, &target[Path::new("forebay.index")]).unwrap();
    let names: Vec<_> = target.keys().filter(|name| is_shard(name)).cloned().collect();
    for name in &names {
        let archive = &target[name];
        let version = FileVersion::new(name.to_str().unwrap().as_bytes(), archive.len() as u64, 0).of_any_time();
        let index = kept.remove(&version).unwrap();
        assert!(
            (0..index.part_count()).any(|part| index.annotation(part / 2, &[0]).is_some_and(|own| !own.is_empty()))
        );
        assert!(index == annotated(archive), "{name:?}");
        assert!(target.contains_key(&name.with_extension("tar.parity")), "{name:?}");
    }
    // A sidecar that is missing is made again, with its shard.
    fs::remove_file(ends.path("target").join(names[0].with_extension("tar.parity"))).unwrap();
    let again = ends.run(&pack);
    assert_eq!(again.kept_shards, names.len() as u64 - 1);
    assert!(lasting() == target);
    let plain = Pack { landmarks: false, parity: None, target: ends.path("plain"), ..pack.clone() };
    ends.run(&plain);
    let plain = tree(&ends.path("plain"));
    target.retain(|name, _| is_shard(name));
    assert!(target.iter().all(|(name, bytes)| plain[name] == *bytes), "shards are the same with and without");
    assert!(!plain.keys().any(|name| name.extension().is_some_and(|ending| ending == "parity")));
    let error = Pack { parity: Some(1.5), ..pack.clone() }.run(&mut |_| {}).unwrap_err();
    assert!(error.message().starts_with("--parity"), "{error}");
    let error = Pack { target: "s3://bucket/x".into(), ..pack }.run(&mut |_| {}).unwrap_err();
    assert!(error.message().starts_with("--parity"), "{error}");
}

#[test]
fn shards_are_packed_again_with_their_fields() {
    let ends = Ends::of_pictures(2, 10);
    ends.run(&ends.pack());
    let again = Pack {
        shard_bytes: None,
        samples_per_shard: Some(7),
        prefix: "again".to_owned(),
        ..Pack::new(ends.path("target"), ends.path("other"))
    };
    let packed = ends.run(&again);
    assert_eq!(packed.shards.iter().map(|(_, _, samples)| *samples).collect::<Vec<_>>(), [7, 7, 6]);
    let other = tree(&ends.path("other"));
    let all: Vec<_> = other.iter().filter(|(name, _)| is_shard(name)).flat_map(|(_, bytes)| members(bytes)).collect();
    assert_eq!(all, ends.members());
    assert!(other.contains_key(Path::new("again-000002.tar")) && !other.contains_key(Path::new("classes.json")));
}

#[test]
fn a_manifest_says_which_files_and_which_classes() {
    let ends = Ends::of_pictures(2, 4);
    let rows = "path,class\nclass1/0001.ppm,one\nclass0/0002.ppm,zero\nclass1/0001.ppm,one\n";
    ends.put("source/some.csv", rows.as_bytes());
    let pack = Pack::new(ends.path("source/some.csv"), ends.path("target"));
    let packed = ends.run(&pack);
    assert_eq!(packed.classes, [("one".to_owned(), 0), ("zero".to_owned(), 1)]);
    // What is named twice is twice in the shards.
    assert_eq!(ends.keys(), ["class1/0001%%ppm%%0", "class0/0002", "class1/0001%%ppm%%2"]);
}

#[test]
fn pictures_are_written_again_and_what_that_saves_is_said() {
    let ends = Ends::of_pictures(2, 10);
    let recoding =
        Some(forebay_pack::Recoding { max_side: Some(12), format: Some(forebay_pack::Coding::Jpeg), quality: 80 });
    let packed = ends.run(&Pack { recoding, ..ends.pack() });
    let saved = packed.saved;
    assert_eq!((saved.pictures, saved.bytes_before), (20, 20 * (24 * 18 * 3 + 13)));
    assert!(saved.bytes_after < saved.bytes_before && saved.decode_seconds_after > 0.0, "{saved:?}");
    let members = ends.members();
    assert_eq!(members.len(), 40);
    for (key, field, bytes) in members {
        assert!(field == "cls" || (field == "jpg" && bytes.starts_with(b"\xFF\xD8")), "{key}.{field}");
    }
}
