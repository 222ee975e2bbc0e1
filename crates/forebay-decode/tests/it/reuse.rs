//! What was decoded before changes nothing: every picture, sound or damaged, after every kind of other picture.

use std::collections::BTreeMap;

use forebay_core::{Epoch, Rng, SampleId};
use forebay_decode::{Decoders, Detail, Format, Image, Interpolation, Op, Pipeline, ResizeTo, Scratch, Value};

use crate::decode::golden;
use crate::fast::{resize, resized_crop};

/// The segments of a JPEG up to its coded data, as marker and place.
fn segments(bytes: &[u8]) -> Vec<(u8, std::ops::Range<usize>)> {
    let mut all = Vec::new();
    let mut at = 2;
    while let [0xFF, marker, high, low, ..] = bytes[at..] {
        let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        all.push((marker, at..end));
        at = end;
        if marker == 0xDA {
            break;
        }
    }
    all
}

fn without(bytes: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    [&bytes[..range.start], &bytes[range.end..]].concat()
}

/// The picture without each of its parts in turn, without all of a kind, with its tables only, and cut.
fn damaged(name: &str, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |what: String, bytes: Vec<u8>| all.push((format!("{name}, {what}"), bytes));
    match Format::sniff(bytes) {
        Some(Format::Jpeg) => {
            let segments = segments(bytes);
            for (marker, range) in &segments {
                add(format!("without {marker:02X} at {}", range.start), without(bytes, range.clone()));
            }
            for gone in [0xDB, 0xC4] {
                let mut rest = bytes.to_vec();
                for (_, range) in segments.iter().rev().filter(|(marker, _)| *marker == gone) {
                    rest.drain(range.clone());
                }
                add(format!("without any {gone:02X}"), rest);
            }
            let tables = segments.iter().filter(|(marker, _)| matches!(marker, 0xDB | 0xC4 | 0xCC | 0xDD));
            let tables: Vec<u8> = tables.flat_map(|(_, range)| &bytes[range.clone()]).copied().collect();
            add("tables only".to_owned(), [&[0xFF, 0xD8], &tables[..], &[0xFF, 0xD9]].concat());
        }
        Some(Format::Png) => {
            let mut at = 8;
            while at + 12 <= bytes.len() {
                let length = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
                add(format!("without the chunk at {at}"), without(bytes, at..at + 12 + length));
                at += 12 + length;
            }
        }
        _ => {
            let places = [6, 13, 40, bytes.len() / 2];
            for at in places.into_iter().filter(|at| at + 4 <= bytes.len()) {
                add(format!("without 4 bytes at {at}"), without(bytes, at..at + 4));
                let mut zeros = bytes.to_vec();
                zeros[at..at + 4].fill(0);
                add(format!("with zeros at {at}"), zeros);
            }
        }
    }
    for percent in [30, 70] {
        add(format!("cut at {percent} %"), bytes[..bytes.len() * percent / 100].to_vec());
    }
    all
}

/// All golden pictures, also those that are not decoded, and damaged ones. Large ones would take long.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let is_small = |bytes: &[u8]| bytes.len() < 10_000;
    let sound = golden().into_iter().filter(|(name, bytes)| !name.ends_with(".ppm") && is_small(bytes));
    let mut all: Vec<_> = sound.collect();
    let damaged: Vec<_> = all.iter().flat_map(|(name, bytes)| damaged(name, bytes)).collect();
    all.extend(damaged);
    all
}

/// A sample, or what is said in its place.
type Outcome<T> = Result<T, String>;

/// A picture by name, and what a state that is new makes of it.
type Expected<T> = (String, Vec<u8>, Outcome<T>);

fn words(error: &forebay_core::Error) -> String {
    format!("{:?}: {error}: {:?}", error.kind(), error.detail())
}

/// Runs `one` on every picture with a state that is new, and then on each, with a state as a thread has it, after others:
/// `count` of its own format, and one of each other format.
fn compare<S: Default, T: PartialEq>(count: usize, mut one: impl FnMut(&mut S, &[u8]) -> Outcome<T>) {
    let mut formats: BTreeMap<&str, Vec<Expected<T>>> = BTreeMap::new();
    for (name, bytes) in corpus() {
        let format = Format::sniff(&bytes).map_or("none", Format::name);
        let outcome = one(&mut S::default(), &bytes);
        formats.entry(format).or_default().push((name, bytes, outcome));
    }
    let mut state = S::default();
    let (mut sound, mut refused) = (0, 0);
    for (format, pictures) in &formats {
        let others = formats.iter().filter(|(other, _)| *other != format).map(|(_, pictures)| &pictures[0]);
        for before in pictures.iter().step_by(pictures.len().div_ceil(count)).chain(others) {
            for picture in pictures {
                for (name, bytes, expected) in [before, picture] {
                    let outcome = one(&mut state, bytes);
                    let errors = (outcome.as_ref().err(), expected.as_ref().err());
                    assert!(
                        outcome == *expected,
                        "{name}, with {}: expected {:?}, got {:?}",
                        before.0,
                        errors.1,
                        errors.0
                    );
                }
                *(if picture.2.is_ok() { &mut sound } else { &mut refused }) += 1;
            }
        }
    }
    assert_eq!(formats.len(), 8, "{:?}", formats.keys());
    assert!(sound > 5_000 && refused > 5_000, "{sound} and {refused}");
}

#[test]
fn decoders_give_the_same_whatever_they_decoded_before() {
    compare(20, |decoders: &mut Decoders, bytes| {
        let header = decoders.header(bytes).map_err(|error| words(&error))?;
        let mut out = Image::default();
        decoders.decode(bytes, &header, None, &mut out).map_err(|error| words(&error))?;
        Ok(out)
    });
}

/// The same through pipelines, which keep buffers and tables of their own.
#[test]
fn pipelines_give_the_same_whatever_they_decoded_before() {
    let ops = [
        vec![resized_crop(24), Op::RandomHorizontalFlip { p: 0.5 }, Op::ToTensor],
        vec![resize(ResizeTo::Edge(14), Interpolation::Bilinear), Op::CenterCrop { size: 19.into() }],
    ];
    for detail in [Detail::Faithful, Detail::Fast] {
        let pipelines = ops.clone().map(|ops| Pipeline::new(ops).unwrap().with_detail(detail));
        compare(6, |scratch: &mut Scratch, bytes| {
            let mut run = |pipeline: &Pipeline| {
                let rng = Rng::for_sample(5, Epoch(2), SampleId(7));
                match pipeline.run(bytes, &rng, scratch).map_err(|error| words(&error))?.0 {
                    Value::Image(image) => Ok((Some(image), None)),
                    Value::Tensor(tensor) => Ok((None, Some(tensor))),
                    other => panic!("{other:?}"),
                }
            };
            pipelines.iter().map(&mut run).collect::<Outcome<Vec<_>>>()
        });
    }
}
