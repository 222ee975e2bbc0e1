//! The header in front of a page of Parquet. It says what the page claims, which is not checked here.

use parquet::basic::{Encoding, PageType};
use parquet::errors::ParquetError;

use super::thrift::{Thrift, Type, wrong};

type Result<T> = std::result::Result<T, ParquetError>;

/// A page header: the fields that are used, for each kind of page.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) kind: PageType,
    pub(crate) compressed: usize,
    pub(crate) uncompressed: usize,
    pub(crate) values: usize,
    pub(crate) nulls: usize,
    pub(crate) encoding: Encoding,
    pub(crate) level_encoding: Encoding,
    /// Bytes of levels, which version 2 does not compress.
    pub(crate) def_bytes: usize,
    pub(crate) rep_bytes: usize,
    pub(crate) is_compressed: bool,
    /// Rows that begin in it, where it says so: pages of version 2 do.
    pub(crate) rows: Option<usize>,
    /// The CRC-32 of its bytes in the file, where it has one.
    pub(crate) crc: Option<u32>,
}

impl Header {
    /// Parses a header. Returns it and its length.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, usize)> {
        let (mut kind, mut compressed, mut uncompressed) = (None, None, None);
        let mut header = Self {
            kind: PageType::INDEX_PAGE,
            compressed: 0,
            uncompressed: 0,
            values: 0,
            nulls: 0,
            encoding: Encoding::PLAIN,
            level_encoding: Encoding::RLE,
            def_bytes: 0,
            rep_bytes: 0,
            is_compressed: true,
            rows: None,
            crc: None,
        };
        // The page kind that the fields belong to; it must be the header's own kind.
        let mut described = None;
        let mut thrift = Thrift::new(bytes);
        thrift.fields(&mut |thrift, id, field| {
            match (id, field) {
                (1, _) => kind = Some(thrift.i32(field)?),
                (2, _) => uncompressed = Some(size(thrift, field)?),
                (3, _) => compressed = Some(size(thrift, field)?),
                (4, Type::I32) => header.crc = Some(thrift.i32(field)?.cast_unsigned()),
                (5, Type::Struct) => {
                    described = Some(PageType::DATA_PAGE);
                    header.read_data(thrift)?;
                }
                (7, Type::Struct) => {
                    described = Some(PageType::DICTIONARY_PAGE);
                    header.read_dictionary(thrift)?;
                }
                (8, Type::Struct) => {
                    described = Some(PageType::DATA_PAGE_V2);
                    header.read_data_2(thrift)?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        header.kind = match kind {
            Some(0) => PageType::DATA_PAGE,
            Some(1) => PageType::INDEX_PAGE,
            Some(2) => PageType::DICTIONARY_PAGE,
            Some(3) => PageType::DATA_PAGE_V2,
            other => return Err(wrong(format!("a page is of an unknown kind ({other:?})"))),
        };
        if header.kind != PageType::INDEX_PAGE && described != Some(header.kind) {
            return Err(wrong("a page has the header of another kind of page"));
        }
        let (Some(compressed), Some(uncompressed)) = (compressed, uncompressed) else {
            return Err(wrong("a page has no size"));
        };
        (header.compressed, header.uncompressed) = (compressed, uncompressed);
        Ok((header, thrift.position()))
    }

    fn read_data(&mut self, thrift: &mut Thrift<'_>) -> Result<()> {
        thrift.fields(&mut |thrift, id, field| {
            match id {
                1 => self.values = size(thrift, field)?,
                2 => self.encoding = encoding(thrift, field)?,
                3 => self.level_encoding = encoding(thrift, field)?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    fn read_dictionary(&mut self, thrift: &mut Thrift<'_>) -> Result<()> {
        thrift.fields(&mut |thrift, id, field| {
            match id {
                1 => self.values = size(thrift, field)?,
                2 => self.encoding = encoding(thrift, field)?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    fn read_data_2(&mut self, thrift: &mut Thrift<'_>) -> Result<()> {
        thrift.fields(&mut |thrift, id, field| {
            match id {
                1 => self.values = size(thrift, field)?,
                2 => self.nulls = size(thrift, field)?,
                3 => self.rows = Some(size(thrift, field)?),
                4 => self.encoding = encoding(thrift, field)?,
                5 => self.def_bytes = size(thrift, field)?,
                6 => self.rep_bytes = size(thrift, field)?,
                7 => self.is_compressed = field == Type::True,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}

fn size(thrift: &mut Thrift<'_>, field: Type) -> Result<usize> {
    let claimed = thrift.i32(field)?;
    usize::try_from(claimed).map_err(|_| wrong(format!("a page claims a size of {claimed}")))
}

fn encoding(thrift: &mut Thrift<'_>, field: Type) -> Result<Encoding> {
    #[expect(deprecated, reason = "old files have levels packed so")]
    Ok(match thrift.i32(field)? {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        other => return Err(wrong(format!("a page has an unknown encoding ({other})"))),
    })
}
