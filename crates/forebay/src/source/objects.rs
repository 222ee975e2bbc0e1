//! What was read of a sample: the bytes of its fields, several of which may lie in one piece that was read.

use std::ops::Range;

use forebay_core::{Error, Field, Result};
use forebay_store::{Object, Stat};
use smallvec::SmallVec;

/// The buffers that fields were read into, for the next reads.
pub(crate) type Buffers = SmallVec<[Vec<u8>; 1]>;

/// The fields of a sample that were read so far, in their order.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    read: SmallVec<[Object; 1]>,
    fields: SmallVec<[Place; 2]>,
}

/// Where a field is in what was read.
#[derive(Debug)]
struct Place {
    object: usize,
    bytes: Range<usize>,
}

impl Objects {
    /// The next field, read by itself.
    pub(crate) fn push(&mut self, object: Object) {
        self.fields.push(Place { object: self.read.len(), bytes: 0..object.bytes.len() });
        self.read.push(object);
    }

    /// The next fields, which lie here in what was read.
    pub(crate) fn push_parts(&mut self, object: Object, parts: impl Iterator<Item = Range<usize>>) -> Result<()> {
        let (number, got) = (self.read.len(), object.bytes.len());
        for bytes in parts {
            if bytes.start > bytes.end || bytes.end > got {
                return Err(Error::internal(format!("was read as {got} bytes, with a field at {bytes:?}")));
            }
            self.fields.push(Place { object: number, bytes });
        }
        self.read.push(object);
        Ok(())
    }

    /// The bytes of each field.
    pub(crate) fn bytes(&self) -> SmallVec<[&[u8]; 4]> {
        self.fields.iter().map(|place| &self.read[place.object].bytes[place.bytes.clone()]).collect()
    }

    /// The bytes of one field, if it was read.
    pub(crate) fn bytes_of(&self, field: Field) -> Option<&[u8]> {
        let Place { object, bytes } = self.fields.get(field.0 as usize)?;
        self.read[*object].bytes.get(bytes.clone())
    }

    /// The metadata of the object that a field is in.
    pub(crate) fn stat_of(&self, field: Field) -> Option<Stat> {
        Some(self.read[self.fields.get(field.0 as usize)?.object].stat)
    }

    /// How many bytes were read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read.iter().map(|object| object.bytes.len() as u64).sum()
    }

    /// Gives the bytes up, and where a reader process has put them, its memory.
    pub(crate) fn into_buffers(self) -> Buffers {
        self.read.into_iter().map(|object| object.bytes.into_buffer()).collect()
    }
}
