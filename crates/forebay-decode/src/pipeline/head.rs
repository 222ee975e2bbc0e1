//! The beginning of a pipeline: computes from the header alone which part of the picture the first crop needs, so that
//! the decoder can skip the rest.

use std::ops::Range;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result, Rng, Stage};

use super::Scratch;
use crate::memory::resize as resize_buffer;
use crate::ops::cut::cut;
use crate::ops::resize::{self, Job, Source, is_nearest};
use crate::ops::window::Window;
use crate::ops::{Buffers, PaddingMode, Size, crop};
use crate::{Detail, Header, Image, Op, Region, Value};

/// The kind of a pipeline's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Nothing that can be planned.
    Whole,
    /// A crop.
    Crop,
    /// A crop followed by a resize.
    ResizedCrop,
    /// A resize followed by a crop.
    ResizeCrop,
    /// A resize.
    Resize,
}

impl Head {
    pub(super) fn new(ops: &[Op]) -> Self {
        let crops = |op: &Op| matches!(op, Op::CenterCrop { .. } | Op::RandomCrop { .. });
        match ops {
            [Op::RandomResizedCrop { .. }, ..] => Self::ResizedCrop,
            [Op::Resize { .. }, second, ..] if crops(second) => Self::ResizeCrop,
            [Op::Resize { .. }, ..] => Self::Resize,
            [first, ..] if crops(first) => Self::Crop,
            _ => Self::Whole,
        }
    }
}

/// A picture after the first ops.
pub(super) struct Begun {
    pub(super) image: Image,
    /// How many ops are done.
    pub(super) done: usize,
    pub(super) decode: Duration,
}

/// What to decode, and what to do with it.
#[derive(Debug)]
struct Plan {
    wanted: Option<Region>,
    resample: Option<Job>,
    /// The crop afterwards, in coordinates of the picture, or of the wanted part of the resized one.
    cut: Option<Window>,
    done: usize,
}

const WHOLE: Plan = Plan { wanted: None, resample: None, cut: None, done: 0 };

/// Decodes the needed part and runs the planned ops.
pub(super) fn begin(
    head: Head,
    detail: Detail,
    ops: &[Op],
    bytes: &[u8],
    rng: &Rng,
    scratch: &mut Scratch,
) -> Result<Begun> {
    let start = Instant::now();
    let decoding = |error: Error| error.at_stage(Stage::Decode);
    let transforming = |error: Error| error.at_stage(Stage::Transform);
    let header = scratch.decoders.header(bytes).map_err(decoding)?;
    header.check_filled(bytes).map_err(decoding)?;
    let plan = plan(head, ops, (header.width, header.height), rng, &mut scratch.buffers).map_err(transforming)?;
    plan.resample.as_ref().map_or(Ok(()), Job::check).map_err(transforming)?;
    let mut image = std::mem::take(&mut scratch.image);
    let (region, decode) = if decode_planes(detail, &plan, &header, bytes, scratch).map_err(decoding)? {
        let decode = start.elapsed();
        resample_planes(&mut image, &plan, scratch).map_err(transforming)?;
        (header.whole(), decode)
    } else {
        // The larger of the two buffers is used for the picture again: growing the smaller one would zero it each time.
        let spare = &mut scratch.buffers.spare.pixels;
        if spare.len() > image.pixels.len() {
            std::mem::swap(spare, &mut image.pixels);
        }
        let region = scratch.decoders.decode(bytes, &header, plan.wanted, &mut image).map_err(decoding)?;
        let decode = start.elapsed();
        check_decoded(&image, region, plan.wanted)?;
        if let (Some(job), Some(wanted)) = (&plan.resample, plan.wanted) {
            resample(&image, region, wanted, job, &mut scratch.buffers).map_err(transforming)?;
            take_resampled(&mut image, job, &mut scratch.buffers);
        }
        (region, decode)
    };
    let image = cut_out(image, region, &plan, ops, &mut scratch.buffers).map_err(transforming)?;
    Ok(Begun { image, done: plan.done, decode })
}

