//! The bytes of one strip or tile: decompression, and undoing the predictor.

use std::io::{ErrorKind, Read};

use flate2::{Decompress, FlushDecompress, Status};
use forebay_core::{Error, Kind, Result};
use lzma_rust2::XzReader;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use weezl::{BitOrder, LzwStatus, decode::Decoder as Lzw};

use super::directory::Directory;
use super::fax::Fax;
use crate::Format;
use crate::decoder::{damaged, unsupported};
use crate::memory;

/// How chunks are compressed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
    Lzma,
    Zstd,
    Fax(Fax),
    Jpeg,
}

/// The largest dictionary of LZMA that is decoded: that of `xz -9`. libtiff's is 8 MiB.
const MAX_DICTIONARY_BYTES: u64 = 64 << 20;
/// The largest block of zstd.
const ZSTD_BLOCK_BYTES: usize = 128 << 10;

impl Compression {
    pub(super) fn new(directory: &Directory<'_>) -> Result<Self> {
        let code = directory.one(259, 1)?;
        let name = match code {
            1 => return Ok(Self::None),
            2 => return Ok(Self::Fax(Fax::Rle)),
            3 => return Ok(Self::Fax(Fax::Group3 { relative: directory.one(292, 0)? & 1 == 1 })),
            4 => return Ok(Self::Fax(Fax::Group4)),
            5 => return Ok(Self::Lzw),
            7 => return Ok(Self::Jpeg),
            8 | 32946 => return Ok(Self::Deflate),
            32773 => return Ok(Self::PackBits),
            34925 => return Ok(Self::Lzma),
            50000 => return Ok(Self::Zstd),
            6 => "JPEG of the old kind",
            34712 => "JPEG 2000",
            34887 => "LERC",
            50001 => "WebP",
            50002 => "JPEG XL",
            _ => "unknown",
        };
        Err(unsupported(Format::Tiff, format!("compression {code}, {name}")))
    }

    /// The highest expansion ratio in bytes; `None` if lines are counted instead of bytes.
    pub(super) const fn most(self) -> Option<u64> {
        Some(match self {
            Self::None => 1,
            // Two bytes: a run of 128.
            Self::PackBits => 64,
            // A code of 12 bits: a string of fewer than 4096.
            Self::Lzw => 2731,
            // 2 bits for a length of 258.
            Self::Deflate => 1032,
            // 14 bits, each as probable as they become (2017 of 2048), for a length of 273.
            Self::Lzma => 7100,
            // Four bytes: a block of one value.
            Self::Zstd => ZSTD_BLOCK_BYTES as u64 / 4,
            // Arithmetic coding: about a hundredth of a bit for a block; not exact.
            Self::Jpeg => 1 << 16,
            Self::Fax(_) => return None,
        })
    }

    /// Memory for expanding a chunk of this size, besides the result.
    pub(super) const fn memory_bytes(self, chunk_bytes: u64, chunk_width: u64) -> u64 {
        match self {
            Self::None | Self::PackBits => 0,
            Self::Lzw | Self::Deflate => 192 << 10,
            Self::Lzma => MAX_DICTIONARY_BYTES + (1 << 20),
            // The whole chunk and as much again, if the window is large.
            Self::Zstd => 4 * chunk_bytes + (4 << 20),
            // Positions of colour changes in two lines.
            Self::Fax(_) => 16 * chunk_width + 64,
            // The pixels, coefficients of progressive ones, and a few rows.
            Self::Jpeg => 4 * chunk_bytes + 512 * chunk_width + (1 << 20),
        }
    }

    /// Fills `out` with rows of `width` pixels; fewer bytes than that are damage, more are padding.
    pub(super) fn expand(self, coded: &[u8], width: u32, out: &mut [u8]) -> Result<()> {
        match self {
            Self::None => match coded.get(..out.len()) {
                Some(coded) => out.copy_from_slice(coded),
                None => return Err(short(coded.len(), out.len())),
            },
            Self::Lzw => lzw(coded, out)?,
            Self::Deflate => deflate(coded, out)?,
            Self::PackBits => pack_bits(coded, out)?,
            Self::Lzma => lzma(coded, out)?,
            Self::Zstd => zstd(coded, out)?,
            Self::Fax(fax) => fax.expand(coded, width, out)?,
            Self::Jpeg => return Err(Error::internal("JPEGs inside TIFF are pictures, not rows")),
        }
        Ok(())
    }
}

/// Resizes the buffer; lack of memory is an error.
pub(super) fn resize(buffer: &mut Vec<u8>, length: usize) -> Result<()> {
    memory::resize(buffer, length, 0, "its TIFF")
}

fn short(got: usize, expected: usize) -> Error {
    damaged(Format::Tiff, format!("a chunk is short: expected {expected} bytes, got {got}"))
}

fn lzw(mut coded: &[u8], out: &mut [u8]) -> Result<()> {
    let mut decoder = Lzw::with_tiff_size_switch(BitOrder::Msb, 8);
    let mut filled = 0;
    while filled < out.len() {
        let step = decoder.decode_bytes(coded, &mut out[filled..]);
        coded = &coded[step.consumed_in..];
        filled += step.consumed_out;
        match step.status {
            Ok(LzwStatus::Ok) if step.consumed_in + step.consumed_out > 0 => {}
            Ok(_) if filled == out.len() => {}
            Ok(_) => return Err(short(filled, out.len())),
            Err(error) => return Err(damaged(Format::Tiff, error.to_string())),
        }
    }
    Ok(())
}

