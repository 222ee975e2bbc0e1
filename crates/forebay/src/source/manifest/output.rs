//! Where a manifest is written to: a file of this machine, or an object of a store. Either is replaced in one step, and
//! is as it was until then.

use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_core::{Clock, Error, Kind, Result, Retry, SystemClock};
use forebay_format::{Facts, FolderIndex, Keeps, Labels, Manifest, write_manifest};
use forebay_store::{
    Local, MountKind, ObjectSink, Remote, Replacement, Sink, Stat, StorageOptions, Store, is_url, machine,
};

use crate::source::defaults::Defaults;

/// A manifest of this size is sent in one request; a larger one in pieces.
const PIECE_BYTES: usize = 8 << 20;

/// The place of a manifest that is there, or will be.
#[derive(Debug)]
pub struct ManifestOutput {
    path: PathBuf,
    options: StorageOptions,
    /// The folder of an object; `None` for a file.
    sink: Option<ObjectSink>,
}

impl ManifestOutput {
    /// A file, or the URL of an object. What is wrong with it is said here, before anything is listed: a folder that does
    /// not exist or may not be written to, a store that cannot be. Asks nothing of a server.
    pub fn open(path: &Path, options: &StorageOptions) -> Result<Self> {
        if !is_url(path) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder {
                Local.stat(folder).map_err(|error| match error.kind() {
                    Kind::NotFound => {
                        error.with_hint("the folder of a manifest has to be there: make it with mkdir -p")
                    }
                    _ => error,
                })?;
            }
            // Begun and dropped: there is no better way to find out.
            drop(Replacement::new(path)?);
            return Ok(Self { path: path.to_owned(), options: StorageOptions::default(), sink: None });
        }
        let (store, path) = Remote::open(path, options)?;
        if !store.capabilities().can_list {
            return Err(Error::config("output: expected a place that can be written to, got an HTTP server")
                .with_hint("give a file, or a URL that begins with s3://, gs:// or az://"));
        }
        // As text: a URL is no path, though most of it reads like one.
        let text = path.to_str().unwrap_or_default();
        let folder = text.rsplit_once('/').map(|(folder, _)| folder).filter(|folder| !folder.ends_with('/'));
        let folder = folder.ok_or_else(|| {
            Error::config("output: expected the name of an object in the bucket, got the bucket alone").at_path(&path)
        })?;
        let sink = ObjectSink::open(store, PathBuf::from(folder), false)?;
        Ok(Self { path, options: options.clone(), sink: Some(sink) })
    }

    /// The file, or the URL without options, user or password.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest that is there, with all that it knows of its samples; `None` where nothing is.
    pub fn earlier(&self) -> Result<Option<Manifest>> {
        match super::read(&self.path, None, &self.options, Keeps::Facts, &Labels::Class) {
            Ok(earlier) => Ok(Some(earlier)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts a manifest in the place of what is there; how many bytes. `root` is what will be looked for by those who open
    /// it.
    pub fn write(&self, index: &FolderIndex, facts: &[Facts], root: &str) -> Result<u64> {
        let Some(sink) = &self.sink else {
            let mut file = Replacement::new(&self.path)?;
            let written = write_manifest(&mut file, index, facts, root);
            written.map_err(|error| error.at_path(&self.path))?;
            return file.commit();
        };
        let mut bytes = Vec::new();
        write_manifest(&mut bytes, index, facts, root)?;
        let name = Path::new(self.path.file_name().unwrap_or_default());
        put(sink, name, &bytes).map_err(|error| error.at_path(&self.path))?;
        Ok(bytes.len() as u64)
    }
}

/// Puts an object, as often as it takes. Nothing is seen of it before all of it is there.
fn put(sink: &dyn Sink, name: &Path, bytes: &[u8]) -> Result<()> {
    let retry = Defaults::on(Some(MountKind::Remote), machine::available_cpus()).retry;
    let mtime_ns = (SystemClock::default().unix_seconds() * 1e9) as i64;
    let stat = Stat { size_bytes: bytes.len() as u64, mtime_ns };
    if bytes.len() <= PIECE_BYTES {
        return persist(retry, || sink.put(name, bytes, stat));
    }
    let mut writing = persist(retry, || sink.begin(name, stat))?;
    let piece_bytes = writing.piece_bytes().map_or(PIECE_BYTES, |size| size as usize);
    let mut pieces = bytes.chunks(piece_bytes).zip((0..).step_by(piece_bytes));
    let written = pieces.try_for_each(|(piece, at)| persist(retry, || writing.write(at, piece)));
    let written = written.and_then(|()| persist(retry, || writing.finish()));
    if written.is_err() {
        // It is of no use any more. A failure to remove it is not the error to report.
        let _removed = writing.discard();
    }
    written
}

/// Tries until it goes well, or until there is no reason to try again.
fn persist<T>(retry: Retry, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let (started, mut attempts) = (Instant::now(), 1);
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        match retry.pause(&error, attempts, started.elapsed(), u64::from(attempts)) {
            Some(pause) => std::thread::sleep(pause),
            None => return Err(error.after(attempts, started.elapsed())),
        }
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use forebay_store::{Held, SinkEntry, Writing};

    use super::*;

    type Objects = Vec<(PathBuf, Vec<u8>)>;

    /// Objects in memory. The first calls fail; pieces of what is called "denied" always do.
    #[derive(Debug, Default)]
    struct Flaky {
        objects: Arc<Mutex<Objects>>,
        failures: Arc<Mutex<u32>>,
        is_discarded: Arc<Mutex<bool>>,
    }

    impl Flaky {
        fn failing(times: u32) -> Self {
            Self { failures: Arc::new(Mutex::new(times)), ..Self::default() }
        }
    }

    fn fail(failures: &Mutex<u32>) -> Result<()> {
        let mut left = failures.lock().unwrap();
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        Err(Error::new(Kind::Unavailable, "answered 503").transient())
    }

    struct InPieces {
        to: Flaky,
        name: PathBuf,
        bytes: Vec<u8>,
        piece_bytes: u64,
    }

    impl Sink for Flaky {
        fn list(&self, _directory: &Path) -> Result<Vec<SinkEntry>> {
            Ok(Vec::new())
        }

        fn held(&self, _name: &Path) -> Result<Option<Held>> {
            Ok(None)
        }

        fn put(&self, name: &Path, bytes: &[u8], stat: Stat) -> Result<()> {
            assert_eq!(stat.size_bytes, bytes.len() as u64);
            fail(&self.failures)?;
            self.objects.lock().unwrap().push((name.to_owned(), bytes.to_vec()));
            Ok(())
        }

        fn begin(&self, name: &Path, _stat: Stat) -> Result<Box<dyn Writing>> {
            fail(&self.failures)?;
            let to = Flaky {
                objects: Arc::clone(&self.objects),
                failures: Arc::clone(&self.failures),
                is_discarded: Arc::clone(&self.is_discarded),
            };
            Ok(Box::new(InPieces { to, name: name.to_owned(), bytes: Vec::new(), piece_bytes: 3 << 20 }))
        }

        fn remove(&self, _name: &Path) -> Result<()> {
            Ok(())
        }

        fn remove_directory(&self, _name: &Path) -> Result<bool> {
            Ok(false)
        }
    }

    impl Writing for InPieces {
        fn have_bytes(&self) -> u64 {
            0
        }

        fn show(&mut self, _each: &mut dyn FnMut(&[u8])) -> Result<()> {
            Ok(())
        }

        fn piece_bytes(&self) -> Option<u64> {
            Some(self.piece_bytes)
        }

        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            fail(&self.to.failures)?;
            if self.name == Path::new("denied") {
                return Err(Error::new(Kind::Denied, "answered 403"));
            }
            assert_eq!(offset, self.bytes.len() as u64, "in order, each once");
            self.bytes.extend_from_slice(bytes);
            Ok(())
        }

        fn set_size(&mut self, size_bytes: u64) {
            assert_eq!(size_bytes, self.bytes.len() as u64);
        }

        fn finish(&mut self) -> Result<()> {
            fail(&self.to.failures)?;
            self.to.objects.lock().unwrap().push((self.name.clone(), std::mem::take(&mut self.bytes)));
            Ok(())
        }

        fn discard(&mut self) -> Result<()> {
            *self.to.is_discarded.lock().unwrap() = true;
            Ok(())
        }
    }

    #[test]
    fn small_and_large_ones_arrive_whole_through_failures() {
        for size in [0, 100, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let sink = Flaky::failing(2);
            put(&sink, Path::new("m.parquet"), &bytes).unwrap();
            let objects = sink.objects.lock().unwrap();
            assert!(*objects == [(PathBuf::from("m.parquet"), bytes)], "{size}");
            assert!(!*sink.is_discarded.lock().unwrap());
        }
    }

    #[test]
    fn what_always_fails_is_given_up_and_leaves_nothing() {
        let retry = Retry { first_pause: std::time::Duration::from_millis(1), retries: 3, ..Retry::default() };
        let mut count = 0;
        let failed = persist(retry, || {
            count += 1;
            Err::<(), _>(Error::new(Kind::Unavailable, "answered 503").transient())
        });
        assert_eq!((count, failed.unwrap_err().attempts()), (4, 4));
        let denied = persist(retry, || {
            count += 1;
            Err::<(), _>(Error::new(Kind::Denied, "answered 403"))
        });
        assert_eq!((count, denied.unwrap_err().kind()), (5, Kind::Denied));
        let sink = Flaky::default();
        let error = put(&sink, Path::new("denied"), &vec![1; PIECE_BYTES + 1]).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(*sink.is_discarded.lock().unwrap() && sink.objects.lock().unwrap().is_empty());
    }

    #[test]
    fn a_place_is_an_object_of_a_store_that_takes_one() {
        let open = |place: &str| ManifestOutput::open(Path::new(place), &StorageOptions::default());
        let output = open("s3://bucket/a b/m.parquet?region=eu&key=me&secret=hunter2hunter2").unwrap();
        assert_eq!(output.path(), Path::new("s3://bucket/a b/m.parquet"));
        assert!(!format!("{output:?}").contains("hunter2"));
        for (place, said) in [
            ("s3://bucket", "got the bucket alone"),
            ("https://host/m.parquet", "got an HTTP server"),
            ("s3://bucket/m.parquet?nonsense=1", "nonsense"),
            ("ftp://host/m.parquet", "ftp"),
        ] {
            let error = open(place).unwrap_err();
            assert!(error.kind() == Kind::Config && error.to_string().contains(said), "{error}");
        }
    }
}
