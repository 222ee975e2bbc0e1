//! What annotations gain: pictures decoded without anything known of them, as in a first epoch from files, and with the landmarks
//! that an index has of them, in turns. Nothing is around it: no storage, no queue, no batch.
//!
//! `annotated FOLDER ROUNDS [fast]` prints one JSON line: microseconds of processor time a picture, of all rounds their median, and
//! the median of the rounds' ratios; what annotations take, and what making them does. Both ways compare the bytes with their
//! checksum, as shards do.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use forebay::{Annotator, Detail, Epoch, Error, Pipeline, Result, SampleId, Scratch, Source};
use forebay_core::Rng;
use forebay_format::content_hash;

mod bench;
#[expect(dead_code, reason = "turns are taken here, and by other programs elsewhere")]
mod turns;

const USAGE: &str = "expected: annotated FOLDER ROUNDS [fast]";

struct Picture {
    bytes: Vec<u8>,
    hash: u64,
    annotation: Vec<u8>,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (folder, rounds, detail) = match arguments.as_slice() {
        [folder, rounds] => (folder, rounds, Detail::Faithful),
        [folder, rounds, word] if word == "fast" => (folder, rounds, Detail::Fast),
        _ => return Err(Error::config(USAGE)),
    };
    let rounds = rounds.parse::<u64>().map_err(|error| Error::config(USAGE).with_source(error))?;
    let pipeline = bench::pipeline()?.with_detail(detail);
    let source = Source::image_folder(Path::new(folder), bench::pipeline()?)?;
    let mut pictures = Vec::new();
    for sample in 0..source.dataset.len() {
        let path = source.dataset.path(SampleId(sample));
        let bytes = source.store.read(&path, Duration::MAX, &mut |_| Ok(Vec::new()))?.bytes.to_vec();
        pictures.push(Picture { hash: content_hash(&bytes), bytes, annotation: Vec::new() });
    }
    let started = turns::Usage::now();
    let mut annotator = Annotator::default();
    pictures.iter_mut().for_each(|picture| picture.annotation = annotator.annotate(&picture.bytes));
    let finding = microseconds(&started, pictures.len());
    let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..=rounds {
        let mut took = [0.0; 2];
        let mut sums = [0; 2];
        // They take turns at coming first.
        for turn in 0..2 {
            let way = ((round + turn) % 2) as usize;
            let started = turns::Usage::now();
            sums[way] = epoch(&pipeline, &pictures, round, way == 1)?;
            took[way] = microseconds(&started, pictures.len());
        }
        if sums[0] != sums[1] {
            return Err(Error::internal("landmarks have changed a pixel"));
        }
        if round > 0 {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
            ratios.push(took[0] / took[1]);
        }
    }
    let total = |size: fn(&Picture) -> usize| pictures.iter().map(size).sum::<usize>() / pictures.len();
    let (bytes, annotation) = (total(|picture| picture.bytes.len()), total(|picture| picture.annotation.len()));
    let [without, with] = times.map(median);
    let ratio = median(ratios);
    let told = format!(
        r#"{{"pictures": {}, "bytes": {bytes}, "annotation": {annotation}, "find_us": {finding:.0}, "without_us": {without:.0}, "with_us": {with:.0}, "ratio": {ratio:.3}}}"#,
        pictures.len()
    );
    writeln!(std::io::stdout(), "{told}").map_err(|error| Error::io("written to", error))
}

fn epoch(pipeline: &Pipeline, pictures: &[Picture], round: u64, is_annotated: bool) -> Result<u64> {
    let size_bytes = pipeline.layout().ok_or_else(|| Error::config(USAGE))?.size_bytes();
    let (mut scratch, mut slot, mut sum) = (Scratch::default(), vec![0; size_bytes], 0u64);
    for (sample, picture) in (0..).zip(pictures) {
        if content_hash(&picture.bytes) != picture.hash {
            return Err(Error::internal("a picture has changed"));
        }
        if is_annotated {
            scratch.lend_annotation(&picture.bytes, &picture.annotation);
        }
        let rng = Rng::for_sample(0, Epoch(round), SampleId(sample));
        pipeline.run_into(&picture.bytes, &rng, &mut scratch, &mut slot)?;
        scratch.take_back_annotations();
        sum = sum.wrapping_add(bench::sum(&slot));
    }
    Ok(sum)
}

fn microseconds(started: &turns::Usage, pictures: usize) -> f64 {
    (turns::Usage::now().processor_seconds() - started.processor_seconds()) * 1e6 / pictures as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
