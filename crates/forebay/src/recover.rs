//! Recovery: what to do about an error, and which files are known to be bad. The one owner of such decisions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use forebay_core::{Error, Failure, Kind, Result, Retry, Stage};
use forebay_store::{Stat, Store};

use crate::schedule::Item;

/// Substitutes tried for one position before the run stops: with half of the files bad, 2⁻⁶⁴ is never.
pub(crate) const MAX_SUBSTITUTES: u32 = 64;

/// What follows an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Read it again, with the file opened anew, after this pause.
    ReadAgain(Duration),
    /// It is not to be had: the policy decides what takes its place.
    GiveUp,
}

/// Judges an error that `item` met.
pub(crate) fn judge(retry: &Retry, item: &mut Item, error: &Error, elapsed: Duration) -> Verdict {
    if error.is_transient() {
        let key = item.key.batch.wrapping_mul(0x1_0000_0001).wrapping_add(u64::from(item.key.slot));
        return retry.pause(error, item.attempts, elapsed, key).map_or(Verdict::GiveUp, Verdict::ReadAgain);
    }
    // Promise 5: a decode error is guilty of nothing until one fresh read agrees.
    let about_bytes = error.stage() == Some(Stage::Decode) && matches!(error.kind(), Kind::Corrupt | Kind::Undecodable);
    if about_bytes && !item.reread {
        item.reread = true;
        return Verdict::ReadAgain(Duration::ZERO);
    }
    Verdict::GiveUp
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
            // The recorded sentence begins with the path, which the error will carry itself.
            let message = failure.message.strip_prefix(&format!("{path:?} ")).unwrap_or(&failure.message);
            let message = message.split(", after ").next().unwrap_or(message).to_owned();
            let kind = Kind::from_slug(&failure.code)?;
            Some((path, Known { stat, kind, stage: failure.stage, message, detail: failure.detail.clone() }))
        });
        Self(RwLock::new(known.collect()))
    }

    /// Remembers a file whose damage a fresh read confirmed.
    pub(crate) fn add(&self, path: &Path, stat: Stat, error: &Error) {
        if !matches!(error.kind(), Kind::Corrupt | Kind::Undecodable) || error.stage() != Some(Stage::Decode) {
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
    use crate::schedule::Key;
    use forebay_core::{Epoch, Outcome, SampleId};
    use forebay_store::testing::Memory;

    fn item() -> Item {
        Item::new(Key { batch: 0, slot: 0 }, Epoch(0), 0, SampleId(0))
    }

    #[test]
    fn a_decode_error_is_believed_the_second_time() {
        let error = Error::new(Kind::Corrupt, "is truncated").at_stage(Stage::Decode);
        let mut item = item();
        assert_eq!(judge(&Retry::default(), &mut item, &error, Duration::ZERO), Verdict::ReadAgain(Duration::ZERO));
        assert_eq!(judge(&Retry::default(), &mut item, &error, Duration::ZERO), Verdict::GiveUp);
    }

    #[test]
    fn missing_files_and_failing_transforms_are_not_read_again() {
        let transform = Error::new(Kind::Undecodable, "broke the transform").at_stage(Stage::Transform);
        for error in [Error::new(Kind::NotFound, "is gone"), Error::new(Kind::Denied, "no"), transform] {
            assert_eq!(judge(&Retry::default(), &mut item(), &error, Duration::ZERO), Verdict::GiveUp, "{error}");
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
    }
}
