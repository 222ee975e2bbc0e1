//! The optimised paths against the plain one, and error messages of a pipeline.

use std::sync::Arc;

use forebay_core::{Epoch, Kind, Rng, SampleId};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};

use super::*;
use crate::narrow::{BFloat16, Half};
use crate::{Custom, Dtype, Erase, Interpolation, Padding, PaddingMode, ResizeTo, Row, Size, TensorData};

/// A bitmap file of noise; lossless, so that a part of it is exactly a part.
fn bitmap(width: u32, height: u32, seed: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let stride = (width * 3).next_multiple_of(4);
    let size = 54 + stride * height;
    file.extend(b"BM");
    for word in [size, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    let mut state = seed | 1;
    file.resize_with(size as usize, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    file
}

fn rng(sample: u64) -> Rng {
    Rng::for_sample(11, Epoch(1), SampleId(sample))
}

fn size(height: u32, width: u32) -> Size {
    Size { height, width }
}

fn resize(to: ResizeTo, interpolation: Interpolation) -> Op {
    Op::Resize { size: to, interpolation, max_size: None, antialias: true }
}

fn resized_crop(to: Size, interpolation: Interpolation) -> Op {
    Op::RandomResizedCrop { size: to, scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0), interpolation, antialias: true }
}

fn random_crop(to: Size, padding_mode: PaddingMode) -> Op {
    let padding = Some(Padding::from_values(&[5, 3]).unwrap());
    Op::RandomCrop { size: to, padding, pad_if_needed: true, fill: vec![7.0], padding_mode }
}

fn normalize() -> Op {
    Op::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
}

fn imagenet() -> Pipeline {
    let crop = resized_crop(224.into(), Interpolation::Bilinear);
    Pipeline::new(vec![crop, Op::RandomHorizontalFlip { p: 0.5 }, Op::ToTensor, normalize()]).unwrap()
}

/// The same ops without optimisations.
fn long_way(ops: &[Op]) -> Pipeline {
    let mut pipeline = Pipeline::new(ops.to_vec()).unwrap();
    (pipeline.head, pipeline.tail) = (Head::Whole, None);
    pipeline
}

/// Every type and order of a batch.
fn outputs() -> impl Iterator<Item = Output> {
    let dtypes = [None, Some(Dtype::U8), Some(Dtype::F32), Some(Dtype::F16), Some(Dtype::BF16)];
    dtypes.into_iter().flat_map(|dtype| [Order::Planar, Order::Interleaved].map(|order| Output { dtype, order }))
}

/// What a slot has to hold of a tensor, element by element.
fn slot_of(tensor: &Tensor, output: Output) -> Vec<u8> {
    let plane = tensor.width as usize * tensor.height as usize;
    let channels = tensor.channels as usize;
    let mut bytes = Vec::new();
    for at in 0..plane * channels {
        let from = match output.order {
            Order::Planar => at,
            Order::Interleaved => at % channels * plane + at / channels,
        };
        let float = match &tensor.data {
            TensorData::U8(data) => f32::from(data[from]),
            TensorData::F32(data) => data[from],
        };
        match output.dtype.unwrap_or(tensor.layout().dtype) {
            Dtype::U8 => bytes.push(float as u8),
            Dtype::F32 => bytes.extend(float.to_ne_bytes()),
            Dtype::F16 => bytes.extend(Half::of(float).0.to_ne_bytes()),
            Dtype::BF16 => bytes.extend(BFloat16::of(float).0.to_ne_bytes()),
        }
    }
    bytes
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Image(a), Value::Image(b)) => a == b,
        (Value::Tensor(a), Value::Tensor(b)) => a == b,
        _ => false,
    }
}

