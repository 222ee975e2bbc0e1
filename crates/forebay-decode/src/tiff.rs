//! TIFF and BigTIFF: the first page, in the colours that Pillow reads.
//!
//! Implemented here rather than by a crate, for palettes, Pillow's conversions, and a check that everything the file
//! refers to is inside it. Work and memory are bounded by the declared picture size and by what its bytes can fill: a
//! picture that they cannot fill is refused before memory is allocated. `docs/decode.md` lists what is decoded.

use forebay_core::{Error, Result};

use crate::decoder::{check_size, damaged, truncated, unsupported};
use crate::jpeg::Jpeg;
use crate::pixels::prepare;
use crate::{Decoder, Format, Header, Image, Region};

mod chunk;
mod colour;
mod directory;
mod fax;
mod jpeg;
mod ycbcr;

use chunk::{Compression, Predictor, resize};
use colour::{Colour, Sample, colour, convert, narrow};
use directory::{Chunks, Directory};

/// How many times the file's length its strips or tiles may add up to. In most files no two share a byte; in some all
/// empty tiles are one. More than this is a decompression bomb.
const MAX_REPEATS: u64 = 64;

/// How many pixels more than twice the picture tiles may have: one tile of 4096×4096.
const MAX_PADDING: u64 = 4096 * 4096;

/// Decodes TIFF; keeps the memory for chunks and samples.
#[derive(Default)]
pub(crate) struct Tiff {
    chunk: Vec<u8>,
    coded: Vec<u8>,
    samples: Vec<u8>,
    jpeg: Option<Jpeg>,
}

struct Page<'a> {
    width: u32,
    height: u32,
    orientation: u64,
    colour: Colour,
    sample: Sample,
    /// Samples of a pixel, those that are dropped included.
    samples: usize,
    planar: bool,
    big_endian: bool,
    compression: Compression,
    predictor: Predictor,
    reversed_bits: bool,
    chunk_width: u32,
    chunk_height: u32,
    tiled: bool,
    stored: Chunks<'a>,
    /// Tables shared by all JPEG chunks.
    tables: &'a [u8],
}

impl<'a> Page<'a> {
    fn parse(directory: &Directory<'a>) -> Result<Self> {
        let width = directory.required(256, "ImageWidth")?;
        let height = directory.required(257, "ImageLength")?;
        let (width, height) = (u32::try_from(width).unwrap_or(u32::MAX), u32::try_from(height).unwrap_or(u32::MAX));
        check_size(Format::Tiff, width, height)?;
        let compression = Compression::new(directory)?;
        let planar = directory.one(284, 1)? == 2;
        let mut samples = directory.one(277, 1)? as usize;
        if let Some(extra) = directory.all(338)?.filter(|extra| planar && extra.iter().all(|kind| kind == 0)) {
            // Extra planes at the end are ignored, as in Pillow.
            samples = samples.saturating_sub(extra.len()).max(1);
        }
        let (colour, sample) = colour(directory, samples, compression)?;
        let predictor = match directory.one(317, 1)? {
            1 => Predictor::None,
            // JPEG and fax have no predictor, whatever the tag says.
            _ if matches!(compression, Compression::None | Compression::Jpeg | Compression::Fax(_)) => Predictor::None,
            2 if matches!(sample.bits(), 8 | 16 | 32) => Predictor::Differences,
            3 if sample == Sample::ClippedFloat => Predictor::Floats,
            other => return Err(unsupported(Format::Tiff, format!("predictor {other}"))),
        };
        if matches!(compression, Compression::Fax(_)) && sample != Sample::Bits(1) {
            return Err(damaged(Format::Tiff, format!("fax of {} bits a sample", sample.bits())));
        }
        let tiled = directory.has(322);
        let (chunk_width, chunk_height) = if tiled {
            (directory.required(322, "TileWidth")?, directory.required(323, "TileLength")?)
        } else {
            (u64::from(width), directory.one(278, u64::from(height))?.min(u64::from(height)))
        };
        let side = |value: u64| u32::try_from(value).ok().filter(|side| *side > 0);
        let (Some(chunk_width), Some(chunk_height)) = (side(chunk_width), side(chunk_height)) else {
            return Err(damaged(Format::Tiff, format!("chunks of {chunk_width}×{chunk_height} pixels")));
        };
        let page = Self {
            width,
            height,
            orientation: directory.one(274, 1)?,
            colour,
            sample,
            samples,
            planar: planar && samples > 1,
            big_endian: directory.big_endian(),
            compression,
            predictor,
            reversed_bits: directory.one(266, 1)? == 2,
            chunk_width,
            chunk_height,
            tiled,
            stored: directory.chunks()?,
            tables: directory.all(347)?.map(|tables| tables.bytes()).unwrap_or_default(),
        };
        page.check_padding()?;
        if compression == Compression::Jpeg {
            jpeg::check(&page)?;
        }
        Ok(page)
    }

    /// Sides as displayed: orientations from 5 on swap them.
    const fn seen(&self) -> (u32, u32) {
        if self.orientation >= 5 && self.orientation <= 8 {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        }
    }

