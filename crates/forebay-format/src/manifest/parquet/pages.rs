//! The pages of a column chunk. All page headers are checked before the first page is decoded. A header that claims
//! more than its bytes can hold is refused: the library would allocate it, and a failed allocation aborts the process.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use parquet::basic::{Encoding, PageType, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;

use crate::parquet_pages::{Header, Thrift, wrong};

type Result<T> = std::result::Result<T, ParquetError>;

/// Snappy's highest ratio: a copy of 64 bytes takes 3.
const MAX_SNAPPY_RATIO: u64 = 22;

/// The footer's description of a column chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) physical: Physical,
    pub(super) is_optional: bool,
    pub(super) is_snappy: bool,
    /// Rows of its row group.
    pub(super) rows: u64,
}

/// The pages of a column chunk, in order.
pub(super) struct Pages {
    chunk: Chunk,
    pages: VecDeque<(Header, Bytes)>,
}

impl Pages {
    /// Parses all page headers in a column chunk's bytes.
    pub(super) fn new(chunk: Chunk, mut bytes: Bytes) -> Result<Self> {
        let (mut pages, mut rows) = (VecDeque::new(), 0);
        while !bytes.is_empty() {
            let (header, length) = Header::read(&bytes)?;
            bytes.advance(length);
            if header.compressed > bytes.len() {
                return Err(wrong(format!("a page claims {} bytes of {}", header.compressed, bytes.len())));
            }
            let body = bytes.split_to(header.compressed);
            header.check(&chunk)?;
            rows += header.flat_rows().unwrap_or(0) as u64;
            if header.kind != PageType::INDEX_PAGE {
                pages.push_back((header, body));
            }
        }
        if rows != chunk.rows {
            return Err(wrong(format!("pages of {} rows have {rows}", chunk.rows)));
        }
        Ok(Self { chunk, pages })
    }

    /// Size of the largest page whose cells may each be as long as the page itself (delta encoding with shared
    /// prefixes).
    pub(super) fn longest_cell(&self) -> usize {
        let shares = self.pages.iter().filter(|(header, _)| header.encoding == Encoding::DELTA_BYTE_ARRAY);
        shares.map(|(header, _)| header.uncompressed).max().unwrap_or(0)
    }

