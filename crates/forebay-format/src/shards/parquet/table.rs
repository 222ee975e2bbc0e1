//! The pages of a file that are unpacked before their values are read.
//!
//! Behind the end of the file, where nothing is, lie the values of these pages, back to back: a place there is one in an unpacked
//! page. So what an index knows of a sample is the same for all formats: where bytes are, and their checksum.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};

use super::page::{self, Codec, MAX_PAGE_BYTES};
use super::schema::{Layout, Physical};
use crate::extents::take_word;

/// The pages of a file that have to be unpacked, and the rows that are best read together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTable {
    /// Of the file itself.
    size_bytes: u64,
    /// How pages of a kind are read.
    layouts: Vec<(Layout, Codec)>,
    pages: Vec<Page>,
    /// The end of the last one's values.
    end: u64,
    /// Rows that are best read together: how many there are in each block.
    blocks: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// In the file, with its header.
    pub(super) packed: u64,
    pub(super) packed_bytes: u32,
    /// Of its values, behind the end of the file.
    pub(super) start: u64,
    /// Between the two: its bytes unpacked.
    pub(super) body_bytes: u32,
    pub(super) entries: u32,
    pub(super) layout: u16,
    /// The page with the dictionary that its values are in.
    pub(super) dictionary: Option<u32>,
}

/// Where a page is, for [`PageTable::push`].
pub(super) struct NewPage {
    pub(super) packed: Range<u64>,
    pub(super) body_bytes: u32,
    pub(super) entries: u32,
    pub(super) dictionary: Option<u32>,
}

impl PageTable {
    pub(super) fn new(size_bytes: u64) -> Self {
        Self { size_bytes, end: size_bytes, ..Self::default() }
    }

    /// Adds a page that has `values_bytes` of values, which are at least one. Gives its number, and where its values are.
    pub(super) fn push(
        &mut self,
        (layout, codec): (Layout, Codec),
        page: &NewPage,
        values_bytes: usize,
    ) -> Result<(u32, u64)> {
        let no_place = |_| Error::internal("a page of too many bytes was to be kept");
        let own = (layout, codec);
        let layout = self.layouts.iter().position(|known| *known == own).unwrap_or(self.layouts.len());
        if layout == self.layouts.len() {
            self.layouts.push(own);
        }
        let number = u32::try_from(self.pages.len()).map_err(no_place)?;
        self.pages.try_reserve(1).map_err(super::super::numbers::no_memory)?;
        let start = self.end;
        self.pages.push(Page {
            packed: page.packed.start,
            packed_bytes: u32::try_from(page.packed.end - page.packed.start).map_err(no_place)?,
            start,
            body_bytes: page.body_bytes,
            entries: page.entries,
            layout: u16::try_from(layout).map_err(no_place)?,
            dictionary: page.dictionary,
        });
        self.end += values_bytes as u64;
        Ok((number, start))
    }

