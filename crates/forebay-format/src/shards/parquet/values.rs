//! The values of a page, whatever their encoding, as they are read: back to back, numbers little-endian, truth values a byte each.

use parquet::basic::Encoding;

use super::delta::{Deltas, back};
use super::hybrid::Hybrid;
use super::page::MAX_PAGE_BYTES;
use super::schema::{Layout, Physical};

/// Why the bytes of a page make no sense.
pub(super) type Why = &'static str;

pub(super) const TOO_LARGE: Why = "a page becomes larger than 256 MiB";
pub(super) const NO_MEMORY: Why = "no memory was left for a page";
const TOO_FEW: Why = "a page has fewer values than it says";

/// Values back to back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values {
    pub(super) bytes: Vec<u8>,
    /// Where each one ends; none where all have the same length.
    pub(super) ends: Option<Vec<u32>>,
    width: usize,
}

impl Values {
    /// Where a value is among the bytes.
    pub(super) fn range(&self, at: usize) -> std::ops::Range<usize> {
        match &self.ends {
            Some(ends) => at.checked_sub(1).map_or(0, |before| ends[before] as usize)..ends[at] as usize,
            None => at * self.width..(at + 1) * self.width,
        }
    }
}

/// Reads `count` values. Those of a dictionary are put in their places.
pub(super) fn read(
    layout: &Layout,
    encoding: Encoding,
    bytes: &[u8],
    count: usize,
    dictionary: Option<&[u8]>,
) -> Result<Values, Why> {
    let (width, unknown) = (layout.width, "a page has an encoding that its type does not have");
    match (encoding, layout.physical) {
        (Encoding::PLAIN, Physical::Boolean) => {
            let bits = (0..count).map(|at| bytes.get(at / 8).map(|byte| byte >> (at % 8) & 1));
            fixed(count, 1, bits.map(|bit| bit.map(|bit| [bit])))
        }
        (Encoding::PLAIN, Physical::Fixed { bytes: stored }) => {
            let all = bytes.get(..count.checked_mul(stored).ok_or(TOO_FEW)?).ok_or(TOO_FEW)?;
            fixed(count, width, all.chunks_exact(stored).map(|value| value.get(..width)))
        }
        (Encoding::PLAIN, Physical::ByteArray) => plain_texts(bytes, count),
        (Encoding::RLE, Physical::Boolean) => {
            let length = bytes.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize).ok_or(TOO_FEW)?;
            let coded = bytes.get(4..).and_then(|rest| rest.get(..length)).ok_or(TOO_FEW)?;
            let mut bits = Hybrid::new(coded, 1);
            fixed(count, 1, (0..count).map(|_| bits.next().map(|bit| [bit as u8])))
        }
        (Encoding::DELTA_BINARY_PACKED, Physical::Fixed { .. }) if layout.is_integer => {
            let mut numbers = Deltas::new(bytes, count).ok_or(TOO_FEW)?;
            fixed(count, width, (0..count).map(|_| numbers.next().map(i64::to_le_bytes)).map(cut(width)))
        }
        (Encoding::DELTA_LENGTH_BYTE_ARRAY, Physical::ByteArray) => delta_texts(bytes, count),
        (Encoding::DELTA_BYTE_ARRAY, Physical::ByteArray) => shared_texts(bytes, count, None),
        (Encoding::DELTA_BYTE_ARRAY, Physical::Fixed { bytes: stored }) if !layout.is_integer => {
            let values = shared_texts(bytes, count, Some(stored))?;
            Ok(Values { ends: None, width, ..values })
        }
        (Encoding::BYTE_STREAM_SPLIT, Physical::Fixed { bytes: stored }) => {
            let all = bytes.get(..count.checked_mul(stored).ok_or(TOO_FEW)?).ok_or(TOO_FEW)?;
            let mut made = room(count.checked_mul(width).ok_or(TOO_LARGE)?)?;
            for at in 0..count {
                made.extend((0..width).map(|byte| all[byte * count + at]));
            }
            Ok(Values { bytes: made, ends: None, width })
        }
        (Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY, _) => {
            let (dictionary, numbers) = (dictionary.ok_or("a page without its dictionary")?, entries(bytes)?);
            fixed(count, width, numbers.map(|number| value_of(dictionary, number as usize, width)))
        }
        _ => Err(unknown),
    }
}

/// An entry of a dictionary whose entries have the same length.
fn value_of(dictionary: &[u8], number: usize, width: usize) -> Option<&[u8]> {
    dictionary.get(number.checked_mul(width)?..)?.get(..width).filter(|value| !value.is_empty())
}

/// The numbers of dictionary entries in a page, behind the byte that says how many bits they have.
pub(super) fn entries(bytes: &[u8]) -> Result<Hybrid<'_>, Why> {
    match bytes {
        [width @ 0..=32, rest @ ..] => Ok(Hybrid::new(rest, u32::from(*width))),
        // Without values there may be nothing.
        [] => Ok(Hybrid::new(bytes, 0)),
        _ => Err("a page has dictionary entries of more than 32 bits"),
    }
}

