//! Transforms against results of Pillow and torchvision (`golden/make_ops.py` makes them).

use std::collections::HashMap;

use forebay_core::{Epoch, Rng, SampleId};
use forebay_decode::{
    Dtype, Image, Interpolation, Op, Padding, PaddingMode, Pipeline, ResizeTo, Scratch, Size, TensorData, Value,
};

/// One golden result.
struct Golden {
    width: u32,
    height: u32,
    channels: u32,
    bytes: &'static [u8],
}

impl Golden {
    fn image(&self) -> Image {
        Image { width: self.width, height: self.height, channels: self.channels, pixels: self.bytes.to_vec() }
    }
}

/// All golden results by name; those used are taken out, so that none is forgotten.
fn golden() -> HashMap<String, Golden> {
    let mut data: &'static [u8] = include_bytes!("../golden/ops/data.bin");
    let index = include_str!("../golden/ops/index.txt");
    let mut all = HashMap::new();
    for line in index.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |field: usize| fields[field].parse::<u32>().unwrap();
        let (width, height, channels) = (number(2), number(3), number(4));
        let element_bytes = if fields[1] == "u8" { 1 } else { 4 };
        let (bytes, rest) = data.split_at(width as usize * height as usize * channels as usize * element_bytes);
        data = rest;
        all.insert(fields[0].to_owned(), Golden { width, height, channels, bytes });
    }
    assert!(data.is_empty());
    all
}

fn apply(ops: Vec<Op>, image: Image) -> Value {
    let rng = Rng::for_sample(1, Epoch(2), SampleId(3));
    Pipeline::new(ops).unwrap().transform(Value::Image(image), &rng, &mut Scratch::default()).unwrap()
}

/// Runs one op on a golden picture and compares: no element differs by more than `tolerance`.
#[track_caller]
fn compare(all: &mut HashMap<String, Golden>, name: &str, input: &str, op: Op, tolerance: u8) {
    let image = all[input].image();
    let expected = all.remove(name).unwrap_or_else(|| panic!("{name} is not in the index"));
    let Value::Image(result) = apply(vec![op], image) else { panic!("{name} is no image") };
    assert_eq!(
        (result.width, result.height, result.channels),
        (expected.width, expected.height, expected.channels),
        "{name}"
    );
    let differences: Vec<u8> = result.pixels.iter().zip(expected.bytes).map(|(a, b)| a.abs_diff(*b)).collect();
    let (worst, count) = (differences.iter().max().unwrap(), differences.iter().filter(|d| **d > 0).count());
    assert!(*worst <= tolerance, "{name}: {count} of {} differ, the worst by {worst}", differences.len());
}

fn resize(size: ResizeTo, interpolation: Interpolation, max_size: Option<u32>) -> Op {
    Op::Resize { size, interpolation, max_size, antialias: true }
}

fn exact(height: u32, width: u32) -> ResizeTo {
    ResizeTo::Exact(Size { height, width })
}

fn pad(padding: &[u32], fill: &[f64], padding_mode: PaddingMode) -> Op {
    Op::Pad { padding: Padding::from_values(padding).unwrap(), fill: fill.to_vec(), padding_mode }
}

const NO_JITTER: Op = Op::ColorJitter { brightness: None, contrast: None, saturation: None, hue: None };

fn jitter(name: &str, factor: f64) -> Op {
    let mut op = NO_JITTER;
    if let Op::ColorJitter { brightness, contrast, saturation, hue } = &mut op {
        let field = match name {
            "brightness" => brightness,
            "contrast" => contrast,
            "saturation" => saturation,
            _ => hue,
        };
        *field = Some((factor, factor));
    }
    op
}

#[test]
fn pictures_equal_pillow_and_torchvision() {
    let all = &mut golden();
    resizes(all);
    crops_and_pads(all);
    colours(all);
    blurs_and_rotations(all);
    tensors(all);
    for input in ["photo", "grey", "colours", "pixel", "line", "tall", "small", "chip"] {
        all.remove(input);
    }
    assert!(all.is_empty(), "not compared: {:?}", all.keys());
}

fn resizes(all: &mut HashMap<String, Golden>) {
    use Interpolation::{Bicubic, Bilinear, Box, Hamming, Lanczos, Nearest};
    for filter in [Nearest, Bilinear, Bicubic, Box, Hamming, Lanczos] {
        let mut check = |case: &str, input: &str, to| {
            compare(all, &format!("resize {filter} {case}"), input, resize(to, filter, None), 0);
        };
        check("down", "photo", exact(13, 17));
        check("up", "photo", exact(33, 41));
        check("grey", "grey", exact(23, 11));
        check("line", "line", exact(3, 20));
        check("tall", "tall", exact(5, 9));
    }
    let mut check = |name: &str, input: &str, to, filter, most| compare(all, name, input, resize(to, filter, most), 0);
    check("resize pixel", "pixel", exact(4, 5), Bicubic, None);
    check("resize to pixel", "photo", exact(1, 1), Bilinear, None);
    check("resize edge", "photo", ResizeTo::Edge(20), Bilinear, None);
    check("resize edge max", "photo", ResizeTo::Edge(20), Bilinear, Some(22));
    check("resize long edge", "photo", ResizeTo::LongEdge, Bilinear, Some(30));
    check("resize one way", "photo", exact(29, 12), Bicubic, None);
}

