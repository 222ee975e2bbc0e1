//! One page: unpacked, with its levels apart from its values.

use std::borrow::Cow;

use parquet::basic::{Encoding, PageType};

use super::hybrid::Hybrid;
use super::schema::{Layout, Physical};
use super::values::{self, TOO_LARGE, Values, Why, room};
use crate::packed;
use crate::parquet_pages::Header;

/// Pages are unpacked as a whole. Writers make them of about a megabyte, unless single values are larger.
pub(super) const MAX_PAGE_BYTES: u64 = 256 << 20;

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
}

impl Codec {
    pub(super) const ALL: [Self; 4] = [Self::None, Self::Snappy, Self::Gzip, Self::Zstd];

    /// The codec of this number; its name, where it is none of those that are read.
    pub(super) fn of(number: i32) -> Result<Self, String> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Snappy,
            2 => Self::Gzip,
            6 => Self::Zstd,
            3 => return Err("LZO".to_owned()),
            4 => return Err("Brotli".to_owned()),
            5 | 7 => return Err("LZ4".to_owned()),
            other => return Err(format!("a codec that is not known (number {other})")),
        })
    }
}

/// Whether a page is compressed.
pub(super) fn is_packed(header: &Header, codec: Codec) -> bool {
    codec != Codec::None && (header.kind != PageType::DATA_PAGE_V2 || header.is_compressed)
}

/// What a page says about its sizes, if that can be.
pub(super) fn check(header: &Header, codec: Codec) -> Result<(), Why> {
    let levels = header.def_bytes.saturating_add(header.rep_bytes);
    if levels > header.compressed.min(header.uncompressed) {
        return Err("a page has more levels than bytes");
    }
    if is_packed(header, codec) && header.compressed.max(header.uncompressed) as u64 > MAX_PAGE_BYTES {
        return Err(TOO_LARGE);
    }
    match is_packed(header, codec) || header.compressed == header.uncompressed {
        true => Ok(()),
        false => Err("a page that is not compressed has two sizes"),
    }
}

/// The bytes of a page, unpacked. Levels of version 2 are not compressed, and stay in front.
pub(super) fn open<'a>(header: &Header, codec: Codec, body: &'a [u8]) -> Result<Cow<'a, [u8]>, Why> {
    check(header, codec)?;
    if !is_packed(header, codec) {
        return Ok(Cow::Borrowed(body));
    }
    let (levels, packed) =
        body.split_at_checked(header.def_bytes + header.rep_bytes).ok_or("a page ends in its levels")?;
    let size = header.uncompressed - levels.len();
    let mut whole = room(header.uncompressed)?;
    whole.extend_from_slice(levels);
    match codec {
        // Without values there may be nothing to unpack.
        _ if size == 0 => {}
        Codec::None => {}
        Codec::Snappy => {
            if snap::raw::decompress_len(packed) != Ok(size) {
                return Err("a page has another size than it says");
            }
            whole.resize(header.uncompressed, 0);
            let unpacked = snap::raw::Decoder::new().decompress(packed, &mut whole[levels.len()..]);
            unpacked.map_err(|_| "a page cannot be unpacked (snappy)")?;
        }
        Codec::Gzip | Codec::Zstd => {
            let (unpack, why): (packed::Unpack, Why) = match codec {
                Codec::Gzip => (packed::unpack_gzip, "a page cannot be unpacked (gzip)"),
                _ => (packed::unpack_zstd, "a page cannot be unpacked (zstd)"),
            };
            if levels.is_empty() {
                unpack(packed, size as u64, &mut whole).map_err(|_| why)?;
            } else {
                let mut values = room(size)?;
                unpack(packed, size as u64, &mut values).map_err(|_| why)?;
                whole.extend_from_slice(&values);
            }
        }
    }
    match whole.len() == header.uncompressed {
        true => Ok(Cow::Owned(whole)),
        false => Err("a page has another size than it says"),
    }
}

/// The levels of a page, one for each of its entries. Where a column has none, all are 0.
#[derive(Clone, Debug)]
pub(super) struct Levels<'a> {
    /// Where a new row begins, this is 0.
    repetition: Option<Hybrid<'a>>,
    definition: Option<Hybrid<'a>>,
    max_def: u32,
    left: usize,
}