    const fn chunk_samples(&self) -> usize {
        if self.planar { 1 } else { self.samples }
    }

    const fn chunk_row_bytes(&self) -> usize {
        (self.chunk_width as usize * self.chunk_samples() * self.sample.bits() as usize).div_ceil(8)
    }

    /// Bytes of a chunk of so many rows when it is expanded.
    fn chunk_bytes(&self, rows: usize) -> usize {
        match &self.colour {
            _ if self.compression == Compression::Jpeg => self.chunk_width as usize * rows * 3,
            Colour::YCbCr(ycbcr) => ycbcr.chunk_bytes(self.chunk_width as usize, rows),
            _ => self.chunk_row_bytes() * rows,
        }
    }

    /// Chunks across and down, and planes.
    const fn chunks(&self) -> (usize, usize, usize) {
        let planes = if self.planar { self.samples } else { 1 };
        (self.width.div_ceil(self.chunk_width) as usize, self.height.div_ceil(self.chunk_height) as usize, planes)
    }

    /// Rows of the chunk whose first one is `top`: the last strip ends with the picture, the last tile does not.
    fn stored_rows(&self, top: usize) -> usize {
        let rows = self.chunk_height as usize;
        if self.tiled { rows } else { rows.min(self.height as usize - top) }
    }

    /// A tile larger than the picture is legal; a much larger one only costs work.
    fn check_padding(&self) -> Result<()> {
        let (across, down, _) = self.chunks();
        let side = |count: usize, side: u32| count as u64 * u64::from(side);
        let padded = side(across, self.chunk_width).saturating_mul(match self.tiled {
            true => side(down, self.chunk_height),
            false => u64::from(self.height),
        });
        let most = 2 * u64::from(self.width) * u64::from(self.height) + MAX_PADDING;
        if padded <= most {
            return Ok(());
        }
        let (width, height) = (self.chunk_width, self.chunk_height);
        let message = format!(
            "is too large (TIFF: expected tiles of at most {most} pixels for a picture of {}×{}, got tiles of {width}×{height})",
            self.width, self.height
        );
        Err(Error::new(forebay_core::Kind::Exhausted, message).with_hint("save it with smaller tiles"))
    }

    /// Whether a file of this length can hold the picture, even if chunks share bytes.
    fn check_length(&self, bytes: &[u8]) -> Result<()> {
        let (across, down, planes) = self.chunks();
        let length = bytes.len() as u64;
        let rows = if self.tiled { down * self.chunk_height as usize } else { self.height as usize };
        let (expected, most, what) = match self.compression.most() {
            Some(most) => {
                let all = across as u64 * planes as u64 * self.chunk_bytes(rows) as u64;
                (all, length.saturating_mul(most.max(MAX_REPEATS)), "bytes")
            }
            // A line takes at least a bit.
            None => ((across * rows) as u64, length * 8, "lines"),
        };
        if expected <= most {
            return Ok(());
        }
        let (width, height) = (self.width, self.height);
        Err(truncated(
            Format::Tiff,
            format!("{width}×{height} pixels are {expected} {what}; {length} bytes can hold at most {most}"),
        ))
    }

    fn memory_bytes(&self) -> u64 {
        let pixels = u64::from(self.width) * u64::from(self.height);
        let chunk = self.chunk_bytes(self.chunk_height as usize) as u64;
        let turned = if self.orientation == 1 { 0 } else { pixels * 3 };
        let samples = if self.compression == Compression::Jpeg { 0 } else { pixels * self.samples as u64 };
        let (offset, coded) = (self.chunk_row_bytes() as u64, self.longest_coded());
        let coded = if self.reversed_bits || self.compression == Compression::Jpeg { coded } else { 0 };
        let library = self.compression.memory_bytes(chunk, u64::from(self.chunk_width));
        pixels * 3 + samples + turned + chunk + offset + coded + library + (64 << 10)
    }

    /// Bytes of the longest chunk in the file, with its tables.
    fn longest_coded(&self) -> u64 {
        self.stored.iter().map(|(_, length)| length).max().unwrap_or(0).saturating_add(self.tables.len() as u64 + 64)
    }
}

impl Decoder for Tiff {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let page = Page::parse(&Directory::first(bytes)?)?;
        page.check_length(bytes)?;
        let (width, height) = page.seen();
        Ok(Header { format: Format::Tiff, width, height, memory_bytes: page.memory_bytes(), coded_bytes: 0 })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        header.region(wanted)?;
        let directory = Directory::first(bytes)?;
        directory.check_extent()?;
        let page = Page::parse(&directory)?;
        page.check_length(bytes)?;
        if page.seen() != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another TIFF"));
        }
        prepare(out, page.width, page.height)?;
        if page.compression == Compression::Jpeg {
            self.read_jpegs(&page, bytes, &mut out.pixels)?;
        } else {
            self.read_samples(&page, bytes)?;
            convert(&page.colour, page.samples, &self.samples, &mut out.pixels);
        }
        orient(page.orientation, out)?;
        Ok(header.whole())
    }
}