fn cut<const N: usize>(width: usize) -> impl Fn(Option<[u8; N]>) -> Option<Cut<N>> {
    move |value| value.map(|bytes| Cut { bytes, width })
}

/// The first bytes of a number.
struct Cut<const N: usize> {
    bytes: [u8; N],
    width: usize,
}

impl<const N: usize> AsRef<[u8]> for Cut<N> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.width.min(N)]
    }
}

/// `count` values of one length.
fn fixed<T: AsRef<[u8]>>(
    count: usize,
    width: usize,
    mut values: impl Iterator<Item = Option<T>>,
) -> Result<Values, Why> {
    let mut made = room(count.checked_mul(width).ok_or(TOO_LARGE)?)?;
    for _ in 0..count {
        let value = values.next().flatten().ok_or(TOO_FEW)?;
        made.extend_from_slice(Some(value.as_ref()).filter(|value| value.len() == width).ok_or(TOO_FEW)?);
    }
    Ok(Values { bytes: made, ends: None, width })
}

/// Memory for so many bytes, if a page may have as many.
pub(super) fn room(length: usize) -> Result<Vec<u8>, Why> {
    if length as u64 > MAX_PAGE_BYTES {
        return Err(TOO_LARGE);
    }
    let mut made = Vec::new();
    made.try_reserve_exact(length).map_err(|_| NO_MEMORY)?;
    Ok(made)
}

fn ends_for(count: usize, bytes_of_each: usize, length: usize) -> Result<Vec<u32>, Why> {
    if bytes_of_each > 0 && count > length / bytes_of_each {
        return Err(TOO_FEW);
    }
    let mut ends = Vec::new();
    ends.try_reserve_exact(count).map_err(|_| NO_MEMORY)?;
    Ok(ends)
}

/// Each behind its length.
fn plain_texts(mut bytes: &[u8], count: usize) -> Result<Values, Why> {
    let mut ends = ends_for(count, 4, bytes.len())?;
    let mut made = room(bytes.len())?;
    for _ in 0..count {
        let length = bytes.split_off(..4).and_then(|length| length.first_chunk::<4>()).ok_or(TOO_FEW)?;
        made.extend_from_slice(bytes.split_off(..u32::from_le_bytes(*length) as usize).ok_or(TOO_FEW)?);
        ends.push(made.len() as u32);
    }
    Ok(Values { bytes: made, ends: Some(ends), width: 0 })
}

/// All lengths, and then all bytes.
fn delta_texts(bytes: &[u8], count: usize) -> Result<Values, Why> {
    let mut lengths = Deltas::new(bytes, count).ok_or(TOO_FEW)?;
    let mut ends = Vec::new();
    let mut end = 0u64;
    for _ in 0..count {
        let length = lengths.next().and_then(|length| u64::try_from(length).ok()).ok_or(TOO_FEW)?;
        end = end.checked_add(length).filter(|end| *end <= bytes.len() as u64).ok_or(TOO_FEW)?;
        ends.try_reserve(1).map_err(|_| NO_MEMORY)?;
        ends.push(end as u32);
    }
    let start = lengths.end().ok_or(TOO_FEW)?;
    let all = bytes.get(start..).and_then(|rest| rest.get(..end as usize)).ok_or(TOO_FEW)?;
    let mut made = room(all.len())?;
    made.extend_from_slice(all);
    Ok(Values { bytes: made, ends: Some(ends), width: 0 })
}

/// How many bytes each has in common with the one before, then what follows them.
fn shared_texts(bytes: &[u8], count: usize, stored: Option<usize>) -> Result<Values, Why> {
    let mut prefixes = Deltas::new(bytes, count).ok_or(TOO_FEW)?;
    let rest = bytes.get(back(bytes, count).ok_or(TOO_FEW)?..).ok_or(TOO_FEW)?;
    let suffixes = delta_texts(rest, count)?;
    let (mut made, mut ends, mut before) = (Vec::new(), Vec::new(), 0..0);
    for at in 0..count {
        let prefix = prefixes.next().and_then(|length| usize::try_from(length).ok());
        let prefix = prefix.filter(|length| *length <= before.len()).ok_or(TOO_FEW)?;
        let suffix = &suffixes.bytes[suffixes.range(at)];
        let (start, length) = (made.len(), prefix + suffix.len());
        if (start + length) as u64 > MAX_PAGE_BYTES || stored.is_some_and(|stored| stored != length) {
            return Err(if stored.is_some() { TOO_FEW } else { TOO_LARGE });
        }
        made.try_reserve(length).map_err(|_| NO_MEMORY)?;
        ends.try_reserve(1).map_err(|_| NO_MEMORY)?;
        made.extend_from_within(before.start..before.start + prefix);
        made.extend_from_slice(suffix);
        before = start..made.len();
        ends.push(made.len() as u32);
    }
    Ok(Values { bytes: made, ends: Some(ends), width: 0 })
}