    fn decoded(&self, header: &Header, body: Bytes) -> Result<Page> {
        let levels = header.def_bytes + header.rep_bytes;
        let body = match self.chunk.is_snappy && header.is_compressed {
            true => {
                let mut whole = vec![0; header.uncompressed];
                whole[..levels].copy_from_slice(&body[..levels]);
                // Without values there may be nothing to decompress.
                let length = match header.uncompressed > levels {
                    true => snap::raw::Decoder::new()
                        .decompress(&body[levels..], &mut whole[levels..])
                        .map_err(|error| wrong(format!("a page cannot be decompressed: {error}")))?,
                    false => 0,
                };
                if length != header.uncompressed - levels {
                    return Err(wrong(format!("a page of {} bytes has {}", header.uncompressed, length + levels)));
                }
                Bytes::from(whole)
            }
            false => body,
        };
        header.check_values(&self.chunk, &body)?;
        let num_values = header.values as u32;
        Ok(match header.kind {
            PageType::DICTIONARY_PAGE => {
                Page::DictionaryPage { buf: body, num_values, encoding: header.encoding, is_sorted: false }
            }
            PageType::DATA_PAGE_V2 => Page::DataPageV2 {
                buf: body,
                num_values,
                encoding: header.encoding,
                num_nulls: header.nulls as u32,
                num_rows: num_values,
                def_levels_byte_len: header.def_bytes as u32,
                rep_levels_byte_len: header.rep_bytes as u32,
                is_compressed: header.is_compressed,
                statistics: None,
            },
            _ => Page::DataPage {
                buf: body,
                num_values,
                encoding: header.encoding,
                def_level_encoding: header.level_encoding,
                rep_level_encoding: Encoding::RLE,
                statistics: None,
            },
        })
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        let (header, body) = self.pages.pop_front()?;
        Some(self.decoded(&header, body))
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.next().transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Ok(self.pages.front().map(|(header, _)| PageMetadata {
            num_rows: header.flat_rows(),
            num_levels: header.flat_rows(),
            is_dict: header.kind == PageType::DICTIONARY_PAGE,
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.pop_front();
        Ok(())
    }
}

impl Header {
    /// Rows of a data page: a flat column has a value or a null for each.
    fn flat_rows(&self) -> Option<usize> {
        matches!(self.kind, PageType::DATA_PAGE | PageType::DATA_PAGE_V2).then_some(self.values)
    }

    /// Refuses a header that claims more than the bytes can hold.
    fn check(&self, chunk: &Chunk) -> Result<()> {
        let levels = self.def_bytes + self.rep_bytes;
        if levels > self.compressed.min(self.uncompressed) {
            return Err(wrong(format!("a page claims {levels} bytes of levels in {}", self.compressed)));
        }
        let coded = (self.compressed - levels) as u64;
        let most = match chunk.is_snappy && self.is_compressed {
            true => coded.saturating_mul(MAX_SNAPPY_RATIO) + levels as u64,
            false => self.compressed as u64,
        };
        if self.uncompressed as u64 > most {
            let (claimed, got) = (self.uncompressed, self.compressed);
            return Err(wrong(format!("a page claims {claimed} bytes, which {got} bytes cannot hold")));
        }
        if self.nulls > self.values {
            return Err(wrong(format!("a page claims {} nulls in {} values", self.nulls, self.values)));
        }
        if self.flat_rows().is_some_and(|rows| rows as u64 > chunk.rows) {
            return Err(wrong(format!("a page claims {} values of {} rows", self.values, chunk.rows)));
        }
        Ok(())
    }

    /// Refuses a body that claims more than its decompressed bytes can hold.
    fn check_values(&self, chunk: &Chunk, body: &Bytes) -> Result<()> {
        let short = |at: usize| wrong(format!("a page of {} bytes ends before byte {at}", body.len()));
        match self.kind {
            PageType::DICTIONARY_PAGE => {
                let width = match chunk.physical {
                    Physical::INT64 | Physical::DOUBLE => 8,
                    // A string is preceded by its length.
                    _ => 4,
                };
                if self.values > body.len() / width {
                    let (claimed, most) = (self.values, body.len() / width);
                    return Err(wrong(format!(
                        "a dictionary claims {claimed} values (its {} bytes hold at most {most})",
                        body.len()
                    )));
                }
                return Ok(());
            }
            _ if !matches!(self.encoding, Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY) => {
                return Ok(());
            }
            _ => {}
        }
        let begin = match (self.kind, chunk.is_optional, self.level_encoding) {
            (PageType::DATA_PAGE_V2, ..) => self.def_bytes + self.rep_bytes,
            (_, false, _) => 0,
            (_, true, Encoding::RLE) => {
                let length = body.first_chunk::<4>().ok_or_else(|| short(4))?;
                (u32::from_le_bytes(*length) as usize).saturating_add(4)
            }
            (_, true, _) => self.values.div_ceil(8),
        };
        let values = body.get(begin..).ok_or_else(|| short(begin))?;
        let mut lengths = values;
        if self.encoding == Encoding::DELTA_BYTE_ARRAY {
            let end = delta_end(values, self.values)?;
            lengths = values.get(end..).ok_or_else(|| short(begin + end))?;
        }
        delta_end(lengths, self.values).map(drop)
    }
}

/// Where delta-encoded numbers end, if there are at most `max` of them. Their claimed count precedes them, and a delta
/// may take no bytes at all.
fn delta_end(bytes: &[u8], max: usize) -> Result<usize> {
    let mut thrift = Thrift::new(bytes);
    let (block, minis, count) = (thrift.varint()?, thrift.varint()?, thrift.varint()?);
    thrift.varint()?;
    if count > max as u64 {
        return Err(wrong(format!("a page of {max} values claims {count} lengths")));
    }
    if minis == 0 || block == 0 || !block.is_multiple_of(minis) || !(block / minis).is_multiple_of(32) {
        return Err(wrong(format!("a page claims blocks of {block} values in {minis} parts")));
    }
    let (each, mut left) = (block / minis, count.saturating_sub(1));
    while left > 0 {
        thrift.varint()?;
        let widths = thrift.take(usize::try_from(minis).unwrap_or(usize::MAX))?;
        for &width in widths {
            if left == 0 {
                break;
            }
            // The library reads the last miniblock whole, too.
            thrift.take(usize::try_from(u64::from(width).saturating_mul(each) / 8).unwrap_or(usize::MAX))?;
            left = left.saturating_sub(each);
        }
    }
    Ok(thrift.position())
}
