//! Reads in separate processes: if a mount hangs, only a reader process is stuck, and this process can continue and
//! exit.
//!
//! A thread stuck in some calls to a FUSE or network mount makes its whole process unkillable and unreapable. So
//! readers (`src/reader`) make these calls: small processes, one per concurrent read, which receive requests over a
//! socket. Each request has a deadline. A reader that misses it is killed without waiting for its death, and replaced.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Listing, Result, Stage};

use crate::capabilities::Capabilities;
use crate::hint::failed_elsewhere;
use crate::local::{Local, complete, not_regular, open_failed, resize};
use crate::read_request::ReadRequest;
use crate::reader::protocol::{Answer, Request, Span, Status, take_entry};
use crate::store::{Allot, Bytes, Object, Stat, Stop, Store};
use crate::stuck::late;

mod pool;
mod process;
mod program;
mod reap;
mod window;

use pool::Pool;
pub use pool::Readers;
use process::{NoAnswer, Reader};
use window::View;
pub(crate) use window::WindowBytes;

/// Files of this machine and its mounts, read by other processes within a deadline.
///
/// Readers start on demand, up to `max_readers`, and stay until [`Store::rest`] or until the last clone is dropped.
/// They exit when this process ends for any reason, except while they are stuck in the kernel. A call without an answer
/// within the deadline is a transient [`Kind::Timeout`]; a call whose reader dies is a transient [`Kind::Unavailable`].
/// When more than `max_lost_readers` killed readers are stuck in the kernel, the next start of a reader fails with a
/// [`Kind::Exhausted`] that lists them all and concerns every sample.
///
/// A forked child has no readers and reads in its own threads: it is not the process to protect.
#[derive(Clone, Debug)]
pub struct Isolated {
    pool: Arc<Pool>,
    deadline: Duration,
    stop: Option<Stop>,
}

impl Isolated {
    /// A store with up to `max_readers` processes and a `deadline` for each call. No process starts yet.
    pub fn new(max_readers: usize, deadline: Duration) -> Self {
        Self { pool: Arc::new(Pool::new(max_readers.max(1), usize::MAX)), deadline, stop: None }
    }

    /// The same, with a limit for killed readers that are still alive.
    pub fn with_max_lost_readers(self, max_lost_readers: usize) -> Self {
        Self { pool: Arc::new(Pool::new(self.pool.max_readers(), max_lost_readers)), ..self }
    }

    /// Process ids of idle readers, for tests that stop or kill them.
    #[cfg(feature = "testing")]
    pub fn idle_processes(&self) -> Vec<u32> {
        self.pool.idle_processes()
    }

    /// Runs one call with a reader, and returns the reader to the pool or discards it afterwards.
    fn call<T>(&self, path: &Path, within: Duration, action: impl FnOnce(&mut Call<'_>) -> Result<T>) -> Result<T> {
        let path = std::path::absolute(path).map_err(|error| Error::io("made absolute", error))?;
        if path.as_os_str().len() > libc::PATH_MAX as usize {
            return Err(failed_elsewhere("opened", &path, std::io::Error::from_raw_os_error(libc::ENAMETOOLONG)));
        }
        let started = Instant::now();
        let until = started + within;
        let mut call = Call { store: self, path: &path, started, within, until, reader: None, view: None };
        let result = action(&mut call);
        call.view = None;
        if let Some(reader) = call.reader.take() {
            if result.is_err() {
                // Closes the file that the reader has open. If the reader has died, the next call notices.
                reader.send(&close());
            }
            self.pool.give_back(reader);
        }
        result
    }
}

/// A call in progress.
struct Call<'a> {
    store: &'a Isolated,
    path: &'a Path,
    started: Instant,
    within: Duration,
    until: Instant,
    /// Set from the first answer on; taken when the reader dies or is killed.
    reader: Option<Reader>,
    /// The part of the window that the reader may write to, owned by this call.
    view: Option<View>,
}

