//! Landmarks of an annotation: every part of every golden JPEG is the same with and without, and damage is what it was.

use forebay_core::{Epoch, Kind, Rng, SampleId};
use forebay_decode::{Annotator, Decoders, Format, Image, Landmarks, Op, Pipeline, Region, Scratch};

use crate::decode::golden;

/// All golden JPEGs. Most have landmarks: the others are small, or of a kind that has none.
fn jpegs() -> Vec<(String, Vec<u8>)> {
    golden().into_iter().filter(|(_, bytes)| Format::sniff(bytes) == Some(Format::Jpeg)).collect()
}

type Verdict = Result<(Region, Image), (Kind, String)>;

fn part(decoders: &mut Decoders, bytes: &[u8], annotation: Option<&[u8]>, wanted: Option<Region>) -> Verdict {
    if let Some(annotation) = annotation {
        decoders.lend_annotation(bytes, annotation);
    }
    let mut out = Image::default();
    let decoded = decoders.header(bytes).and_then(|header| decoders.decode(bytes, &header, wanted, &mut out));
    decoders.take_back_annotations();
    decoded.map(|region| (region, out)).map_err(|error| (error.kind(), error.to_string()))
}

fn random(seed: &mut u64, bound: u64) -> u32 {
    *seed = seed.wrapping_add(1);
    (forebay_core::hash_words(&[*seed]) % bound) as u32
}

/// A part of the picture, whatever it is.
fn crop(seed: &mut u64, width: u32, height: u32) -> Region {
    let (x, y) = (random(seed, u64::from(width)), random(seed, u64::from(height)));
    let (right, down) = (random(seed, u64::from(width - x)), random(seed, u64::from(height - y)));
    Region { x, y, width: 1 + right, height: 1 + down }
}

#[test]
fn every_part_is_the_same_with_and_without() {
    let (mut plain, mut annotated, mut seed, mut known) = (Decoders::default(), Decoders::default(), 0, 0);
    for (name, bytes) in jpegs() {
        let annotation = Annotator::default().annotate(&bytes);
        let landmarks = Landmarks::of_annotation(&annotation, &bytes);
        assert_eq!(landmarks.to_annotation(), annotation, "{name}");
        assert!(annotation.len() <= 20 + bytes.len() / 100, "{name}: {} bytes", annotation.len());
        known += usize::from(!landmarks.is_empty());
        let Ok(header) = plain.header(&bytes) else { continue };
        for _ in 0..300 {
            let wanted = Some(crop(&mut seed, header.width, header.height));
            let expected = part(&mut plain, &bytes, None, wanted);
            assert!(part(&mut annotated, &bytes, Some(&annotation), wanted) == expected, "{name}, {wanted:?}");
        }
        let expected = part(&mut plain, &bytes, None, None);
        assert!(part(&mut annotated, &bytes, Some(&annotation), None) == expected, "{name}");
    }
    assert!(known >= 6, "{known} pictures had landmarks");
}

#[test]
fn a_flip_anywhere_is_seen_as_without() {
    let (mut plain, mut annotated, mut seed) = (Decoders::default(), Decoders::default(), 7);
    let (mut sound, mut damaged) = (0, 0);
    for (name, bytes) in jpegs() {
        for _ in 0..80 {
            let mut bytes = bytes.clone();
            let at = random(&mut seed, bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random(&mut seed, 8);
            // Indexed as it is: what is wrong with it was wrong then.
            let annotation = Annotator::default().annotate(&bytes);
            let whole = part(&mut plain, &bytes, None, None);
            assert!(whole.is_ok() || annotation.is_empty(), "{name}, {at}: landmarks of a damaged picture");
            assert!(part(&mut annotated, &bytes, Some(&annotation), None) == whole, "{name}, {at}");
            *(if annotation.is_empty() { &mut damaged } else { &mut sound }) += 1;
            let Ok(header) = plain.header(&bytes) else { continue };
            for _ in 0..4 {
                let wanted = Some(crop(&mut seed, header.width, header.height));
                let expected = part(&mut plain, &bytes, None, wanted);
                assert!(
                    part(&mut annotated, &bytes, Some(&annotation), wanted) == expected,
                    "{name}, {at}, {wanted:?}"
                );
            }
        }
    }
    assert!(sound > 50 && damaged > 50, "{sound} and {damaged}");
}

#[test]
fn each_picture_of_a_sample_has_its_own() {
    let all = jpegs();
    let find = |name: &str| &all.iter().find(|(own, _)| own.ends_with(name)).unwrap().1;
    let pictures = [find("large-420.jpg"), find("jpeg-444.jpg"), find("jpeg-420-progressive.jpg")];
    let annotations = pictures.map(|bytes| Annotator::default().annotate(bytes));
    let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 8.into() }, Op::ToTensor]).unwrap();
    let run = |bytes: &[u8], scratch: &mut Scratch| {
        let mut slot = vec![0; pipeline.layout().unwrap().size_bytes()];
        pipeline.run_into(bytes, &Rng::for_sample(0, Epoch(0), SampleId(0)), scratch, &mut slot).unwrap();
        slot
    };
    let mut scratch = Scratch::default();
    let alone = pictures.map(|bytes| run(bytes, &mut scratch));
    for order in [[0, 1, 2], [2, 1, 0]] {
        pictures.iter().zip(&annotations).for_each(|(bytes, annotation)| scratch.lend_annotation(bytes, annotation));
        for at in order {
            assert!(run(pictures[at], &mut scratch) == alone[at]);
        }
        assert_eq!(scratch.take_back_annotations(), 2, "the last has none");
    }
    // The same bytes at another place are not known, and what was taken back is gone.
    scratch.lend_annotation(pictures[0], &annotations[0]);
    let copy = pictures[0].clone();
    assert!(run(&copy, &mut scratch) == alone[0]);
    assert_eq!(scratch.take_back_annotations(), 0);
    assert!(run(pictures[0], &mut scratch) == alone[0]);
    assert_eq!(scratch.take_back_annotations(), 0);
}
