//! A picture of one format through pipelines that decode all of it, a part of it, and less detail of it.
//!
//! Each is decoded with the memory of the picture before and with fresh memory: pixels and verdict must be the same.

use std::cell::RefCell;

use forebay_core::{Epoch, Result, Rng, SampleId};
use forebay_decode::{
    Annotator, Decoders, Detail, Format, Image, Interpolation, Landmarks, Op, Pipeline, Region, ResizeTo, Scratch,
    Value,
};

/// What a loader would charge to its budget. Larger pictures are left out: they are slow, and found by their header alone.
const MAX_MEMORY_BYTES: u64 = 64 << 20;

thread_local! {
    static PIPELINES: Vec<Pipeline> = pipelines();
    static USED: RefCell<Scratch> = RefCell::default();
}

fn pipelines() -> Vec<Pipeline> {
    let interpolation = Interpolation::Bilinear;
    let crop = Op::RandomResizedCrop {
        size: 16.into(),
        scale: (0.08, 1.0),
        ratio: (0.75, 1.33),
        interpolation,
        antialias: true,
    };
    let resize = Op::Resize { size: ResizeTo::Edge(12), interpolation, max_size: None, antialias: true };
    let built = [
        Pipeline::new(Vec::new()),
        Pipeline::new(vec![crop, Op::ToTensor]),
        Pipeline::new(vec![resize, Op::CenterCrop { size: 8.into() }, Op::ToTensor])
            .map(|pipeline| pipeline.with_detail(Detail::Fast)),
    ];
    built.into_iter().map(|pipeline| pipeline.expect("the ops fit each other")).collect()
}

pub(crate) fn run(format: Format, bytes: &[u8]) {
    if Format::sniff(bytes) != Some(format) {
        return;
    }
    PIPELINES.with(|pipelines| {
        USED.with_borrow_mut(|used| {
            for pipeline in pipelines {
                let charged = pipeline.memory_bytes(bytes, used);
                if charged.is_ok_and(|charged| charged > MAX_MEMORY_BYTES) {
                    return;
                }
                let (again, fresh) = (made(pipeline, bytes, used), made(pipeline, bytes, &mut Scratch::default()));
                assert!(again == fresh, "{pipeline}: after another picture {}, alone {}", short(&again), short(&fresh));
            }
        });
    });
}

/// A list of landmarks as long as the first two bytes say, and a JPEG. The list may be wrong: then so are the pixels, and nothing
/// else. What the JPEG's own list gives is what is decoded without.
pub(crate) fn landmarks(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk() else { return };
    let (wrong, jpeg) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
    let coded = Landmarks::of_annotation(wrong, jpeg).to_annotation();
    assert_eq!(Landmarks::of_annotation(&coded, jpeg).to_annotation(), coded, "landmarks that are read and written");
    let mut decoders = Decoders::default();
    let Some(header) = decoders.header(jpeg).ok().filter(|header| header.format == Format::Jpeg) else { return };
    if header.memory_bytes > MAX_MEMORY_BYTES {
        return;
    }
    let (width, height) = (header.width.div_ceil(3), header.height.div_ceil(3));
    let parts = [None, Some(Region { x: header.width - width, y: header.height - height, width, height })];
    let mut decode = |annotation: &[u8], wanted: Option<Region>| {
        decoders.lend_annotation(jpeg, annotation);
        let mut out = Image::default();
        let decoded = decoders.decode(jpeg, &header, wanted, &mut out);
        decoders.take_back_annotations();
        decoded.map(|region| (region, out)).map_err(|error| error.to_string())
    };
    let own = Annotator::default().annotate(jpeg);
    for wanted in parts {
        let _any = decode(wrong, wanted);
        let expected = decode(&[], wanted);
        assert!(decode(&own, wanted) == expected, "landmarks have changed what is decoded");
    }
}

/// The pixels, or what is wrong with the picture.
fn made(pipeline: &Pipeline, bytes: &[u8], scratch: &mut Scratch) -> std::result::Result<Vec<u8>, String> {
    let rng = Rng::for_sample(1, Epoch(0), SampleId(0));
    let made: Result<Vec<u8>> = match pipeline.layout() {
        Some(layout) => {
            let mut slot = vec![0; layout.size_bytes()];
            pipeline.run_into(bytes, &rng, scratch, &mut slot).map(|_| slot)
        }
        None => pipeline.run(bytes, &rng, scratch).map(|(value, _)| match value {
            Value::Image(image) => {
                let pixels = u64::from(image.width) * u64::from(image.height);
                assert_eq!(image.pixels.len() as u64, pixels * u64::from(image.channels), "a picture of another size");
                image.pixels
            }
            other => panic!("a pipeline without ops made {other:?}"),
        }),
    };
    made.map_err(|error| error.to_string())
}

fn short(made: &std::result::Result<Vec<u8>, String>) -> String {
    match made {
        Ok(pixels) => format!("{} bytes beginning {:?}", pixels.len(), &pixels[..pixels.len().min(16)]),
        Err(error) => error.clone(),
    }
}
