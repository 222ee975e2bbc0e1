//! The protocol between the loader's process and a reader: one packet per request, and one of fixed size per answer.
//! Bytes and names are passed in the window, which is shared memory. Standard library only.
//!
//! Both sides come from one build, so numbers are in native byte order and there are no versions.

#![allow(dead_code, reason = "each end uses its half")]

use std::ops::Range;

/// The size of the shared memory. Larger objects pass through it piece by piece, so a reader's memory is fixed. 1 MiB
/// holds several samples of most datasets: `docs/decisions/0010-reader-processes.md`.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;
/// A request: one byte for its kind, a span, a range of bytes, then a path. Paths longer than the kernel's 4096 bytes
/// are refused by the kernel, not here.
pub(crate) const MAX_REQUEST_BYTES: usize = 8192;
/// The bytes before the path.
const HEAD_BYTES: usize = 25;
/// An answer: ten words.
pub(crate) const ANSWER_BYTES: usize = 80;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Open this file and return the first piece of the range, or of the part of it that exists.
    Read = 1,
    /// Return the metadata of this path.
    Stat = 2,
    /// Return the first piece of this directory.
    List = 3,
    /// Return the next piece of the open file or directory.
    More = 4,
    /// Close the open file or directory. The only request without an answer.
    Close = 5,
}

/// A part of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where it begins.
    pub(crate) offset: u32,
    /// How long it is.
    pub(crate) length: u32,
}

impl Request {
    /// Encodes a request. The reader may write to `span` until it has answered. Only `Read` has a range.
    pub(crate) fn to_bytes(self, span: Span, range: Range<u64>, path: &[u8]) -> Vec<u8> {
        let [offset, length] = [span.offset, span.length].map(u32::to_ne_bytes);
        let [start, end] = [range.start, range.end].map(u64::to_ne_bytes);
        [&[self as u8], offset.as_slice(), &length, &start, &end, path].concat()
    }

    /// Decodes a request.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<(Self, Span, Range<u64>, &[u8])> {
        let (&[kind, ref numbers @ ..], path) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let (offset, numbers) = numbers.split_first_chunk()?;
        let (length, numbers) = numbers.split_first_chunk()?;
        let (start, numbers) = numbers.split_first_chunk()?;
        let (end, _) = numbers.split_first_chunk()?;
        let span = Span { offset: u32::from_ne_bytes(*offset), length: u32::from_ne_bytes(*length) };
        let range = u64::from_ne_bytes(*start)..u64::from_ne_bytes(*end);
        let kinds = [Self::Read, Self::Stat, Self::List, Self::More, Self::Close];
        Some((kinds.into_iter().find(|known| *known as u8 == kind)?, span, range, path))
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Status {
    /// Success.
    #[default]
    Fine,
    /// The path could not be opened: `errno`.
    NotOpened,
    /// The path could not be examined: `errno`.
    NotExamined,
    /// The file could not be read at `offset`: `errno`.
    NotRead,
    /// The directory could not be listed: `errno`.
    NotListed,
    /// It is not a regular file: `mode` says what it is.
    NotRegular,
    /// The request was invalid.
    NotUnderstood,
}

const STATUSES: [Status; 7] = [
    Status::Fine,
    Status::NotOpened,
    Status::NotExamined,
    Status::NotRead,
    Status::NotListed,
    Status::NotRegular,
    Status::NotUnderstood,
];

/// A reader's answer to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The outcome.
    pub(crate) status: Status,
    /// Nothing follows: `More` would return nothing.
    pub(crate) is_last: bool,
    /// The errno of the failed system call, if one failed.
    pub(crate) errno: i32,
    /// Type and permissions, as stat(2) gives them.
    pub(crate) mode: u32,
    /// Length of the whole object when it was opened.
    pub(crate) size_bytes: u64,
    /// Its modification time in nanoseconds since 1970 when it was opened.
    pub(crate) mtime_ns: i64,
    /// Its length after the last byte was read.
    pub(crate) size_after: u64,
    /// Its modification time after the last byte was read.
    pub(crate) mtime_after: i64,
    /// Identifies a directory, together with `inode`.
    pub(crate) device: u64,
    /// See `device`.
    pub(crate) inode: u64,
    /// Bytes written to the request's span.
    pub(crate) count: u64,
    /// Their offset in the object, or the offset of the failure.
    pub(crate) offset: u64,
}

impl Answer {
    /// Encodes an answer.
    pub(crate) fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let words = [
            self.status as u64 | u64::from(self.is_last) << 8,
            u64::from(self.errno.cast_unsigned()) | u64::from(self.mode) << 32,
            self.size_bytes,
            self.mtime_ns.cast_unsigned(),
            self.device,
            self.inode,
            self.count,
            self.offset,
            self.size_after,
            self.mtime_after.cast_unsigned(),
        ];
        let mut bytes = [0; ANSWER_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Decodes an answer.
    pub(crate) fn from_bytes(bytes: &[u8; ANSWER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_ne_bytes(word)
        };
        Some(Self {
            status: *STATUSES.get((word(0) & 0xff) as usize)?,
            is_last: word(0) >> 8 != 0,
            errno: (word(1) as u32).cast_signed(),
            mode: (word(1) >> 32) as u32,
            size_bytes: word(2),
            mtime_ns: word(3).cast_signed(),
            device: word(4),
            inode: word(5),
            count: word(6),
            offset: word(7),
            size_after: word(8),
            mtime_after: word(9).cast_signed(),
        })
    }
}

/// Writes a directory entry to the start of `window`. Returns its length, or `None` if it does not fit.
pub(crate) fn put_entry(window: &mut [u8], name: &[u8], is_directory: bool) -> Option<usize> {
    let length = u16::try_from(name.len()).ok()?;
    let end = 3 + name.len();
    let place = window.get_mut(..end)?;
    place[0] = u8::from(is_directory);
    place[1..3].copy_from_slice(&length.to_ne_bytes());
    place[3..].copy_from_slice(name);
    Some(end)
}

/// Reads an entry from the start of `window`: its name, whether it is a directory, and the rest of the window.
pub(crate) fn take_entry(window: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let (head, rest) = window.split_at_checked(3)?;
    let (name, rest) = rest.split_at_checked(u16::from_ne_bytes([head[1], head[2]]).into())?;
    Some((name, head[0] != 0, rest))
}
