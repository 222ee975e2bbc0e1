//! Writes the ledger from a thread of its own, so that neither a lock that another process holds nor a mount that hangs
//! keeps the training loop waiting. Lines that cannot be written yet stay in memory, up to a limit, and are tried again.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_core::{Error, Failure, Result};
use forebay_store::LedgerFile;

use crate::diagnose::bounded::within;

/// Lines that may wait in memory: some 60,000 of them.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// How long [`LedgerWriter::append`] waits for its lines to be in the file. Usually they are within a millisecond.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long [`LedgerWriter::flush`] waits.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);
/// Pauses between two attempts for a lock, from the first to the longest; flock(2) has no deadline.
const LOCK_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// The pause after a write that failed. A disk that is full may have room again.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// An open ledger and the lines on their way to it.
///
/// A thread runs only while lines wait. Dropped, it leaves that thread to write them: they are lost only if the process
/// ends first.
#[derive(Debug)]
pub(crate) struct LedgerWriter {
    writer: Arc<Writer>,
}

#[derive(Debug)]
struct Writer {
    file: LedgerFile,
    queue: Mutex<Queue>,
    /// A line came, or one was written, or could not be.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// What the thread has not taken yet.
    lines: String,
    /// Bytes that it has taken.
    taken_bytes: usize,
    accepted: u64,
    written: u64,
    /// Lines that came while there was no room for them.
    dropped: u64,
    /// The process whose thread writes.
    process: Option<u32>,
    attempt: Attempt,
    /// Why the last attempt failed.
    error: Option<String>,
    /// Attempts that failed so far.
    failed: u64,
    /// The writer is behind: no thread waits for it until it has caught up.
    is_late: bool,
}

/// What the thread is doing, and since when.
#[derive(Clone, Copy, Debug, Default)]
enum Attempt {
    #[default]
    None,
    Calling(Instant),
    Locked(Instant),
}

impl Queue {
    fn waiting(&self) -> u64 {
        self.accepted - self.written
    }
}

impl LedgerWriter {
    /// Opens a ledger, and gives what `read` makes of what is in it already. A file that does not answer within `limit` is
    /// a wrong setting.
    pub(crate) fn open<T: Send + 'static>(
        path: &Path,
        limit: Duration,
        read: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<(Self, T)> {
        let own = path.to_owned();
        // Opened first: its errors say what is in the way.
        let open = move || {
            let file = LedgerFile::open(&own)?;
            Ok((read(&own)?, file))
        };
        let opened = within("forebay-ledger", limit, open)?;
        let (read, file) = opened.ok_or_else(|| {
            let seconds = limit.as_secs_f64();
            Error::config(format!("cannot be the ledger: it did not answer within {seconds:.1} s"))
                .at_path(path)
                .with_hint("its mount may hang: give `ledger` a file on a disk of this machine")
        })??;
        let writer = Writer { file, queue: Mutex::default(), changed: Condvar::new() };
        Ok((Self { writer: Arc::new(writer) }, read))
    }

    /// The file.
    pub(crate) fn file(&self) -> &LedgerFile {
        &self.writer.file
    }

    /// Appends failures. Waits until they are in the file, unless that takes long: then they are written later, and
    /// [`LedgerWriter::trouble`] says what they wait for.
    pub(crate) fn append(&self, failures: &[Failure]) {
        match failures.iter().map(Failure::to_line).collect::<Result<String>>() {
            Ok(lines) => self.append_lines(&lines, failures.len() as u64),
            Err(error) => {
                let mut queue = self.writer.queue();
                queue.error.get_or_insert(error.to_string());
                queue.dropped += failures.len() as u64;
            }
        }
    }

