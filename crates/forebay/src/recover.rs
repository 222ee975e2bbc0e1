//! Recovery: what to do about an error, and which files are known to be bad. The one owner of such decisions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use forebay_core::{Error, Failure, Kind, OnError, Result, Retry, Stage};
use forebay_store::{Stat, Store};

use crate::item::{Filled, GivenUp, Item};
use crate::schedule::Shared;

/// Substitutes tried for one position before the run stops: with half of the files bad, 2⁻⁶⁴ is never.
const MAX_SUBSTITUTES: u32 = 64;

/// Samples at one position that may each use up their whole deadline: storage that answers none of them is down, and
/// sixty-four deadlines would be an hour of silence.
const MAX_TIMEOUTS: u32 = 4;

/// What follows an error.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Read it again, with the file opened anew, after this pause.
    ReadAgain(Duration),
    /// It is not to be had: the policy decides what takes its place.
    GiveUp,
}

/// Judges an error that `item` met.
fn judge(retry: &Retry, item: &mut Item, error: &Error, elapsed: Duration) -> Verdict {
    if error.is_transient() {
        let key = item.key.batch.wrapping_mul(0x1_0000_0001).wrapping_add(u64::from(item.key.slot));
        return retry.pause(error, item.attempts, elapsed, key).map_or(Verdict::GiveUp, Verdict::ReadAgain);
    }
    // Promise 5: a decode error is guilty of nothing until one fresh read agrees.
    if error.kind().is_about_bytes(error.stage()) && !item.reread {
        item.reread = true;
        return Verdict::ReadAgain(Duration::ZERO);
    }
    // Whoever writes to it gets a moment to finish.
    if error.kind() == Kind::Changed && !item.changed {
        item.changed = true;
        return Verdict::ReadAgain(retry.first_pause);
    }
    Verdict::GiveUp
}

/// An item met an error: read it again, put a substitute in its place, leave it out, or end the iteration.
pub(crate) fn after_trouble(shared: &Shared, mut item: Item, path: &Path, error: Error, stat: Option<Stat>) {
    let elapsed = item.started.map_or(Duration::ZERO, |started| shared.clock.now().saturating_sub(started));
    let error = error.at_path(path).at_index(item.sample.0).after(item.attempts, elapsed);
    // Running out of descriptors says nothing about this sample while other reads hold some of them.
    if error.kind() == Kind::Exhausted && error.is_transient() && shared.can_shrink() {
        item.attempts = item.attempts.saturating_sub(1).max(1);
    }
    match judge(&shared.config.retry, &mut item, &error, elapsed) {
        Verdict::ReadAgain(pause) => {
            if error.kind().is_about_bytes(error.stage()) {
                // A fresh read is one of the storage itself.
                shared.source.store.doubt(path);
            }
            shared.meters.retries.fetch_add(1, Relaxed);
            item.trouble.get_or_insert(error);
            shared.read_again(item, pause);
        }
        Verdict::GiveUp => give_up(shared, item, path, error, stat),
    }
}

fn give_up(shared: &Shared, mut item: Item, path: &Path, error: Error, stat: Option<Stat>) {
    item.trouble = None;
    if let Some(stat) = stat {
        shared.quarantine.add(path, stat, &error);
    }
    if !error.is_sample_local() {
        return shared.fill(item, Filled::Failed(error));
    }
    if error.kind() == Kind::NotFound
        && let Some(gone) = missing_root(shared)
    {
        return shared.fill(item, Filled::Failed(gone));
    }
    item.timeouts += u32::from(error.kind() == Kind::Timeout);
    item.spent += error.elapsed();
    match shared.config.on_error {
        OnError::Raise => {
            item.given_up = None;
            shared.fill(item, Filled::Failed(error));
        }
        OnError::Skip => {
            item.given_up = Some(GivenUp { error, stat });
            shared.fill(item, Filled::Skipped);
        }
        OnError::Replace if shared.plan.len < 2 => {
            let message = format!("cannot be replaced, because there is no other sample: {}", error.message());
            let error = Error::new(Kind::TooManyFailures, message).at_path(path).at_index(item.planned.0);
            shared.fill(item, Filled::Failed(error));
        }
        OnError::Replace if item.substitutes >= MAX_SUBSTITUTES || is_hopeless(shared, &item) => {
            let tried = item.substitutes;
            let message =
                format!("cannot be replaced: {tried} substitutes were tried, and the last one failed too ({error})");
            let path = shared.source.dataset.path(item.planned);
            let error = Error::new(Kind::TooManyFailures, message).at_path(&path).at_index(item.planned.0);
            shared.fill(item, Filled::Failed(error));
        }
        OnError::Replace => {
            item.given_up.get_or_insert(GivenUp { error, stat });
            item.substitutes += 1;
            let substitute = shared.plan.substitute(item.epoch, item.position, item.planned, item.substitutes);
            item.substitute(substitute);
            shared.read_again(item, Duration::ZERO);
        }
    }
}

/// Why no other sample can take the place of one that is missing: the folder that all of them were in is, too.
fn missing_root(shared: &Shared) -> Option<Error> {
    let root = shared.source.dataset.root()?;
    let error = shared.source.store.stat(&root).err().filter(|error| error.kind() == Kind::NotFound)?;
    let message = "is gone, and all samples of the dataset with it";
    let hint = "was the folder deleted, moved or unmounted? restore it, and resume from the last state";
    Some(Error::new(Kind::NotFound, message).at_path(&root).at_stage(Stage::Fetch).with_hint(hint).with_source(error))
}

/// Storage that is down may also say so, slowly: a soft NFS mount gives EIO after some seconds, to every sample.
fn is_hopeless(shared: &Shared, item: &Item) -> bool {
    item.timeouts >= MAX_TIMEOUTS || item.spent >= shared.config.retry.deadline.saturating_mul(MAX_TIMEOUTS)
}

/// A panic as a value that names its thread.
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    Error::internal(format!("made thread {thread} panic: {text}"))
}

/// Files recorded as permanently bad: not read again until size or modification time change.
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
            let path = failure.path();
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

    /// The error of a file that is known to be bad and has not changed since.
    pub(crate) fn check(&self, path: &Path, store: &dyn Store) -> Option<(Error, Stat)> {
        let known = {
            let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if map.is_empty() {
                return None;
            }
            map.get(path)?.clone()
        };
        let unchanged: Result<bool> = store.stat(path).map(|stat| stat == known.stat);
        if !matches!(unchanged, Ok(true)) {
            // Changed, or gone: reading it will tell.
            self.0.write().unwrap_or_else(PoisonError::into_inner).remove(path);
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
    use crate::item::item;
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
        let (known, _) = quarantine.check(path, &store).unwrap();
        assert_eq!(known.at_path(path).to_string(), "\"/cat/1.jpg\" is truncated");
        store.insert(path, *b"repaired");
        assert!(quarantine.check(path, &store).is_none());
        let changed = Error::new(Kind::Changed, "changed while it was read").at_stage(Stage::Fetch);
        quarantine.add(path, store.stat(path).unwrap(), &changed);
        assert!(quarantine.check(path, &store).is_none(), "a file that is written to may be good next time");
    }
}