impl Iterator for Levels<'_> {
    type Item = Result<(u32, u32), Why>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let next = |levels: &mut Option<Hybrid<'_>>| match levels {
            Some(levels) => levels.next().ok_or("a page has fewer levels than values"),
            None => Ok(0),
        };
        let both = next(&mut self.repetition).and_then(|repetition| Ok((repetition, next(&mut self.definition)?)));
        Some(both.and_then(|(repetition, definition)| match definition <= self.max_def {
            true => Ok((repetition, definition)),
            false => Err("a page has levels that its column does not have"),
        }))
    }
}

impl Levels<'_> {
    /// How many values are there.
    pub(super) fn present(self, layout: &Layout) -> Result<usize, Why> {
        let mut count = 0;
        for entry in self {
            count += usize::from(entry?.1 == u32::from(layout.max_def));
        }
        Ok(count)
    }
}

/// How many bytes the levels take from which on this is known; the whole page is more than enough.
pub(super) fn levels_end(header: &Header, layout: &Layout, bytes: &[u8]) -> Option<usize> {
    if header.kind == PageType::DATA_PAGE_V2 {
        return header.rep_bytes.checked_add(header.def_bytes);
    }
    let mut end = 0;
    for _ in 0..usize::from(layout.list_def > 0) + usize::from(layout.max_def > 0) {
        let length = bytes.get(end..)?.first_chunk::<4>()?;
        end = end.checked_add(4)?.checked_add(u32::from_le_bytes(*length) as usize)?;
    }
    Some(end)
}

/// Its levels, and where its values begin.
pub(super) fn levels<'a>(header: &Header, layout: &Layout, bytes: &'a [u8]) -> Result<(Levels<'a>, usize), Why> {
    let short = "a page ends in its levels";
    let (mut at, is_new) = (0, header.kind == PageType::DATA_PAGE_V2);
    let mut take = |own: usize, most: u16| {
        if most == 0 {
            at += if is_new { own } else { 0 };
            return Ok(None);
        }
        let length = match is_new {
            true => own,
            false if header.level_encoding != Encoding::RLE => return Err("a page has levels in an old encoding"),
            false => {
                let length = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(short)?;
                at += 4;
                u32::from_le_bytes(*length) as usize
            }
        };
        let coded = bytes.get(at..).and_then(|rest| rest.get(..length)).ok_or(short)?;
        at += length;
        Ok(Some(Hybrid::new(coded, u16::BITS - most.leading_zeros())))
    };
    let repetition = take(header.rep_bytes, u16::from(layout.list_def > 0))?;
    let definition = take(header.def_bytes, layout.max_def)?;
    let (max_def, left) = (u32::from(layout.max_def), header.values);
    match at <= bytes.len() {
        true => Ok((Levels { repetition, definition, max_def, left }, at)),
        false => Err(short),
    }
}

/// The values of a page as they are read, from its bytes in the file. It has to have as many entries as were counted.
pub(super) fn unpack(
    layout: &Layout,
    codec: Codec,
    packed: &[u8],
    entries: usize,
    dictionary: Option<&[u8]>,
) -> Result<Values, Why> {
    let (header, length) = Header::read(packed).map_err(|_| "a page has a header that cannot be read")?;
    let body =
        packed.get(length..).and_then(|rest| rest.get(..header.compressed)).ok_or("a page is longer than it was")?;
    if header.values != entries {
        return Err("a page has another number of values");
    }
    let bytes = open(&header, codec, body)?;
    if header.kind == PageType::DICTIONARY_PAGE {
        return dictionary_of(layout, &header, &bytes);
    }
    let (levels, start) = levels(&header, layout, &bytes)?;
    let count = levels.present(layout)?;
    values::read(layout, header.encoding, &bytes[start..], count, dictionary)
}

/// The entries of a dictionary, each of which takes bytes.
pub(super) fn dictionary_of(layout: &Layout, header: &Header, bytes: &[u8]) -> Result<Values, Why> {
    let least = match layout.physical {
        Physical::Fixed { bytes } => bytes,
        _ => 4,
    };
    if header.values > bytes.len() / least.max(1) {
        return Err("a dictionary has fewer entries than it says");
    }
    values::read(layout, Encoding::PLAIN, bytes, header.values, None)
}

/// The CRC-32 of a page's bytes in the file, if it has one, is what it should be.
pub(super) fn has_right_sum(header: &Header, body: &[u8]) -> bool {
    header.crc.is_none_or(|crc| u64::from(crc) == crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, body))
}