fn crops_and_pads(all: &mut HashMap<String, Golden>) {
    let middle = Op::RandomResizedCrop {
        size: 24.into(),
        scale: (2.0, 2.0),
        ratio: (0.48, 0.48),
        interpolation: Interpolation::Bilinear,
        antialias: true,
    };
    compare(all, "resized crop", "photo", middle, 0);
    let mut center = |name: &str, height, width| {
        compare(all, name, "photo", Op::CenterCrop { size: Size { height, width } }, 0);
    };
    center("center crop", 16, 16);
    center("center crop odd", 12, 18);
    center("center crop larger", 34, 40);
    center("center crop one way", 40, 10);
    for mode in [PaddingMode::Constant, PaddingMode::Edge, PaddingMode::Reflect, PaddingMode::Symmetric] {
        compare(all, &format!("pad {mode}"), "photo", pad(&[3, 5, 7, 2], &[9.0], mode), 0);
        compare(all, &format!("pad {mode} wide"), "small", pad(&[11], &[0.0], mode), 0);
    }
    compare(all, "pad fill", "photo", pad(&[2, 1], &[200.0, 10.0, 90.5], PaddingMode::Constant), 0);
    compare(all, "flip horizontal", "photo", Op::RandomHorizontalFlip { p: 1.0 }, 0);
    compare(all, "flip vertical", "photo", Op::RandomVerticalFlip { p: 1.0 }, 0);
}

fn colours(all: &mut HashMap<String, Golden>) {
    compare(all, "grayscale 1", "colours", Op::Grayscale { num_output_channels: 1 }, 0);
    compare(all, "grayscale 3", "photo", Op::RandomGrayscale { p: 1.0 }, 0);
    for factor in ["0.0", "0.37", "1.0", "1.63"] {
        for name in ["brightness", "contrast", "saturation"] {
            compare(all, &format!("{name} {factor}"), "photo", jitter(name, factor.parse().unwrap()), 0);
        }
    }
    compare(all, "contrast grey", "grey", jitter("contrast", 1.4), 0);
    compare(all, "saturation colours", "colours", jitter("saturation", 2.5), 0);
    for factor in ["-0.5", "-0.213", "0.0", "0.1", "0.5"] {
        compare(all, &format!("hue {factor}"), "colours", jitter("hue", factor.parse().unwrap()), 0);
    }
}

fn blurs_and_rotations(all: &mut HashMap<String, Golden>) {
    for (kernel_size, sigma, name) in [
        ((3, 3), 0.6, "blur 3x3 0.6"),
        ((5, 9), 2.0, "blur 5x9 2.0"),
        ((23, 23), 1.3, "blur 23x23 1.3"),
        ((7, 1), 0.1, "blur 7x1 0.1"),
    ] {
        compare(all, name, "photo", Op::GaussianBlur { kernel_size, sigma: (sigma, sigma) }, 1);
    }
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic] {
        let mut check = |case: &str, input: &str, degrees: f64, expand, center, fill: &[f64]| {
            let fill = fill.to_vec();
            let op = Op::RandomRotation { degrees: (degrees, degrees), interpolation, expand, center, fill };
            compare(all, &format!("rotate {interpolation} {case}"), input, op, 0);
        };
        check("31", "photo", 31.0, false, None, &[7.0, 80.0, 200.0]);
        check("-77.5 expand", "photo", -77.5, true, None, &[0.0]);
        check("10 center", "photo", 10.0, false, Some((4.0, 9.5)), &[0.0]);
        check("90", "photo", 90.0, false, None, &[0.0]);
        check("270 expand", "grey", 270.0, true, None, &[0.0]);
        check("180", "grey", 180.0, false, None, &[0.0]);
    }
}

fn tensors(all: &mut HashMap<String, Golden>) {
    let normalize = Op::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
    let normal = vec![Op::ToTensor, normalize];
    let after = |op: Op| [normal.clone(), vec![op]].concat();
    let mut check = |name: &str, ops: Vec<Op>| {
        let image = all["chip"].image();
        let expected = all.remove(name).unwrap();
        let Value::Tensor(tensor) = apply(ops, image) else { panic!("{name} is no tensor") };
        assert_eq!(
            (tensor.width, tensor.height, tensor.channels),
            (expected.width, expected.height, expected.channels)
        );
        let TensorData::F32(values) = tensor.data else { panic!("{name} has no floats") };
        for (value, bytes) in values.iter().zip(expected.bytes.chunks_exact(4)) {
            let expected = f32::from_le_bytes(bytes.try_into().unwrap());
            assert!((value - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{name}: {value} is not {expected}");
        }
    };
    check("to tensor", vec![Op::ToTensor]);
    check("to dtype scaled", vec![Op::ToImage, Op::ToDtype { dtype: Dtype::F32, scale: true }]);
    check("normalize", normal.clone());
    check("tensor grayscale", after(Op::Grayscale { num_output_channels: 1 }));
    check("tensor pad reflect", after(pad(&[2, 3, 4, 1], &[0.0], PaddingMode::Reflect)));
    check("tensor center crop", after(Op::CenterCrop { size: Size { height: 20, width: 10 } }));
}
