//! The threads. Each reads the sample that the shards being written need most, and the thread that brings what a shard waits for appends it,
//! with all that waits behind it: samples are read and made by many threads, and every shard is written by one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;
use std::time::Duration;

use forebay::panicked;
use forebay_core::{Error, Failure, Kind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::plan::Plan;
use crate::read::{Made, SampleReader};
use crate::shard::ShardWriter;
use crate::target::Halt;

/// How often the calling thread shows progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Consecutive samples that the storage did not give, after which it is down.
const MAX_STREAK: u64 = 100;

/// What is done with each shard, beside reading its samples.
pub(crate) trait Shelf<'a>: Sync {
    /// Begins a shard.
    fn begin(&self, shard: u32) -> Result<ShardWriter<'a>>;
    /// Completes it.
    fn finish(&self, shard: u32, writer: ShardWriter<'a>) -> Result<()>;
    /// So many samples have failed, of all that are packed; an error ends it.
    fn check_failures(&self, failed: u64) -> Result<()>;
}

/// Limits of the threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) threads: usize,
    /// Shards that are written at a time.
    pub(crate) shards: usize,
    /// Of samples that were read and are not written, as they are in the source.
    pub(crate) held_bytes: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: u64,
    pub(crate) shards: u64,
}

/// A shard that is being written.
struct Open<'a> {
    shard: u32,
    /// The next sample to read, and the one behind the last.
    next: u64,
    end: u64,
    /// The next sample to append.
    wanted: u64,
    ready: BTreeMap<u64, Made>,
    /// `None` until it is begun, and while a thread writes.
    writer: Option<ShardWriter<'a>>,
    is_busy: bool,
}

struct Board<'a> {
    waiting: VecDeque<u32>,
    open: Vec<Open<'a>>,
    held_bytes: u64,
    streak: u64,
    done: Done,
    running: usize,
    /// Of shards that could not be written.
    failures: Vec<Failure>,
}

struct Crew<'a, 'b> {
    board: Mutex<Board<'a>>,
    changed: Condvar,
    ended: Condvar,
    plan: &'b Plan,
    halt: &'a Halt,
    shelf: &'b dyn Shelf<'a>,
    size: Size,
}

/// Packs these shards. What stops it is in `halt`; then the samples are given that had failed, of shards that were not finished.
pub(crate) fn run<'a>(
    shards: impl Iterator<Item = u32>,
    (plan, halt, size): (&Plan, &'a Halt, Size),
    shelf: &dyn Shelf<'a>,
    reader: impl Fn() -> SampleReader<'a> + Sync,
    already_failed: u64,
    watch: &mut dyn FnMut(Done),
) -> Result<Vec<Failure>> {
    let done = Done { failed: already_failed, ..Done::default() };
    let waiting = shards.collect();
    let board = Board { waiting, open: Vec::new(), held_bytes: 0, streak: 0, done, running: 0, failures: Vec::new() };
    let board = Mutex::new(board);
    let crew = Crew { board, changed: Condvar::new(), ended: Condvar::new(), plan, halt, shelf, size };
    std::thread::scope(|scope| {
        for number in 0..size.threads.max(1) {
            crew.board.lock().running += 1;
            let work = || {
                let worked = catch_unwind(AssertUnwindSafe(|| crew.work(&mut reader())));
                match worked {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => crew.stop(error),
                    Err(panic) => crew.stop(panicked(&*panic)),
                }
                crew.board.lock().running -= 1;
                crew.ended.notify_all();
            };
            if let Err(error) = Builder::new().name(format!("forebay-pack-{number}")).spawn_scoped(scope, work) {
                crew.board.lock().running -= 1;
                // Others do its work, if there are any.
                if number == 0 {
                    return Err(Error::io("given a thread", error));
                }
                break;
            }
        }
        loop {
            let mut board = crew.board.lock();
            let timed_out = crew.ended.wait_while_for(&mut board, |board| board.running > 0, POLL_INTERVAL).timed_out();
            let done = board.done;
            drop(board);
            watch(done);
            if !timed_out {
                return Ok(());
            }
        }
    })?;
    let Board { open, mut failures, .. } = crew.board.into_inner();
    for open in open {
        failures.extend(open.writer.into_iter().flat_map(ShardWriter::discard));
        failures.extend(open.ready.into_values().filter_map(failure_of));
    }
    Ok(failures)
}

fn failure_of(made: Made) -> Option<Failure> {
    match made {
        Made::Bad { failure, .. } => Some(*failure),
        Made::Good { .. } => None,
    }
}

