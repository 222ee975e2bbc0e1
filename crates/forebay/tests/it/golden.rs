//! States and ledgers as this version writes them, committed: later versions read them, or say why not.
//!
//! A change that breaks one of these tests breaks the runs of users: it needs another version of the format, and an error
//! that says what to do.

use std::path::Path;
use std::sync::Arc;

use forebay::{Config, Failure, Kind, Loader, OnError, State};
use forebay_store::testing::Scripted;

use crate::fixture::{crop, epoch, path_of, pictures, source};

const STATE: &str = include_str!("../golden/state.json");
const LEDGER: &str = include_str!("../golden/ledger.jsonl");
/// Of all that follows the state in its epoch.
const REST: u64 = 0xe992_63e9_4bc8_bc6d;

fn loader(ledger: Option<&Path>) -> (Loader, Arc<Scripted<forebay_store::testing::Memory>>) {
    let config = Config {
        batch_size: 4,
        shuffle: true,
        seed: 11,
        on_error: OnError::Replace,
        ledger: ledger.map(Path::to_owned),
        ..Config::default()
    };
    let store = Arc::new(Scripted::new(pictures(40, true)));
    (Loader::new(source(store.clone(), crop()), config).unwrap(), store)
}

#[test]
fn a_state_is_written_as_ever_and_continues_as_ever() {
    let (first, _) = loader(None);
    epoch(&first);
    let mut run = first.epoch().unwrap();
    (0..3).for_each(|_| drop(run.next().unwrap().unwrap()));
    assert_eq!(first.state().to_json().unwrap(), STATE.trim_end());
    let (second, _) = loader(None);
    second.load_state(&State::from_json(STATE).unwrap()).unwrap();
    let rest = epoch(&second);
    assert_eq!(rest.len(), 28);
    assert_eq!(xxhash_rust::xxh3::xxh3_64(&rest.iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<_>>()), REST);
}

#[test]
fn a_state_of_another_layout_is_refused_with_its_version() {
    let other = STATE.replace("\"version\":1", "\"version\":0");
    let error = State::from_json(&other).unwrap_err();
    assert_eq!(error.kind(), Kind::StateMismatch);
    assert!(error.to_string().contains("another format version (expected 1, got 0)"), "{error}");
    assert!(!error.hint().is_empty());
}

#[test]
fn a_ledger_is_read_and_written_as_ever() {
    let lines: Vec<&str> = LEDGER.lines().collect();
    let failures: Vec<Failure> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (failure, line) in failures.iter().zip(&lines) {
        assert_eq!(serde_json::to_string(failure).unwrap(), **line);
    }
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    std::fs::write(&ledger, LEDGER).unwrap();
    let (known, store) = loader(Some(&ledger));
    epoch(&known);
    for index in [3, 17, 31] {
        assert_eq!(store.reads(&path_of(index)), 0, "{index} is in quarantine");
    }
    assert_eq!(known.failures().len(), 3);
    assert!(known.failures().iter().all(|failure| failure.attempts == 0));
}
