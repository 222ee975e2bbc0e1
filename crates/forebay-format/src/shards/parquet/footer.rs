//! The footer of a Parquet file: its schema, and where the column chunks of its row groups are. What it claims is checked where it
//! is used; a claim takes no more memory here than the bytes that make it.

use forebay_core::{Error, Kind, Result};
use parquet::errors::ParquetError;

use crate::parquet_pages::{Thrift, Type, wrong};

/// In front of every file, and behind it.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";
/// The same of files whose footer is encrypted.
const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";
/// The length of the footer and the magic number.
pub(super) const TAIL_BYTES: u64 = 8;
/// A hundred thousand chunks take less.
const MAX_FOOTER_BYTES: u64 = 64 << 20;
/// More columns, of all depths, are no table of samples.
const MAX_ELEMENTS: usize = 100_000;
/// Every chunk takes as much in a footer, so that few bytes do not become many chunks.
const MIN_CHUNK_BYTES: usize = 12;

/// What the footer of a file says.
#[derive(Debug, Default)]
pub(super) struct Footer {
    /// The schema, depth first.
    pub(super) elements: Vec<Element>,
    pub(super) groups: Vec<Group>,
    /// What `datasets` says about its columns, as JSON.
    pub(super) huggingface: Option<Vec<u8>>,
    /// Whether it is a manifest of forebay's own.
    pub(super) is_manifest: bool,
}

/// A column, or a group of columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Element {
    pub(super) name: String,
    /// Of a leaf.
    pub(super) physical: Option<i32>,
    pub(super) type_length: i32,
    pub(super) repetition: i32,
    pub(super) children: i32,
    pub(super) converted: Option<i32>,
    pub(super) logical: Option<Logical>,
}

/// The logical types that matter here; any other is known by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logical {
    Integer { bits: u8, is_signed: bool },
    Other(i64),
}

/// A row group.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) rows: i64,
    /// Of all values, before they are compressed.
    pub(super) size_bytes: i64,
    pub(super) chunks: Vec<Chunk>,
}

/// The values of a column in a row group.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    pub(super) codec: i32,
    pub(super) values: i64,
    pub(super) size_bytes: i64,
    pub(super) data_page: i64,
    pub(super) dictionary_page: Option<i64>,
    pub(super) is_elsewhere: bool,
    pub(super) is_encrypted: bool,
}

/// How long the footer is, in front of its length, by the last bytes of a file of this size.
pub(super) fn footer_bytes(size_bytes: u64, tail: &[u8]) -> Result<Result<u64, String>> {
    let Some([a, b, c, d, magic @ ..]) = tail.last_chunk::<8>() else {
        return Ok(Err(format!("it has {size_bytes} bytes")));
    };
    if magic == ENCRYPTED_MAGIC {
        return Err(encrypted());
    }
    if magic != MAGIC {
        return Ok(Err("its last bytes are not those of a Parquet file: it may have been cut off".to_owned()));
    }
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    Ok(match length <= (size_bytes - TAIL_BYTES).min(MAX_FOOTER_BYTES) {
        true => Ok(length),
        false => Err(format!("its footer claims {length} bytes of {size_bytes}")),
    })
}

pub(super) fn encrypted() -> Error {
    let hint = "write it again without encryption: keys are not supported";
    Error::new(Kind::Undecodable, "is encrypted, which is not read").with_hint(hint)
}