    pub(super) fn set_blocks(&mut self, blocks: Vec<u64>) {
        self.blocks = blocks;
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Rows that are best read together: how many there are in each block, in the order of the file.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// The length of the file itself. What is before it is in the file, and what is behind it in pages.
    pub fn file_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Where the values of the last page end.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many pages there are.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// The page whose values have this byte, which is behind the end of the file.
    pub fn page_of(&self, position: u64) -> usize {
        self.pages.partition_point(|page| page.start <= position).saturating_sub(1)
    }

    /// Where the values of a page are, behind the end of the file.
    pub fn range(&self, page: usize) -> Range<u64> {
        self.pages[page].start..self.pages.get(page + 1).map_or(self.end, |next| next.start)
    }

    /// Where a page is in the file.
    pub fn packed_range(&self, page: usize) -> Range<u64> {
        let Page { packed, packed_bytes, .. } = self.pages[page];
        packed..packed + u64::from(packed_bytes)
    }

    /// The page with its dictionary, whose values [`PageTable::unpack`] needs.
    pub fn dictionary(&self, page: usize) -> Option<usize> {
        self.pages[page].dictionary.map(|page| page as usize)
    }

    /// Memory that unpacking it takes beside its bytes in the file and what becomes of them.
    pub fn body_bytes(&self, page: usize) -> u64 {
        u64::from(self.pages[page].body_bytes)
    }

    /// The values of a page, from the bytes of its [`PageTable::packed_range`].
    pub fn unpack(&self, page: usize, packed: &[u8], dictionary: Option<&[u8]>) -> Result<Vec<u8>> {
        let (known, range) = (&self.pages[page], self.range(page));
        let (layout, codec) = &self.layouts[usize::from(known.layout)];
        let damaged = |why: &str| {
            let hint = "restore the file from its source, or let it be indexed again";
            Error::new(Kind::Corrupt, format!("is in a page that is damaged: {why}")).with_hint(hint)
        };
        let values = page::unpack(layout, *codec, packed, known.entries as usize, dictionary).map_err(damaged)?;
        match values.bytes.len() as u64 == range.end - range.start {
            true => Ok(values.bytes),
            false => Err(damaged("its values have another length")),
        }
    }

    /// Memory that it takes.
    pub(in crate::shards) fn memory_bytes(&self) -> usize {
        self.pages.len() * size_of::<Page>() + self.blocks.len() * 8
    }

    pub(in crate::shards) fn write(&self, out: &mut Vec<u8>) {
        let mut word = |word: u64| out.extend(word.to_le_bytes());
        word(self.end);
        word(self.layouts.len() as u64);
        for (Layout { physical, width, is_integer, max_def, list_def }, codec) in &self.layouts {
            let (kind, bytes) = match physical {
                Physical::Boolean => (0, 0),
                Physical::ByteArray => (1, 0),
                Physical::Fixed { bytes } => (2, *bytes as u64),
            };
            let levels = u64::from(*max_def) << 16 | u64::from(*list_def);
            word(kind | bytes << 8);
            word(*width as u64);
            word(levels << 16 | u64::from(*is_integer) << 8 | *codec as u64);
        }
        word(self.pages.len() as u64);
        for Page { packed, packed_bytes, start, body_bytes, entries, layout, dictionary } in &self.pages {
            word(*packed);
            word(*start);
            word(u64::from(*packed_bytes) << 32 | u64::from(*body_bytes));
            word(u64::from(*entries) << 32 | u64::from(*layout));
            word(dictionary.map_or(u64::MAX, u64::from));
        }
        word(self.blocks.len() as u64);
        self.blocks.iter().for_each(|rows| word(*rows));
    }

    /// Reads what [`PageTable::write`] wrote about a file of this size. `None` where it is anything else.
    pub(in crate::shards) fn parse(bytes: &mut &[u8], size_bytes: u64) -> Option<Self> {
        let mut table = Self::new(size_bytes);
        table.end = take_word(bytes)?;
        // Each takes bytes, so a count that the bytes do not hold ends soon.
        for _ in 0..take_word(bytes)? {
            let (physical, width, rest) = (take_word(bytes)?, take_word(bytes)?, take_word(bytes)?);
            let length = physical >> 8;
            let physical = match physical & 0xFF {
                0 if length == 0 => Physical::Boolean,
                1 if length == 0 => Physical::ByteArray,
                2 if (1..=MAX_PAGE_BYTES).contains(&length) => Physical::Fixed { bytes: length as usize },
                _ => return None,
            };
            let width = usize::try_from(width).ok()?;
            let is_right = match physical {
                Physical::Boolean => width == 1,
                Physical::ByteArray => width == 0,
                Physical::Fixed { bytes } => (1..=bytes).contains(&width),
            };
            let codec = *Codec::ALL.get((rest & 0xFF) as usize)?;
            let (list_def, max_def) = ((rest >> 16) as u16, (rest >> 32) as u16);
            if !is_right || rest >> 48 != 0 || list_def > max_def || rest >> 8 & 0xFF > 1 {
                return None;
            }
            let layout = Layout { physical, width, is_integer: rest >> 8 & 1 == 1, max_def, list_def };
            table.layouts.push((layout, codec));
        }
        for _ in 0..take_word(bytes)? {
            let (packed, start, sizes) = (take_word(bytes)?, take_word(bytes)?, take_word(bytes)?);
            let (counts, dictionary) = (take_word(bytes)?, take_word(bytes)?);
            let dictionary = match dictionary {
                u64::MAX => None,
                number => Some(u32::try_from(number).ok().filter(|number| (*number as usize) < table.pages.len())?),
            };
            let layout = u16::try_from(counts & 0xFFFF_FFFF).ok()?;
            let (packed_bytes, body_bytes, entries) = ((sizes >> 32) as u32, sizes as u32, (counts >> 32) as u32);
            table.pages.push(Page { packed, packed_bytes, start, body_bytes, entries, layout, dictionary });
        }
        for _ in 0..take_word(bytes)? {
            table.blocks.push(take_word(bytes)?);
        }
        table.is_sound().then_some(table)
    }

    /// Values lie one behind the other, from the end of the file on, and pages are in it.
    fn is_sound(&self) -> bool {
        self.pages.first().map_or(self.end, |first| first.start) == self.size_bytes
            && self.pages.iter().enumerate().all(|(number, page)| {
                let end = self.pages.get(number + 1).map_or(self.end, |next| next.start);
                page.start < end
                    && end - page.start <= MAX_PAGE_BYTES
                    && page.packed.checked_add(u64::from(page.packed_bytes)).is_some_and(|end| end <= self.size_bytes)
                    && usize::from(page.layout) < self.layouts.len()
                    && page.dictionary.is_none_or(|dictionary| self.pages[dictionary as usize].dictionary.is_none())
            })
    }
}
