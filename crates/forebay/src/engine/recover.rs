//! Recovery: what to do about an error, and which files are known to be bad. The one owner of such decisions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use forebay_core::{
    Chances, Error, Failure, Field, Kind, Locator, MAX_SUBSTITUTES, OnError, Result, Retry, SampleId, Stage,
};
use forebay_store::{Stat, Store};

use crate::engine::item::{Filled, GivenUp, Item};
use crate::engine::work_queue::WorkQueue;
use crate::source::doubt;
use crate::source::parity::is_lost;
use crate::source::runs::Runs;

/// Samples at one position that may each use up their whole deadline: storage that answers none of them is down, and
/// sixty-four deadlines would be an hour of silence.
const MAX_TIMEOUTS: u32 = 4;

/// What follows an error.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Read it again, with the file opened anew, after this pause.
    ReadAgain(Duration),
    /// It is given up: the policy decides about a substitute.
    GiveUp,
}

/// Judges an error that `item` met.
fn judge(retry: &Retry, item: &mut Item, error: &Error, elapsed: Duration) -> Verdict {
    let key = Retry::jitter_key(item.key.batch, item.key.slot);
    let mut chances = Chances { reread: item.reread, changed: item.changed };
    let pause = retry.judge(error, item.attempts, &mut chances, elapsed, key);
    (item.reread, item.changed) = (chances.reread, chances.changed);
    pause.map_or(Verdict::GiveUp, Verdict::ReadAgain)
}

/// An item met an error: read it again, put a substitute in its place, leave it out, or end the iteration.
pub(crate) fn after_trouble(queue: &WorkQueue, mut item: Item, path: &Path, error: Error, stat: Option<Stat>) {
    let elapsed = item.started.map_or(Duration::ZERO, |started| queue.context.clock.now().saturating_sub(started));
    let error = error.at_path(path).at_index(item.sample.0).after(item.attempts, elapsed);
    // Running out of descriptors says nothing about this sample while other reads hold some of them.
    if error.kind() == Kind::Exhausted && error.is_transient() && queue.can_shrink() {
        item.attempts = item.attempts.saturating_sub(1).max(1);
    }
    match judge(&queue.context.config.retry, &mut item, &error, elapsed) {
        Verdict::ReadAgain(pause) => {
            doubt_again(queue, item.sample, &error);
            queue.context.meters.retries.fetch_add(1, Relaxed);
            item.trouble.get_or_insert(error);
            queue.read_again(item, pause);
        }
        Verdict::GiveUp => {
            let error = hinted(queue, item.sample, error);
            give_up(queue, item, path, error, stat);
        }
    }
}

/// A fresh read is one of the storage itself.
fn doubt_again(queue: &WorkQueue, sample: SampleId, error: &Error) {
    let (dataset, store) = (&queue.context.source.dataset, &*queue.context.source.store);
    let is_about_bytes = error.kind().is_about_bytes(error.stage());
    let mut locator = Locator::default();
    let field_count = dataset.field_count_of(sample);
    let runs = Runs::of(&queue.context.source, sample, field_count, queue.context.config.max_sample_bytes());
    let mut doubt = |field| {
        // As it was read, and as it is read now: by itself.
        let run = runs.containing(field, &mut locator);
        if !run.is_single() {
            doubt(store, &locator.path, run.range);
        }
        dataset.locate(sample, field, &mut locator);
        doubt(store, &locator.path, locator.range.take());
    };
    if (is_about_bytes || is_lost(error)) && store.repairs().is_some() {
        // Damage seldom ends with a field, and the sample has one fresh read for all of them.
        (0..field_count).map(Field).for_each(doubt);
    } else if is_about_bytes {
        doubt(error.field());
    }
}

