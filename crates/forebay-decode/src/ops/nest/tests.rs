//! Choices, streams, shapes, memory and limits of nested transforms.

use forebay_core::{Epoch, Kind, SampleId};

use super::*;
use crate::ops::{Padding, PaddingMode, ResizeTo, Size};
use crate::{Custom, Dtype, Image, Interpolation, Pipeline, Scratch};
use std::sync::Arc;

const FLIP: Op = Op::RandomHorizontalFlip { p: 1.0 };
const UPSIDE_DOWN: Op = Op::RandomVerticalFlip { p: 1.0 };

fn rng(sample: u64) -> Rng {
    Rng::for_sample(3, Epoch(0), SampleId(sample))
}

fn picture() -> Image {
    Image { width: 3, height: 2, channels: 3, pixels: (0..18).collect() }
}

fn crop(edge: u32) -> Op {
    Op::CenterCrop { size: edge.into() }
}

fn pad(by: u32) -> Op {
    let padding = Padding { left: by, top: by, right: by, bottom: by };
    Op::Pad { padding, fill: vec![0.0], padding_mode: PaddingMode::Constant }
}

fn sometimes(transforms: Vec<Op>, p: f64) -> Op {
    Op::RandomApply { transforms, p }
}

fn choice(transforms: Vec<Op>, p: &[f64]) -> Op {
    Op::RandomChoice { transforms, p: p.to_vec() }
}

fn made(ops: Vec<Op>, sample: u64) -> Image {
    let pipeline = Pipeline::new(ops).unwrap();
    match pipeline.transform(Value::Image(picture()), &rng(sample), &mut Scratch::default()).unwrap() {
        Value::Image(image) => image,
        other => panic!("a picture is expected, got {other:?}"),
    }
}

#[test]
fn a_list_is_applied_as_often_as_asked_and_as_a_whole() {
    let both = made(vec![FLIP, UPSIDE_DOWN], 0);
    let count = (0..10_000).filter(|sample| match made(vec![sometimes(vec![FLIP, UPSIDE_DOWN], 0.3)], *sample) {
        image if image == both => true,
        image => {
            assert_eq!(image, picture(), "half of the list was applied");
            false
        }
    });
    let count = count.count();
    assert!((2800..3200).contains(&count), "{count}");
    assert!((0..100).all(|sample| made(vec![sometimes(vec![FLIP], 0.0)], sample) == picture()));
    assert!((0..100).all(|sample| made(vec![sometimes(vec![FLIP], 1.0)], sample) != picture()));
}

#[test]
fn one_is_chosen_by_its_weight() {
    let branches = vec![FLIP, UPSIDE_DOWN, Op::Compose { transforms: vec![FLIP, UPSIDE_DOWN] }, pad(1)];
    let expected: Vec<Image> = branches.iter().map(|op| made(vec![op.clone()], 0)).collect();
    let mut counts = [0; 4];
    for sample in 0..10_000 {
        let image = made(vec![choice(branches.clone(), &[2.0, 0.0, 5.0, 3.0])], sample);
        counts[expected.iter().position(|other| *other == image).unwrap()] += 1;
    }
    let near = |count: i32, expected: i32| (count - expected).abs() < 200;
    assert!(near(counts[0], 2000) && counts[1] == 0 && near(counts[2], 5000) && near(counts[3], 3000), "{counts:?}");
}

#[test]
fn every_order_is_equally_likely() {
    // Crops of another size after each other: the last one decides the size, the first what of the picture is left.
    let ops = || vec![crop(4), pad(1), Op::Grayscale { num_output_channels: 1 }];
    let mut seen = std::collections::HashMap::new();
    for sample in 0..2000 {
        let image = made(vec![Op::RandomOrder { transforms: ops() }], sample);
        *seen.entry((image.width, image.channels)).or_insert(0) += 1;
    }
    // 4 wide if cropped last of the two, 6 if padded last.
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.values().all(|count| (900..1100).contains(count)), "{seen:?}");
}

/// Writes the seed it gets into the picture's first pixels.
struct Stamp(usize);

impl Custom for Stamp {
    fn name(&self) -> &str {
        "Stamp"
    }

    fn apply(&self, value: Value, seed: u64) -> Result<Value> {
        let Value::Image(mut image) = value else { return Ok(value) };
        image.pixels[self.0] = seed as u8;
        Ok(Value::Image(image))
    }
}

