use super::*;
use std::path::Path;
use std::process::ExitStatus;

use forebay::{Books, Error, Kind};

use crate::epoch::{ReaderCounts, Told};

const COUNT: u64 = 240;

fn reference() -> Reference {
    Reference { samples: (0..COUNT).map(|sample| sample * 1_000_003 + 7).collect() }
}

/// A run in which these samples failed, in this epoch and as this, and another took their places.
fn seen(failed: &[(u64, u64, Kind)]) -> Seen {
    let mut ended = Ended {
        filesystem: "nfs4".to_owned(),
        readers: Some(ReaderCounts { started: 4, ..ReaderCounts::default() }),
        order: (0..COUNT).collect(),
        ..Ended::default()
    };
    for (epoch, sample, kind) in failed {
        let error = Error::new(*kind, "failed").at_index(*sample);
        let failure = Failure::of(&error, Path::new("x.jpg"), Outcome::Replaced);
        let (substitute, step) = (Some(0), sample / BATCH_SIZE);
        ended.failures.push(Failure { epoch: *epoch, step, substitute, ..failure });
    }
    for epoch in 0..2 {
        let failures: Vec<_> = failures_of(&ended, epoch).collect();
        let replaced = failures.len() as u64;
        let books = Books { planned: COUNT, delivered: COUNT - replaced, replaced, ..Books::default() };
        let hash = expected_hash(&failures, &reference()).unwrap();
        ended.epochs.push(Told { books, hash });
    }
    let prompt = Some(Duration::from_millis(10));
    let gone = Gone { status: Some(ExitStatus::from_raw(0)), process: prompt, readers: prompt };
    Seen { ended: Some(ended), gone, deleted: BTreeSet::new() }
}

fn told(seen: &mut Seen) -> &mut Ended {
    seen.ended.as_mut().unwrap()
}

fn problems(trouble: Trouble, seen: &Seen) -> String {
    judge(trouble, false, seen, &reference()).join("; ")
}

#[test]
fn a_run_without_trouble_is_fine_and_one_failure_is_not() {
    assert_eq!(problems(Trouble::Nothing, &seen(&[])), "");
    let failed = seen(&[(0, 100, Kind::Unavailable)]);
    assert_eq!(problems(Trouble::Nothing, &failed), "nothing was wrong, and 1 failures were reported");
    assert_eq!(problems(Trouble::Restart, &failed), "1 samples failed although the server came back");
}

#[test]
fn a_sample_that_got_lost_is_missed() {
    let mut lost = seen(&[]);
    told(&mut lost).epochs[1].books.delivered -= 1;
    assert!(problems(Trouble::Nothing, &lost).contains("epoch 1: expected 240 planned"));
    told(&mut lost).epochs[1].books.planned -= 1;
    assert!(problems(Trouble::Nothing, &lost).contains("epoch 1: expected 240 planned, got planned 239"));
    let mut short = seen(&[]);
    told(&mut short).epochs.pop();
    assert!(problems(Trouble::Nothing, &short).contains("expected 2 epochs, got 1"));
}

#[test]
fn other_pixels_than_those_of_the_file_are_noticed() {
    let mut other = seen(&[]);
    told(&mut other).epochs[0].hash ^= 1;
    assert!(problems(Trouble::Nothing, &other).contains("epoch 0: what was handed over is not"));
}

#[test]
fn a_process_that_stays_is_noticed() {
    let mut stays = seen(&[]);
    stays.gone = Gone { status: None, process: None, readers: None };
    let said = problems(Trouble::Nothing, &stays);
    assert!(said.contains("not reaped") && said.contains("readers were alive"), "{said}");
    let mut crashed = seen(&[]);
    crashed.gone.status = Some(ExitStatus::from_raw(11));
    assert!(problems(Trouble::Nothing, &crashed).contains("ended with signal: 11"));
}

#[test]
fn reading_without_readers_is_noticed() {
    let mut alone = seen(&[]);
    told(&mut alone).readers = None;
    assert!(problems(Trouble::Nothing, &alone).contains("read by itself"));
    told(&mut alone).filesystem = "ext4".to_owned();
    assert!(problems(Trouble::Nothing, &alone).contains("taken for \"ext4\""));
}

#[test]
fn exactly_what_was_deleted_has_to_fail_as_not_found() {
    // Step 9 is the last before the deletion, and up to step 13 was prefetched.
    let (before, maybe, after) = (3, 100, 203);
    let with = |failed: &[(u64, u64, Kind)]| {
        let deleted = BTreeSet::from([before, maybe, after]);
        problems(Trouble::Delete, &Seen { deleted, ..seen(failed) })
    };
    let gone = |epoch, sample| (epoch, sample, Kind::NotFound);
    let right = [gone(0, after), gone(1, before), gone(1, maybe), gone(1, after)];
    let and = |more| [&right[..], &[more]].concat();
    assert_eq!(with(&right), "");
    assert_eq!(with(&and(gone(0, maybe))), "");
    assert!(with(&right[..3]).contains("epoch 1: expected {3, 100, 203} to fail, got {3, 100}"));
    assert!(with(&right[1..]).contains("epoch 0: expected {203} to fail"));
    assert!(with(&and(gone(0, before))).contains("epoch 0: expected {203} to fail and none but {100, 203}"));
    assert!(with(&and(gone(1, 50))).contains("was not deleted"));
    assert!(with(&[right[0], right[1], right[2], (1, after, Kind::Corrupt)]).contains("expected not_found"));
}

#[test]
fn only_what_was_tried_while_the_link_was_cut_may_fail() {
    let mut failed = seen(&[(0, 115, Kind::Timeout)]);
    assert!(problems(Trouble::CutImpatient, &failed).contains("no reader was written off"));
    told(&mut failed).readers = Some(ReaderCounts { written_off: 1, ..ReaderCounts::default() });
    assert_eq!(problems(Trouble::CutImpatient, &failed), "");
    told(&mut failed).failures[0].elapsed_seconds = 17.0;
    assert!(problems(Trouble::CutImpatient, &failed).contains("far beyond its deadline"));
    assert!(problems(Trouble::CutImpatient, &seen(&[])).contains("nothing failed"));
    for elsewhere in [(1, 115), (0, 10), (0, 200)] {
        let said = problems(Trouble::CutImpatient, &seen(&[(elsewhere.0, elsewhere.1, Kind::Timeout)]));
        assert!(said.contains("while the link was fine"), "{elsewhere:?}");
    }
    assert!(problems(Trouble::CutPatient, &seen(&[])).contains("hardly felt"));
}

#[test]
fn a_run_that_gives_up_does_so_soon_and_says_why() {
    let mut given_up = seen(&[]);
    let ended = told(&mut given_up);
    ended.epochs.truncate(1);
    (ended.error, ended.code) = (Some("no".to_owned()), Some("too_many_failures".to_owned()));
    ended.longest_wait_seconds = 16.0;
    assert_eq!(problems(Trouble::CutForGood, &given_up), "");
    told(&mut given_up).longest_wait_seconds = 40.0;
    assert_eq!(problems(Trouble::CutForGood, &given_up), "gave up only after 40s");
    told(&mut given_up).code = None;
    assert!(problems(Trouble::CutForGood, &given_up).contains("gave up with None"));
}
