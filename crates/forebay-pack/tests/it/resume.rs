//! What an earlier run has left, and what another run would make of it.

use std::fs;
use std::path::Path;

use forebay_core::Kind;
use forebay_pack::Pack;

use crate::{Ends, picture};

#[test]
fn what_is_complete_is_left_as_it_is_and_what_is_missing_is_made_again() {
    let ends = Ends::of_pictures(2, 40);
    let pack = ends.pack();
    let first = ends.run(&pack);
    let count = first.shards.len() as u64;
    assert!(count > 4);
    let made = ends.target();
    let again = ends.run(&pack);
    assert_eq!((again.kept_shards, again.packed), (count, 80));
    assert_eq!(ends.target(), made);
    for damage in [(|path: &Path| fs::remove_file(path)) as fn(&Path) -> std::io::Result<()>, |path| {
        fs::File::options().write(true).open(path)?.set_len(100)
    }] {
        damage(&ends.path("target/shard-000001.tar")).unwrap();
        let again = ends.run(&pack);
        assert_eq!((again.kept_shards, again.packed), (count - 1, 80));
        assert_eq!(ends.target(), made);
    }
    fs::remove_file(ends.path("target/forebay.index")).unwrap();
    assert_eq!(ends.run(&pack).kept_shards, 0, "without the index nothing is known of them");
    assert_eq!(ends.target(), made);
}

#[test]
fn another_source_or_other_settings_are_refused_with_what_differs() {
    let ends = Ends::of_pictures(2, 10);
    let pack = ends.pack();
    ends.run(&pack);
    let made = ends.target();
    let refused = |pack: &Pack, said: &str| {
        let error = pack.run(&mut |_| {}).unwrap_err();
        assert!(error.kind() == Kind::Config && error.to_string().contains(said), "{error}");
        assert_eq!(ends.target(), made);
    };
    refused(&Pack { shard_bytes: Some(9_000), ..pack.clone() }, "shard_bytes (expected 20000, got 9000)");
    refused(&Pack { shuffle: Some(3), ..pack.clone() }, "shuffle (expected null, got 3)");
    refused(&Pack { prefix: "train".to_owned(), ..pack.clone() }, "prefix (expected \"shard\", got \"train\")");
    // Neither of these changes a byte.
    ends.run(&Pack { threads: Some(1), verifies: false, ..pack.clone() });
    let path = ends.path("source/class0/0000.ppm");
    let before = fs::read(&path).unwrap();
    fs::write(&path, picture(77)).unwrap();
    refused(&pack, "the versions of the source's samples are others");
    fs::write(&path, [&before[..], b"more"].concat()).unwrap();
    refused(&pack, "the sizes of the source's samples are others");
    fs::rename(&path, ends.path("source/class0/new.ppm")).unwrap();
    refused(&pack, "the names of the source's samples are others");
    fs::remove_file(ends.path("source/class0/new.ppm")).unwrap();
    refused(&pack, "samples (expected 20, got 19)");
}

#[test]
fn the_shards_of_others_are_not_written_over() {
    let ends = Ends::of_pictures(2, 4);
    ends.put("target/shard-17.tar", b"precious");
    let error = ends.pack().run(&mut |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Config && error.to_string().contains("without shards"), "{error}");
    ends.run(&Pack { prefix: "mine".to_owned(), ..ends.pack() });
    assert_eq!(ends.target()[Path::new("shard-17.tar")], b"precious");
    for text in ["{}", "no JSON", "{\"format\": 99}"] {
        let ends = Ends::of_pictures(2, 4);
        ends.put("target/forebay-pack.json", text.as_bytes());
        let error = ends.pack().run(&mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("is not what `forebay pack` writes here"), "{error}");
    }
}

#[test]
fn a_target_in_the_source_is_refused() {
    let ends = Ends::of_pictures(2, 4);
    for (source, target) in [("source", "source/shards"), ("source/class0", "source"), ("source", "source")] {
        let error = Pack::new(ends.path(source), ends.path(target)).run(&mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("outside the source"), "{error}");
    }
}