#[test]
fn a_choice_changes_no_draw_of_any_other_op() {
    let stamp = |at| Op::Custom(Arc::new(Stamp(at)));
    let with = |inner: Op| vec![stamp(0), inner, stamp(1)];
    for sample in 0..50 {
        let plain = made(with(UPSIDE_DOWN), sample).pixels;
        let inners = [
            sometimes(vec![stamp(2), stamp(3)], 0.5),
            choice(vec![stamp(2), Op::Compose { transforms: vec![stamp(3), stamp(4)] }], &[1.0, 1.0]),
            Op::RandomOrder { transforms: vec![stamp(2), sometimes(vec![stamp(3)], 0.5)] },
        ];
        for inner in inners {
            let pixels = made(with(inner), sample).pixels;
            assert_eq!(pixels[1], plain[1], "the op after it drew something else");
        }
    }
    // An op inside draws the same whatever is drawn beside it.
    let beside = |p| made(vec![Op::RandomOrder { transforms: vec![sometimes(vec![stamp(5)], p), stamp(6)] }], 8).pixels;
    assert_eq!(beside(0.0)[6], beside(1.0)[6]);
}

#[test]
fn a_compose_is_what_it_holds() {
    let nested = vec![
        Op::Compose {
            transforms: vec![crop(8), Op::Compose { transforms: vec![Op::RandomHorizontalFlip { p: 0.5 }] }],
        },
        Op::ToTensor,
    ];
    let flat = Pipeline::new(vec![crop(8), Op::RandomHorizontalFlip { p: 0.5 }, Op::ToTensor]).unwrap();
    let nested = Pipeline::new(nested).unwrap();
    assert_eq!(nested.to_string(), flat.to_string());
    assert_eq!(nested.layout(), flat.layout());
    assert!(nested.decodes_part(), "the first crop is planned");
}

#[test]
fn shapes_are_known_where_all_branches_agree() {
    let layout = |ops: Vec<Op>| {
        let ops = [ops, vec![Op::ToTensor]].concat();
        Pipeline::new(ops).unwrap().layout().map(|layout| (layout.channels, layout.height, layout.width))
    };
    assert_eq!(layout(vec![crop(8), sometimes(vec![FLIP], 0.5)]), Some((3, 8, 8)));
    assert_eq!(layout(vec![crop(8), sometimes(vec![crop(6)], 0.5)]), None);
    assert_eq!(layout(vec![crop(8), sometimes(vec![crop(6)], 1.0)]), Some((3, 6, 6)));
    assert_eq!(layout(vec![crop(8), sometimes(vec![crop(6)], 0.0)]), Some((3, 8, 8)));
    assert_eq!(layout(vec![sometimes(vec![pad(1), crop(8)], 0.5), crop(8)]), Some((3, 8, 8)));
    assert_eq!(
        layout(vec![choice(vec![crop(8), Op::Compose { transforms: vec![pad(3), crop(8)] }], &[1.0, 2.0])]),
        Some((3, 8, 8))
    );
    assert_eq!(layout(vec![choice(vec![crop(8), crop(9)], &[1.0, 1.0])]), None);
    let grey = Op::Grayscale { num_output_channels: 1 };
    assert_eq!(layout(vec![crop(8), sometimes(vec![grey.clone()], 0.5)]), None);
    assert_eq!(
        layout(vec![crop(8), sometimes(vec![grey], 0.5), Op::Grayscale { num_output_channels: 3 }]),
        Some((3, 8, 8))
    );
    assert_eq!(layout(vec![crop(8), Op::RandomOrder { transforms: vec![FLIP, UPSIDE_DOWN] }]), Some((3, 8, 8)));
    assert_eq!(layout(vec![crop(8), Op::RandomOrder { transforms: vec![FLIP, pad(1)] }]), None);
}

#[test]
fn samples_have_the_shape_that_is_promised() {
    let jitter = Op::ColorJitter { brightness: Some((0.5, 1.5)), contrast: None, saturation: None, hue: None };
    let ops = vec![
        sometimes(vec![pad(2), choice(vec![crop(9), FLIP], &[1.0, 1.0])], 0.5),
        Op::Resize {
            size: ResizeTo::Exact(5.into()),
            interpolation: Interpolation::Bilinear,
            max_size: None,
            antialias: true,
        },
        Op::RandomOrder { transforms: vec![sometimes(vec![jitter], 0.8), UPSIDE_DOWN] },
        Op::ToTensor,
        sometimes(vec![Op::Normalize { mean: vec![0.5], std: vec![0.5] }], 0.5),
    ];
    let pipeline = Pipeline::new(ops).unwrap();
    let layout = pipeline.layout().unwrap();
    assert_eq!(layout.dtype, Dtype::F32);
    for sample in 0..200 {
        let value = pipeline.transform(Value::Image(picture()), &rng(sample), &mut Scratch::default()).unwrap();
        assert!(matches!(value, Value::Tensor(tensor) if tensor.layout() == layout));
    }
}