/// Runs both ways and into a slot.
fn check_short_cuts(ops: &[Op], bytes: &[u8], sample: u64) {
    let (short, long) = (Pipeline::new(ops.to_vec()).unwrap(), long_way(ops));
    let (mut scratch, rng) = (Scratch::default(), rng(sample));
    let (expected, _) = long.run(bytes, &rng, &mut scratch).unwrap();
    for _ in 0..2 {
        // Twice with the same scratch: leftovers of the first run must not show.
        let (got, _) = short.run(bytes, &rng, &mut scratch).unwrap();
        assert!(same(&got, &expected), "{short} differs from the long way");
        let (kept, _) = short.run_fixed(bytes, &self::rng(sample + 1), &mut scratch).unwrap();
        let (got, _) = short.run_from(&kept, &rng, &mut scratch, None).unwrap();
        assert!(same(&got.unwrap(), &expected), "{short} from a kept picture differs from the long way");
    }
    let (Some(layout), Value::Tensor(tensor)) = (short.layout(), &expected) else {
        assert!(short.layout().is_none(), "a layout, but no tensor");
        return;
    };
    assert_eq!(tensor.layout(), layout);
    for output in outputs() {
        if output.dtype == Some(Dtype::U8) && layout.dtype != Dtype::U8 {
            assert!(short.with_output(output).is_err());
            continue;
        }
        let short = short.with_output(output).unwrap();
        let mut slot = vec![0xAA; short.layout().unwrap().size_bytes()];
        short.run_into(bytes, &rng, &mut scratch, &mut slot).unwrap();
        assert!(slot == slot_of(tensor, output), "{short} writes another slot than the long way");
        slot.fill(0xAA);
        let (kept, _) = short.run_fixed(bytes, &rng, &mut scratch).unwrap();
        short.run_from(&kept, &rng, &mut scratch, Some(&mut slot)).unwrap();
        assert!(slot == slot_of(tensor, output), "{short} from a kept picture writes another slot than the long way");
        slot.fill(0xAA);
        short.place(tensor, &mut slot).unwrap();
        assert!(slot == slot_of(tensor, output), "{short} places another tensor than was made");
    }
}

fn interpolation() -> impl Strategy<Value = Interpolation> {
    prop_oneof![
        Just(Interpolation::Nearest),
        Just(Interpolation::Bilinear),
        Just(Interpolation::Bicubic),
        Just(Interpolation::Lanczos)
    ]
}

fn head() -> impl Strategy<Value = Vec<Op>> {
    let sizes = (1u32..60, 1u32..60).prop_map(|(height, width)| size(height, width));
    let modes = prop_oneof![Just(PaddingMode::Constant), Just(PaddingMode::Reflect), Just(PaddingMode::Symmetric)];
    (0..6, sizes, 1u32..60, interpolation(), modes).prop_map(|(kind, to, edge, filter, mode)| match kind {
        0 => vec![resized_crop(to, filter)],
        1 => vec![random_crop(to, mode)],
        2 => vec![Op::CenterCrop { size: to }],
        3 => vec![resize(ResizeTo::Edge(edge), filter), Op::CenterCrop { size: to }],
        4 => vec![resize(ResizeTo::Exact(size(edge, 31)), filter), random_crop(to, mode)],
        _ => vec![resize(ResizeTo::Exact(to), filter)],
    })
}

