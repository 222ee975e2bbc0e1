//! The blocks of 512 bytes that tar archives are made of, as far as they are headers: ustar's, GNU tar's, and those from before.

/// Headers are of this size, and contents are filled up to a multiple of it.
pub(super) const BLOCK_BYTES: usize = 512;

/// What stands in a header of every format since 1988, at [`MAGIC_AT`].
pub(super) const MAGIC: &[u8] = b"ustar";
pub(super) const MAGIC_AT: usize = 257;

pub(super) type Block = [u8; BLOCK_BYTES];

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    /// A file of which only what is not zero is stored: GNU tar's own form.
    Sparse,
    /// Says the name of the next member: GNU tar.
    LongName,
    /// Says where the next member, which is a link, leads: GNU tar.
    LongLink,
    /// Says name, size and more of the next member: pax.
    Extended,
    /// The same for all that follow: pax.
    Global,
    Directory,
    Link,
    /// Something without content: a device.
    Device,
    /// Something that has content and is no file.
    Other,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) name: Vec<u8>,
    /// Of the content that follows.
    pub(super) size: u64,
    /// Whether a block follows that says more about a sparse file.
    pub(super) has_map: bool,
}

/// What a block is where a header should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Header(Header),
    /// Nothing but zeros, as at the end of an archive.
    Zeros,
    /// No header, and why.
    Damaged(&'static str),
}

/// Reads a block.
pub(super) fn read(block: &Block) -> Found {
    if *block == [0; BLOCK_BYTES] {
        return Found::Zeros;
    }
    if !has_checksum(block) {
        return Found::Damaged("a header with a wrong checksum");
    }
    let kind = match block[156] {
        b'0' | 0 | b'7' => Kind::File,
        b'1' | b'2' => Kind::Link,
        b'3' | b'4' | b'6' => Kind::Device,
        b'5' => Kind::Directory,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        b'S' => Kind::Sparse,
        b'x' | b'X' => Kind::Extended,
        b'g' => Kind::Global,
        _ => Kind::Other,
    };
    let is_ustar = block[MAGIC_AT..].starts_with(b"ustar\0");
    let name = text(&block[..100]);
    let prefix = if is_ustar { text(&block[345..500]) } else { b"" };
    let name = if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() };
    // Before ustar, directories were files whose names end so. Later, a name that ends so may be one that was cut.
    let is_old_directory = block[156] == 0 && !has_magic(block) && name.ends_with(b"/");
    let kind = if is_old_directory { Kind::Directory } else { kind };
    let Some(size) = number(&block[124..136]) else {
        return Found::Damaged("a header with a size that is no number");
    };
    let size = if matches!(kind, Kind::Directory | Kind::Link | Kind::Device) { 0 } else { size };
    let has_map = kind == Kind::Sparse && block[482] == 1;
    Found::Header(Header { kind, name, size, has_map })
}

/// Whether a block has the checksum of a header: the sum of its bytes, with blanks in place of the sum itself. Some old writers
/// have added the bytes as signed ones.
pub(super) fn has_checksum(block: &Block) -> bool {
    let Some(sum) = number(&block[148..156]) else { return false };
    let (before, after) = (&block[..148], &block[156..]);
    let unsigned: u64 = before.iter().chain(after).map(|byte| u64::from(*byte)).sum();
    let signed: i64 = before.iter().chain(after).map(|byte| i64::from(byte.cast_signed())).sum();
    let blanks = 8 * u64::from(b' ');
    sum == unsigned + blanks || i64::try_from(sum).is_ok_and(|sum| sum == signed + blanks.cast_signed())
}

/// Whether a block has the magic bytes of ustar. Those of headers from before are like a header that lacks its first byte, now and
/// then: they are headers only in archives that begin with such a one.
pub(super) fn has_magic(block: &Block) -> bool {
    block[MAGIC_AT..].starts_with(MAGIC)
}

/// Whether a block that is no header was one: it has the magic bytes of ustar, but for one perhaps that is all that is wrong.
pub(super) fn was_header(block: &Block) -> bool {
    let magic = MAGIC_AT..MAGIC_AT + MAGIC.len();
    let wrong = block[magic.clone()].iter().zip(MAGIC).filter(|(one, other)| one != other).count();
    let mut restored = *block;
    restored[magic].copy_from_slice(MAGIC);
    wrong == 0 || (wrong == 1 && has_checksum(&restored))
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

/// A number: octal digits, or, where those do not suffice, bytes behind one that says so (base 256).
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        return field[1..].iter().try_fold(0u64, |sum, byte| Some(sum.checked_mul(256)? | u64::from(*byte)));
    }
    let digits = text(field).trim_ascii();
    let digit = |byte: &u8| (b'0'..=b'7').contains(byte).then(|| u64::from(byte - b'0'));
    match digits.is_empty() {
        // Old writers leave fields blank that are zero; a checksum never is.
        true => Some(0),
        false => digits.iter().try_fold(0u64, |sum, byte| sum.checked_mul(8)?.checked_add(digit(byte)?)),
    }
}

/// What pax headers say that matters here; each of it in place of what the next header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) is_sparse: bool,
}

impl Pax {
    /// Reads records `length name=value\n`. `None` where they are anything else.
    pub(super) fn parse(mut records: &[u8]) -> Option<Self> {
        let mut found = Self::default();
        while records.first().is_some_and(|byte| *byte != 0) {
            let blank = records.iter().position(|byte| *byte == b' ').filter(|at| *at > 0 && *at < 20)?;
            let length: usize = std::str::from_utf8(&records[..blank]).ok()?.parse().ok()?;
            let record = records.get(blank + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (&record[..equals], &record[equals + 1..]);
            match name {
                b"path" => found.name = found.name.or(Some(value.to_vec())),
                b"GNU.sparse.name" => found.name = Some(value.to_vec()),
                b"size" => found.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                _ => {}
            }
            found.is_sparse |= name.starts_with(b"GNU.sparse.");
            records = &records[length..];
        }
        Some(found)
    }

    /// What this says, and where it says nothing, what another one does.
    pub(super) fn or(self, other: &Self) -> Self {
        Self {
            name: self.name.or_else(|| other.name.clone()),
            size: self.size.or(other.size),
            is_sparse: self.is_sparse || other.is_sparse,
        }
    }
}