/// The same for a picture that is decoded, and that the ops before `at` are done on.
pub(super) fn begin_from(
    head: Head,
    ops: &[Op],
    at: usize,
    decoded: &Image,
    rng: &Rng,
    scratch: &mut Scratch,
) -> Result<Begun> {
    let Scratch { image, buffers, .. } = scratch;
    let whole = Region { x: 0, y: 0, width: decoded.width, height: decoded.height };
    let plan = plan_from(head, ops, at, (decoded.width, decoded.height), rng, buffers)?;
    plan.resample.as_ref().map_or(Ok(()), Job::check)?;
    let mut image = std::mem::take(image);
    let wanted = plan.wanted.unwrap_or(whole);
    image.channels = decoded.channels;
    match &plan.resample {
        Some(job) => {
            resample(decoded, whole, wanted, job, buffers)?;
            take_resampled(&mut image, job, buffers);
        }
        None => copy_part(decoded, wanted, &mut image)?,
    }
    let image = cut_out(image, wanted, &plan, &ops[at..], buffers)?;
    Ok(Begun { image, done: at + plan.done, decode: Duration::ZERO })
}

/// Copies a part of a picture.
fn copy_part(source: &Image, part: Region, target: &mut Image) -> Result<()> {
    let (channels, row) = (source.channels as usize, part.width as usize * source.channels as usize);
    let stride = source.width as usize * channels;
    resize_buffer(&mut target.pixels, row * part.height as usize, 0, "a copy of the picture")?;
    (target.width, target.height) = (part.width, part.height);
    let rows = source.pixels.chunks_exact(stride).skip(part.y as usize);
    for (source, target) in rows.zip(target.pixels.chunks_exact_mut(row)) {
        target.copy_from_slice(&source[part.x as usize * channels..][..row]);
    }
    Ok(())
}

/// Cuts out what the plan asks for; `image` shows `region` of the picture.
fn cut_out(image: Image, region: Region, plan: &Plan, ops: &[Op], buffers: &mut Buffers) -> Result<Image> {
    let Some(window) = plan.cut else { return Ok(image) };
    let window = if plan.resample.is_some() { window } else { window.relative_to(region.x, region.y) };
    if is_all(window, &image) {
        return Ok(image);
    }
    let (mode, fill) = ops[plan.done - 1].surrounding();
    match cut(Value::Image(image), window, mode, fill, buffers)? {
        Value::Image(cut) => Ok(cut),
        _ => Err(Error::internal("a crop of a picture is no picture")),
    }
}

/// Decodes as planes, if the picture is about to be resized and planes are allowed and available.
fn decode_planes(detail: Detail, plan: &Plan, header: &Header, bytes: &[u8], scratch: &mut Scratch) -> Result<bool> {
    let (Detail::Fast, Some(job), Some(wanted)) = (detail, &plan.resample, plan.wanted) else { return Ok(false) };
    // Nearest-neighbour takes single pixels, which planes do not have.
    if is_nearest(job.interpolation) || job.from == job.to {
        return Ok(false);
    }
    scratch.decoders.decode_planes(bytes, header, wanted, (job.from, job.to), &mut scratch.planes)
}

/// Resizes the planes.
fn resample_planes(image: &mut Image, plan: &Plan, scratch: &mut Scratch) -> Result<()> {
    let (Some(job), Some(wanted)) = (&plan.resample, plan.wanted) else { return Ok(()) };
    let (x, y) = origin(job, wanted);
    let corner = (wanted.x - x, wanted.y - y);
    scratch.buffers.planar.run(&scratch.planes, wanted, corner, job, image)
}

/// The position of the wanted region in the job's picture, which begins at the crop for a resized crop, and at the
/// picture's own corner otherwise.
fn origin(job: &Job, wanted: Region) -> (u32, u32) {
    let whole_part = (job.from.width, job.from.height) == (wanted.width, wanted.height);
    if whole_part { (0, 0) } else { (wanted.x, wanted.y) }
}

fn is_all(window: Window, image: &Image) -> bool {
    window == Window { left: 0, top: 0, width: image.width, height: image.height }
}

fn plan(head: Head, ops: &[Op], size: (u32, u32), rng: &Rng, buffers: &mut Buffers) -> Result<Plan> {
    plan_from(head, ops, 0, size, rng, buffers)
}