impl Call<'_> {
    /// Sends the first request of a call.
    fn begin(&mut self, request: Request, range: Range<u64>) -> Result<Answer> {
        let path = self.path.as_os_str().as_bytes();
        loop {
            let reader = self.store.pool.take(self.until)?;
            if let Some(view) = reader.window().view()
                && reader.send(&request.to_bytes(view.span(), range.clone(), path))
            {
                (self.reader, self.view) = (Some(reader), Some(view));
                return self.answer();
            }
            // It died while it was idle: nothing of this call is lost.
            self.store.pool.reap_dead(reader);
        }
    }

    fn more(&mut self) -> Result<Answer> {
        // If it has died, waiting for its answer reports that.
        self.reader()?.send(&Request::More.to_bytes(self.view()?.span(), 0..0, &[]));
        self.answer()
    }

    fn reader(&self) -> Result<&Reader> {
        self.reader.as_ref().ok_or_else(|| Error::internal("a call continued without its reader process"))
    }

    fn view(&self) -> Result<&View> {
        self.view.as_ref().ok_or_else(|| Error::internal("a call continued without its part of the window"))
    }

    fn answer(&mut self) -> Result<Answer> {
        let silence = match self.reader()?.wait(self.until, self.store.stop.as_ref()) {
            Ok(answer) => return into_result(self.path, answer),
            Err(silence) => silence,
        };
        let Some(reader) = self.reader.take() else {
            return Err(Error::internal("a call lost its reader process twice"));
        };
        Err(match silence {
            NoAnswer::Died => died(self.store.pool.reap_dead(reader)),
            NoAnswer::Late => {
                self.store.pool.write_off(reader, self.path, self.started);
                late(self.path, self.within)
            }
            NoAnswer::Stopped(None) => {
                self.store.pool.write_off(reader, self.path, self.started);
                Error::new(Kind::Stopped, "the loader was closed during a read")
            }
            NoAnswer::Stopped(Some(_)) => {
                self.view = None;
                reader.send(&close());
                self.store.pool.give_back(reader);
                Error::new(Kind::Stopped, "the loader was closed during a read")
            }
        })
    }

    /// The bytes that the reader has put into the view.
    fn piece(&self, answer: &Answer) -> Result<&[u8]> {
        let piece = self.view()?.bytes().get(..answer.count as usize);
        piece.ok_or_else(|| Error::internal("a reader process returned more bytes than requested"))
    }

    /// Takes the bytes in the view without a copy, if the window has enough room left.
    fn keep(&mut self, answer: &Answer) -> Option<WindowBytes> {
        match self.view.take()?.keep(answer.count as usize) {
            Ok(kept) => Some(kept),
            Err(view) => {
                self.view = Some(view);
                None
            }
        }
    }
}

/// The request that makes a reader close its open file.
fn close() -> Vec<u8> {
    Request::Close.to_bytes(Span::default(), 0..0, &[])
}

fn died(status: Option<std::process::ExitStatus>) -> Error {
    use std::os::unix::process::ExitStatusExt;
    let how = match status.and_then(|status| status.signal().map(Ok).or(status.code().map(Err))) {
        Some(Ok(signal)) => format!(", killed by signal {signal}"),
        Some(Err(code)) => format!(", with exit status {code}"),
        None => String::new(),
    };
    Error::new(Kind::Unavailable, format!("could not be read: its reader process ended{how}"))
        .transient()
        .with_hint("signal 9 often means that the kernel killed it for lack of memory: see `dmesg`, lower `io_threads`")
}

/// Turns a failure answer into the error that the same call in this process would give.
fn into_result(path: &Path, answer: Answer) -> Result<Answer> {
    let error = || std::io::Error::from_raw_os_error(answer.errno);
    Err(match answer.status {
        Status::Fine => return Ok(answer),
        Status::NotOpened => open_failed(error(), |error| failed_elsewhere("opened", path, error)),
        Status::NotExamined => failed_elsewhere("examined", path, error()),
        Status::NotListed => failed_elsewhere("listed", path, error()),
        Status::NotRead => failed_elsewhere("read", path, error())
            .with_detail(format!("at byte {} of {}", answer.offset, answer.size_bytes)),
        Status::NotRegular => not_regular(answer.mode),
        Status::NotUnderstood => Error::internal("a reader process did not understand a request"),
    })
}

