//! The members of a ZIP archive that is in memory, as `numpy.savez` writes it: stored or deflated.
//!
//! Only the central directory is believed, and nothing of it without a check: places, sizes and checksums.

use std::io::Read as _;

use flate2::Crc;
use flate2::read::DeflateDecoder;
use forebay_core::{Error, Kind, Result};

use crate::memory::reserve;

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const END_64_LOCATOR: &[u8] = b"PK\x06\x07";
const END_64: &[u8] = b"PK\x06\x06";
const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
const STORED: u64 = 0;
const DEFLATED: u64 = 8;

/// One member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) name: &'a [u8],
    method: u64,
    is_encrypted: bool,
    crc: u32,
    packed_bytes: u64,
    size_bytes: u64,
    local: u64,
}

/// The members in the order of the central directory.
pub(crate) fn members(archive: &[u8]) -> Result<Vec<Member<'_>>> {
    let (count, mut rest) = directory(archive)?;
    // Each takes 46 bytes of the directory at least, so a count that lies costs no memory.
    if count > rest.len() as u64 / 46 {
        return Err(damaged(format!("claims {count} members in a directory of {} bytes", rest.len())));
    }
    let mut found = Vec::new();
    reserve(&mut found, count as usize, "its directory")?;
    for _ in 0..count {
        found.push(entry(&mut rest)?);
    }
    Ok(found)
}

impl Member<'_> {
    /// How long it is unpacked, as it claims.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its content, unpacked and checked.
    pub(crate) fn read(&self, archive: &[u8]) -> Result<Vec<u8>> {
        let name = self.name.escape_ascii();
        if self.is_encrypted {
            return Err(Error::new(Kind::Undecodable, format!("has the member \"{name}\", which is encrypted")));
        }
        let packed = self.packed(archive)?;
        let mut content = Vec::new();
        match self.method {
            STORED if packed.len() as u64 == self.size_bytes => {
                reserve(&mut content, packed.len(), "one of its members")?;
                content.extend_from_slice(packed);
            }
            STORED => return Err(damaged(format!("has the member \"{name}\" with two different sizes"))),
            DEFLATED => {
                // No byte of deflate unpacks to more than 1032.
                if self.size_bytes / 1032 > packed.len() as u64 {
                    let (claimed, got) = (self.size_bytes, packed.len());
                    return Err(damaged(format!("claims {claimed} bytes in {got} for its member \"{name}\"")));
                }
                reserve(&mut content, self.size_bytes as usize, "one of its members")?;
                let most = self.size_bytes.saturating_add(1);
                DeflateDecoder::new(packed).take(most).read_to_end(&mut content).map_err(|error| {
                    damaged(format!("has the damaged member \"{name}\"")).with_detail(error.to_string())
                })?;
            }
            other => {
                let message = format!("has the member \"{name}\" in compression {other} (expected stored or deflated)");
                return Err(Error::new(Kind::Undecodable, message));
            }
        }
        if content.len() as u64 != self.size_bytes {
            let (expected, got) = (self.size_bytes, content.len());
            return Err(damaged(format!(
                "has the member \"{name}\" of another size (expected {expected} bytes, got {got})"
            )));
        }
        let mut crc = Crc::new();
        crc.update(&content);
        match crc.sum() == self.crc {
            true => Ok(content),
            false => Err(damaged(format!("has the member \"{name}\", whose checksum does not fit"))),
        }
    }

    /// Its bytes in the archive, behind a header of their own.
    fn packed<'a>(&self, archive: &'a [u8]) -> Result<&'a [u8]> {
        let outside = || damaged(format!("has the member \"{}\" outside of the file", self.name.escape_ascii()));
        let mut rest = usize::try_from(self.local).ok().and_then(|local| archive.get(local..)).ok_or_else(outside)?;
        let head = rest.split_off(..30).filter(|head| head.starts_with(LOCAL)).ok_or_else(outside)?;
        let more = number(&head[26..28]) + number(&head[28..30]);
        let content = rest.get(more as usize..).ok_or_else(outside)?;
        usize::try_from(self.packed_bytes).ok().and_then(|packed| content.get(..packed)).ok_or_else(outside)
    }
}

/// How many members there are, and the central directory.
fn directory(archive: &[u8]) -> Result<(u64, &[u8])> {
    // A comment of up to 64 KiB may follow.
    let from = archive.len().saturating_sub(END_BYTES + 0xFFFF);
    let is_end = |at: &usize| archive[*at..].starts_with(END) && archive.len() - at >= END_BYTES;
    let Some(end) = (from..archive.len()).rev().find(is_end) else {
        return Err(damaged("has no end of a ZIP archive: it is truncated, or something else".to_owned()));
    };
    let short = &archive[end..end + END_BYTES];
    let (mut count, mut size, mut start) = (number(&short[10..12]), number(&short[12..16]), number(&short[16..20]));
    if count == 0xFFFF || size == 0xFFFF_FFFF || start == 0xFFFF_FFFF {
        let locator = end.checked_sub(20).map(|at| &archive[at..end]).filter(|bytes| bytes.starts_with(END_64_LOCATOR));
        let at = locator.and_then(|locator| usize::try_from(number(&locator[8..16])).ok());
        let long = at.and_then(|at| archive.get(at..)?.get(..56)).filter(|bytes| bytes.starts_with(END_64));
        let Some(long) = long else {
            return Err(damaged("has no directory where its end says that there is one".to_owned()));
        };
        (count, size, start) = (number(&long[32..40]), number(&long[40..48]), number(&long[48..56]));
    }
    let directory = usize::try_from(start).ok().zip(usize::try_from(size).ok());
    let directory = directory.and_then(|(start, size)| archive.get(start..)?.get(..size));
    directory
        .map(|directory| (count, directory))
        .ok_or_else(|| damaged("has its directory outside of the file".to_owned()))
}

/// The next entry of the directory, which is moved on.
fn entry<'a>(rest: &mut &'a [u8]) -> Result<Member<'a>> {
    let cut = || damaged("has a damaged directory".to_owned());
    let head = rest.split_off(..46).filter(|head| head.starts_with(ENTRY)).ok_or_else(cut)?;
    let length = |at: usize| number(&head[at..at + 2]) as usize;
    let name = rest.split_off(..length(28)).ok_or_else(cut)?;
    let mut more = rest.split_off(..length(30)).ok_or_else(cut)?;
    rest.split_off(..length(32)).ok_or_else(cut)?;
    let mut long = [number(&head[24..28]), number(&head[20..24]), number(&head[42..46])];
    // Numbers beyond 32 bits stand in a field of their own, each only where its short form is full.
    while let Some(field) = more.split_off(..4) {
        let mut content = more.split_off(..number(&field[2..4]) as usize).ok_or_else(cut)?;
        if field[..2] == [1, 0] {
            for value in long.iter_mut().filter(|value| **value == 0xFFFF_FFFF) {
                *value = number(content.split_off(..8).ok_or_else(cut)?);
            }
        }
    }
    let [size_bytes, packed_bytes, local] = long;
    Ok(Member {
        name,
        method: number(&head[10..12]),
        is_encrypted: head[8] & 1 != 0,
        crc: number(&head[16..20]) as u32,
        packed_bytes,
        size_bytes,
        local,
    })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn damaged(message: String) -> Error {
    Error::new(Kind::Corrupt, message)
}
