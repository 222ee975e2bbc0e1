//! Writes a finished tensor into its slot of the batch, in the batch's type and order, if the tail did not write the
//! slot.

use crate::narrow::{self, BFloat16, Half};
use crate::ops::convert::Element;
use crate::{Dtype, Layout, Order, Tensor, TensorData};

/// Writes all of `slot`. `layout` is the result of [`Output::layout`](crate::Output::layout) for the tensor's own.
pub(super) fn tensor(tensor: &Tensor, layout: Layout, slot: &mut [u8]) {
    let pixels = (layout.height as usize * layout.width as usize).max(1);
    match (layout.order, &tensor.data) {
        (Order::Planar, TensorData::U8(data)) if layout.dtype == Dtype::U8 => slot.copy_from_slice(data),
        (Order::Planar, TensorData::F32(data)) => match layout.dtype {
            Dtype::F16 => narrow::halves(data, slot),
            Dtype::BF16 => narrow::bfloat16s(data, slot),
            dtype => each(data.iter().map(|value| Element::F32(*value)), dtype, slot),
        },
        (Order::Planar, TensorData::U8(data)) => {
            each(data.iter().map(|value| Element::U8(*value)), layout.dtype, slot);
        }
        (Order::Interleaved, TensorData::U8(data)) => {
            each(by_pixel(data, pixels).map(Element::U8), layout.dtype, slot);
        }
        (Order::Interleaved, TensorData::F32(data)) => {
            each(by_pixel(data, pixels).map(Element::F32), layout.dtype, slot);
        }
    }
}

/// The elements of planes, pixel by pixel.
fn by_pixel<T: Copy>(data: &[T], pixels: usize) -> impl Iterator<Item = T> {
    let channels = data.len() / pixels;
    (0..pixels).flat_map(move |pixel| (0..channels).map(move |channel| data[channel * pixels + pixel]))
}

fn each(elements: impl Iterator<Item = Element>, dtype: Dtype, slot: &mut [u8]) {
    for (value, out) in elements.zip(slot.chunks_exact_mut(dtype.size_bytes())) {
        element(value, dtype, out);
    }
}

/// Writes one element in the machine's byte order.
pub(super) fn element(element: Element, dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::U8 => out[0] = element.byte(),
        Dtype::F32 => out.copy_from_slice(&element.float().to_ne_bytes()),
        Dtype::F16 => out.copy_from_slice(&Half::of(element.float()).0.to_ne_bytes()),
        Dtype::BF16 => out.copy_from_slice(&BFloat16::of(element.float()).0.to_ne_bytes()),
    }
}