/// Damage that the store could not repair either: it says what to do.
fn hinted(queue: &WorkQueue, sample: SampleId, error: Error) -> Error {
    if !error.kind().is_about_bytes(error.stage()) {
        return error;
    }
    let mut locator = Locator::default();
    queue.context.source.dataset.locate(sample, error.field(), &mut locator);
    match queue.context.source.store.repair_hint(&locator.path, locator.range.as_ref()) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn give_up(queue: &WorkQueue, mut item: Item, path: &Path, error: Error, stat: Option<Stat>) {
    item.trouble = None;
    if let Some(stat) = stat {
        queue.context.quarantine.add(path, stat, &error);
    }
    if !error.is_sample_local() {
        return queue.fill(item, Filled::Failed(error));
    }
    if error.kind() == Kind::NotFound
        && let Some(gone) = missing_root(queue, item.sample)
    {
        return queue.fill(item, Filled::Failed(gone));
    }
    item.timeouts += u32::from(error.kind() == Kind::Timeout);
    item.spent += error.elapsed();
    match queue.context.config.on_error {
        OnError::Raise => {
            item.given_up = None;
            queue.fill(item, Filled::Failed(error));
        }
        OnError::Skip => {
            item.given_up = Some(GivenUp { error, stat });
            queue.fill(item, Filled::Skipped);
        }
        OnError::Replace if queue.context.plan.sample_count() < 2 => {
            let message = format!("cannot be replaced, because there is no other sample: {}", error.message());
            let error = Error::new(Kind::TooManyFailures, message).at_path(path).at_index(item.planned.0);
            queue.fill(item, Filled::Failed(error));
        }
        OnError::Replace if item.substitutes >= MAX_SUBSTITUTES || is_hopeless(queue, &item) => {
            let tried = item.substitutes;
            let message =
                format!("cannot be replaced: {tried} substitutes were tried, and the last one failed too ({error})");
            let path = queue.context.source.dataset.path(item.planned);
            let error = Error::new(Kind::TooManyFailures, message).at_path(&path).at_index(item.planned.0);
            queue.fill(item, Filled::Failed(error));
        }
        OnError::Replace => {
            item.given_up.get_or_insert(GivenUp { error, stat });
            item.substitutes += 1;
            let substitute = queue.context.plan.substitute(item.epoch, item.position, item.planned, item.substitutes);
            item.substitute(substitute);
            queue.read_again(item, Duration::ZERO);
        }
    }
}

/// The error if not only a sample but the root of the whole dataset is missing: then no sample can replace it.
fn missing_root(queue: &WorkQueue, sample: SampleId) -> Option<Error> {
    let root = queue.context.source.dataset.root_of(sample)?;
    let error = queue.context.source.store.stat(&root).err().filter(|error| error.kind() == Kind::NotFound)?;
    let message = "is gone, and all samples of the dataset with it";
    let hint = "was the folder deleted, moved or unmounted? restore it, and resume from the last state";
    Some(Error::new(Kind::NotFound, message).at_path(&root).at_stage(Stage::Fetch).with_hint(hint).with_source(error))
}

/// Storage that is down may also say so, slowly: a soft NFS mount gives EIO after some seconds, to every sample.
fn is_hopeless(queue: &WorkQueue, item: &Item) -> bool {
    item.timeouts >= MAX_TIMEOUTS || item.spent >= queue.context.config.retry.deadline.saturating_mul(MAX_TIMEOUTS)
}

/// A panic as a value that names its thread.
pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    Error::internal(format!("made thread {thread} panic: {text}"))
}

/// Files and parts of files recorded as permanently bad, by [`Locator::name`]: not read again until size or modification
/// time of the file change.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(RwLock<HashMap<PathBuf, Known>>);

#[derive(Clone, Debug)]
struct Known {
    stat: Stat,
    kind: Kind,
    stage: Option<Stage>,
    message: String,
    detail: Option<String>,
}

impl Quarantine {
    /// Takes over what a ledger recorded.
    pub(crate) fn of(failures: &[Failure]) -> Self {
        let known = failures.iter().filter(|failure| failure.is_permanent()).filter_map(|failure| {
            let stat = Stat { size_bytes: failure.size_bytes?, mtime_ns: failure.mtime_ns? };
            let path = failure.name();
            // The recorded sentence begins with the path and ends with the attempts, which the error will say itself.
            let message = failure.message.strip_prefix(&format!("{path:?} ")).unwrap_or(&failure.message);
            let message = message.rsplit_once(", after ").map_or(message, |(message, _)| message).to_owned();
            let kind = Kind::from_slug(&failure.code)?;
            Some((path, Known { stat, kind, stage: failure.stage, message, detail: failure.detail.clone() }))
        });
        Self(RwLock::new(known.collect()))
    }

