//! Fax inside TIFF: runs of white and black by the codes of the `fax` crate. The lines are assembled here, because TIFF
//! has four variants (T.4 without and with line ends, also relative to the line above; T.6), and because data that does
//! not fit its line is damage and must not be skipped.

use fax::BitReader;
use fax::maps::{Mode, black, mode, white};
use forebay_core::{Error, Result};

use crate::Format;
use crate::decoder::damaged;
use crate::memory::reserve;

/// How lines are coded and kept apart.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fax {
    /// Each line separately, starting at a whole byte.
    Rle,
    /// Each line after an end-of-line code; with `relative`, a bit after the code tells whether the line is coded
    /// separately.
    Group3 { relative: bool },
    /// Each line relative to the line above.
    Group4,
}

/// The bits of coded data, followed by zeros.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    const fn is_over(&self) -> bool {
        self.at > self.bytes.len() * 8
    }

    fn next(&mut self) -> bool {
        let bit = self.peek(1) == Some(1);
        self.at += 1;
        bit
    }
}

impl BitReader for Bits<'_> {
    type Error = ();

    fn peek(&self, bits: u8) -> Option<u16> {
        let byte = |at: usize| u32::from(self.bytes.get(at).copied().unwrap_or(0));
        let first = self.at / 8;
        let window = byte(first) << 16 | byte(first + 1) << 8 | byte(first + 2);
        Some((window << (8 + self.at % 8) >> (32 - u32::from(bits))) as u16)
    }

    fn consume(&mut self, bits: u8) -> Result<(), ()> {
        self.at += usize::from(bits);
        if self.is_over() { Err(()) } else { Ok(()) }
    }

    fn bits_to_byte_boundary(&self) -> u8 {
        (8 - self.at % 8) as u8 % 8
    }
}

/// A line while it is decoded: its changes of colour, beginning with the first black.
struct Line<'a> {
    changes: &'a mut Vec<u32>,
    width: u32,
    at: u32,
    is_black: bool,
}

impl Line<'_> {
    /// Paints up to `end`.
    fn to(&mut self, end: u32) -> Option<()> {
        // Runs of length zero are legal; a line of nothing else is not.
        if end < self.at || end > self.width || self.changes.len() == self.changes.capacity() {
            return None;
        }
        self.changes.push(end);
        self.at = end;
        self.is_black = !self.is_black;
        Some(())
    }

    /// Paints a run with the next coded length.
    fn run(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        let mut end = self.at;
        loop {
            let length = if self.is_black { black::decode(bits) } else { white::decode(bits) }?;
            end = end.checked_add(u32::from(length))?;
            if length < 64 {
                return self.to(end);
            }
        }
    }

    fn alone(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        while self.at < self.width {
            self.run(bits)?;
        }
        Some(())
    }

    /// A line coded as a difference from the one above, whose changes are `above`.
    fn relative(&mut self, bits: &mut Bits<'_>, above: &[u32]) -> Option<()> {
        // The first change above that is right of here and towards the opposite colour: those to black have even
        // positions. At the beginning of a line "here" is left of its first pixel.
        let mut position = 0;
        let mut has_begun = false;
        while self.at < self.width {
            while position > 0 && above.get(position - 1).is_some_and(|change| *change > self.at) {
                position -= 1;
            }
            let is_right = |change: &u32| *change > self.at || (!has_begun && *change == 0);
            while above.get(position).is_some_and(|change| !is_right(change))
                || position % 2 != usize::from(self.is_black)
            {
                position += 1;
            }
            let change = |position: usize| above.get(position).copied().unwrap_or(self.width);
            match mode::decode(bits)? {
                // The colour continues below the run above.
                Mode::Pass => self.at = change(position + 1),
                Mode::Vertical(shift) => self.to(change(position).checked_add_signed(i32::from(shift))?)?,
                Mode::Horizontal => {
                    self.run(bits)?;
                    self.run(bits)?;
                }
                Mode::Extension | Mode::EOF => return None,
            }
            has_begun = true;
        }
        Some(())
    }
}

impl Fax {
    /// Fills `out` with lines of `width` pixels, a bit each, black ones set.
    pub(super) fn expand(self, coded: &[u8], width: u32, out: &mut [u8]) -> Result<()> {
        let row_bytes = (width as usize).div_ceil(8);
        let mut bits = Bits { bytes: coded, at: 0 };
        // A change takes at least a bit, and a line has at most as many changes as pixels.
        let most = (2 * width as usize + 2).min(coded.len() * 8);
        let (mut above, mut changes) = (room(most)?, room(most)?);
        let rows = out.len() / row_bytes;
        for (row, target) in out.chunks_exact_mut(row_bytes).enumerate() {
            let mut line = Line { changes: &mut changes, width, at: 0, is_black: false };
            let read = match self {
                Self::Rle => line.alone(&mut bits),
                Self::Group3 { relative } => {
                    let is_alone = line_end(&mut bits, row == 0).map(|ended| !relative || !ended || bits.next());
                    is_alone
                        .and_then(|alone| if alone { line.alone(&mut bits) } else { line.relative(&mut bits, &above) })
                }
                Self::Group4 => line.relative(&mut bits, &above),
            };
            if read.is_none() || bits.is_over() {
                return Err(wrong(row, rows, bits.is_over()));
            }
            if self == Self::Rle {
                bits.at += usize::from(bits.bits_to_byte_boundary());
            }
            paint(&changes, target);
            std::mem::swap(&mut above, &mut changes);
            changes.clear();
        }
        Ok(())
    }
}

/// Skips fill bits and the end of a line: eleven zeros or more, and a one. The first line may be without.
fn line_end(bits: &mut Bits<'_>, is_first: bool) -> Option<bool> {
    if bits.peek(11)? != 0 {
        return if is_first { Some(false) } else { None };
    }
    while !bits.next() {
        if bits.is_over() {
            return None;
        }
    }
    Some(true)
}

/// Sets the bits between the changes to black and those to white.
fn paint(changes: &[u32], target: &mut [u8]) {
    target.fill(0);
    let width = target.len() as u32 * 8;
    for run in changes.chunks(2) {
        let (start, end) = (run[0], run.get(1).copied().unwrap_or(width));
        let (first, last) = ((start / 8) as usize, (end / 8) as usize);
        let (from, to) = (0xFF_u8 >> (start % 8), !(0xFF_u8 >> (end % 8)));
        if first == last {
            if let Some(byte) = target.get_mut(first) {
                *byte |= from & to;
            }
            continue;
        }
        if first >= target.len() {
            break;
        }
        target[first] |= from;
        target[first + 1..last].fill(0xFF);
        if let Some(byte) = target.get_mut(last) {
            *byte |= to;
        }
    }
}

fn room(changes: usize) -> Result<Vec<u32>> {
    let mut room = Vec::new();
    reserve(&mut room, changes, "a row of its fax")?;
    Ok(room)
}

fn wrong(row: usize, rows: usize, is_over: bool) -> Error {
    let what = if is_over { "the data ends" } else { "no code of a fax" };
    damaged(Format::Tiff, format!("{what} at line {row} of {rows} of a chunk"))
}
