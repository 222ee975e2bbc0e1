//! Archives with parity: damaged at random places, read as a loader does, and by a loader.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forebay::{
    BytesRecipe, Capabilities, Column, Config, Dataset, Error, Field, FolderIndex, IndexPlace, Isolated, Kind, Loader,
    Local, Locator, OnError, Outcome, Repairing, Result, Retry, SampleId, Shards, Source, Store, check_parity,
    make_parity,
};
use forebay_store::testing::{Memory, conformance};
use forebay_store::{Allot, Object, ReadRequest, Stat};
use xxhash_rust::xxh3::xxh3_64;

const BLOCK: usize = 4096;

fn random(words: &[u64]) -> u64 {
    xxh3_64(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

/// The content of a sample.
fn sample(number: u64) -> &'static [u8] {
    static SAMPLES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let make = |number| (0..500 + random(&[number]) % 6_000).map(|at| random(&[number, at]) as u8).collect();
        (0..64).map(make).collect()
    });
    &SAMPLES[number as usize]
}

/// A tar archive with these samples, of one field each.
fn archive(count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..count {
        let content = sample(number);
        let mut header = [0_u8; 512];
        let name = format!("{number:05}.bin");
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// An archive and its sidecar in a folder.
struct Bench {
    folder: tempfile::TempDir,
    content: Vec<u8>,
    sidecar: Vec<u8>,
    parity_blocks: usize,
}

impl Bench {
    fn new(count: u64, fraction: f64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let content = archive(count);
        let path = folder.path().join("a.tar");
        std::fs::write(&path, &content).unwrap();
        let store: Arc<dyn Store> = Arc::new(Local);
        let made = make_parity(&store, &path, fraction, &mut |_, _| {}).unwrap();
        let sidecar = std::fs::read(&made.sidecar).unwrap();
        Self { folder, content, sidecar, parity_blocks: made.parity_blocks as usize }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("a.tar")
    }

    /// A store with this in place of the archive, and this in place of the sidecar.
    fn memory(&self, content: &[u8], sidecar: &[u8]) -> Arc<dyn Store> {
        let mut memory = Memory::default();
        memory.insert(self.path(), content);
        memory.insert(self.folder.path().join("a.tar.parity"), sidecar);
        Arc::new(memory)
    }

    /// The samples, found while the archive was whole.
    fn shards(&self, store: &Arc<dyn Store>) -> Shards {
        let files = Arc::new(FolderIndex::of_paths(std::iter::once(&*self.path())).unwrap());
        Shards::tar(files, store, self.folder.path(), &IndexPlace::Beside).unwrap()
    }
}

fn repairing(shards: &mut Shards, store: &Arc<dyn Store>) -> Repairing {
    Repairing::new(Arc::clone(store), vec![shards.find_parity(store).unwrap()])
}

fn fetch(store: &dyn Store, path: &Path, range: Range<u64>) -> Result<Object> {
    let request = ReadRequest::new(path, Duration::from_secs(60)).with_range(range);
    let mut most = 0;
    let object = store.fetch(&request, &mut |size| {
        most = most.max(size);
        Ok(Vec::new())
    })?;
    assert!(object.bytes.len() as u64 <= most, "bytes without an allotment");
    Ok(object)
}

/// Reads every sample, and again after an error, as the loader does; gives which came.
fn read_all(shards: &Shards, store: &dyn Store) -> Vec<bool> {
    let read = |number: u64| {
        let mut locator = Locator::default();
        shards.locate(SampleId(number), Field(0), &mut locator);
        let range = locator.range.clone().unwrap();
        for attempt in 0..3 {
            match fetch(store, &locator.path, range.clone()) {
                Ok(object) if shards.verify(SampleId(number), Field(0), &object.bytes).is_ok() => {
                    assert_eq!(object.bytes, sample(number), "sample {number} has wrong bytes");
                    return true;
                }
                Ok(_) if attempt == 0 => store.doubt_range(&locator.path, range.clone()),
                Ok(_) => return false,
                Err(error) if error.is_transient() => {}
                Err(_) => return false,
            }
        }
        false
    };
    (0..shards.len()).map(read).collect()
}

/// How many blocks are not in their place, nor as far from it as the file is longer.
fn lost_blocks(whole: &[u8], damaged: &[u8]) -> usize {
    let shift = damaged.len() as isize - whole.len() as isize;
    let is_at = |place: isize, block: &[u8]| {
        place >= 0 && damaged.get(place as usize..place as usize + block.len()).is_some_and(|found| found == block)
    };
    let lost = |(number, block): &(usize, &[u8])| {
        let place = (number * BLOCK) as isize;
        !is_at(place, block) && !is_at(place + shift, block)
    };
    whole.chunks(BLOCK).enumerate().filter(lost).count()
}

fn flip(content: &mut [u8], seed: &[u64]) {
    let place = random(seed) as usize % content.len();
    content[place] ^= 1 << (random(&[seed[0], 99]) % 8);
}

#[test]
fn at_a_thousand_places_each_damage_costs_nothing_while_parity_carries_it() {
    let bench = Bench::new(40, 0.05);
    let mut shards = bench.shards(&bench.memory(&bench.content, &bench.sidecar));
    let (mut carried, mut beyond) = (0, 0);
    for kind in 0..4 {
        for trial in 0..1000 {
            let mut damaged = bench.content.clone();
            let place = random(&[kind, trial]) as usize % damaged.len();
            match kind {
                0 => flip(&mut damaged, &[trial, 7]),
                1 => {
                    let end = damaged.len().min(place + 4096);
                    damaged[place..end].fill(0);
                }
                // Half of them within what is carried.
                2 if trial % 2 == 0 => damaged.truncate(damaged.len() - place % (bench.parity_blocks * BLOCK)),
                2 => damaged.truncate(place),
                _ => {
                    let garbage = (0..1 + random(&[place as u64]) % 3_000).map(|at| random(&[trial, at]) as u8);
                    damaged.splice(place..place, garbage);
                }
            }
            let store = bench.memory(&damaged, &bench.sidecar);
            let repairing = repairing(&mut shards, &store);
            let came = read_all(&shards, &repairing);
            if lost_blocks(&bench.content, &damaged) <= bench.parity_blocks {
                assert!(came.iter().all(|came| *came), "kind {kind}, trial {trial}, place {place}: {came:?}");
                carried += 1;
            } else {
                beyond += 1;
            }
        }
    }
    assert!(carried > 3_000 && beyond > 300, "{carried} carried, {beyond} beyond");
}

#[test]
fn growing_damage_costs_samples_only_once_it_is_more_than_parity_carries_and_never_gives_wrong_bytes() {
    let bench = Bench::new(40, 0.05);
    let mut shards = bench.shards(&bench.memory(&bench.content, &bench.sidecar));
    let (mut damaged, mut has_failed) = (bench.content.clone(), false);
    for count in 0..60 {
        let store = bench.memory(&damaged, &bench.sidecar);
        let repairing = repairing(&mut shards, &store);
        let came = read_all(&shards, &repairing);
        let is_carried = lost_blocks(&bench.content, &damaged) <= bench.parity_blocks;
        assert!(!is_carried || came.iter().all(|came| *came), "{count} bytes");
        has_failed |= came.contains(&false);
        flip(&mut damaged, &[count, 3]);
    }
    assert!(has_failed, "sixty flipped bytes are more than {} blocks", bench.parity_blocks);
}

#[test]
fn a_sidecar_that_is_damaged_cut_or_of_another_file_gives_no_wrong_bytes() {
    let bench = Bench::new(40, 0.2);
    let mut shards = bench.shards(&bench.memory(&bench.content, &bench.sidecar));
    let mut damaged = bench.content.clone();
    let first = 10 * BLOCK;
    damaged[first] ^= 1;
    damaged[first + BLOCK] ^= 1;
    let other = Bench::new(41, 0.2);
    let mut wholes = 0;
    for trial in 0..400 {
        let mut sidecar = bench.sidecar.clone();
        match trial % 4 {
            0 => flip(&mut sidecar, &[trial, 1]),
            1 => {
                let place = random(&[trial]) as usize % (sidecar.len() - 1_000);
                sidecar[place..place + 1_000].fill(0xFF);
            }
            2 => sidecar.truncate(random(&[trial]) as usize % sidecar.len()),
            _ => sidecar.clone_from(&other.sidecar),
        }
        let store = bench.memory(&damaged, &sidecar);
        let repairing = repairing(&mut shards, &store);
        let came = read_all(&shards, &repairing);
        let failed = came.iter().filter(|came| !**came).count();
        assert!(failed <= 2, "trial {trial}: more failed than are damaged");
        // Header and checksums are there twice, and there is more parity than two blocks need.
        assert!(failed == 0 || trial % 4 > 1, "trial {trial}: a damaged sidecar did not repair");
        wholes += usize::from(failed == 0);
    }
    assert!(wholes > 200, "{wholes}");
}

/// A disk that cannot read some bytes any more.
#[derive(Debug)]
struct Unreadable {
    inner: Arc<dyn Store>,
    path: PathBuf,
    bytes: Vec<Range<u64>>,
}

impl Store for Unreadable {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let range = request.range.clone().unwrap_or(0..u64::MAX);
        let overlaps = |lost: &Range<u64>| lost.start < range.end && range.start < lost.end;
        if request.path == self.path && self.bytes.iter().any(overlaps) {
            return Err(Error::io("read", std::io::Error::from_raw_os_error(libc::EIO)).at_path(request.path));
        }
        self.inner.fetch(request, allot)
    }
    fn stat(&self, path: &Path) -> Result<Stat> {
        self.inner.stat(path)
    }
    fn list(&self, directory: &Path) -> Result<forebay_core::Listing> {
        self.inner.list(directory)
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

#[test]
fn bytes_that_the_disk_cannot_read_are_made_again() {
    let bench = Bench::new(40, 0.05);
    let whole = bench.memory(&bench.content, &bench.sidecar);
    let mut shards = bench.shards(&whole);
    let unreadable = |bytes: &[Range<u64>]| -> Arc<dyn Store> {
        Arc::new(Unreadable { inner: Arc::clone(&whole), path: bench.path(), bytes: bytes.to_vec() })
    };
    let block = BLOCK as u64;
    let store = unreadable(&[3 * block..4 * block, 20 * block + 5..20 * block + 6]);
    let repaired = repairing(&mut shards, &store);
    assert!(read_all(&shards, &repaired).iter().all(|came| *came));
    let repairs = repaired.repairs().unwrap();
    assert!(repairs.reads > 0 && repairs.files == [(bench.path(), 2)], "{repairs:?}");
    // More than is carried: the error is the disk's, and names the sidecar.
    let store = unreadable(std::slice::from_ref(&(0..12 * block)));
    let repaired = repairing(&mut shards, &store);
    let came = read_all(&shards, &repaired);
    assert!(!came[0] && came[39]);
    assert!(fetch(&repaired, &bench.path(), 512..1_000).unwrap_err().is_transient(), "the next read may have it");
    let error = fetch(&repaired, &bench.path(), 512..1_000).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (Kind::Unavailable, Some(libc::EIO)));
    assert!(error.hint().contains("a.tar.parity\" carries"), "{}", error.hint());
}

#[test]
fn a_file_that_is_whole_is_read_as_it_is() {
    let bench = Bench::new(10, 0.02);
    let store: Arc<dyn Store> = Arc::new(Local);
    let mut shards = bench.shards(&store);
    let repaired = repairing(&mut shards, &store);
    conformance::check_ranges(&repaired, bench.folder.path(), &[("a.tar", &bench.content)]);
    // A doubt about what is whole costs one read of it by its blocks, and no repair.
    repaired.doubt_range(&bench.path(), 100..9_000);
    for _ in 0..2 {
        assert_eq!(fetch(&repaired, &bench.path(), 100..9_000).unwrap().bytes, bench.content[100..9_000]);
    }
    assert_eq!(repaired.repairs().unwrap().reads, 0);
    assert!(shards.notes().is_empty());
}

#[test]
fn a_repair_takes_the_memory_that_it_was_allotted_or_none() {
    let bench = Bench::new(40, 0.05);
    let mut damaged = bench.content.clone();
    damaged[20_000] ^= 1;
    let store = bench.memory(&damaged, &bench.sidecar);
    let mut shards = bench.shards(&store);
    let repaired = repairing(&mut shards, &store);
    let path = bench.path();
    let request = ReadRequest::new(&path, Duration::from_secs(60)).with_range(19_000..21_000);
    repaired.doubt_range(&path, 19_000..21_000);
    let mut asked = Vec::new();
    let read = |limit: u64, asked: &mut Vec<u64>| {
        repaired.fetch(&request, &mut |size| {
            asked.push(size);
            if size > limit { Err(Error::new(Kind::Exhausted, "too much")) } else { Ok(Vec::new()) }
        })
    };
    assert_eq!(read(100_000_000, &mut asked).unwrap().bytes, bench.content[19_000..21_000]);
    assert_eq!((asked[0], asked[asked.len() - 1]), (2_000, 2_000), "{asked:?}");
    assert!(asked.iter().any(|size| *size > 64 * BLOCK as u64), "{asked:?}");
    // What it does not get memory for stays as it is, and says so.
    let fresh = repairing(&mut shards, &store);
    fresh.doubt_range(&path, 19_000..21_000);
    let read = fresh.fetch(&request, &mut |size| {
        if size > 300_000 { Err(Error::new(Kind::Exhausted, "too much")) } else { Ok(Vec::new()) }
    });
    assert_eq!(read.unwrap().bytes, damaged[19_000..21_000]);
    let hint = fresh.repair_hint(&path, Some(&(19_000..21_000))).unwrap();
    assert!(hint.contains("takes more memory than a sample may"), "{hint}");
}

fn load(bench: &Bench, shards: Shards, store: Arc<dyn Store>) -> (Loader, Vec<u64>) {
    let retry = Retry { first_pause: Duration::from_millis(1), ..Retry::default() };
    let config = Config { batch_size: 4, on_error: OnError::Skip, retry, ..Config::default() };
    let loader = Loader::new(Source::new(Arc::new(shards), store, BytesRecipe), config).unwrap();
    let mut came = Vec::new();
    for batch in loader.epoch().unwrap() {
        let batch = batch.unwrap();
        let ids: Vec<_> = batch.samples.iter().map(|id| id.0).collect();
        let Column::Bytes(contents) = batch.into_content() else { panic!("a column of bytes") };
        for (id, bytes) in ids.iter().zip(contents) {
            assert_eq!(bytes, sample(*id), "sample {id} of {:?}", bench.path());
        }
        came.extend(ids);
    }
    (loader, came)
}

#[test]
fn a_loader_delivers_what_parity_makes_again_and_says_what_rots() {
    for is_isolated in [false, true] {
        let bench = Bench::new(40, 0.05);
        let store: Arc<dyn Store> = match is_isolated {
            true => Arc::new(Isolated::new(4, Duration::from_secs(60))),
            false => Arc::new(Local),
        };
        let mut shards = bench.shards(&store);
        let mut damaged = bench.content.clone();
        damaged[30_000] ^= 8;
        damaged.truncate(damaged.len() - 3_000);
        std::fs::write(bench.path(), &damaged).unwrap();
        let repaired = Arc::new(repairing(&mut shards, &store));
        let (loader, came) = load(&bench, shards, Arc::clone(&repaired) as Arc<dyn Store>);
        assert_eq!(came.len(), 40);
        let failures = loader.failures();
        assert!(!failures.is_empty() && failures.iter().all(|failure| failure.outcome == Outcome::Recovered));
        assert!(loader.books().iter().all(|(_, books)| books.delivered == 40), "{:?}", loader.books());
        let report = loader.report().to_string();
        assert!(report.contains("a.tar\" is damaged on its storage: 2 blocks of it so far, repaired"), "{report}");
        assert!(report.contains("`forebay parity --repair`"), "{report}");
        assert!(loader.source().storage().repairs.unwrap().reads >= 2);
        store.rest();
    }
}

#[test]
fn an_archive_that_was_changed_on_purpose_fails_as_it_did_and_the_hint_names_the_sidecar() {
    let bench = Bench::new(40, 0.05);
    let store: Arc<dyn Store> = Arc::new(Local);
    let mut shards = bench.shards(&store);
    let mut damaged = bench.content.clone();
    damaged[BLOCK..30 * BLOCK].iter_mut().for_each(|byte| *byte ^= 3);
    std::fs::write(bench.path(), &damaged).unwrap();
    let repaired = Arc::new(repairing(&mut shards, &store));
    let (loader, came) = load(&bench, shards, repaired);
    let failures = loader.failures();
    assert_eq!((came.len() + failures.len(), came.is_empty()), (40, false));
    for failure in &failures {
        assert_eq!((failure.outcome, &*failure.code), (Outcome::Skipped, "corrupt"));
        assert!(failure.message.contains("is not what it was (expected xxh3"), "{}", failure.message);
        let expected = format!("a.tar.parity\" carries {} damaged blocks of each group", bench.parity_blocks);
        assert!(failure.hint.contains(&expected), "{}", failure.hint);
    }
    let check = check_parity(&store, &bench.path(), &mut |_, _| {}).unwrap();
    assert!(!check.is_repairable() && check.damaged_blocks == 29, "{check:?}");
}