    /// Remembers a file whose damage a fresh read confirmed.
    pub(crate) fn add(&self, path: &Path, stat: Stat, error: &Error) {
        if !error.kind().is_about_bytes(error.stage()) {
            return;
        }
        let known = Known {
            stat,
            kind: error.kind(),
            stage: error.stage(),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
        };
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), known);
    }

    /// Whether nothing is known to be bad.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The error of a file, or of a part of one, that is known to be bad and has not changed since.
    pub(crate) fn check(&self, locator: &Locator, store: &dyn Store) -> Option<(Error, Stat)> {
        let known = {
            let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if map.is_empty() {
                return None;
            }
            // A whole object, almost always: its path is its name.
            match locator.range {
                None if locator.member.is_none() => map.get(&locator.path)?.clone(),
                _ => map.get(&locator.name())?.clone(),
            }
        };
        let unchanged: Result<bool> = store.stat(&locator.path).map(|stat| stat == known.stat);
        if !matches!(unchanged, Ok(true)) {
            // Changed, or gone: reading it will tell.
            self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&locator.name());
            return None;
        }
        let mut error = Error::new(known.kind, known.message);
        if let Some(stage) = known.stage {
            error = error.at_stage(stage);
        }
        if let Some(detail) = known.detail {
            error = error.with_detail(detail);
        }
        Some((
            error.with_hint("known to be bad and unchanged since, so it was not read again: restore or delete it"),
            known.stat,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::item::item;
    use forebay_core::Outcome;
    use forebay_store::testing::Memory;

    #[test]
    fn a_decode_error_is_believed_the_second_time() {
        let error = Error::new(Kind::Corrupt, "is truncated").at_stage(Stage::Decode);
        let mut item = item(0);
        assert_eq!(judge(&Retry::default(), &mut item, &error, Duration::ZERO), Verdict::ReadAgain(Duration::ZERO));
        assert_eq!(judge(&Retry::default(), &mut item, &error, Duration::ZERO), Verdict::GiveUp);
    }

    #[test]
    fn a_file_that_is_written_to_has_one_more_read_of_its_own() {
        let retry = Retry { retries: 0, ..Retry::default() };
        let changed = Error::new(Kind::Changed, "changed while it was read").at_stage(Stage::Fetch);
        let corrupt = Error::new(Kind::Corrupt, "is truncated").at_stage(Stage::Decode);
        let mut item = item(0);
        let mut judged = |error| judge(&retry, &mut item, error, Duration::ZERO);
        assert_eq!(judged(&changed), Verdict::ReadAgain(retry.first_pause));
        assert_eq!(judged(&corrupt), Verdict::ReadAgain(Duration::ZERO), "what was read next is not yet believed");
        assert_eq!(judged(&changed), Verdict::GiveUp);
    }

    #[test]
    fn missing_files_and_failing_transforms_are_not_read_again() {
        let transform = Error::new(Kind::Undecodable, "broke the transform").at_stage(Stage::Transform);
        for error in [Error::new(Kind::NotFound, "is gone"), Error::new(Kind::Denied, "no"), transform] {
            assert_eq!(judge(&Retry::default(), &mut item(0), &error, Duration::ZERO), Verdict::GiveUp, "{error}");
        }
    }

    #[test]
    fn quarantine_lasts_until_the_file_changes() {
        let path = Path::new("/cat/1.jpg");
        let mut store = Memory::default();
        store.insert(path, *b"bad");
        let error =
            Error::new(Kind::Corrupt, "is truncated").at_stage(Stage::Decode).at_path(path).after(2, Duration::ZERO);
        let mut failure = Failure::of(&error, path, Outcome::Replaced);
        let stat = store.stat(path).unwrap();
        (failure.size_bytes, failure.mtime_ns) = (Some(stat.size_bytes), Some(stat.mtime_ns));
        let quarantine = Quarantine::of(&[failure]);
        let (known, _) = quarantine.check(&Locator::whole(path.to_owned()), &store).unwrap();
        assert_eq!(known.at_path(path).to_string(), "\"/cat/1.jpg\" is truncated");
        store.insert(path, *b"repaired");
        assert!(quarantine.check(&Locator::whole(path.to_owned()), &store).is_none());
        let changed = Error::new(Kind::Changed, "changed while it was read").at_stage(Stage::Fetch);
        quarantine.add(path, store.stat(path).unwrap(), &changed);
        assert!(
            quarantine.check(&Locator::whole(path.to_owned()), &store).is_none(),
            "a file that is written to may be good next time"
        );
    }
}
