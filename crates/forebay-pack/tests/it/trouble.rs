//! Samples that are bad, a source that changes, and limits.

use std::fs;
use std::os::unix::fs::symlink;

use forebay_core::{FailureLimit, Kind};
use forebay_pack::Pack;
use forebay_store::LedgerFile;

use crate::{Ends, picture};

#[test]
fn bad_samples_are_in_the_ledger_and_not_in_a_shard() {
    let ends = Ends::of_pictures(2, 20);
    let whole = ends.run(&ends.pack());
    fs::remove_dir_all(ends.path("target")).unwrap();
    ends.put("source/class0/empty.ppm", b"");
    ends.put("source/class0/short.ppm", &picture(3)[..200]);
    ends.put("source/class1/text.jpg", b"<html>not found</html>");
    symlink("/nowhere", ends.path("source/class1/gone.ppm")).unwrap();
    let packed = ends.pack().run(&mut |_| {}).unwrap();
    assert_eq!((packed.samples, packed.packed, packed.failed), (44, whole.packed, 4));
    assert!(!packed.is_complete() && packed.halted.is_none());
    let ledger = ends.path("target/forebay-ledger.jsonl");
    assert_eq!(packed.ledger.as_deref(), Some(&*ledger));
    let mut lines: Vec<_> = LedgerFile::read(&ledger).unwrap();
    lines.sort_by(|one, other| one.path.cmp(&other.path));
    let said: Vec<_> = lines
        .iter()
        .map(|line| (line.path().file_name().unwrap().to_str().unwrap().to_owned(), line.code.as_str()))
        .collect();
    let expected =
        [("empty.ppm", "corrupt"), ("short.ppm", "corrupt"), ("gone.ppm", "not_found"), ("text.jpg", "undecodable")];
    assert_eq!(said, expected.map(|(name, code)| (name.to_owned(), code)));
    assert!(
        lines.iter().all(|line| line.unix_seconds > 1e9 && !line.hint.is_empty() && line.is_about_its_path()),
        "{lines:?}"
    );
    assert_eq!(ends.members().len(), 80);
    // Without a look into them, only what cannot be read is left out.
    fs::remove_dir_all(ends.path("target")).unwrap();
    let packed = Pack { checks: false, ..ends.pack() }.run(&mut |_| {}).unwrap();
    assert_eq!((packed.packed, packed.failed), (42, 2));
    // The exit of a run that finds all of it done says so, too.
    assert_eq!(Pack { checks: false, ..ends.pack() }.run(&mut |_| {}).unwrap().failed, 2);
}

#[test]
fn too_many_failures_stop_it() {
    let ends = Ends::of_pictures(2, 20);
    for number in 0..5 {
        ends.put(&format!("source/class0/bad{number}.ppm"), b"P6 no");
    }
    for (limit, is_too_much) in [
        (FailureLimit::Count(4), true),
        (FailureLimit::Count(5), false),
        (FailureLimit::Fraction(0.1), true),
        (FailureLimit::Fraction(0.12), false),
    ] {
        let packed = Pack { max_failures: Some(limit), ..ends.pack() }.run(&mut |_| {}).unwrap();
        let kind = packed.halted.as_ref().map(forebay_core::Error::kind);
        assert_eq!(kind, is_too_much.then_some(Kind::TooManyFailures), "{limit:?}: {packed:?}");
        let parts = ends.target().into_keys().filter(|name| name.to_str().unwrap().ends_with(".part")).count();
        assert_eq!(parts, 0, "nothing unfinished is left");
        let said = packed.failures.iter().filter(|failure| failure.code == "corrupt").count();
        assert!(said == 5 || is_too_much && said >= 1, "{packed:?}");
        let lines = LedgerFile::read(packed.ledger.as_ref().unwrap()).unwrap();
        assert_eq!(lines.len(), packed.failures.len());
        fs::remove_dir_all(ends.path("target")).unwrap();
    }
    let ends = Ends::new(&[("a/1.ppm", b"P6"), ("b/2.ppm", b"")]);
    let packed = ends.pack().run(&mut |_| {}).unwrap();
    assert!(packed.halted.unwrap().message().starts_with("all samples failed"));
}

#[test]
fn a_source_that_changes_costs_what_changed() {
    let ends = Ends::of_pictures(1, 30);
    let mut is_changed = false;
    let pack = Pack { threads: Some(1), ..ends.pack() };
    // In a listed source, before anything of it is read.
    let rows: String = (0..30).map(|number| format!("class0/{number:04}.ppm,3,{}\n", picture(0).len())).collect();
    ends.put("source/all.csv", format!("path,label,size_bytes\n{rows}").as_bytes());
    ends.put("source/class0/0007.ppm", &[&picture(7)[..], b"grown"].concat());
    fs::remove_file(ends.path("source/class0/0009.ppm")).unwrap();
    let source = forebay_pack::Source { path: ends.path("source/all.csv"), ..pack.source.clone() };
    let packed = Pack { source, ..pack }.run(&mut |_| is_changed = true).unwrap();
    let mut codes: Vec<_> = packed.failures.iter().map(|failure| (failure.index, failure.code.as_str())).collect();
    codes.sort_unstable();
    assert_eq!(codes, [(7, "stale"), (9, "not_found")]);
    assert!(packed.failures.iter().any(|failure| failure.message.contains("it was changed while it was packed")));
    assert_eq!(packed.packed, 28);
    assert!(is_changed);
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_is_done() {
    let ends = Ends::of_pictures(1, 2);
    let pack = ends.pack();
    for (pack, said) in [
        (Pack { prefix: "../up".to_owned(), ..pack.clone() }, "--prefix"),
        (Pack { prefix: ".hidden".to_owned(), ..pack.clone() }, "--prefix"),
        (Pack { shard_bytes: Some(10), ..pack.clone() }, "--shard-size"),
        (Pack { samples_per_shard: Some(0), ..pack.clone() }, "--samples-per-shard"),
        (Pack::new(ends.path("nowhere"), ends.path("target")), "nowhere"),
    ] {
        let error = pack.run(&mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(!ends.path("target").exists());
    }
    let ends = Ends::new(&[("shard.00000.mds", b"")]);
    let error = ends.pack().run(&mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("without their index.json"), "{error}");
}
