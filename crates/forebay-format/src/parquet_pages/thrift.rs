//! Thrift's compact protocol, as far as footers and page headers need it. Every length is checked against the bytes
//! present, and nothing is allocated.

use parquet::errors::ParquetError;

type Result<T> = std::result::Result<T, ParquetError>;

/// Deeper than the structs of any footer.
const MAX_DEPTH: u32 = 32;

/// The type of a value, which precedes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    True,
    False,
    Byte,
    I16,
    I32,
    I64,
    Double,
    Binary,
    List,
    Set,
    Map,
    Struct,
    Uuid,
}

impl Type {
    fn of(number: u8) -> Result<Self> {
        Ok(match number {
            1 => Self::True,
            2 => Self::False,
            3 => Self::Byte,
            4 => Self::I16,
            5 => Self::I32,
            6 => Self::I64,
            7 => Self::Double,
            8 => Self::Binary,
            9 => Self::List,
            10 => Self::Set,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            other => return Err(wrong(format!("metadata has a value of an unknown type ({other})"))),
        })
    }
}

pub(crate) fn wrong(message: impl Into<String>) -> ParquetError {
    ParquetError::General(message.into())
}

/// Reads values one after the other.
pub(crate) struct Thrift<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Thrift<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, length: bytes.len() }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.length - self.rest.len()
    }

    /// The next `count` bytes, if there are that many.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(wrong(format!("metadata ends early (expected {count} more bytes, got {})", self.rest.len())));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// An unsigned variable-length integer.
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("metadata has a number of more than 10 bytes"))
    }

    fn signed(&mut self) -> Result<i64> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// A 32-bit integer, from a field of this type.
    pub(crate) fn i32(&mut self, field: Type) -> Result<i32> {
        if field != Type::I32 {
            return Err(wrong(format!("metadata has a field of the wrong type (expected I32, got {field:?})")));
        }
        let number = self.signed()?;
        i32::try_from(number).map_err(|_| wrong(format!("metadata has {number} where 32 bits are expected")))
    }

    /// An integer of up to 64 bits, from a field of this type.
    pub(crate) fn i64(&mut self, field: Type) -> Result<i64> {
        match field {
            Type::I16 | Type::I32 | Type::I64 => self.signed(),
            other => Err(wrong(format!("metadata has a field of the wrong type (expected I64, got {other:?})"))),
        }
    }

    /// A byte, from a field of this type.
    pub(crate) fn small(&mut self, field: Type) -> Result<u8> {
        match field {
            Type::Byte => self.byte(),
            other => Err(wrong(format!("metadata has a field of the wrong type (expected Byte, got {other:?})"))),
        }
    }

    /// Bytes, from a field of this type.
    pub(crate) fn binary(&mut self, field: Type) -> Result<&'a [u8]> {
        if field != Type::Binary {
            return Err(wrong(format!("metadata has a field of the wrong type (expected Binary, got {field:?})")));
        }
        let length = self.varint()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Calls `read` for each struct of a list.
    pub(crate) fn structs(&mut self, field: Type, read: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let (element, count) = match field {
            Type::List => self.list()?,
            other => {
                return Err(wrong(format!("metadata has a field of the wrong type (expected List, got {other:?})")));
            }
        };
        if count > 0 && element != Type::Struct {
            return Err(wrong(format!("metadata has a list of the wrong type (expected Struct, got {element:?})")));
        }
        (0..count).try_for_each(|_| read(self))
    }

    /// Calls `read` for each field of a struct. It reads the value and returns true, or returns false to have it
    /// skipped.
    pub(crate) fn fields(&mut self, read: &mut dyn FnMut(&mut Self, i64, Type) -> Result<bool>) -> Result<()> {
        self.fields_within(MAX_DEPTH, read)
    }

    fn fields_within(&mut self, depth: u32, read: &mut dyn FnMut(&mut Self, i64, Type) -> Result<bool>) -> Result<()> {
        let mut id = 0;
        loop {
            let header = self.byte()?;
            if header & 0x0f == 0 {
                return Ok(());
            }
            let field = Type::of(header & 0x0f)?;
            id = match header >> 4 {
                0 => self.signed()?,
                delta => id + i64::from(delta),
            };
            if !read(self, id, field)? {
                self.skip(field, depth)?;
            }
        }
    }

    /// The type and number of a list's elements, each of which takes at least a byte.
    pub(crate) fn list(&mut self) -> Result<(Type, usize)> {
        let header = self.byte()?;
        // Some writers give an empty list no type.
        if header == 0 {
            return Ok((Type::Byte, 0));
        }
        let count = match header >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        Ok((Type::of(header & 0x0f)?, self.checked_count(count)?))
    }

    fn checked_count(&self, count: u64) -> Result<usize> {
        let fits = usize::try_from(count).ok().filter(|&count| count <= self.rest.len());
        fits.ok_or_else(|| wrong(format!("metadata has a list of {count} elements in {} bytes", self.rest.len())))
    }

    fn skip(&mut self, value: Type, depth: u32) -> Result<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(wrong(format!("metadata is nested more than {MAX_DEPTH} deep")));
        };
        match value {
            Type::True | Type::False => {}
            Type::Byte => drop(self.byte()?),
            Type::I16 | Type::I32 | Type::I64 => drop(self.varint()?),
            Type::Double => drop(self.take(8)?),
            Type::Uuid => drop(self.take(16)?),
            Type::Binary => {
                let length = self.varint()?;
                self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
            }
            Type::List | Type::Set => {
                let (element, count) = self.list()?;
                for _ in 0..count {
                    self.skip_element(element, depth)?;
                }
            }
            Type::Map => {
                let count = self.varint()?;
                let count = self.checked_count(count)?;
                let types = if count > 0 { self.byte()? } else { 0x11 };
                let (key, value) = (Type::of(types >> 4)?, Type::of(types & 0x0f)?);
                for _ in 0..count {
                    self.skip_element(key, depth)?;
                    self.skip_element(value, depth)?;
                }
            }
            Type::Struct => self.fields_within(depth, &mut |_, _, _| Ok(false))?,
        }
        Ok(())
    }

    /// In a list a boolean has a byte of its own; in a struct its value is part of the field's type.
    fn skip_element(&mut self, value: Type, depth: u32) -> Result<()> {
        match value {
            Type::True | Type::False => self.byte().map(drop),
            other => self.skip(other, depth),
        }
    }
}