    /// The same, of `count` lines that are written already.
    pub(crate) fn append_lines(&self, lines: &str, count: u64) {
        if count == 0 {
            return;
        }
        let mut queue = self.writer.queue();
        if queue.lines.len() + queue.taken_bytes + lines.len() > MAX_WAITING_BYTES {
            queue.dropped += count;
            return;
        }
        queue.lines.push_str(lines);
        queue.accepted += count;
        let (accepted, failed) = (queue.accepted, queue.failed);
        self.writer.start(&mut queue);
        self.writer.changed.notify_all();
        if !queue.is_late {
            let is_pending = |queue: &mut Queue| queue.written < accepted && queue.failed == failed;
            queue = self.writer.wait(queue, PATIENCE, is_pending);
            queue.is_late = queue.written < accepted;
        }
    }

    /// Waits a moment for lines that were not written yet.
    pub(crate) fn flush(&self) {
        let mut queue = self.writer.queue();
        if queue.waiting() == 0 {
            return;
        }
        let failed = queue.failed;
        self.writer.start(&mut queue);
        self.writer.changed.notify_all();
        let is_pending = |queue: &mut Queue| queue.waiting() > 0 && queue.failed == failed;
        drop(self.writer.wait(queue, FLUSH_PATIENCE, is_pending));
    }

    /// Why lines are missing from the file, if any are.
    pub(crate) fn trouble(&self) -> Option<String> {
        let queue = self.writer.queue();
        let (waiting, dropped) = (queue.waiting(), queue.dropped);
        let is_behind = queue.is_late && waiting > 0;
        if !is_behind && dropped == 0 {
            return None;
        }
        let (error, attempt) = (queue.error.clone(), queue.attempt);
        drop(queue);
        let path = self.writer.file.path();
        let mut text = match (error, attempt) {
            (Some(error), _) => error,
            (None, Attempt::Locked(since)) => {
                let owner = self.writer.file.lock_owner().unwrap_or("another process or machine".to_owned());
                format!("{path:?} has been locked by {owner} for {:.1} s", since.elapsed().as_secs_f64())
            }
            (None, Attempt::Calling(since)) => {
                format!("{path:?} has not answered for {:.1} s", since.elapsed().as_secs_f64())
            }
            (None, Attempt::None) => format!("{path:?} lacks lines"),
        };
        if is_behind {
            let _infallible = write!(text, "; lines that wait in memory: {waiting}");
        }
        if dropped > 0 {
            let _infallible = write!(text, "; lines lost: {dropped} (at most {MAX_WAITING_BYTES} bytes wait)");
        }
        Some(text)
    }
}

