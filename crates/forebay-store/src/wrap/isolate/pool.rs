//! The pool of reader processes: idle ones, killed ones that are still alive, and the thread that starts them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use forebay_core::{Error, Kind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::process::Reader;
use super::program;
use super::reap::{self, MAX_WAIT};
use crate::mount::Mount;
use crate::stuck::{Stuck, too_many_stuck};

/// Statistics of reader processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readers {
    /// Idle or reading.
    pub alive: usize,
    /// Killed because they did not answer, but still alive.
    pub lost: usize,
    /// Started so far.
    pub started: u64,
    /// Killed so far because they did not answer in time.
    pub written_off: u64,
    /// Exited so far on their own.
    pub died: u64,
}

/// Reader processes, up to a limit.
#[derive(Debug)]
pub(super) struct Pool {
    max_readers: usize,
    max_lost: usize,
    process: u32,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Reader>,
    /// Idle, in use, and being started.
    count: usize,
    /// Being started.
    starting: usize,
    lost: Vec<Lost>,
    spawner: Option<Spawner>,
    /// No readers are needed now: readers that are returned are ended.
    is_resting: bool,
    started: u64,
    written_off: u64,
    died: u64,
}

/// A reader that was killed and may be stuck.
#[derive(Debug)]
struct Lost {
    child: Child,
    path: PathBuf,
    mount: Option<Mount>,
    since: Instant,
}

impl State {
    /// The most recently used idle reader, preferably one whose window has room: with a full window, bytes must be
    /// copied.
    fn pop_idle(&mut self) -> Option<Reader> {
        let roomy = self.idle.iter().rposition(|reader| reader.window().has_room());
        roomy.map(|at| self.idle.remove(at)).or_else(|| self.idle.pop())
    }

    /// Reaps lost readers that have died. Never waits.
    fn reap(&mut self) {
        self.lost.retain_mut(|lost| matches!(lost.child.try_wait(), Ok(None)));
    }

    fn stuck(&self) -> Vec<Stuck> {
        let stuck =
            |lost: &Lost| Stuck { path: lost.path.clone(), mount: lost.mount.clone(), elapsed: lost.since.elapsed() };
        self.lost.iter().map(stuck).collect()
    }
}

impl Pool {
    pub(super) fn new(max_readers: usize, max_lost: usize) -> Self {
        Self { max_readers, max_lost, process: std::process::id(), state: Mutex::default(), freed: Condvar::new() }
    }

    pub(super) fn max_readers(&self) -> usize {
        self.max_readers
    }

    /// A forked child shares the sockets but must not use them, nor the lock, which may be held for ever.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// An idle reader, or a new one.
    pub(super) fn take(&self, until: Instant) -> Result<Reader> {
        let mut state = self.state();
        loop {
            if let Some(reader) = state.pop_idle() {
                return Ok(reader);
            }
            if state.count < self.max_readers {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message =
                    format!("was not read: all {} reader processes were busy until its deadline", self.max_readers);
                return Err(Error::new(Kind::Timeout, message).transient());
            }
            self.freed.wait_for(&mut state, left);
        }
        state.reap();
        if state.lost.len() > self.max_lost {
            return Err(too_many_stuck("reader processes", &state.stuck()));
        }
        (state.count, state.starting, state.is_resting) = (state.count + 1, state.starting + 1, false);
        let reader = Spawner::of(&mut state.spawner).map(|requests| {
            drop(state);
            start(&requests)
        });
        let reader = reader.and_then(|reader| reader);
        let mut state = self.state();
        state.starting -= 1;
        match reader {
            Ok(reader) => {
                state.started += 1;
                Ok(reader)
            }
            Err(error) => {
                state.count -= 1;
                drop(state);
                self.freed.notify_one();
                Err(not_started(error))
            }
        }
    }

    /// Returns a reader that has answered all requests.
    pub(super) fn give_back(&self, reader: Reader) {
        let mut state = self.state();
        state.idle.push(reader);
        if state.is_resting {
            return self.end_idle(state);
        }
        drop(state);
        self.freed.notify_one();
    }

    /// Ends idle readers now, and busy ones when they are returned, until a reader is needed again.
    pub(super) fn rest(&self) {
        let mut state = self.state();
        state.is_resting = true;
        self.end_idle(state);
    }

    fn end_idle(&self, mut state: MutexGuard<'_, State>) {
        state.count -= state.idle.len();
        let (idle, lost) = (std::mem::take(&mut state.idle), std::mem::take(&mut state.lost));
        // Readers die with the thread that started them.
        let spawner = if state.count == 0 { state.spawner.take() } else { None };
        drop(state);
        self.freed.notify_all();
        reap::soon(idle.into_iter().map(Reader::kill).collect());
        reap::later(lost.into_iter().map(|lost| lost.child).collect());
        if let Some(spawner) = spawner {
            spawner.end();
            program::forget();
        }
    }

    /// Kills a reader that does not answer, and continues without it.
    pub(super) fn write_off(&self, reader: Reader, path: &Path, since: Instant) {
        let child = reader.kill();
        let lost = Lost { child, path: path.to_owned(), mount: Mount::of(path), since };
        let mut state = self.state();
        state.lost.push(lost);
        state.reap();
        state.count -= 1;
        state.written_off += 1;
        if state.is_resting {
            return self.end_idle(state);
        }
        drop(state);
        self.freed.notify_one();
    }