fn stat_of(answer: &Answer) -> Stat {
    Stat { size_bytes: answer.size_bytes, mtime_ns: answer.mtime_ns }
}

/// Checks that the last answer completes a read of `expected` bytes, `have` of which were received.
fn check_complete(stat: Stat, expected: u64, have: u64, answer: &Answer) -> Result<()> {
    let after = Stat { size_bytes: answer.size_after, mtime_ns: answer.mtime_after };
    if answer.is_last { complete(stat, expected, have, after) } else { Ok(()) }
}

impl Store for Isolated {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        if self.pool.is_forked() {
            return Local.fetch(request, allot);
        }
        request.check_cancel()?;
        let read = self.call(request.path, request.within.min(self.deadline), |call| {
            let mut answer = call.begin(Request::Read, request.range.clone().unwrap_or(0..u64::MAX))?;
            let stat = stat_of(&answer);
            let range = request.bytes_of(stat)?;
            let size_bytes = range.end - range.start;
            // Before memory is requested: an incomplete object needs none.
            check_complete(stat, size_bytes, answer.count, &answer)?;
            let asked = Instant::now();
            let allotted = allot(size_bytes);
            // Time spent waiting for memory does not count against the storage's deadline.
            call.until += asked.elapsed();
            let mut buffer = allotted?;
            if answer.is_last
                && let Some(kept) = call.keep(&answer)
            {
                return Ok(Object { bytes: Bytes::kept(kept, buffer), stat });
            }
            resize(&mut buffer, size_bytes)?;
            let mut have = 0;
            loop {
                let end = have + answer.count as usize;
                let place = buffer
                    .get_mut(have..end)
                    .ok_or_else(|| Error::internal("a reader process returned more bytes than announced"))?;
                place.copy_from_slice(call.piece(&answer)?);
                have = end;
                check_complete(stat, size_bytes, have as u64, &answer)?;
                if answer.is_last {
                    break;
                }
                request.check_cancel()?;
                answer = call.more()?;
            }
            Ok(Object { bytes: buffer.into(), stat })
        });
        read.map_err(|error| error.at_path(request.path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        if self.pool.is_forked() {
            return Local.stat(path);
        }
        let answer = self.call(path, self.deadline, |call| call.begin(Request::Stat, 0..0));
        answer.map(|answer| stat_of(&answer)).map_err(|error| error.at_path(path).at_stage(Stage::Fetch))
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        if self.pool.is_forked() {
            return Local.list(directory);
        }
        let list = self.call(directory, self.deadline, |call| {
            let mut answer = call.begin(Request::List, 0..0)?;
            let mut listing = Listing::new((answer.device, answer.inode));
            loop {
                let mut rest = call.piece(&answer)?;
                while let Some((name, is_directory, following)) = take_entry(rest) {
                    listing.push(std::ffi::OsStr::from_bytes(name), is_directory);
                    rest = following;
                }
                if answer.is_last {
                    return Ok(listing);
                }
                answer = call.more()?;
            }
        });
        list.map_err(|error| error.at_path(directory).at_stage(Stage::Scan))
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        // Without a descriptor calls cannot be stopped: they end at their deadline.
        let stop = Stop::new().ok()?;
        let store = Self { pool: Arc::clone(&self.pool), deadline: self.deadline, stop: Some(stop.clone()) };
        Some((Arc::new(store), stop))
    }

    fn rest(&self) {
        if !self.pool.is_forked() {
            self.pool.rest();
        }
    }

    fn capabilities(&self) -> Capabilities {
        let max_calls = Some(self.pool.max_readers());
        Capabilities { keeps_deadlines: true, is_isolated: true, max_calls, ..Capabilities::default() }
    }

    fn readers(&self) -> Option<Readers> {
        Some(if self.pool.is_forked() { Readers::default() } else { self.pool.readers() })
    }
}