fn deflate(coded: &[u8], out: &mut [u8]) -> Result<()> {
    let mut stream = Decompress::new(true);
    let wrong = |error: flate2::DecompressError| damaged(Format::Tiff, error.to_string());
    let status = stream.decompress(coded, out, FlushDecompress::Finish).map_err(wrong)?;
    let filled = stream.total_out() as usize;
    if filled < out.len() {
        return Err(short(filled, out.len()));
    }
    // The checksum follows the last byte; a full buffer alone would leave it unread.
    if status != Status::StreamEnd {
        let rest = &coded[stream.total_in() as usize..];
        stream.decompress(rest, &mut [0; 64], FlushDecompress::Finish).map_err(wrong)?;
    }
    Ok(())
}

fn pack_bits(coded: &[u8], out: &mut [u8]) -> Result<()> {
    let expected = out.len();
    let mut filled = 0;
    let mut rest = coded;
    while filled < expected {
        let (&control, after) = rest.split_first().ok_or_else(|| short(filled, expected))?;
        rest = after;
        // 0 to 127: so many bytes and one follow. 129 to 255: one byte follows, to be repeated.
        let count = match control {
            128 => continue,
            0..128 => usize::from(control) + 1,
            129.. => 257 - usize::from(control),
        };
        let taken = if control < 128 { count } else { 1 };
        let source = rest.get(..taken).ok_or_else(|| short(filled, expected))?;
        let run = count.min(expected - filled);
        let target = &mut out[filled..filled + run];
        if control < 128 {
            target.copy_from_slice(&source[..run]);
        } else {
            target.fill(source[0]);
        }
        filled += run;
        rest = &rest[taken..];
    }
    Ok(())
}

fn lzma(coded: &[u8], out: &mut [u8]) -> Result<()> {
    // Dictionary, and a little for the tables.
    let limit_kb = (MAX_DICTIONARY_BYTES >> 10) as u32 + 1024;
    let mut reader = XzReader::new_mem_limit(coded, false, limit_kb);
    let wrong = |error: std::io::Error| match error.kind() {
        ErrorKind::OutOfMemory => {
            let message =
                format!("needs more memory than {MAX_DICTIONARY_BYTES} bytes for its dictionary, or than there is");
            Error::new(Kind::Exhausted, format!("{message} (TIFF, LZMA)"))
        }
        _ => damaged(Format::Tiff, format!("LZMA: {error}")),
    };
    reader.read_exact(out).map_err(wrong)?;
    // The checksum follows the last byte.
    reader.read(&mut [0; 64]).map_err(wrong)?;
    Ok(())
}

fn zstd(mut coded: &[u8], out: &mut [u8]) -> Result<()> {
    let wrong = |error: &dyn std::fmt::Display| damaged(Format::Tiff, format!("zstd: {error}"));
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut coded).map_err(|error| wrong(&error))?;
    let mut filled = 0;
    // All blocks but the last are full, except with some fast writers. More blocks than this cannot belong to this
    // chunk, and would be kept in memory until the window is full.
    let mut blocks_left = 2 * out.len().div_ceil(ZSTD_BLOCK_BYTES) + 16;
    while filled < out.len() {
        let got = decoder.read(&mut out[filled..]).map_err(|error| wrong(&error))?;
        filled += got;
        if got == 0 && (decoder.is_finished() || blocks_left == 0) {
            return Err(short(filled, out.len()));
        }
        if !decoder.is_finished() {
            blocks_left = blocks_left.saturating_sub(1);
            decoder.decode_blocks(&mut coded, BlockDecodingStrategy::UptoBlocks(1)).map_err(|error| wrong(&error))?;
        }
    }
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(expected), Some(got)) if expected != got => {
            Err(damaged(Format::Tiff, format!("zstd: expected checksum {expected:08x}, got {got:08x}")))
        }
        _ => Ok(()),
    }
}

/// How the samples of a row are stored.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Predictor {
    None,
    /// As the difference from the same sample of the pixel before.
    Differences,
    /// Floats, byte by byte: first the highest of all, and so on, each as the difference from the one before.
    Floats,
}

impl Predictor {
    /// Restores a row of samples of so many bits.
    pub(super) fn undo(self, row: &mut [u8], samples: usize, bits: u32, big_endian: bool, scratch: &mut Vec<u8>) {
        match (self, bits) {
            (Self::None, _) => {}
            (Self::Differences, 16) => add_up::<2>(row, samples, big_endian, |a, b| {
                u16::from_le_bytes(a).wrapping_add(u16::from_le_bytes(b)).to_le_bytes()
            }),
            (Self::Differences, 32) => add_up::<4>(row, samples, big_endian, |a, b| {
                u32::from_le_bytes(a).wrapping_add(u32::from_le_bytes(b)).to_le_bytes()
            }),
            (Self::Differences, _) => add_up::<1>(row, samples, false, |[a], [b]| [a.wrapping_add(b)]),
            (Self::Floats, _) => {
                add_up::<1>(row, samples, false, |[a], [b]| [a.wrapping_add(b)]);
                scratch.clear();
                scratch.extend_from_slice(row);
                let count = row.len() / 4;
                for (at, float) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *float = [0, 1, 2, 3].map(|byte| scratch[byte * count + at]);
                    if !big_endian {
                        float.reverse();
                    }
                }
            }
        }
    }
}

/// Adds to each sample the one `stride` samples before it. `add` takes and gives them in little-endian order.
fn add_up<const N: usize>(row: &mut [u8], stride: usize, big_endian: bool, add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let turned = |mut sample: [u8; N]| {
        if big_endian {
            sample.reverse();
        }
        sample
    };
    let all = row.as_chunks_mut::<N>().0;
    for at in stride..all.len() {
        all[at] = turned(add(turned(all[at]), turned(all[at - stride])));
    }
}