impl Footer {
    /// Reads its bytes; what is wrong about them is said in words.
    pub(super) fn read(bytes: &[u8]) -> Result<Result<Self, String>> {
        let (mut footer, mut is_encrypted) = (Self::default(), false);
        let mut thrift = Thrift::new(bytes);
        let read = thrift.fields(&mut |thrift, id, field| {
            match id {
                2 => thrift.structs(field, &mut |thrift| {
                    footer.elements.push(Element::read(thrift)?);
                    if footer.elements.len() > MAX_ELEMENTS {
                        return Err(wrong(format!("its schema has more than {MAX_ELEMENTS} columns")));
                    }
                    Ok(())
                })?,
                4 => thrift.structs(field, &mut |thrift| {
                    let start = thrift.position();
                    footer.groups.push(Group::read(thrift)?);
                    if thrift.position() - start < MIN_CHUNK_BYTES {
                        return Err(wrong("a row group without columns"));
                    }
                    Ok(())
                })?,
                5 => thrift.structs(field, &mut |thrift| {
                    match key_value(thrift)? {
                        (b"huggingface", Some(value)) => footer.huggingface = Some(value.to_vec()),
                        (b"forebay.version", _) => footer.is_manifest = true,
                        _ => {}
                    }
                    Ok(())
                })?,
                // The footer can be read, and columns of it are encrypted: chunks say which.
                8 => {
                    is_encrypted = true;
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        });
        match read {
            Ok(()) if is_encrypted => Err(encrypted()),
            Ok(()) => Ok(Ok(footer)),
            Err(error) => Ok(Err(words(&error))),
        }
    }
}

/// What the error says, without the words that the library puts in front of it.
pub(super) fn words(error: &ParquetError) -> String {
    match error {
        ParquetError::General(message) => message.clone(),
        other => other.to_string(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Element {
    fn read(thrift: &mut Thrift<'_>) -> std::result::Result<Self, ParquetError> {
        let mut element = Self::default();
        thrift.fields(&mut |thrift, id, field| {
            match id {
                1 => element.physical = Some(thrift.i32(field)?),
                2 => element.type_length = thrift.i32(field)?,
                3 => element.repetition = thrift.i32(field)?,
                4 => element.name = text(thrift.binary(field)?),
                5 => element.children = thrift.i32(field)?,
                6 => element.converted = Some(thrift.i32(field)?),
                10 if field == Type::Struct => element.logical = logical(thrift)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }
}

/// A union: one field, whose number says which.
fn logical(thrift: &mut Thrift<'_>) -> std::result::Result<Option<Logical>, ParquetError> {
    let mut found = None;
    thrift.fields(&mut |thrift, id, field| {
        found = Some(Logical::Other(id));
        if (id, field) != (10, Type::Struct) {
            return Ok(false);
        }
        let (mut bits, mut is_signed) = (0, true);
        thrift.fields(&mut |thrift, id, field| {
            match id {
                1 => bits = thrift.small(field)?,
                2 => is_signed = field == Type::True,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        found = Some(Logical::Integer { bits, is_signed });
        Ok(true)
    })?;
    Ok(found)
}

impl Group {
    fn read(thrift: &mut Thrift<'_>) -> std::result::Result<Self, ParquetError> {
        let mut group = Self::default();
        thrift.fields(&mut |thrift, id, field| {
            match id {
                1 => thrift.structs(field, &mut |thrift| {
                    let start = thrift.position();
                    group.chunks.push(Chunk::read(thrift)?);
                    if thrift.position() - start < MIN_CHUNK_BYTES {
                        return Err(wrong("a column chunk without its metadata"));
                    }
                    Ok(())
                })?,
                2 => group.size_bytes = thrift.i64(field)?,
                3 => group.rows = thrift.i64(field)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(group)
    }
}

impl Chunk {
    fn read(thrift: &mut Thrift<'_>) -> std::result::Result<Self, ParquetError> {
        let mut chunk = Self::default();
        thrift.fields(&mut |thrift, id, field| {
            match (id, field) {
                (1, Type::Binary) => chunk.is_elsewhere = !thrift.binary(field)?.is_empty(),
                (3, Type::Struct) => chunk.read_metadata(thrift)?,
                (8 | 9, _) => {
                    chunk.is_encrypted = true;
                    return Ok(false);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(chunk)
    }

    fn read_metadata(&mut self, thrift: &mut Thrift<'_>) -> std::result::Result<(), ParquetError> {
        thrift.fields(&mut |thrift, id, field| {
            match id {
                4 => self.codec = thrift.i32(field)?,
                5 => self.values = thrift.i64(field)?,
                7 => self.size_bytes = thrift.i64(field)?,
                9 => self.data_page = thrift.i64(field)?,
                11 => self.dictionary_page = Some(thrift.i64(field)?),
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    /// Where its pages are, if that is inside of a file of this size.
    pub(super) fn range(&self, size_bytes: u64) -> Option<std::ops::Range<u64>> {
        // Some writers say 0 where there is no dictionary.
        let first = self.dictionary_page.filter(|page| *page > 0 && *page < self.data_page).unwrap_or(self.data_page);
        let start = u64::try_from(first).ok().filter(|start| *start >= MAGIC.len() as u64)?;
        let end = start.checked_add(u64::try_from(self.size_bytes).ok()?)?;
        (end <= size_bytes).then_some(start..end)
    }
}

/// A key-value pair of the metadata.
fn key_value<'a>(thrift: &mut Thrift<'a>) -> std::result::Result<(&'a [u8], Option<&'a [u8]>), ParquetError> {
    let (mut key, mut value) = (&b""[..], None);
    thrift.fields(&mut |thrift, id, field| {
        match (id, field) {
            (1, Type::Binary) => key = thrift.binary(field)?,
            (2, Type::Binary) => value = Some(thrift.binary(field)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((key, value))
}
