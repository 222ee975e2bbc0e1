//! What is known about a value before any sample is loaded, and how an op reports wrong arguments or a wrong position.

use forebay_core::Problems;

use super::{Op, Padding, Size};
use crate::{Dtype, MAX_PIXELS};

/// The kind of a value at some point of a pipeline, as far as the ops before it determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A picture.
    Image(Shape),
    /// A tensor.
    Tensor(Shape, Dtype),
    /// The result of a [`Custom`](super::Custom).
    Unknown,
}

/// The known part of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) channels: Option<u32>,
    pub(crate) size: Option<Size>,
}

impl Form {
    /// The output of the decoders: RGB of any size.
    pub(crate) const DECODED: Self = Self::Image(Shape { channels: Some(3), size: None });

    pub(crate) fn shape(self) -> Shape {
        match self {
            Self::Image(shape) | Self::Tensor(shape, _) => shape,
            Self::Unknown => Shape { channels: None, size: None },
        }
    }

    pub(crate) fn with(self, shape: Shape) -> Self {
        match self {
            Self::Image(_) => Self::Image(shape),
            Self::Tensor(_, dtype) => Self::Tensor(shape, dtype),
            Self::Unknown => Self::Unknown,
        }
    }

    /// The same with another size, or an unknown one.
    pub(crate) fn sized(self, size: Option<Size>) -> Self {
        self.with(Shape { size, ..self.shape() })
    }

    /// The common knowledge about a value that is either of both; `None` if they are of different kinds.
    pub(crate) fn join(self, other: Self) -> Option<Self> {
        let (a, b) = (self.shape(), other.shape());
        let shape = Shape {
            channels: a.channels.filter(|channels| b.channels == Some(*channels)),
            size: a.size.filter(|size| b.size == Some(*size)),
        };
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Some(Self::Unknown),
            (Self::Image(_), Self::Image(_)) => Some(Self::Image(shape)),
            (Self::Tensor(_, a), Self::Tensor(_, b)) if a == b => Some(Self::Tensor(shape, a)),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Image(_) => "an image",
            Self::Tensor(_, Dtype::U8) => "a uint8 tensor",
            Self::Tensor(_, Dtype::F32) => "a float32 tensor",
            Self::Tensor(_, Dtype::F16 | Dtype::BF16) => "a tensor of short floats",
            Self::Unknown => "an unknown value",
        }
    }
}

/// Problems of one op, each beginning with its name and position.
pub(crate) struct Check<'a> {
    problems: &'a mut Problems,
    name: &'a str,
    place: &'a str,
}

impl<'a> Check<'a> {
    pub(crate) fn new(problems: &'a mut Problems, name: &'a str, place: &'a str) -> Self {
        Self { problems, name, place }
    }

    pub(crate) fn expect(&mut self, fine: bool, problem: impl FnOnce() -> String) {
        let (name, place) = (self.name, self.place);
        self.problems.expect(fine, || format!("{name} (transform {place}): {}", problem()));
    }

    /// Checks an op nested in this one.
    pub(crate) fn inner(&mut self, position: usize, op: &Op, form: Form) -> Form {
        op.check(&format!("{}.{}", self.place, position + 1), form, self.problems)
    }

    pub(crate) fn probability(&mut self, p: f64) {
        self.expect((0.0..=1.0).contains(&p), || format!("expected p from 0 to 1, got {p}"));
    }

    pub(crate) fn size(&mut self, name: &str, size: Size) {
        let fine = size.height > 0 && size.width > 0 && size.area() <= MAX_PIXELS;
        self.expect(fine, || {
            format!(
                "expected {name} from 1×1 to {MAX_PIXELS} pixels, got height {} and width {}",
                size.height, size.width
            )
        });
    }

    pub(crate) fn range(&mut self, name: &str, (low, high): (f64, f64), least: f64, most: f64) {
        let fine = low.is_finite() && high.is_finite() && least <= low && low <= high && high <= most;
        self.expect(fine, || match most {
            f64::INFINITY if least == f64::NEG_INFINITY => {
                format!("expected {name} as (smallest, largest), got ({low}, {high})")
            }
            f64::INFINITY => format!("expected {name} as (smallest, largest), {least} or more, got ({low}, {high})"),
            _ => format!("expected {name} as (smallest, largest) within {least} to {most}, got ({low}, {high})"),
        });
    }

    /// A ratio or a deviation must be positive: otherwise its logarithm or reciprocal does not exist.
    pub(crate) fn positive(&mut self, name: &str, range: (f64, f64)) {
        self.range(name, range, 0.0, f64::INFINITY);
        self.expect(range.0 != 0.0, || format!("expected {name} greater than 0, got ({}, {})", range.0, range.1));
    }

    pub(crate) fn channel_values(&mut self, name: &str, values: &[f64], shape: Shape) {
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

    pub(crate) fn fill(&mut self, fill: &[f64], form: Form) {
        self.channel_values("fill", fill, form.shape());
        if matches!(form, Form::Image(_)) {
            let fine = fill.iter().all(|value| (0.0..=255.0).contains(value));
            self.expect(fine, || format!("expected fill from 0 to 255, got {fill:?}"));
        }
    }

    /// Pixels are interpolated and recoloured as bytes, as Pillow does it.
    pub(crate) fn picture(&mut self, form: Form) {
        self.expect(!matches!(form, Form::Tensor(..)), || {
            format!("expected an image, got {}: put it before ToTensor, ToImage and ToDtype", form.name())
        });
    }

    pub(crate) fn padding(&mut self, padding: Padding) {
        // More would only overflow later; no picture is that large.
        const MOST: u32 = 1 << 16;
        let Padding { left, top, right, bottom } = padding;
        self.expect([left, top, right, bottom].iter().all(|side| *side <= MOST), || {
            format!("expected padding from 0 to {MOST}, got ({left}, {top}, {right}, {bottom})")
        });
    }
}
