//! Text in, files of tokens out: what is in them, with damage, on any number of threads, and after an interruption.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, on real files")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::Kind;
use forebay_core::{Element, Result};
use forebay_format::{MEGATRON_HEADER_BYTES, MegatronHeader, MegatronIndex};
use forebay_tokenize::{Documents, HuggingFace, Shard, Tokenize, Tokenized, Tokenizer};

/// Words are tokens. It would cut documents after two, and fill them up to eight.
const TOKENIZER: &str = r#"{
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "<|end|>"},
    "added_tokens": [{"id": 0, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"<|end|>": 0, "?": 1, "ein": 2, "zwei": 3, "drei": 4}, "unk_token": "?"}
}"#;

fn tokenizer() -> Arc<dyn Tokenizer> {
    Arc::new(HuggingFace::parse(TOKENIZER.as_bytes()).unwrap())
}

fn json() -> Documents {
    Documents::JsonLines { field: "text".to_owned() }
}

fn run(tokenize: &Tokenize) -> Result<Tokenized> {
    tokenize.run(tokenizer(), &mut |_| {})
}

/// The tokens of each document of a shard.
fn read(stem: &Path) -> Vec<Vec<u16>> {
    let (bin, idx) = (fs::read(stem.with_extension("bin")).unwrap(), fs::read(stem.with_extension("idx")).unwrap());
    let (head, arrays) = idx.split_at(MEGATRON_HEADER_BYTES as usize);
    let header = MegatronHeader::parse(head, idx.len() as u64).unwrap();
    assert_eq!(header.element, Element::U16);
    let mut index = MegatronIndex::new(header, bin.len() as u64).unwrap();
    index.feed(arrays).unwrap();
    let tokens: Vec<_> = bin.as_chunks::<2>().0.iter().map(|token| u16::from_le_bytes(*token)).collect();
    let mut start = 0;
    let document = |end: u64| tokens[std::mem::replace(&mut start, end as usize)..end as usize].to_vec();
    index.finish().unwrap().into_iter().map(document).collect()
}

/// A corpus of several files, with two lines that are damaged.
fn corpus(root: &Path, lines: usize) {
    let mut text = String::new();
    for line in 0..lines {
        match line {
            7 => text += "{\"text\": 5}\n",
            300 => text += "{\"text\": \"ein\n",
            line => text += &format!("{{\"id\": {line}, \"text\": \"{}drei\"}}\n", "ein zwei ".repeat(line % 5)),
        }
    }
    let half = text.len() / 2 + text[text.len() / 2..].find('\n').unwrap() + 1;
    fs::write(root.join("a.jsonl"), &text[..half]).unwrap();
    fs::write(root.join("b.jsonl"), &text[half..]).unwrap();
}

/// All files of tokens, by name.
fn files(target: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut names: Vec<_> = fs::read_dir(target).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.into_iter().map(|path| (path.file_name().unwrap().into(), fs::read(path).unwrap())).collect()
}

#[test]
fn documents_become_tokens_in_their_order() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let lines = ["{\"text\": \"ein zwei drei ein\"}", "{\"text\": \"\"}", "", "{\"text\": \"drei vier\", \"id\": 1}"];
    fs::write(source.path().join("a.jsonl"), lines.join("\n")).unwrap();
    let done = run(&Tokenize {
        end_of_document: Some("<|end|>".to_owned()),
        ..Tokenize::new(source.path(), json(), target.path().join("new/tokens"))
    })
    .unwrap();
    assert_eq!(done.sum, Shard { documents: 2, tokens: 8, empty: 1, failed: 0 });
    assert_eq!((done.shards.len(), done.earlier_shards, done.element), (1, 0, Element::U16));
    assert_eq!(read(&done.shards[0].0), [vec![2, 3, 4, 2, 0], vec![4, 1, 0]]);
}

#[test]
fn lines_and_files_of_text_are_documents() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(source.path().join("b.txt"), "ein\nzwei drei\n").unwrap();
    fs::write(source.path().join("a.txt"), "drei").unwrap();
    let into = |name: &str, documents| Tokenize::new(source.path(), documents, target.path().join(name));
    let by_file = run(&into("files", Documents::Files)).unwrap();
    assert_eq!(read(&by_file.shards[0].0), [vec![4], vec![2, 3, 4]]);
    let by_line = run(&into("lines", Documents::Lines)).unwrap();
    assert_eq!(read(&by_line.shards[0].0), [vec![4], vec![2], vec![3, 4]]);
    let single = Tokenize::new(source.path().join("b.txt"), Documents::Lines, target.path().join("single"));
    assert_eq!(read(&run(&single).unwrap().shards[0].0), [vec![2], vec![3, 4]]);
}

