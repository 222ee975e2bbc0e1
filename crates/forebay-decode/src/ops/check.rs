//! What is known of a sample before any sample is there, and what is wrong with an op's settings or place.

use forebay_core::Problems;

use super::{Erase, Interpolation, Op, Padding, ResizeTo, Size};
use crate::{Dtype, MAX_PIXELS};

/// What a value is at some place of a pipeline, as far as the ops before it tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A picture.
    Image(Shape),
    /// A tensor.
    Tensor(Shape, Dtype),
    /// Whatever a [`Custom`](super::Custom) made.
    Unknown,
}

/// As much of a shape as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) channels: Option<u32>,
    pub(crate) size: Option<Size>,
}

impl Form {
    /// What the decoders give: RGB of any size.
    pub(crate) const DECODED: Self = Self::Image(Shape { channels: Some(3), size: None });

    fn shape(self) -> Shape {
        match self {
            Self::Image(shape) | Self::Tensor(shape, _) => shape,
            Self::Unknown => Shape { channels: None, size: None },
        }
    }

    fn with(self, shape: Shape) -> Self {
        match self {
            Self::Image(_) => Self::Image(shape),
            Self::Tensor(_, dtype) => Self::Tensor(shape, dtype),
            Self::Unknown => Self::Unknown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Image(_) => "an image",
            Self::Tensor(_, Dtype::U8) => "a uint8 tensor",
            Self::Tensor(_, Dtype::F32) => "a float32 tensor",
            Self::Tensor(_, Dtype::F16 | Dtype::BF16) => "a tensor of short floats",
            Self::Unknown => "an unknown value",
        }
    }
}

/// Problems of one op, each beginning with its name and place.
struct Check<'a> {
    problems: &'a mut Problems,
    place: String,
}

impl Check<'_> {
    fn expect(&mut self, fine: bool, problem: impl FnOnce() -> String) {
        let place = &self.place;
        self.problems.expect(fine, || format!("{place}: {}", problem()));
    }

    fn probability(&mut self, p: f64) {
        self.expect((0.0..=1.0).contains(&p), || format!("expected p from 0 to 1, got {p}"));
    }

    fn size(&mut self, name: &str, size: Size) {
        let fine = size.height > 0 && size.width > 0 && size.area() <= MAX_PIXELS;
        self.expect(fine, || {
            format!(
                "expected {name} from 1×1 to {MAX_PIXELS} pixels, got height {} and width {}",
                size.height, size.width
            )
        });
    }

    fn range(&mut self, name: &str, (low, high): (f64, f64), least: f64, most: f64) {
        let fine = low.is_finite() && high.is_finite() && least <= low && low <= high && high <= most;
        self.expect(fine, || match most {
            f64::INFINITY if least == f64::NEG_INFINITY => {
                format!("expected {name} as (smallest, largest), got ({low}, {high})")
            }
            f64::INFINITY => format!("expected {name} as (smallest, largest), {least} or more, got ({low}, {high})"),
            _ => format!("expected {name} as (smallest, largest) within {least} to {most}, got ({low}, {high})"),
        });
    }

    /// A ratio or a deviation: more than nothing, or its logarithm and reciprocal do not exist.
    fn positive(&mut self, name: &str, range: (f64, f64)) {
        self.range(name, range, 0.0, f64::INFINITY);
        self.expect(range.0 != 0.0, || format!("expected {name} greater than 0, got ({}, {})", range.0, range.1));
    }

    fn channel_values(&mut self, name: &str, values: &[f64], shape: Shape) {
        let fine = match shape.channels {
            Some(channels) => values.len() == 1 || values.len() == channels as usize,
            None => !values.is_empty(),
        };
        self.expect(fine, || {
            let channels = shape.channels.map_or("one for each channel".to_owned(), |channels| channels.to_string());
            format!("expected 1 or {channels} values as {name}, got {}", values.len())
        });
        self.expect(values.iter().all(|value| value.is_finite()), || format!("expected finite {name}, got {values:?}"));
    }

    fn fill(&mut self, fill: &[f64], form: Form) {
        self.channel_values("fill", fill, form.shape());
        if matches!(form, Form::Image(_)) {
            let fine = fill.iter().all(|value| (0.0..=255.0).contains(value));
            self.expect(fine, || format!("expected fill from 0 to 255, got {fill:?}"));
        }
    }

    /// Pixels are interpolated and recoloured as bytes, as Pillow does it.
    fn picture(&mut self, form: Form) {
        self.expect(!matches!(form, Form::Tensor(..)), || {
            format!("expected an image, got {}: put it before ToTensor, ToImage and ToDtype", form.name())
        });
    }

    fn padding(&mut self, padding: Padding) {
        // More would only overflow later; no picture is that large.
        const MOST: u32 = 1 << 16;
        let Padding { left, top, right, bottom } = padding;
        self.expect([left, top, right, bottom].iter().all(|side| *side <= MOST), || {
            format!("expected padding from 0 to {MOST}, got ({left}, {top}, {right}, {bottom})")
        });
    }
}