#[test]
fn memory_is_that_of_the_largest_branch() {
    let size = Size { height: 40, width: 30 };
    let of = |op: &Op| op.charge(size.into()).unwrap();
    let (large, small) = (pad(50), crop(3));
    let (most, _) = of(&large);
    for nested in [
        sometimes(vec![small.clone(), large.clone()], 0.5),
        choice(vec![small.clone(), large.clone()], &[1.0, 1.0]),
        Op::RandomOrder { transforms: vec![large.clone(), small.clone()] },
    ] {
        let (bytes, sizes) = of(&nested);
        assert!(bytes >= of(&Op::Compose { transforms: vec![small.clone(), large.clone()] }).0, "{nested}");
        assert!(sizes.largest().area() >= 103 * 103, "{nested}");
    }
    let (bytes, sizes) = of(&choice(vec![small.clone(), large], &[1.0, 1.0]));
    assert_eq!((bytes, sizes.largest().area()), (most, 140 * 130));
    // What follows is charged for each size that it may get.
    let edge = Op::Resize {
        size: ResizeTo::Edge(50),
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    };
    let thin = Size { height: 10, width: 1000 };
    let list = Op::Compose { transforms: vec![sometimes(vec![crop(100)], 0.5), edge.clone()] };
    assert!(list.charge(thin.into()).unwrap().0 >= edge.charge(thin.into()).unwrap().0);
    let custom = Op::Custom(Arc::new(Stamp(0)));
    assert_eq!(sometimes(vec![custom], 0.5).charge(size.into()), None);
}

#[test]
fn what_is_wrong_inside_is_named_with_its_place() {
    let cases = [
        (sometimes(vec![], 0.5), "RandomApply (transform 1): expected at least one transform, got none"),
        (sometimes(vec![FLIP], 1.5), "RandomApply (transform 1): expected p from 0 to 1, got 1.5"),
        (sometimes(vec![FLIP], f64::NAN), "RandomApply (transform 1): expected p from 0 to 1, got NaN"),
        (
            sometimes(vec![FLIP, choice(vec![Op::RandomGrayscale { p: -1.0 }], &[1.0])], 0.5),
            "RandomGrayscale (transform 1.2.1): expected p from 0 to 1, got -1",
        ),
        (
            sometimes(vec![Op::ToTensor], 0.5),
            "RandomApply (transform 1): expected the same kind of value whatever is chosen, got an image or a float32 tensor",
        ),
        (choice(vec![Op::ToTensor, Op::ToImage], &[1.0, 1.0]), "got a float32 tensor or a uint8 tensor"),
        (choice(vec![FLIP], &[1.0, 1.0]), "RandomChoice (transform 1): expected 1 numbers as p, got 2"),
        (choice(vec![FLIP, FLIP], &[0.0, 0.0]), "expected p of 0 or more with a sum above 0, got [0.0, 0.0]"),
        (choice(vec![FLIP, FLIP], &[2.0, -1.0]), "expected p of 0 or more with a sum above 0, got [2.0, -1.0]"),
        (choice(vec![], &[]), "RandomChoice (transform 1): expected at least one transform"),
        (Op::RandomOrder { transforms: vec![Op::ToTensor, FLIP] }, "RandomOrder (transform 1): expected the same kind"),
        (
            choice(
                vec![Op::Compose {
                    transforms: vec![
                        Op::ToTensor,
                        pad(1),
                        crop(2),
                        FLIP,
                        Op::ToDtype { dtype: Dtype::F16, scale: false },
                    ],
                }],
                &[1.0],
            ),
            "ToDtype (transform 1.1.5): expected uint8 or float32, got float16",
        ),
    ];
    for (op, expected) in cases {
        let error = Pipeline::new(vec![op]).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.message().contains(expected), "{expected:?} is missing in: {error}");
    }
    // A list that is always applied may change the kind; a callable of the user's own makes nothing that is known.
    assert!(Pipeline::new(vec![sometimes(vec![Op::ToTensor], 1.0)]).is_ok());
    assert!(Pipeline::new(vec![sometimes(vec![Op::Custom(Arc::new(Stamp(0)))], 0.5), Op::ToTensor]).is_ok());
}

#[test]
fn depth_and_number_are_limited() {
    let deep = |levels: usize| (1..levels).fold(FLIP, |op, _| sometimes(vec![op], 0.5));
    assert!(Pipeline::new(vec![deep(Op::MAX_DEPTH)]).is_ok());
    let error = Pipeline::new(vec![deep(Op::MAX_DEPTH + 1)]).unwrap_err();
    assert_eq!(error.message(), "transform: expected at most 32 levels of transforms, got more");
    assert_eq!(error.kind(), Kind::Config);
    // The longest way down counts, through a `Compose` too, and is found without calling itself.
    let deeper = (0..2000).fold(FLIP, |op, _| Op::Compose { transforms: vec![op] });
    assert!(Pipeline::new(vec![FLIP, deeper]).is_err());
    assert!(Pipeline::new(vec![Op::RandomOrder { transforms: vec![FLIP; Op::MAX_COUNT - 1] }]).is_ok());
    let error = Pipeline::new(vec![Op::RandomOrder { transforms: vec![FLIP; Op::MAX_COUNT] }]).unwrap_err();
    assert_eq!(error.message(), "transform: expected at most 4096 transforms, got more");
}