fn tail() -> impl Strategy<Value = Vec<Op>> {
    let erasing = |value| Op::RandomErasing { p: 0.7, scale: (0.02, 0.33), ratio: (0.3, 3.3), value };
    let flips = vec![Op::RandomHorizontalFlip { p: 0.5 }, Op::RandomVerticalFlip { p: 0.5 }];
    let float = Op::ToDtype { dtype: Dtype::F32, scale: true };
    prop_oneof![
        Just(vec![Op::ToTensor, normalize()]),
        Just([flips.clone(), vec![Op::ToTensor, normalize(), erasing(Erase::Random)]].concat()),
        Just([vec![Op::ToImage], flips.clone()].concat()),
        Just([flips.clone(), vec![Op::ToImage, float.clone(), normalize()], flips.clone()].concat()),
        Just(vec![Op::ToImage, erasing(Erase::Values(vec![1.0, -2.0, 300.0])), float.clone(), normalize()]),
        Just(vec![Op::Grayscale { num_output_channels: 1 }, Op::RandomHorizontalFlip { p: 0.5 }, Op::ToTensor]),
        Just(vec![Op::ToTensor, Op::RandomGrayscale { p: 0.5 }, Op::CenterCrop { size: size(9, 70) }, normalize()]),
        Just(vec![Op::ToTensor, normalize(), Op::ToDtype { dtype: Dtype::U8, scale: true }]),
        Just([flips.clone(), vec![Op::ToImage, erasing(Erase::Values(vec![300.7]))]].concat()),
        Just(vec![Op::ToImage, float.clone(), Op::Normalize { mean: vec![0.5], std: vec![1e-5] }]),
        Just(vec![Op::RandomHorizontalFlip { p: 0.5 }]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_cuts_change_nothing(
        head in head(), tail in tail(), width in 1u32..90, height in 1u32..90, seed in any::<u32>(), sample in any::<u64>(),
    ) {
        let ops = [head, tail].concat();
        // The exact height is 31 wide: too narrow for some crops only when nothing is padded.
        check_short_cuts(&ops, &bitmap(width, height, seed), sample);
    }
}

#[test]
fn single_pixels_and_extreme_shapes_survive_everything() {
    let jitter = Some((0.5, 1.5));
    let ops = vec![
        Op::RandomRotation {
            degrees: (-180.0, 180.0),
            interpolation: Interpolation::Bicubic,
            expand: true,
            center: None,
            fill: vec![0.0],
        },
        Op::ColorJitter { brightness: jitter, contrast: jitter, saturation: jitter, hue: Some((-0.5, 0.5)) },
        Op::GaussianBlur { kernel_size: (101, 31), sigma: (0.1, 30.0) },
        Op::Pad { padding: Padding::from_values(&[3]).unwrap(), fill: vec![0.0], padding_mode: PaddingMode::Reflect },
        resized_crop(size(5, 6), Interpolation::Lanczos),
        Op::RandomErasing { p: 1.0, scale: (0.02, 0.9), ratio: (0.3, 3.3), value: Erase::Random },
        Op::ToTensor,
        normalize(),
    ];
    for (width, height) in [(1, 1), (1, 300), (300, 1), (2, 3)] {
        for sample in 0..20 {
            check_short_cuts(&ops, &bitmap(width, height, 9), sample);
        }
    }
}

#[test]
fn sample_is_a_function_of_bytes_and_stream() {
    let (pipeline, bytes) = (imagenet(), bitmap(300, 200, 3));
    let run = |sample: u64, scratch: &mut Scratch| {
        let mut slot = vec![0; pipeline.layout().unwrap().size_bytes()];
        pipeline.run_into(&bytes, &rng(sample), scratch, &mut slot).unwrap();
        slot
    };
    let mut used = Scratch::default();
    let first: Vec<_> = (0..5).map(|sample| run(sample, &mut used)).collect();
    for sample in (0..5).rev() {
        assert!(run(sample, &mut Scratch::default()) == first[sample as usize]);
    }
    assert!(first[0] != first[1]);
}

#[test]
fn flips_happen_as_often_as_asked() {
    let pipeline = Pipeline::new(vec![Op::RandomHorizontalFlip { p: 0.3 }]).unwrap();
    let image = Image { width: 2, height: 1, channels: 1, pixels: vec![1, 2] };
    let mut scratch = Scratch::default();
    let flipped = (0..10_000).filter(|sample| {
        let value = pipeline.transform(Value::Image(image.clone()), &rng(*sample), &mut scratch).unwrap();
        matches!(value, Value::Image(image) if image.pixels == [2, 1])
    });
    let count = flipped.count();
    assert!((2800..3200).contains(&count), "{count}");
}

#[test]
fn layout_is_known_when_the_size_is() {
    let order = Order::Planar;
    let layout = |height, width, channels, dtype| Some(Layout { channels, height, width, dtype, order });
    assert_eq!(imagenet().layout(), layout(224, 224, 3, Dtype::F32));
    let of = |ops| Pipeline::new(ops).unwrap().layout();
    assert_eq!(of(vec![Op::ToTensor]), None);
    assert_eq!(of(vec![Op::CenterCrop { size: 9.into() }]), None);
    let edge = resize(ResizeTo::Edge(256), Interpolation::Bilinear);
    assert_eq!(of(vec![edge.clone(), Op::ToTensor]), None);
    let grey = Op::Grayscale { num_output_channels: 1 };
    assert_eq!(of(vec![edge, Op::CenterCrop { size: size(2, 3) }, grey, Op::ToImage]), layout(2, 3, 1, Dtype::U8));
    let border =
        Op::Pad { padding: Padding::from_values(&[1, 2]).unwrap(), fill: vec![0.0], padding_mode: PaddingMode::Edge };
    assert_eq!(of(vec![Op::CenterCrop { size: 4.into() }, Op::ToTensor, border]), layout(8, 6, 3, Dtype::F32));
}

#[test]
fn layout_is_the_batchs() {
    let halves = Output { dtype: Some(Dtype::F16), order: Order::Interleaved };
    let pipeline = imagenet().with_output(halves).unwrap();
    let made = imagenet().layout().unwrap();
    assert_eq!(pipeline.layout(), Some(Layout { dtype: Dtype::F16, order: Order::Interleaved, ..made }));
    assert_eq!(pipeline.layout().unwrap().size_bytes() * 2, made.size_bytes());
    assert!(pipeline.to_string().ends_with("std=[0.229, 0.224, 0.225]) → float16 → channels_last"), "{pipeline}");
    // A second output replaces the first.
    assert_eq!(pipeline.with_output(Output::default()).unwrap().layout(), Some(made));
    let custom = Op::Custom(Arc::new(Own(|value, _| value)));
    assert_eq!(Pipeline::new(vec![custom]).unwrap().with_output(halves).unwrap().layout(), None);
}

#[test]
fn bytes_are_asked_for_where_there_are_bytes() {
    let bytes = Output { dtype: Some(Dtype::U8), ..Output::default() };
    let error = imagenet().with_output(bytes).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert_eq!(error.message(), "dtype: expected transforms that end in uint8 for \"uint8\", got float32");
    assert!(error.hint().contains("normalise on the GPU"), "{}", error.hint());
    // What ends in a picture becomes a tensor of bytes; with any other type it stays a picture.
    let pictures = Pipeline::new(vec![Op::CenterCrop { size: 4.into() }]).unwrap();
    let tensors = pictures.with_output(bytes).unwrap();
    assert_eq!(tensors.layout().map(|layout| (layout.dtype, layout.size_bytes())), Some((Dtype::U8, 48)));
    assert_eq!(tensors.to_string(), "decode → CenterCrop(size=(4, 4)) → ToImage() → uint8");
    let floats = Output { dtype: Some(Dtype::F32), ..Output::default() };
    assert_eq!(pictures.with_output(floats).unwrap().layout(), None);
}

#[test]
fn short_floats_are_the_batchs_alone() {
    let error = Pipeline::new(vec![Op::ToTensor, Op::ToDtype { dtype: Dtype::F16, scale: false }]).unwrap_err();
    assert!(error.message().contains("expected uint8 or float32, got float16: ask the loader for it"), "{error}");
}

#[test]
fn tensors_of_another_kind_are_not_placed() {
    let tensor = |data| Tensor { channels: 1, height: 1, width: 2, data };
    let crop = Op::CenterCrop { size: size(1, 2) };
    let grey = Op::Grayscale { num_output_channels: 1 };
    let fixed = Pipeline::new(vec![crop, grey, Op::ToTensor]).unwrap();
    let mut slot = [0; 8];
    fixed.place(&tensor(TensorData::F32(vec![1.0, 2.0])), &mut slot).unwrap();
    let error = fixed.place(&tensor(TensorData::U8(vec![1, 2])), &mut slot).unwrap_err();
    assert!(error.message().contains("the pipeline promised"), "{error}");
    let unknown = Pipeline::new(vec![Op::Custom(Arc::new(Own(|value, _| value)))]).unwrap();
    let bytes = unknown.with_output(Output { dtype: Some(Dtype::U8), ..Output::default() }).unwrap();
    let error = bytes.place(&tensor(TensorData::F32(vec![1.0, 2.0])), &mut slot[..2]).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let error = bytes.place(&tensor(TensorData::U8(vec![1, 2])), &mut slot).unwrap_err();
    assert!(error.message().contains("has another size than its slot of 8 bytes"), "{error}");
}

#[test]
fn says_all_that_is_wrong_and_what_to_do() {
    let ops = vec![
        normalize(),
        Op::RandomHorizontalFlip { p: 1.5 },
        Op::ToImage,
        normalize(),
        resize(ResizeTo::Edge(0), Interpolation::Bilinear),
        Op::GaussianBlur { kernel_size: (4, 3), sigma: (0.0, 1.0) },
        Op::Normalize { mean: vec![0.5, 0.5], std: vec![0.0] },
    ];
    let error = Pipeline::new(ops).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let text = error.to_string();
    for part in [
        "Normalize (transform 1): expected a float32 tensor, got an image: put ToTensor before it",
        "RandomHorizontalFlip (transform 2): expected p from 0 to 1, got 1.5",
        "Normalize (transform 4): expected a float32 tensor, got a uint8 tensor: put ToDtype(float32, scale=True) before it",
        "Resize (transform 5): expected an image, got a uint8 tensor: put it before ToTensor, ToImage and ToDtype",
        "expected odd numbers up to 65535 as kernel_size, got (4, 3)",
        "expected sigma greater than 0, got (0, 1)",
        "expected 1 or 3 values as mean, got 2",
        "expected std without 0",
    ] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn prints_as_it_is_written_in_python() {
    assert_eq!(
        imagenet().to_string(),
        "decode → RandomResizedCrop(size=(224, 224), scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), \
         interpolation=bilinear, antialias=true) → RandomHorizontalFlip(p=0.5) → ToTensor() → \
         Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])"
    );
}

#[test]
fn every_op_is_documented() {
    let documented = include_str!("../../../../docs/transforms.md");
    for Row { name, .. } in Op::TABLE {
        assert!(documented.contains(&format!("| `{name}` |")), "docs/transforms.md lacks {name}");
    }
}

#[test]
fn giant_buffers_are_given_back() {
    let mut scratch = Scratch::default();
    scratch.image.pixels = Vec::with_capacity(Scratch::MAX_KEPT_BYTES + 1);
    scratch.buffers.spare.pixels = Vec::with_capacity(100);
    scratch.give_back();
    assert_eq!(scratch.image.pixels.capacity(), 0);
    assert!(scratch.buffers.spare.pixels.capacity() >= 100);
}

#[test]
fn errors_say_where_they_happened() {
    let crop = Op::RandomCrop {
        size: 224.into(),
        padding: None,
        pad_if_needed: false,
        fill: vec![0.0],
        padding_mode: PaddingMode::Constant,
    };
    let pipeline = Pipeline::new(vec![crop]).unwrap();
    let error = pipeline.run(&bitmap(100, 80, 1), &rng(0), &mut Scratch::default()).unwrap_err();
    assert_eq!(error.stage(), Some(Stage::Transform));
    assert_eq!(error.message(), "is smaller than the crop (expected at least 224×224, got 100×80)");
    assert!(error.is_sample_local());
    let error = pipeline.run(b"no picture", &rng(0), &mut Scratch::default()).unwrap_err();
    assert_eq!(error.stage(), Some(Stage::Decode));
}

/// A transform of the user's own.
struct Own(fn(Value, u64) -> Value);

impl Custom for Own {
    fn name(&self) -> &str {
        "Own"
    }

    fn apply(&self, value: Value, seed: u64) -> Result<Value> {
        Ok((self.0)(value, seed))
    }
}

#[test]
fn custom_gets_the_value_and_the_seed_of_its_place() {
    let stamp = Op::Custom(Arc::new(Own(|value, seed| match value {
        Value::Image(mut image) => {
            image.pixels[..8].copy_from_slice(&seed.to_ne_bytes());
            Value::Image(image)
        }
        other => other,
    })));
    let pipeline = Pipeline::new(vec![stamp.clone(), stamp]).unwrap();
    assert_eq!((pipeline.layout(), pipeline.to_string()), (None, "decode → Own() → Own()".to_owned()));
    let (value, _) = pipeline.run(&bitmap(4, 4, 1), &rng(5), &mut Scratch::default()).unwrap();
    let Value::Image(image) = value else { panic!("an image is expected") };
    assert_eq!(image.pixels[..8], rng(5).fork(1).next_u64().to_ne_bytes());
}

#[test]
fn value_that_does_not_fit_the_next_op_is_named() {
    let tensor = || Tensor { channels: 3, height: 1, width: 1, data: TensorData::F32(vec![0.0; 3]) };
    let broken = Image { width: 3, height: 3, channels: 3, pixels: vec![0; 5] };
    let cases: [(Op, Value, &str); 4] = [
        (
            resize(ResizeTo::Edge(4), Interpolation::Box),
            Value::Tensor(tensor()),
            "Resize: expected an image, got a tensor",
        ),
        (Op::ToTensor, Value::Opaque(Box::new(7)), "ToTensor: expected an image or a tensor, got an object"),
        (Op::RandomHorizontalFlip { p: 1.0 }, Value::Image(broken), "got one without pixels, or with another number"),
        (Op::Grayscale { num_output_channels: 1 }, Value::Image(Image::default()), "got one without pixels"),
    ];
    for (op, value, expected) in cases {
        let pipeline = Pipeline::new(vec![op]).unwrap();
        let error = pipeline.transform(value, &rng(0), &mut Scratch::default()).unwrap_err();
        assert!(error.message().contains(expected), "{error}");
        assert_eq!((error.kind(), error.stage()), (Kind::Config, Some(Stage::Transform)));
    }
}

#[test]
fn grey_pictures_take_the_same_ops() {
    let grey = Image { width: 40, height: 30, channels: 1, pixels: (0..1200).map(|at| at as u8).collect() };
    let ops = vec![
        resized_crop(16.into(), Interpolation::Bilinear),
        Op::ColorJitter {
            brightness: Some((0.5, 1.5)),
            contrast: Some((0.5, 1.5)),
            saturation: Some((0.5, 1.5)),
            hue: None,
        },
        Op::GaussianBlur { kernel_size: (3, 3), sigma: (0.1, 2.0) },
        Op::RandomGrayscale { p: 1.0 },
        Op::RandomVerticalFlip { p: 1.0 },
        Op::ToTensor,
    ];
    let value = Pipeline::new(ops).unwrap().transform(Value::Image(grey), &rng(1), &mut Scratch::default()).unwrap();
    let Value::Tensor(tensor) = value else { panic!("a tensor is expected") };
    assert_eq!((tensor.channels, tensor.height, tensor.width), (1, 16, 16));
}