impl Writer {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        queue: MutexGuard<'a, Queue>,
        most: Duration,
        condition: impl FnMut(&mut Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        self.changed.wait_timeout_while(queue, most, condition).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Starts the thread, unless it runs. One of the process that this one was forked from does not.
    fn start(self: &Arc<Self>, queue: &mut Queue) {
        let process = std::process::id();
        if queue.process == Some(process) {
            return;
        }
        let writer = Arc::clone(self);
        match Builder::new().name("forebay-ledger".to_owned()).spawn(move || writer.run()) {
            Ok(_detached) => queue.process = Some(process),
            // The lines stay, and the next one tries again.
            Err(error) => {
                queue.error = Some(Error::io("given a thread", error).at_path(self.file.path()).to_string());
                queue.failed += 1;
            }
        }
    }

    /// Writes until no line waits.
    fn run(&self) {
        let mut taken = String::new();
        let mut lock_pause = LOCK_PAUSES.0;
        loop {
            let end = {
                let mut queue = self.queue();
                taken.push_str(&std::mem::take(&mut queue.lines));
                queue.taken_bytes = taken.len();
                if taken.is_empty() {
                    (queue.process, queue.attempt) = (None, Attempt::None);
                    return;
                }
                if !matches!(queue.attempt, Attempt::Locked(_)) {
                    queue.attempt = Attempt::Calling(Instant::now());
                }
                queue.accepted
            };
            let appended = self.file.append(&taken);
            let mut queue = self.queue();
            let pause = match appended {
                Ok(true) => {
                    taken.clear();
                    (queue.written, queue.taken_bytes) = (end, 0);
                    (queue.attempt, queue.error, lock_pause) = (Attempt::None, None, LOCK_PAUSES.0);
                    queue.is_late &= queue.waiting() > 0;
                    self.changed.notify_all();
                    continue;
                }
                Ok(false) => {
                    queue.error = None;
                    if !matches!(queue.attempt, Attempt::Locked(_)) {
                        queue.attempt = Attempt::Locked(Instant::now());
                    }
                    lock_pause = (lock_pause * 2).min(LOCK_PAUSES.1);
                    lock_pause
                }
                Err(error) => {
                    queue.error = Some(format!("{error}; {}", error.hint()));
                    (queue.attempt, queue.failed, queue.is_late) = (Attempt::None, queue.failed + 1, true);
                    self.changed.notify_all();
                    ERROR_PAUSE
                }
            };
            // New lines, and a thread that waits for the end, end the pause.
            let accepted = queue.accepted;
            drop(self.wait(queue, pause, |queue| queue.accepted == accepted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use forebay_core::{Kind, Outcome};

    const SECOND: Duration = Duration::from_secs(1);

    fn failure(index: u64) -> Failure {
        let error = Error::new(Kind::Corrupt, "is truncated").at_index(index);
        Failure::of(&error, Path::new("cat/1.jpg"), Outcome::Replaced)
    }

    fn open() -> (tempfile::TempDir, PathBuf, LedgerWriter) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let (writer, _) = LedgerWriter::open(&path, SECOND, |_| Ok(())).unwrap();
        (folder, path, writer)
    }

    #[expect(clippy::disallowed_methods, reason = "a test holds the lock itself")]
    fn lock(path: &Path) -> std::fs::File {
        let file = std::fs::File::open(path).unwrap();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
        file
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + 20 * SECOND;
        while !is_so() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn lines_are_in_the_file_when_append_returns() {
        let (_folder, path, writer) = open();
        for index in 0..50 {
            writer.append(&[failure(index)]);
            assert_eq!(LedgerFile::read(&path).unwrap().len() as u64, index + 1);
        }
        assert_eq!(writer.trouble(), None);
    }

    #[test]
    fn a_held_lock_delays_one_call_and_loses_nothing() {
        let (_folder, path, writer) = open();
        let held = lock(&path);
        let started = Instant::now();
        for index in 0..1000 {
            writer.append(&[failure(index)]);
        }
        writer.flush();
        assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
        let trouble = writer.trouble().unwrap();
        assert!(trouble.contains(&format!("has been locked by process {} (", std::process::id())), "{trouble}");
        assert!(trouble.ends_with("lines that wait in memory: 1000"), "{trouble}");
        drop(writer); // the thread has them
        drop(held);
        wait_until("all lines are written", || LedgerFile::read(&path).unwrap().len() == 1000);
        let indices: Vec<_> = LedgerFile::read(&path).unwrap().iter().map(|failure| failure.index).collect();
        assert_eq!(indices, (0..1000).collect::<Vec<_>>(), "in order");
    }

    #[test]
    fn no_more_lines_wait_than_fit_and_the_rest_is_counted() {
        let (_folder, path, writer) = open();
        let held = lock(&path);
        let line = failure(1).to_line().unwrap();
        let half = line.repeat(MAX_WAITING_BYTES / 2 / line.len());
        let count = (half.len() / line.len()) as u64;
        (0..3).for_each(|_| writer.append_lines(&half, count));
        let trouble = writer.trouble().unwrap();
        assert!(trouble.contains(&format!("lines that wait in memory: {}", 2 * count)), "{trouble}");
        assert!(trouble.contains(&format!("lines lost: {count} (at most 33554432 bytes wait)")), "{trouble}");
        drop(held);
        writer.flush();
        wait_until("the others are written", || !writer.trouble().unwrap().contains("wait in memory"));
    }
}
