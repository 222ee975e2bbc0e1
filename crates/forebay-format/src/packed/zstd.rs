//! zstd: frames one behind the other, each of which is unpacked by itself, from its beginning.

use std::io::Read as _;

use forebay_core::Result;
use ruzstd::decoding::StreamingDecoder;

use super::{Entry, MAX_SEGMENT_BYTES, Made, damaged, no_memory, room_for, too_large};

pub(super) const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Finds the segments of a file.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// The frame that is not complete.
    frame: Vec<u8>,
    /// Where it begins in the file.
    position: u64,
    /// Bytes of a skippable frame that are still to come.
    skipped: u64,
}

impl Scanner {
    pub(super) fn is_between_frames(&self) -> bool {
        self.frame.is_empty() && self.skipped == 0
    }

    pub(super) fn feed(&mut self, bytes: &[u8], made: &mut Made) -> Result<()> {
        self.frame.try_reserve(bytes.len()).map_err(|_| no_memory(bytes.len() as u64))?;
        self.frame.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let skipped = self.skipped.min((self.frame.len() - at) as u64);
            at += skipped as usize;
            self.skipped -= skipped;
            if self.skipped > 0 {
                break;
            }
            match frame_length(&self.frame[at..])? {
                Some(Length::Skippable(length)) => self.skipped = length,
                Some(Length::Frame(length)) => {
                    made.add(&unpacked(&self.frame[at..at + length], MAX_SEGMENT_BYTES)?)?;
                    at += length;
                    if made.is_due() {
                        made.split(self.position + at as u64, Entry::Frame);
                    }
                }
                None => break,
            }
        }
        self.frame.drain(..at);
        self.position += at as u64;
        // What is compressed may be larger than what it becomes, but not by much.
        match self.frame.len() as u64 > MAX_SEGMENT_BYTES + (MAX_SEGMENT_BYTES >> 4) {
            true => Err(too_large()),
            false => Ok(()),
        }
    }
}

enum Length {
    Frame(usize),
    Skippable(u64),
}

/// How long the frame is that begins here; `None` if it is not there as a whole.
fn frame_length(bytes: &[u8]) -> Result<Option<Length>> {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    if let [0x50..=0x5F, 0x2A, 0x4D, 0x18] = magic {
        let length = rest.first_chunk::<4>().map(|length| u64::from(u32::from_le_bytes(*length)));
        return Ok(length.map(|length| Length::Skippable(8 + length)));
    }
    if *magic != MAGIC {
        return Err(damaged("has something that is no zstd where a frame should begin"));
    }
    let Some(descriptor) = rest.first() else { return Ok(None) };
    let is_single = descriptor & 0x20 != 0;
    let content_bytes = match (descriptor >> 6, is_single) {
        (0, false) => 0,
        (0, true) => 1,
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let mut at = 5 + usize::from(!is_single) + dictionary_bytes + content_bytes;
    loop {
        let Some(header) = bytes.get(at..at + 3) else { return Ok(None) };
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let (is_last, kind, size) = (header & 1 != 0, header >> 1 & 3, (header >> 3) as usize);
        at += 3 + match kind {
            1 => 1,
            3 => return Err(damaged("has a damaged zstd frame")),
            _ => size,
        };
        if is_last {
            at += if descriptor & 4 != 0 { 4 } else { 0 };
            return Ok((at <= bytes.len()).then_some(Length::Frame(at)));
        }
    }
}

/// What is in a frame, if that is no more than `most` bytes. Its checksum, where it has one, is compared.
fn unpacked(frame: &[u8], most: u64) -> Result<Vec<u8>> {
    let bad = |error: &dyn std::fmt::Display| damaged("has a damaged zstd frame").with_detail(error.to_string());
    let mut decoder = StreamingDecoder::new(frame).map_err(|error| bad(&error))?;
    if decoder.decoder.content_size() > most {
        return Err(too_large());
    }
    let mut content = room_for(decoder.decoder.content_size())?;
    (&mut decoder).take(most + 1).read_to_end(&mut content).map_err(|error| bad(&error))?;
    if content.len() as u64 > most {
        return Err(too_large());
    }
    let (told, made) = (decoder.decoder.get_checksum_from_data(), decoder.decoder.get_calculated_checksum());
    match told.is_some() && told != made {
        true => Err(damaged("has a damaged zstd frame: its own checksum does not fit")),
        false => Ok(content),
    }
}

/// Unpacks the frames of a segment.
pub(super) fn unpack(mut packed: &[u8], size_bytes: u64, out: &mut Vec<u8>) -> Result<()> {
    let differs = || damaged("has other zstd frames than when it was indexed");
    while (out.len() as u64) < size_bytes {
        let length = match frame_length(packed)?.ok_or_else(differs)? {
            Length::Skippable(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Length::Frame(length) => {
                let content = unpacked(&packed[..length], size_bytes)?;
                if (out.len() + content.len()) as u64 > size_bytes {
                    return Err(differs());
                }
                out.extend_from_slice(&content);
                length
            }
        };
        packed = packed.get(length..).ok_or_else(differs)?;
    }
    Ok(())
}