#[test]
fn what_is_damaged_is_left_out_and_in_the_ledger() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    corpus(source.path(), 600);
    let ledger = target.path().join("ledger.jsonl");
    let tokenize =
        Tokenize { ledger: Some(ledger.clone()), ..Tokenize::new(source.path(), json(), target.path().join("tokens")) };
    let done = run(&tokenize).unwrap();
    assert_eq!((done.sum.documents, done.sum.failed), (598, 2));
    let told = fs::read_to_string(ledger).unwrap();
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains("line 8") && told.contains("is no text") && told.contains("is not JSON"), "{told}");
    let limited = Tokenize { max_failures: Some(forebay::FailureLimit::Count(1)), ..tokenize };
    let error = run(&Tokenize { target: target.path().join("limited"), ..limited }).unwrap_err();
    assert_eq!(error.kind(), Kind::TooManyFailures, "{error}");
}

#[test]
fn the_files_are_the_same_for_any_number_of_threads_and_after_an_interruption() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    corpus(source.path(), 3000);
    let into = |name: &str, threads| Tokenize {
        shard_bytes: 20_000,
        threads: Some(threads),
        ..Tokenize::new(source.path(), json(), target.path().join(name))
    };
    let whole = run(&into("1", 1)).unwrap();
    assert!(whole.shards.len() > 3, "{} shards", whole.shards.len());
    let expected = files(&target.path().join("1"));
    for threads in [2, 5] {
        let name = threads.to_string();
        run(&into(&name, threads)).unwrap();
        assert_eq!(files(&target.path().join(&name)), expected, "{threads} threads");
    }
    // The caller's own code ends it, at every step of the loader.
    let broken = into("broken", 2);
    let mut interrupted = 0;
    loop {
        let mut calls = 0;
        let tried = catch_unwind(AssertUnwindSafe(|| {
            broken.run(tokenizer(), &mut |_| {
                calls += 1;
                assert!(calls % 4 != 0, "ended here");
            })
        }));
        match tried {
            Err(_) => interrupted += 1,
            Ok(done) => {
                let done = done.unwrap();
                assert!(done.earlier_shards > 0);
                assert_eq!((done.sum, done.shards.len()), (whole.sum, whole.shards.len()));
                break;
            }
        }
        assert!(interrupted < 20, "it makes no progress");
    }
    assert!(interrupted > 1);
    assert_eq!(files(&target.path().join("broken")), expected);
    // A finished one is found finished.
    let again = run(&into("broken", 2)).unwrap();
    assert_eq!((again.earlier_shards, again.sum), (whole.shards.len(), whole.sum));
}

#[test]
fn other_settings_and_another_corpus_are_refused_by_name() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    corpus(source.path(), 20);
    let tokenize = Tokenize::new(source.path(), json(), target.path());
    run(&tokenize).unwrap();
    let refused = |tokenize: &Tokenize, name: &str| {
        let error = run(tokenize).unwrap_err();
        assert!(error.kind() == Kind::Config && error.to_string().contains(name), "{error}");
    };
    refused(&Tokenize { end_of_document: Some("<|end|>".to_owned()), ..tokenize.clone() }, "end_of_document");
    refused(&Tokenize { prefix: "other".to_owned(), ..tokenize.clone() }, "prefix");
    let before = files(target.path());
    fs::write(source.path().join("c.jsonl"), "{\"text\": \"ein\"}\n").unwrap();
    refused(&tokenize, "corpus");
    assert_eq!(files(target.path()), before);
    fs::write(target.path().join("forebay-tokens.json"), "{").unwrap();
    refused(&tokenize, "is no record");
}

#[test]
fn wrong_settings_are_said_before_anything_is_read() {
    let target = tempfile::tempdir().unwrap();
    let tokenize = Tokenize::new("nowhere", json(), target.path());
    for (wrong, what) in [
        (Tokenize { target: "s3://bucket/tokens".into(), ..tokenize.clone() }, "--output"),
        (Tokenize { prefix: "a/b".to_owned(), ..tokenize.clone() }, "--prefix"),
        (Tokenize { shard_bytes: 0, ..tokenize.clone() }, "--shard-size"),
        (Tokenize { end_of_document: Some("nothing".to_owned()), ..tokenize.clone() }, "--append"),
    ] {
        let error = run(&wrong).unwrap_err();
        assert!(error.kind() == Kind::Config && error.message().contains(what), "{error}");
    }
    assert_eq!(run(&tokenize).unwrap_err().kind(), Kind::NotFound);
    assert!(fs::read_dir(target.path()).unwrap().next().is_none());
    assert!(HuggingFace::parse(b"{}").is_err());
    assert!(Documents::of_name(Path::new("a/b.TXT.gz"), "text").unwrap_err().hint().contains("--documents"));
    assert_eq!(Documents::of_name(Path::new("a/b"), "body").unwrap(), Documents::JsonLines { field: "body".into() });
}
