//! What has to be true after a trial. Each promise that was broken is a sentence; none is a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use forebay::{Failure, Outcome};

use crate::engine::{Gone, PROMPT};
use crate::epoch::{BATCH_SIZE, Ended, PREFETCH_BATCHES};
use crate::trial::{CUT, Exit, HOLD_STEP, Seen, Trouble};

/// How far a sample may be tried beyond its deadline, as a part of it: what writing it off takes on a busy machine.
const OVERRUN: f64 = 0.25;
/// Samples at one position that use up their deadlines, and with it the run.
const HOPELESS: f64 = 4.0;

/// What the same pictures give on a local disk: the hash of each sample, by its index.
pub(crate) struct Reference {
    pub(crate) samples: Vec<u64>,
}

/// The broken promises of a trial.
pub(crate) fn judge(trouble: Trouble, is_soft: bool, seen: &Seen, reference: &Reference) -> Vec<String> {
    let mut problems = Problems::default();
    problems.expect(seen.gone.readers.is_some(), || format!("readers were alive {PROMPT:?} after the process ended"));
    problems.leaving(trouble, &seen.gone);
    if let Some(ended) = &seen.ended {
        problems.storage(trouble, ended);
        problems.books(ended, reference, trouble);
        problems.failures(trouble, is_soft, ended, &seen.deleted);
    }
    problems.0
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.0.push(problem());
        }
    }

    fn leaving(&mut self, trouble: Trouble, gone: &Gone) {
        self.expect(gone.process.is_some(), || format!("the process was not reaped within {PROMPT:?}"));
        let Some(status) = gone.status else { return };
        let is_right = match trouble {
            Trouble::Leave(Exit::Terminated) => status.signal() == Some(15),
            Trouble::Leave(Exit::Killed) => status.signal() == Some(9),
            _ => status.success(),
        };
        self.expect(is_right, || format!("the process ended with {status}"));
    }

    fn storage(&mut self, trouble: Trouble, ended: &Ended) {
        let filesystem = &ended.filesystem;
        self.expect(filesystem.starts_with("nfs"), || format!("the mount was taken for {filesystem:?}"));
        match ended.readers {
            None => self.0.push("the process read by itself on a mount that can hang".to_owned()),
            // Those killed a moment ago may still be dying.
            Some(readers) => self.expect(readers.lost == 0 || trouble.ends_early(), || {
                format!("{} readers were killed and did not die", readers.lost)
            }),
        }
        let nameless = ended.nameless_stalls;
        self.expect(nameless == 0, || format!("{nameless} stalls without a file's name"));
    }

    /// Every planned sample has become exactly one thing, and what was handed over is what the books and the failures
    /// say, pixel by pixel.
    fn books(&mut self, ended: &Ended, reference: &Reference, trouble: Trouble) {
        let ends_early = trouble.ends_early();
        self.expect(ended.error.is_some() == ends_early, || format!("the run ended with {:?}", ended.error));
        let expected_epochs = if ends_early { 1 } else { trouble.settings().epochs };
        let epochs = ended.epochs.len() as u64;
        self.expect(epochs == expected_epochs, || format!("expected {expected_epochs} epochs, got {epochs}"));
        for (epoch, told) in (0..).zip(&ended.epochs) {
            let books = told.books;
            let failures: Vec<_> = failures_of(ended, epoch).collect();
            let planned = if ends_early { books.planned } else { reference.samples.len() as u64 };
            let is_balanced = books.planned == planned
                && books.planned == books.delivered + books.replaced + books.skipped
                && books.skipped == 0;
            self.expect(is_balanced, || format!("epoch {epoch}: expected {planned} planned, got {books}"));
            let replaced = failures.len() as u64;
            self.expect(books.replaced == replaced, || format!("epoch {epoch}: {replaced} failures, but {books}"));
            if !ends_early {
                let expected = expected_hash(&failures, reference);
                self.expect(expected == Some(told.hash), || {
                    format!("epoch {epoch}: what was handed over is not what the books say, or not its pixels")
                });
            }
        }
    }

    fn failures(&mut self, trouble: Trouble, is_soft: bool, ended: &Ended, deleted: &BTreeSet<u64>) {
        let replaced: Vec<_> = ended.failures.iter().filter(|failure| failure.outcome == Outcome::Replaced).collect();
        let count = replaced.len();
        let waited = Duration::from_secs_f64(ended.longest_wait_seconds);
        let deadline = Duration::from_secs(trouble.settings().deadline_seconds);
        for failure in &replaced {
            let is_in_time = failure.elapsed_seconds < deadline.mul_f64(1.0 + OVERRUN).as_secs_f64();
            self.expect(is_in_time, || format!("tried far beyond its deadline of {deadline:?}: {}", said(failure)));
        }
        match trouble {
            Trouble::Nothing => {
                let said = ended.failures.len();
                self.expect(said == 0, || format!("nothing was wrong, and {said} failures were reported"));
            }
            Trouble::CutPatient => {
                self.expect(count == 0, || format!("{count} samples failed although the deadline was far away"));
                self.expect(waited > CUT / 2, || format!("the cut was hardly felt: no wait was over {waited:?}"));
            }
            Trouble::CutImpatient => {
                self.expect(count > 0, || "the link was away longer than the deadline, and nothing failed".to_owned());
                // What was prefetched is handed over, and the batches behind it wait for the link: none after those.
                let window = HOLD_STEP + 1..=HOLD_STEP + 2 * PREFETCH_BATCHES as u64;
                for failure in replaced {
                    let was_unreachable = failure.epoch == 0 && window.contains(&failure.step);
                    self.expect(was_unreachable, || format!("failed while the link was fine: {}", said(failure)));
                    let is_named = matches!(failure.code.as_str(), "timeout" | "unavailable");
                    self.expect(is_named, || format!("expected timeout or unavailable: {}", said(failure)));
                }
                let written_off = ended.readers.map_or(0, |readers| readers.written_off);
                self.expect(is_soft || written_off > 0, || {
                    "reads hung past their deadline, and no reader was written off".to_owned()
                });
            }
            Trouble::CutForGood => {
                let code = ended.code.as_deref();
                self.expect(code == Some("too_many_failures"), || format!("gave up with {code:?}: {:?}", ended.error));
                self.expect(waited < deadline.mul_f64(HOPELESS * (1.0 + OVERRUN)), || {
                    format!("gave up only after {waited:?}")
                });
            }
            Trouble::Restart => {
                self.expect(count == 0, || format!("{count} samples failed although the server came back"));
            }
            Trouble::Delete => self.deletions(ended, &replaced, deleted),
            Trouble::Leave(_) => {
                self.expect(count == 0, || format!("{count} samples failed before the deadline"));
            }
        }
    }

    /// Exactly the deleted files fail, each as what it is, from the moment on that they are not there.
    fn deletions(&mut self, ended: &Ended, replaced: &[&Failure], deleted: &BTreeSet<u64>) {
        for failure in replaced {
            self.expect(deleted.contains(&failure.index), || format!("was not deleted: {}", said(failure)));
            self.expect(failure.code == "not_found", || format!("expected not_found: {}", said(failure)));
        }
        let failed = |epoch| -> BTreeSet<u64> {
            replaced.iter().filter(|failure| failure.epoch == epoch).map(|failure| failure.index).collect()
        };
        let steps: BTreeMap<u64, u64> =
            (0..).zip(&ended.order).map(|(position, sample)| (*sample, position / BATCH_SIZE)).collect();
        let planned_after = |step: u64| -> BTreeSet<u64> {
            deleted.iter().copied().filter(|sample| steps.get(sample).is_some_and(|at| *at > step)).collect()
        };
        // What was prefetched when the files went may have been read or not.
        let (may, must) = (planned_after(HOLD_STEP), planned_after(HOLD_STEP + PREFETCH_BATCHES as u64));
        let first = failed(0);
        self.expect(first.is_subset(&may) && must.is_subset(&first), || {
            format!("epoch 0: expected {must:?} to fail and none but {may:?}, got {first:?}")
        });
        let second = failed(1);
        self.expect(second == *deleted, || format!("epoch 1: expected {deleted:?} to fail, got {second:?}"));
    }
}

fn said(failure: &Failure) -> String {
    format!("{} ({}, epoch {}, step {})", failure.message, failure.code, failure.epoch, failure.step)
}

fn failures_of(ended: &Ended, epoch: u64) -> impl Iterator<Item = &Failure> {
    ended.failures.iter().filter(move |failure| failure.epoch == epoch && failure.outcome == Outcome::Replaced)
}

/// The sum of all samples' hashes, less what failed, plus what took its place.
fn expected_hash(failures: &[&Failure], reference: &Reference) -> Option<u64> {
    let all = reference.samples.iter().fold(0u64, |sum, hash| sum.wrapping_add(*hash));
    failures.iter().try_fold(all, |sum, failure| {
        let failed = reference.samples.get(failure.index as usize)?;
        let substitute = reference.samples.get(failure.substitute? as usize)?;
        Some(sum.wrapping_sub(*failed).wrapping_add(*substitute))
    })
}

#[cfg(test)]
mod tests;