impl Op {
    /// Notes what is wrong with this op when it gets `form`, and says what it makes of it.
    pub(crate) fn check(&self, position: usize, form: Form, problems: &mut Problems) -> Form {
        let mut check = Check { problems, place: format!("{} (transform {})", self.name(), position + 1) };
        let shape = form.shape();
        let sized = |size: Size| form.with(Shape { size: Some(size), ..shape });
        match self {
            Self::Resize { size, max_size, .. } => {
                check.picture(form);
                check_resize(*size, *max_size, &mut check);
                match size {
                    ResizeTo::Exact(size) => sized(*size),
                    _ => form.with(Shape { size: None, ..shape }),
                }
            }
            Self::CenterCrop { size } => {
                check.size("size", *size);
                sized(*size)
            }
            Self::RandomCrop { size, padding, fill, .. } => {
                check.size("size", *size);
                check.padding(padding.unwrap_or_default());
                check.fill(fill, form);
                sized(*size)
            }
            Self::RandomResizedCrop { size, scale, ratio, .. } => {
                check.picture(form);
                check.size("size", *size);
                check.range("scale", *scale, 0.0, f64::INFINITY);
                check.positive("ratio", *ratio);
                sized(*size)
            }
            Self::RandomHorizontalFlip { p } | Self::RandomVerticalFlip { p } | Self::RandomGrayscale { p } => {
                check.probability(*p);
                form
            }
            Self::Pad { padding, fill, .. } => {
                check.padding(*padding);
                check.fill(fill, form);
                let size = shape.size.map(|size| Size {
                    height: size.height.saturating_add(padding.top).saturating_add(padding.bottom),
                    width: size.width.saturating_add(padding.left).saturating_add(padding.right),
                });
                form.with(Shape { size, ..shape })
            }
            Self::Grayscale { num_output_channels } => {
                check.expect(matches!(num_output_channels, 1 | 3), || {
                    format!("expected num_output_channels 1 or 3, got {num_output_channels}")
                });
                form.with(Shape { channels: Some(*num_output_channels), ..shape })
            }
            Self::ColorJitter { brightness, contrast, saturation, hue } => {
                check.picture(form);
                for (name, range) in [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)] {
                    range.iter().for_each(|range| check.range(name, *range, 0.0, f64::INFINITY));
                }
                hue.iter().for_each(|range| check.range("hue", *range, -0.5, 0.5));
                form
            }
            Self::GaussianBlur { kernel_size, sigma } => {
                check.picture(form);
                check.positive("sigma", *sigma);
                // No picture is wider; making a larger kernel would only take time.
                const MOST: u32 = (1 << 16) - 1;
                let fine = |size: u32| size % 2 == 1 && size <= MOST;
                check.expect(fine(kernel_size.0) && fine(kernel_size.1), || {
                    let (columns, rows) = kernel_size;
                    format!("expected odd numbers up to {MOST} as kernel_size, got ({columns}, {rows})")
                });
                form
            }
            Self::RandomRotation { degrees, interpolation, expand, center, fill } => {
                check.picture(form);
                check.range("degrees", *degrees, f64::NEG_INFINITY, f64::INFINITY);
                check.fill(fill, form);
                let known = matches!(
                    interpolation,
                    Interpolation::Nearest
                        | Interpolation::NearestExact
                        | Interpolation::Bilinear
                        | Interpolation::Bicubic
                );
                check.expect(known, || {
                    format!("expected interpolation nearest, bilinear or bicubic, got {interpolation}")
                });
                if let Some((x, y)) = center {
                    check
                        .expect(x.is_finite() && y.is_finite(), || format!("expected a finite center, got ({x}, {y})"));
                }
                if *expand { form.with(Shape { size: None, ..shape }) } else { form }
            }
            Self::RandomErasing { p, scale, ratio, value } => {
                check.probability(*p);
                check.range("scale", *scale, 0.0, 1.0);
                check.positive("ratio", *ratio);
                if let Erase::Values(values) = value {
                    check.channel_values("value", values, shape);
                }
                form
            }
            Self::ToTensor | Self::ToImage => match (self, form) {
                (Self::ToTensor, Form::Image(shape)) => Form::Tensor(shape, Dtype::F32),
                (_, Form::Image(shape)) => Form::Tensor(shape, Dtype::U8),
                // As in torchvision, what is a tensor already stays as it is.
                _ => form,
            },
            Self::ToDtype { dtype, .. } => {
                check.expect(!matches!(form, Form::Image(_)), || {
                    "expected a tensor, got an image: put ToImage before it".into()
                });
                check.expect(matches!(dtype, Dtype::U8 | Dtype::F32), || {
                    format!("expected uint8 or float32, got {}: ask the loader for it (dtype=)", dtype.name())
                });
                match form {
                    Form::Unknown => form,
                    _ => Form::Tensor(shape, *dtype),
                }
            }
            Self::Normalize { mean, std } => {
                check.expect(!matches!(form, Form::Image(_) | Form::Tensor(_, Dtype::U8)), || {
                    let fix = match form {
                        Form::Image(_) => "put ToTensor before it",
                        _ => "put ToDtype(float32, scale=True) before it",
                    };
                    format!("expected a float32 tensor, got {}: {fix}", form.name())
                });
                check.channel_values("mean", mean, shape);
                check.channel_values("std", std, shape);
                check.expect(!std.contains(&0.0), || format!("expected std without 0, got {std:?}"));
                form
            }
            Self::Custom(_) => Form::Unknown,
        }
    }
}

fn check_resize(size: ResizeTo, max_size: Option<u32>, check: &mut Check<'_>) {
    check.expect(max_size != Some(0), || "expected max_size of at least 1, got 0".into());
    match size {
        ResizeTo::Exact(size) => {
            check.size("size", size);
            check.expect(max_size.is_none(), || {
                format!(
                    "expected no max_size beside height and width, got {}: give size as one number to keep the ratio",
                    max_size.unwrap_or(0)
                )
            });
        }
        ResizeTo::Edge(edge) => {
            check.size("size", edge.into());
            check.expect(max_size.is_none_or(|most| most > edge), || {
                format!("expected max_size greater than size {edge}, got {}", max_size.unwrap_or(0))
            });
        }
        ResizeTo::LongEdge => {
            check.expect(max_size.is_some(), || "expected max_size when size is None, got None".into());
        }
    }
}
