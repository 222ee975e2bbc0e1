//! A border around a picture or a tensor.

use forebay_core::{Result, Rng};

use super::charge::rgb_bytes;
use super::check::Check;
use super::crop::cut_window;
use super::table::args;
use super::transform::{Of, Transform};
use super::window::Window;
use super::{Buffers, Form, Padding, Size};
use crate::Value;

impl Padding {
    /// The size before padding.
    fn enlarge(&self, size: Size) -> Size {
        Size {
            height: size.height.saturating_add(self.top).saturating_add(self.bottom),
            width: size.width.saturating_add(self.left).saturating_add(self.right),
        }
    }

    /// A picture of this size with its border.
    pub(crate) fn around(&self, width: u32, height: u32) -> Window {
        let Size { height, width } = self.enlarge(Size { height, width });
        Window { left: -i64::from(self.left), top: -i64::from(self.top), width, height }
    }
}

impl Transform for args::Pad<'_> {
    fn is_fixed(&self) -> bool {
        true
    }

    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.padding(*self.padding);
        check.fill(self.fill, form);
        form.sized(form.shape().size.map(|size| self.padding.enlarge(size)))
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        let to = self.padding.enlarge(size);
        Some((rgb_bytes(to), to))
    }

    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        cut_window(self.op(), value, rng, buffers)
    }
}
