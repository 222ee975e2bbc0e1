//! gzip: members one behind the other, each a stream of blocks. Between two blocks a decoder can begin, if it is given the bits
//! that are left of the byte before and the 32 KiB that were unpacked before.

use crc_fast::{CrcAlgorithm, Digest};
use forebay_core::Result;
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::core::inflate_flags::{TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};
use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_with_limit};

use super::{Entry, Made, damaged};

/// What deflate may refer back to.
const WINDOW_BYTES: usize = 32 << 10;
/// A power of two. Before its place are the last bytes that were unpacked, all around.
const BUFFER_BYTES: usize = 2 * WINDOW_BYTES;
/// No header is longer in earnest: it has a file name and a comment.
const MAX_HEADER_BYTES: usize = 1 << 20;
const FLAGS: u32 = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;

/// The state between two blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    bit_count: u8,
    bits: u8,
    /// What was unpacked before, deflated.
    window: Box<[u8]>,
}

impl Resume {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let head = u64::from(self.bit_count) | u64::from(self.bits) << 8 | (self.window.len() as u64) << 16;
        out.extend(head.to_le_bytes());
        out.extend(&self.window);
    }

    pub(super) fn parse(head: u64, bytes: &mut &[u8]) -> Option<Self> {
        let (bit_count, bits) = ((head & 0xFF) as u8, (head >> 8 & 0xFF) as u8);
        let window = bytes.split_off(..usize::try_from(head >> 16).ok()?)?;
        (bit_count < 8).then(|| Self { bit_count, bits, window: window.into() })
    }
}

/// Why unpacking stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NeedsInput,
    Boundary,
    End,
}

/// The deflate stream of one member.
struct Inflate {
    state: Box<DecompressorOxide>,
    buffer: Box<[u8]>,
    at: usize,
    unpacked: u64,
}

impl Inflate {
    fn new() -> Self {
        Self { state: Box::default(), buffer: vec![0; BUFFER_BYTES].into(), at: 0, unpacked: 0 }
    }

    fn resumed(resume: &Resume) -> Result<Self> {
        let window = decompress_to_vec_with_limit(&resume.window, WINDOW_BYTES)
            .map_err(|_| damaged("has a damaged index: let it be made again"))?;
        let mut inflate = Self::new();
        inflate.buffer[..window.len()].copy_from_slice(&window);
        inflate.at = window.len();
        let between = BlockBoundaryState { num_bits: resume.bit_count, bit_buf: resume.bits, ..Default::default() };
        *inflate.state = DecompressorOxide::from_block_boundary_state(&between);
        Ok(inflate)
    }

    /// Unpacks until something is to be done about it; gives how many bytes were taken, too.
    fn run(&mut self, packed: &[u8], mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<(usize, Stop)> {
        let mut taken = 0;
        loop {
            let (status, read, wrote) = decompress(&mut self.state, &packed[taken..], &mut self.buffer, self.at, FLAGS);
            taken += read;
            sink(&self.buffer[self.at..self.at + wrote])?;
            self.unpacked += wrote as u64;
            self.at = (self.at + wrote) % BUFFER_BYTES;
            match status {
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput => return Ok((taken, Stop::NeedsInput)),
                TINFLStatus::BlockBoundary => return Ok((taken, Stop::Boundary)),
                TINFLStatus::Done => return Ok((taken, Stop::End)),
                _ => return Err(damaged("has damaged gzip data")),
            }
        }
    }

    /// Where it stands, between two blocks.
    fn resume(&self) -> Option<Resume> {
        let state = self.state.block_boundary_state()?;
        let length = self.unpacked.min(WINDOW_BYTES as u64) as usize;
        let window: Vec<u8> =
            (0..length).map(|back| self.buffer[(self.at + BUFFER_BYTES - length + back) % BUFFER_BYTES]).collect();
        let window = compress_to_vec(&window, 1).into();
        Some(Resume { bit_count: state.num_bits, bits: state.bit_buf, window })
    }
}

/// Where in a file the next byte is.
enum Phase {
    /// In a header, or in the eight bytes behind a member, of which these are there.
    Header(Vec<u8>),
    Body(Inflate, Box<Digest>),
    Trailer(Vec<u8>, u32, u64),
    /// Behind the last member: zeros, with which tapes and disks are filled up.
    Padding,
}

/// Finds the segments of a file.
pub(super) struct Scanner {
    phase: Phase,
    position: u64,
    members: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { phase: Phase::Header(Vec::new()), position: 0, members: 0 }
    }
}