impl<'a> Crew<'a, '_> {
    fn stop(&self, why: Error) {
        self.halt.raise(why);
        // A thread that has just looked waits by the time that this is locked.
        drop(self.board.lock());
        self.changed.notify_all();
    }

    fn work(&self, reader: &mut SampleReader<'_>) -> Result<()> {
        let mut board = self.board.lock();
        loop {
            if self.halt.is_raised() {
                return Ok(());
            }
            self.open_more(&mut board);
            let Some(at) = self.choose(&board) else {
                if board.waiting.is_empty() && board.open.iter().all(|open| open.next == open.end) {
                    return Ok(());
                }
                // Something is written or read, which ends and wakes this thread.
                self.changed.wait(&mut board);
                continue;
            };
            let open = &mut board.open[at];
            let (shard, position) = (open.shard, open.next);
            open.next += 1;
            board.held_bytes += self.plan.bytes_at(position);
            drop(board);
            let made = reader.make(self.plan.sample_at(position), position)?;
            board = self.board.lock();
            let counted = self.count(&mut board, &made);
            if let Some(open) = board.open.iter_mut().find(|open| open.shard == shard) {
                open.ready.insert(position, made);
            }
            counted?;
            board = self.append(board, shard)?;
            self.changed.notify_all();
        }
    }

    fn open_more(&self, board: &mut Board<'a>) {
        while board.open.len() < self.size.shards
            && let Some(shard) = board.waiting.pop_front()
        {
            let range = self.plan.shard(shard);
            let (next, wanted, end) = (range.start, range.start, range.end);
            let ready = BTreeMap::new();
            board.open.push(Open { shard, next, end, wanted, ready, writer: None, is_busy: false });
        }
    }

    /// The shard whose next sample is to be read: the one with the fewest samples ahead. What a shard waits for is read even if there
    /// is no room, so that every shard goes on.
    fn choose(&self, board: &Board<'a>) -> Option<usize> {
        let has_room = |open: &Open<'_>| {
            let more = self.plan.bytes_at(open.next);
            open.next == open.wanted || board.held_bytes.saturating_add(more) <= self.size.held_bytes
        };
        let open = board.open.iter().enumerate().filter(|(_, open)| open.next < open.end && has_room(open));
        open.min_by_key(|(_, open)| (open.next - open.wanted, open.shard)).map(|(at, _)| at)
    }

    fn count(&self, board: &mut Board<'a>, made: &Made) -> Result<()> {
        match made {
            Made::Good { .. } => board.streak = 0,
            Made::Bad { failure, is_of_storage } => {
                board.done.failed += 1;
                board.streak = if *is_of_storage { board.streak + 1 } else { 0 };
                if board.streak >= MAX_STREAK {
                    let (streak, last) = (board.streak, &failure.message);
                    let message =
                        format!("all reads from the source fail: {streak} samples in a row, the last one: {last}");
                    let error = Error::new(Kind::Unavailable, message);
                    return Err(error.with_hint("restore the storage, and run the same command again"));
                }
                self.shelf.check_failures(board.done.failed)?;
            }
        }
        Ok(())
    }

    /// Appends what is ready to a shard, unless another thread does; that one takes what is ready then, too.
    fn append<'m>(&'m self, mut board: MutexGuard<'m, Board<'a>>, shard: u32) -> Result<MutexGuard<'m, Board<'a>>> {
        loop {
            let Some(at) = board.open.iter().position(|open| open.shard == shard) else { return Ok(board) };
            let open = &mut board.open[at];
            if open.is_busy {
                return Ok(board);
            }
            let mut batch = Vec::new();
            while let Some(made) = open.ready.remove(&(open.wanted + batch.len() as u64)) {
                batch.push(made);
            }
            let (first, is_last) = (open.wanted, open.wanted + batch.len() as u64 == open.end);
            if batch.is_empty() {
                return Ok(board);
            }
            open.is_busy = true;
            let writer = open.writer.take();
            drop(board);
            let count = batch.len() as u64;
            let written = self.write(shard, writer, batch, is_last);
            board = self.board.lock();
            let bytes: u64 = (first..first + count).map(|position| self.plan.bytes_at(position)).sum();
            board.held_bytes = board.held_bytes.saturating_sub(bytes);
            board.done.samples += count;
            board.done.bytes += bytes;
            let writer = written?;
            if is_last {
                let at = at_of(&board, shard)?;
                board.open.remove(at);
                board.done.shards += 1;
                self.changed.notify_all();
                return Ok(board);
            }
            let at = at_of(&board, shard)?;
            let open = &mut board.open[at];
            (open.wanted, open.writer, open.is_busy) = (first + count, writer, false);
            self.changed.notify_all();
        }
    }

    /// Writes samples of a shard, and completes it behind the last one.
    fn write(
        &self,
        shard: u32,
        writer: Option<ShardWriter<'a>>,
        batch: Vec<Made>,
        is_last: bool,
    ) -> Result<Option<ShardWriter<'a>>> {
        let mut batch = batch.into_iter();
        let mut writer = match writer.map_or_else(|| self.shelf.begin(shard), Ok) {
            Ok(writer) => writer,
            Err(error) => {
                self.board.lock().failures.extend(batch.filter_map(failure_of));
                return Err(error);
            }
        };
        let appended = batch.try_for_each(|made| match made {
            Made::Good { key, fields, saved } => writer.append(&key, &fields, &saved),
            Made::Bad { failure, .. } => {
                writer.leave_out(*failure);
                Ok(())
            }
        });
        if let Err(error) = appended {
            // They are in no list yet, and have to be reported.
            let failed: Vec<_> = writer.discard().into_iter().chain(batch.filter_map(failure_of)).collect();
            self.board.lock().failures.extend(failed);
            return Err(error);
        }
        match is_last {
            true => self.shelf.finish(shard, writer).map(|()| None),
            false => Ok(Some(writer)),
        }
    }
}

fn at_of(board: &Board<'_>, shard: u32) -> Result<usize> {
    let at = board.open.iter().position(|open| open.shard == shard);
    at.ok_or_else(|| Error::internal("a shard that is written was lost"))
}
