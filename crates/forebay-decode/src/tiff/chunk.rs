//! The bytes of one strip or tile: expanding them, and undoing differences.

use flate2::{Decompress, FlushDecompress, Status};
use forebay_core::{Error, Result};
use weezl::{BitOrder, LzwStatus, decode::Decoder as Lzw};

use crate::Format;
use crate::decoder::{damaged, unsupported};

/// How chunks are compressed.
#[derive(Clone, Copy)]
pub(super) enum Compression {
    None,
    Lzw,
    Deflate,
    PackBits,
}

impl Compression {
    pub(super) fn new(code: u64) -> Result<Self> {
        let name = match code {
            1 => return Ok(Self::None),
            5 => return Ok(Self::Lzw),
            8 | 32946 => return Ok(Self::Deflate),
            32773 => return Ok(Self::PackBits),
            2..=4 => "fax",
            6 | 7 => "JPEG",
            34925 => "LZMA",
            50000 => "zstd",
            50001 => "WebP",
            _ => "unknown",
        };
        Err(unsupported(Format::Tiff, format!("compression {code} ({name})")))
    }

    /// Fills `out`; fewer bytes than that are damage, more are padding.
    pub(super) fn expand(self, coded: &[u8], reversed_bits: bool, out: &mut [u8]) -> Result<()> {
        if reversed_bits {
            let turned: Vec<u8> = coded.iter().map(|byte| byte.reverse_bits()).collect();
            return self.expand(&turned, false, out);
        }
        match self {
            Self::None => match coded.get(..out.len()) {
                Some(coded) => out.copy_from_slice(coded),
                None => return Err(short(coded.len(), out.len())),
            },
            Self::Lzw => lzw(coded, out)?,
            Self::Deflate => deflate(coded, out)?,
            Self::PackBits => pack_bits(coded, out)?,
        }
        Ok(())
    }
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

/// Each sample is stored as the difference from the same sample of the pixel before.
pub(super) fn undo_differences(row: &mut [u8], samples: usize, bits: u32, big_endian: bool) {
    if bits == 8 {
        for at in samples..row.len() {
            row[at] = row[at].wrapping_add(row[at - samples]);
        }
        return;
    }
    let pairs = row.as_chunks_mut::<2>().0;
    for at in samples..pairs.len() {
        pairs[at] = match big_endian {
            true => u16::from_be_bytes(pairs[at]).wrapping_add(u16::from_be_bytes(pairs[at - samples])).to_be_bytes(),
            false => u16::from_le_bytes(pairs[at]).wrapping_add(u16::from_le_bytes(pairs[at - samples])).to_le_bytes(),
        };
    }
}