/// Plans the ops from `at` on, for a picture of this size.
fn plan_from(head: Head, ops: &[Op], at: usize, size: (u32, u32), rng: &Rng, buffers: &mut Buffers) -> Result<Plan> {
    let (width, height) = size;
    let stream = |op: usize| rng.fork((at + op) as u64);
    match (head, &ops[at..]) {
        (Head::Crop, [first, ..]) => {
            let Some(window) = first.window(size, &mut stream(0)) else { return Ok(WHOLE) };
            let window = window?;
            let (columns, rows) = window.inside(width, height);
            if !reachable(first, window, size) || columns.is_empty() || rows.is_empty() {
                return Ok(WHOLE);
            }
            let wanted =
                Region { x: columns.start, y: rows.start, width: columns.len() as u32, height: rows.len() as u32 };
            Ok(Plan { wanted: Some(wanted), cut: Some(window), done: 1, ..WHOLE })
        }
        (Head::ResizedCrop, [Op::RandomResizedCrop { size: to, scale, ratio, interpolation, .. }, ..]) => {
            let part = crop::random_part(*scale, *ratio, size, &mut stream(0));
            let job = Job::whole(Size { height: part.height, width: part.width }, *to, *interpolation);
            let wanted = Region { x: part.left as u32, y: part.top as u32, width: part.width, height: part.height };
            Ok(Plan { wanted: Some(wanted), resample: Some(job), done: 1, ..WHOLE })
        }
        (Head::ResizeCrop, [Op::Resize { size: to, max_size, interpolation, .. }, second, ..]) => {
            let to = resize::target(*to, *max_size, width, height)?;
            let Some(window) = second.window((to.width, to.height), &mut stream(1)) else { return Ok(WHOLE) };
            let window = window?;
            let (columns, rows) = window.inside(to.width, to.height);
            if !reachable(second, window, (to.width, to.height)) || columns.is_empty() || rows.is_empty() {
                return Ok(WHOLE);
            }
            let wide = |range: &Range<u32>| range.start as usize..range.end as usize;
            let mut job = Job::whole(Size { height, width }, to, *interpolation);
            (job.columns, job.rows) = (wide(&columns), wide(&rows));
            let (needed_columns, needed_rows) = buffers.resampler.needed(&job)?;
            let wanted = Region {
                x: needed_columns.start as u32,
                y: needed_rows.start as u32,
                width: needed_columns.len() as u32,
                height: needed_rows.len() as u32,
            };
            let window = window.relative_to(columns.start, rows.start);
            Ok(Plan { wanted: Some(wanted), resample: Some(job), cut: Some(window), done: 2 })
        }
        (Head::Resize, [Op::Resize { size: to, max_size, interpolation, .. }, ..]) => {
            let job =
                Job::whole(Size { height, width }, resize::target(*to, *max_size, width, height)?, *interpolation);
            Ok(Plan { wanted: Some(Region { x: 0, y: 0, width, height }), resample: Some(job), done: 1, ..WHOLE })
        }
        _ => Ok(WHOLE),
    }
}

/// Whether the crop depends only on pixels inside the window: mirrored edges need the whole picture.
fn reachable(op: &Op, window: Window, (width, height): (u32, u32)) -> bool {
    op.surrounding().0 == PaddingMode::Constant || window.is_inside(width, height)
}

/// Checks the decoder's contract: otherwise pixels would be read from the wrong place.
fn check_decoded(image: &Image, region: Region, wanted: Option<Region>) -> Result<()> {
    let contains = |wanted: Region| {
        wanted.x >= region.x
            && wanted.y >= region.y
            && wanted.x + wanted.width <= region.x + region.width
            && wanted.y + wanted.height <= region.y + region.height
    };
    let holds = (image.width, image.height, image.channels) == (region.width, region.height, 3)
        && image.pixels.len() == region.width as usize * region.height as usize * 3;
    if holds && wanted.is_none_or(contains) {
        return Ok(());
    }
    Err(Error::internal(format!("the decoder gave {region:?} for {wanted:?}")).at_stage(Stage::Decode))
}

/// Resizes the wanted region into the spare buffer; `image` holds `region`.
fn resample(image: &Image, region: Region, wanted: Region, job: &Job, buffers: &mut Buffers) -> Result<()> {
    let channels = image.channels as usize;
    let stride = image.width as usize * channels;
    let start = (wanted.y - region.y) as usize * stride + (wanted.x - region.x) as usize * channels;
    let (x, y) = origin(job, wanted);
    let origin = (x as usize, y as usize);
    let source = Source { pixels: &image.pixels[start..], stride, channels, origin };
    buffers.resampler.run(source, job, &mut buffers.spare.pixels)
}

/// Makes what was resized the picture.
fn take_resampled(image: &mut Image, job: &Job, buffers: &mut Buffers) {
    std::mem::swap(&mut image.pixels, &mut buffers.spare.pixels);
    (image.width, image.height) = (job.columns.len() as u32, job.rows.len() as u32);
}
