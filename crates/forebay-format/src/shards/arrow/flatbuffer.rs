//! Flat buffers, as far as Arrow's messages need them: tables whose fields are found by a table of their places. Nothing is
//! believed: a place outside of the message is none.

/// A table in a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The places of its fields.
    places: &'a [u8],
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// What is as far behind a place as the number there says.
fn follow(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(u32::from_le_bytes(word(bytes, at)?) as usize)
}

impl<'a> Table<'a> {
    /// The table that a message is.
    pub(super) fn root(bytes: &'a [u8]) -> Option<Self> {
        Self::new(bytes, follow(bytes, 0)?)
    }

    fn new(bytes: &'a [u8], at: usize) -> Option<Self> {
        let back = i64::from(i32::from_le_bytes(word(bytes, at)?));
        let start = usize::try_from(i64::try_from(at).ok()?.checked_sub(back)?).ok()?;
        let length = usize::from(u16::from_le_bytes(word(bytes, start)?));
        let places = bytes.get(start..start.checked_add(length)?)?.get(4..)?;
        Some(Self { bytes, at, places })
    }

    /// Where a field is; `None` where it has its default.
    fn place(&self, field: usize) -> Option<usize> {
        let offset = u16::from_le_bytes(word(self.places, field * 2)?);
        (offset > 0).then(|| self.at + usize::from(offset))
    }

    pub(super) fn u8(&self, field: usize) -> u8 {
        self.place(field).and_then(|at| self.bytes.get(at).copied()).unwrap_or(0)
    }

    pub(super) fn i16(&self, field: usize) -> i16 {
        self.place(field).and_then(|at| word(self.bytes, at)).map_or(0, i16::from_le_bytes)
    }

    pub(super) fn i32(&self, field: usize) -> i32 {
        self.place(field).and_then(|at| word(self.bytes, at)).map_or(0, i32::from_le_bytes)
    }

    pub(super) fn i64(&self, field: usize) -> i64 {
        self.place(field).and_then(|at| word(self.bytes, at)).map_or(0, i64::from_le_bytes)
    }

    pub(super) fn table(&self, field: usize) -> Option<Self> {
        Self::new(self.bytes, follow(self.bytes, self.place(field)?)?)
    }

    pub(super) fn text(&self, field: usize) -> Option<&'a str> {
        std::str::from_utf8(self.items(field, 1)?).ok()
    }

    /// The bytes of a list whose items have this size.
    pub(super) fn items(&self, field: usize, size: usize) -> Option<&'a [u8]> {
        let at = follow(self.bytes, self.place(field)?)?;
        let count = u32::from_le_bytes(word(self.bytes, at)?) as usize;
        self.bytes.get(at + 4..)?.get(..count.checked_mul(size)?)
    }

    /// The tables of a list; `None` for one that is not there, or among them.
    pub(super) fn tables(&self, field: usize) -> Option<impl Iterator<Item = Option<Self>> + use<'a>> {
        let bytes = self.bytes;
        let start = follow(bytes, self.place(field)?)? + 4;
        let count = self.items(field, 4)?.len() / 4;
        Some((0..count).map(move |item| Self::new(bytes, follow(bytes, start + item * 4)?)))
    }
}
