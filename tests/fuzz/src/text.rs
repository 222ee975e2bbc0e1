//! Manifests, states, ledgers and cache entries.

use std::path::Path;

use bytes::Bytes;
use forebay_core::{DatasetIdentity, OrderKind, Plan, Rank, SampleId, State, Step, WorldSize};
use forebay_format::{Keeps, Labels, Manifest, read_manifest};
use forebay_store::testing::{EntryFile, read_ledger};

pub(crate) fn parquet(bytes: &[u8]) {
    manifest("m.parquet", bytes);
}

pub(crate) fn csv(bytes: &[u8]) {
    manifest("m.csv", bytes);
}

pub(crate) fn jsonl(bytes: &[u8]) {
    manifest("m.jsonl", bytes);
}

/// What is read stays below the root, whatever the rows say.
fn manifest(name: &str, bytes: &[u8]) {
    // Of a kind by its first bytes, whatever its name is: another target's.
    if bytes.starts_with(b"PAR1") != name.ends_with(".parquet") {
        return;
    }
    let root = Path::new("/data/images");
    let read_with = |keeps, labels: &Labels| {
        read_manifest(Bytes::copy_from_slice(bytes), Path::new(name), Some(root), keeps, labels)
    };
    let chosen = ["label", "class", "width"].map(|column| Labels::Columns(vec![column.to_owned()]));
    for labels in chosen.iter().chain([&Labels::Columns(Vec::new())]) {
        if let Ok(Manifest { index, labels, .. }) = read_with(Keeps::Names, labels) {
            assert!(labels.iter().all(|column| column.values.len() as u64 == index.len()), "labels of other samples");
        }
    }
    let read = |keeps| read_with(keeps, &Labels::Class);
    let Ok(Manifest { index, facts, .. }) = read(Keeps::Facts) else { return };
    assert_eq!(facts.len() as u64, index.len(), "facts of another number of samples");
    for sample in (0..index.len()).map(SampleId) {
        let path = index.path(sample);
        let below = path.strip_prefix(root).expect("a path that is not below the root");
        let is_plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        assert!(is_plain && below.components().next().is_some(), "{path:?} leads out of the root");
        index.label(sample);
        index.expected(sample);
    }
    for keeps in [Keeps::Names, Keeps::Checksums] {
        let again = read(keeps).expect("it was read a moment ago");
        assert_eq!(again.index.identity(), index.identity(), "another identity with {keeps:?}");
    }
}

/// A state that is accepted is one that the plan can go on from.
pub(crate) fn state(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(state) = State::from_json(text) else { return };
    let again = state.to_json().and_then(|text| State::from_json(&text)).expect("a state is written as it was read");
    assert_eq!(again, state);
    let plan = Plan {
        len: state.dataset.samples,
        batch_size: 7,
        world_size: WorldSize(3),
        order: if state.shuffle { OrderKind::Global } else { OrderKind::Sequential },
        drop_last: state.drop_last,
        seed: state.seed,
    };
    let dataset = DatasetIdentity { ..state.dataset.clone() };
    let Ok(origin) = state.check(&plan, &dataset) else { return };
    let steps = plan.steps_from(origin);
    plan.planned_from(origin);
    for step in [0, steps / 2, steps] {
        let Some(step) = origin.step.0.checked_add(step) else { continue };
        if let Some(batch) = plan.batch(state.epoch, origin, Step(step), Rank(1)) {
            assert!(batch.places.iter().all(|place| place.sample.0 < plan.len), "a sample that there is not");
        }
    }
}

/// Lines that are read are written again as they were.
pub(crate) fn ledger(bytes: &[u8]) {
    let Ok(failures) = read_ledger(bytes) else { return };
    for failure in failures {
        failure.path();
        failure.is_permanent();
        let line = failure.to_line().expect("a failure is written as it was read");
        let again: forebay_core::Failure = serde_json::from_str(&line).expect("what was written is read");
        assert_eq!(again.path(), failure.path());
    }
}

/// As it is, and with the right checksums: those are no secret, and behind them is the rest.
pub(crate) fn cache_entry(bytes: &[u8]) {
    thread_local!(static FILE: EntryFile = EntryFile::new().expect("a file in memory"));
    FILE.with(|file| {
        for entry in [bytes.to_vec(), EntryFile::sealed(bytes)] {
            if let Some(content) = file.read(&entry).expect("a file in memory is read") {
                assert!(entry.starts_with(&content), "content that is not in the entry");
            }
        }
    });
}