/// A strip or tile: its coded bytes, and the position of its pixels.
struct Chunk<'a> {
    coded: &'a [u8],
    plane: usize,
    left: usize,
    top: usize,
    /// The part inside the picture.
    columns: usize,
    rows: usize,
    stored_rows: usize,
}

/// The chunks of a page, in order. They may share bytes, but only to a limit.
fn chunks<'a>(page: &Page<'a>, bytes: &'a [u8]) -> Result<impl Iterator<Item = Result<Chunk<'a>>>> {
    let (width, height) = (page.width as usize, page.height as usize);
    let (chunk_width, chunk_height) = (page.chunk_width as usize, page.chunk_height as usize);
    let (across, down, planes) = page.chunks();
    let count = across * down * planes;
    if page.stored.len() < count {
        return Err(damaged(Format::Tiff, format!("expected {count} chunks, got {}", page.stored.len())));
    }
    let total = page.stored.iter().take(count).fold(0, |sum: u64, (_, length)| sum.saturating_add(length));
    let most = MAX_REPEATS * bytes.len() as u64;
    if total > most {
        let detail = format!("expected chunks of at most {most} bytes together in {} bytes, got {total}", bytes.len());
        return Err(damaged(Format::Tiff, detail));
    }
    Ok(page.stored.iter().take(count).enumerate().map(move |(number, (offset, length))| {
        let (plane, place) = (number / (across * down), number % (across * down));
        let (left, top) = (place % across * chunk_width, place / across * chunk_height);
        Ok(Chunk {
            coded: directory::slice(bytes, offset, length)?,
            plane,
            left,
            top,
            columns: chunk_width.min(width - left),
            rows: chunk_height.min(height - top),
            stored_rows: page.stored_rows(top),
        })
    }))
}

impl Tiff {
    /// All samples of the page, a byte each, interleaved.
    fn read_samples(&mut self, page: &Page<'_>, bytes: &[u8]) -> Result<()> {
        let row_bytes = page.chunk_row_bytes();
        let (width, samples) = (page.width as usize, page.samples);
        let chunks = chunks(page, bytes)?;
        resize(&mut self.samples, width * page.height as usize * samples)?;
        for chunk in chunks {
            let chunk = chunk?;
            resize(&mut self.chunk, page.chunk_bytes(chunk.stored_rows))?;
            let mut coded = chunk.coded;
            if page.reversed_bits {
                resize(&mut self.coded, coded.len())?;
                self.coded.iter_mut().zip(coded).for_each(|(turned, byte)| *turned = byte.reverse_bits());
                coded = &self.coded;
            }
            page.compression.expand(coded, page.chunk_width, &mut self.chunk)?;
            for row in 0..chunk.rows {
                let start = ((chunk.top + row) * width + chunk.left) * samples;
                let target = &mut self.samples[start..][..chunk.columns * samples];
                if let Colour::YCbCr(ycbcr) = &page.colour {
                    ycbcr.row(&self.chunk, page.chunk_width as usize, row, target);
                    continue;
                }
                let stored = &mut self.chunk[row * row_bytes..][..row_bytes];
                let (chunk_samples, bits) = (page.chunk_samples(), page.sample.bits());
                page.predictor.undo(stored, chunk_samples, bits, page.big_endian, &mut self.coded);
                if page.planar {
                    narrow(stored, page.sample, page.big_endian, |at, value| {
                        if let Some(sample) = target.get_mut(at * samples + chunk.plane) {
                            *sample = value;
                        }
                    });
                } else if page.sample == Sample::Bits(8) {
                    target.copy_from_slice(&stored[..target.len()]);
                } else {
                    narrow(stored, page.sample, page.big_endian, |at, value| {
                        if let Some(sample) = target.get_mut(at) {
                            *sample = value;
                        }
                    });
                }
            }
        }
        Ok(())
    }
}

/// Rotates or mirrors the picture as its orientation tag says. (Pillow does this for TIFF only.)
fn orient(orientation: u64, out: &mut Image) -> Result<()> {
    if !(2..=8).contains(&orientation) {
        return Ok(());
    }
    let (width, height) = (out.width as usize, out.height as usize);
    let mut turned = Vec::new();
    resize(&mut turned, out.pixels.len())?;
    let stored = out.pixels.as_chunks::<3>().0;
    let swapped = orientation >= 5;
    let (seen_width, seen_height) = if swapped { (height, width) } else { (width, height) };
    for (row, y) in turned.chunks_exact_mut(seen_width * 3).zip(0..seen_height) {
        for (pixel, x) in row.as_chunks_mut::<3>().0.iter_mut().zip(0..seen_width) {
            let (x, y) = match orientation {
                2 => (width - 1 - x, y),
                3 => (width - 1 - x, height - 1 - y),
                4 => (x, height - 1 - y),
                5 => (y, x),
                6 => (y, height - 1 - x),
                7 => (width - 1 - y, height - 1 - x),
                _ => (width - 1 - y, x),
            };
            *pixel = stored[y * width + x];
        }
    }
    out.pixels = turned;
    (out.width, out.height) = (seen_width as u32, seen_height as u32);
    Ok(())
}
