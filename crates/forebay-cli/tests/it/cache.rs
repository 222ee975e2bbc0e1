//! `forebay cache`, on caches that a store has made.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, which damage files")]

use std::path::Path;

use forebay_cli::Status;
use serde_json::Value;

use crate::{forebay, forebay_on};

/// A cache with three objects in it, and their files.
fn cache(place: &Path) -> (String, Vec<std::path::PathBuf>) {
    use forebay::{Cache, CacheOptions, Cached, Local, Store};
    let cache = place.join("cache");
    let opened = Cache::open(&cache, CacheOptions { limit_bytes: Some(1 << 30), ..CacheOptions::default() }).unwrap();
    let cached = Cached::new(std::sync::Arc::new(Local), opened);
    for name in ["1.jpg", "2.jpg", "3.jpg"] {
        std::fs::write(place.join(name), vec![7; 5_000]).unwrap();
        cached.read(&place.join(name), std::time::Duration::MAX, &mut |_| Ok(Vec::new())).unwrap();
    }
    let shards = std::fs::read_dir(cache.join("v1")).unwrap().map(|shard| shard.unwrap().path());
    let files = shards
        .filter(|shard| shard.is_dir())
        .map(|shard| std::fs::read_dir(shard).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>());
    (cache.to_str().unwrap().to_owned(), files.flatten().collect())
}

#[test]
fn a_cache_is_looked_at_checked_and_emptied() {
    let place = tempfile::tempdir().unwrap();
    let (root, files) = cache(place.path());
    let info = forebay(&["cache", "info", &root]);
    assert_eq!((info.status, info.err.as_str()), (Status::Fine, ""));
    assert_eq!(info.out, format!("3 objects, 24.0 KiB of at most 1.0 GiB in {root}\n"));
    let info: Value = serde_json::from_str(&forebay(&["cache", "info", "--json", &root]).out).unwrap();
    assert_eq!(
        (info["entries"].as_u64(), info["bytes"].as_u64(), info["foreign"].as_u64()),
        (Some(3), Some(24_576), Some(0))
    );
    assert!(info["oldest_unix_seconds"].as_f64().unwrap() > 1.7e9);

    let verified = forebay(&["cache", "verify", &root]);
    assert_eq!(
        (verified.status, verified.out.as_str()),
        (Status::Fine, "3 objects, 14.6 KiB, are intact; 0 were damaged\n")
    );
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    std::fs::File::options().write(true).open(&files[1]).unwrap().set_len(9).unwrap();
    let verified = forebay_on(true, &["cache", "verify", &root]);
    assert_eq!(verified.status, Status::Problems);
    assert!(verified.out.contains("damaged, removed: v1/") && verified.out.contains(".jpg\""), "{}", verified.out);
    assert!(verified.out.contains("of an unknown object"), "{}", verified.out);
    assert!(verified.out.ends_with("1 objects, 4.9 KiB, are intact; 2 were damaged\n"), "{}", verified.out);
    assert!(verified.err.contains("256/256"), "{:?}", verified.err);
    let again: Value = serde_json::from_str(&forebay(&["cache", "verify", &root, "--json"]).out).unwrap();
    assert_eq!((again["entries"].as_u64(), again["damaged"].as_array().map(Vec::len)), (Some(1), Some(0)));

    std::fs::write(Path::new(&root).join("v1/mine"), "").unwrap();
    let cleared = forebay(&["cache", "clear", &root]);
    assert_eq!(cleared.status, Status::Fine);
    assert_eq!(cleared.out, format!("removed 1 objects, 8.0 KiB, from {root}\nleft 1 foreign files\n"));
    assert!(Path::new(&root).join("v1/mine").exists() && !files[2].exists());
}

#[test]
fn what_is_no_cache_is_not_touched() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("thesis.tex"), "mine").unwrap();
    for action in ["info", "verify", "clear"] {
        let ended = forebay(&["cache", action, place.path().to_str().unwrap()]);
        assert_eq!((ended.status, ended.out.as_str()), (Status::Problems, ""));
        assert!(ended.err.contains("is not a forebay cache") && ended.err.contains("hint: "), "{}", ended.err);
        assert_eq!(forebay(&["cache", action, "/nowhere/at/all"]).status, Status::Problems);
        assert_eq!(forebay(&["cache", action]).status, Status::Usage);
    }
    assert_eq!(std::fs::read(place.path().join("thesis.tex")).unwrap(), b"mine");
}
