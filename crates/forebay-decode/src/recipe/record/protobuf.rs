//! Protocol buffers: fields of a message by number, as they come. Groups, which are of before 2008, are refused.

use forebay_core::{Error, Kind, Result};

/// The value of a field, by how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    /// Eight bytes.
    Wide,
    Bytes(&'a [u8]),
    /// Four bytes.
    Narrow([u8; 4]),
}

/// The fields of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a>(pub(super) &'a [u8]);

pub(super) fn damaged() -> Error {
    Error::new(Kind::Corrupt, "is damaged (no protocol buffer)")
}

impl<'a> Message<'a> {
    /// The next field and its value; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = varint(&mut self.0)?;
        let wire = match tag & 7 {
            0 => Wire::Varint(varint(&mut self.0)?),
            1 => {
                self.0.split_off(..8).ok_or_else(damaged)?;
                Wire::Wide
            }
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).map_err(|_| damaged())?;
                Wire::Bytes(self.0.split_off(..length).ok_or_else(damaged)?)
            }
            5 => {
                let bytes = self.0.split_off(..4).ok_or_else(damaged)?;
                Wire::Narrow(*bytes.first_chunk().ok_or_else(damaged)?)
            }
            _ => return Err(damaged()),
        };
        Ok(Some((tag >> 3, wire)))
    }
}

/// A number in groups of seven bits, the lowest first.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = bytes.split_off_first().ok_or_else(damaged)?;
        // Of the tenth byte only one bit has a place; others are dropped, as Google's own parsers do.
        value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or_default();
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_have_an_end() {
        let read = |mut bytes: &[u8]| varint(&mut bytes).ok();
        assert_eq!(read(&[0x96, 0x01]), Some(150));
        let negative = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        assert_eq!(read(&negative), Some(u64::MAX));
        assert_eq!((read(&[0x80]), read(&[]), read(&[0xFF; 11])), (None, None, None));
    }

    #[test]
    fn fields_are_those_of_the_message() {
        let mut message = Message(&[0x08, 7, 0x12, 2, b'a', b'b', 0x1D, 1, 2, 3, 4, 0x21, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut next = || message.next().unwrap();
        assert_eq!(next(), Some((1, Wire::Varint(7))));
        assert_eq!(next(), Some((2, Wire::Bytes(b"ab"))));
        assert_eq!(next(), Some((3, Wire::Narrow([1, 2, 3, 4]))));
        assert_eq!((next(), next()), (Some((4, Wire::Wide)), None));
        for bad in [&[0x0B][..], &[0x12, 5, 1], &[0x1D, 1], &[0x08]] {
            assert!(Message(bad).next().is_err(), "{bad:?}");
        }
    }
}