impl Scanner {
    pub(super) fn is_between_members(&self) -> bool {
        match &self.phase {
            Phase::Header(bytes) => bytes.is_empty() && self.members > 0,
            Phase::Padding => true,
            Phase::Body(..) | Phase::Trailer(..) => false,
        }
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], made: &mut Made) -> Result<()> {
        while !bytes.is_empty() {
            let taken = self.step(bytes, made)?;
            self.position += taken as u64;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn step(&mut self, bytes: &[u8], made: &mut Made) -> Result<usize> {
        match &mut self.phase {
            Phase::Header(header) if self.members > 0 && header.is_empty() && bytes[0] == 0 => {
                self.phase = Phase::Padding;
                Ok(0)
            }
            Phase::Header(header) => {
                let taken = header_bytes(header, bytes)?;
                if let Some(taken) = taken {
                    self.phase = Phase::Body(Inflate::new(), Box::new(crc()));
                    return Ok(taken);
                }
                header.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            Phase::Body(inflate, crc) => {
                let (taken, stop) = inflate.run(bytes, |unpacked| {
                    crc.update(unpacked);
                    made.add(unpacked)
                })?;
                if stop == Stop::End {
                    self.phase = Phase::Trailer(Vec::new(), crc.finalize() as u32, inflate.unpacked);
                } else if stop == Stop::Boundary
                    && made.is_due()
                    && let Some(resume) = inflate.resume()
                {
                    made.split(self.position + taken as u64, Entry::Inside(resume));
                }
                Ok(taken)
            }
            Phase::Trailer(trailer, crc, unpacked) => {
                let taken = bytes.len().min(8 - trailer.len());
                trailer.extend_from_slice(&bytes[..taken]);
                if trailer.len() == 8 {
                    let mut words =
                        trailer.chunks(4).map(|word| word.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte)));
                    if (words.next(), words.next()) != (Some(*crc), Some(*unpacked as u32)) {
                        return Err(damaged("has damaged gzip data: its own checksum does not fit"));
                    }
                    self.phase = Phase::Header(Vec::new());
                    self.members += 1;
                    if made.is_due() {
                        made.split(self.position + taken as u64, Entry::Frame);
                    }
                }
                Ok(taken)
            }
            Phase::Padding if bytes.iter().all(|byte| *byte == 0) => Ok(bytes.len()),
            Phase::Padding => Err(damaged("has something behind its gzip data that is none")),
        }
    }
}

fn crc() -> Digest {
    Digest::new(CrcAlgorithm::Crc32IsoHdlc)
}

/// How many of `bytes` belong to a header of which `before` is there already; `None` for all of them, and more.
fn header_bytes(before: &[u8], bytes: &[u8]) -> Result<Option<usize>> {
    let all = [before, &bytes[..bytes.len().min(MAX_HEADER_BYTES)]].concat();
    let length = header_length(&all)?;
    match length {
        Some(length) => Ok(Some(length - before.len())),
        None if all.len() > MAX_HEADER_BYTES => Err(damaged("has a gzip header without an end")),
        None => Ok(None),
    }
}

/// How long the header is that begins here, if it is there as a whole.
fn header_length(bytes: &[u8]) -> Result<Option<usize>> {
    let known = [0x1F, 0x8B, 8];
    if bytes.iter().zip(&known).any(|(byte, known)| byte != known) {
        return Err(damaged("has something that is no gzip where a member should begin"));
    }
    let Some(flags) = bytes.get(3).filter(|_| bytes.len() >= 10) else { return Ok(None) };
    let mut at = 10;
    if flags & 4 != 0 {
        let Some(length) = bytes.get(at..at + 2) else { return Ok(None) };
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    // A file name and a comment, each with a zero behind it.
    for flag in [8, 16] {
        if flags & flag != 0 {
            let Some(end) = bytes.get(at..).and_then(|rest| memchr::memchr(0, rest)) else { return Ok(None) };
            at += end + 1;
        }
    }
    at += if flags & 2 != 0 { 2 } else { 0 };
    Ok((at <= bytes.len()).then_some(at))
}

/// Unpacks so many bytes from where a segment begins.
pub(super) fn unpack(entry: &Entry, packed: &[u8], size_bytes: u64, out: &mut Vec<u8>) -> Result<()> {
    let too_short = || damaged("has damaged gzip data: less than when it was indexed");
    let mut rest = packed;
    let mut inflate = match entry {
        Entry::Frame => None,
        Entry::Inside(resume) => Some(Inflate::resumed(resume)?),
    };
    while (out.len() as u64) < size_bytes {
        let mut body = match inflate.take() {
            Some(inflate) => inflate,
            None => {
                let length = header_length(rest)?.ok_or_else(too_short)?;
                rest = &rest[length..];
                Inflate::new()
            }
        };
        let (taken, stop) = body.run(rest, |unpacked| {
            if (out.len() + unpacked.len()) as u64 > size_bytes {
                return Err(damaged("has damaged gzip data: more than when it was indexed"));
            }
            out.extend_from_slice(unpacked);
            Ok(())
        })?;
        rest = &rest[taken..];
        match stop {
            Stop::Boundary => inflate = Some(body),
            Stop::End => rest = rest.get(8..).unwrap_or_default(),
            Stop::NeedsInput if (out.len() as u64) < size_bytes => return Err(too_short()),
            Stop::NeedsInput => {}
        }
    }
    Ok(())
}