    /// Reaps a reader that exited on its own, and returns its exit status if it is available soon.
    pub(super) fn reap_dead(&self, reader: Reader) -> Option<ExitStatus> {
        let (status, unreaped) = reap::wait(reader.kill(), Instant::now() + MAX_WAIT);
        reap::later(unreaped.into_iter().collect());
        let mut state = self.state();
        state.count -= 1;
        state.died += 1;
        drop(state);
        self.freed.notify_one();
        status
    }

    #[cfg(feature = "testing")]
    pub(super) fn idle_processes(&self) -> Vec<u32> {
        self.state().idle.iter().map(Reader::process).collect()
    }

    pub(super) fn readers(&self) -> Readers {
        let mut state = self.state();
        state.reap();
        Readers {
            alive: state.count - state.starting,
            lost: state.lost.len(),
            started: state.started,
            written_off: state.written_off,
            died: state.died,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let is_forked = self.is_forked();
        let state = self.state.get_mut();
        if is_forked {
            // Only the copied descriptors are closed; processes and threads belong to the parent.
            std::mem::forget(state.spawner.take());
            return;
        }
        let mut children: Vec<_> = state.idle.drain(..).map(Reader::kill).collect();
        children.extend(state.lost.drain(..).map(|lost| lost.child));
        reap::soon(children);
        if let Some(spawner) = state.spawner.take() {
            spawner.end();
        }
    }
}

fn not_started(error: io::Error) -> Error {
    Error::io("read: its reader process could not be started", error).with_hint(
        "lower `io_threads`, raise `ulimit -u` and the cgroup's pids.max; where nothing may be executed from memory \
         or the temporary directory, set FOREBAY_READER or `isolate=\"never\"`",
    )
}

/// The thread that starts readers. Readers die with the thread that started them (`PR_SET_PDEATHSIG` applies to
/// threads, not processes), and the loader's threads come and go.
#[derive(Debug)]
struct Spawner {
    requests: Sender<SpawnRequest>,
    thread: JoinHandle<()>,
}

type SpawnRequest = SyncSender<io::Result<Reader>>;

impl Spawner {
    fn of(spawner: &mut Option<Self>) -> io::Result<Sender<SpawnRequest>> {
        if let Some(spawner) = spawner {
            return Ok(spawner.requests.clone());
        }
        let (requests, received) = channel::<SpawnRequest>();
        let work = move || {
            for request in received {
                // The requesting thread waits for it.
                let _taken = request.send(Reader::start());
            }
        };
        let thread = Builder::new().name("forebay-readers".to_owned()).spawn(work)?;
        Ok(spawner.insert(Self { requests, thread }).requests.clone())
    }

    fn end(self) {
        drop(self.requests);
        // It cannot panic; if it did, there would be nothing left to do.
        let _ended = self.thread.join();
    }
}

fn start(requests: &Sender<SpawnRequest>) -> io::Result<Reader> {
    let (request, started) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts reader processes has ended");
    requests.send(request).map_err(|_| gone())?;
    started.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn readers_that_rest_are_gone_and_come_back_when_they_are_needed() {
        let pool = Pool::new(3, 0);
        let until = Instant::now() + Duration::from_secs(60);
        let (first, second) = (pool.take(until).unwrap(), pool.take(until).unwrap());
        let is_gone = |process: u32| !Path::new(&format!("/proc/{process}")).exists();
        let numbers = [&first, &second].map(|reader| reader.process());
        pool.give_back(first);
        pool.rest();
        assert!(is_gone(numbers[0]), "it was idle");
        assert_eq!(pool.readers().alive, 1, "the other one has something to do");
        pool.give_back(second);
        assert!(is_gone(numbers[1]), "and then has not");
        assert_eq!(pool.readers().alive, 0);
        let third = pool.take(until).unwrap();
        pool.give_back(third);
        assert_eq!(pool.readers().alive, 1);
    }

    #[test]
    fn too_many_stuck_readers_are_listed_and_stop_the_run() {
        let pool = Pool::new(1, 0);
        let stuck = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let lost = Lost {
            child: stuck(),
            path: "/proc/x.jpg".into(),
            mount: Mount::of(Path::new("/proc/x.jpg")),
            since: Instant::now(),
        };
        pool.state().lost.push(lost);
        let error = pool.take(Instant::now()).unwrap_err();
        assert_eq!((error.kind(), error.is_transient(), error.is_sample_local()), (Kind::Exhausted, false, false));
        let expected = "was given up: 1 reader processes are stuck in the kernel\n  \"/proc/x.jpg\" on \"/proc\" (proc from proc) for 0.0 s";
        assert_eq!(error.to_string(), expected);
        assert_eq!((pool.readers().lost, pool.readers().alive), (1, 0));
        pool.state().lost[0].child.kill().unwrap();
        // Once the kernel has released it, there is room again.
        while pool.readers().lost > 0 {
            sleep(Duration::from_millis(1));
        }
        assert!(pool.take(Instant::now()).is_ok());
    }
}
