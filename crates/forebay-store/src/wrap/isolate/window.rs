//! The shared memory that a reader writes and this process reads. Bytes that arrive in one piece are used in place; the
//! reader continues in other parts of the window, so it need not wait for the consumer.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::program;
use crate::reader::protocol::{Span, WINDOW_BYTES};

/// The allocation unit of a window: one bit of a word each.
const BLOCK_BYTES: usize = WINDOW_BYTES / u64::BITS as usize;
/// Adjacent blocks that are kept free for the next object: 256 KiB. If keeping an object leaves fewer, it is copied.
const RESERVED_BLOCKS: u32 = 16;

/// The shared memory of one reader, mapped in both processes. Its size is sealed: neither side can run past its end.
#[derive(Debug)]
pub(super) struct Window {
    address: NonNull<u8>,
    /// Free blocks, one bit each.
    free: AtomicU64,
}

// SAFETY: the mapping belongs to no thread. Views control which part may be read by whom; their blocks are allocated and
// freed with atomic operations.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Creates a window, and the descriptor that a reader needs to map it; this process does not need the descriptor.
    pub(super) fn new() -> io::Result<(Arc<Self>, File)> {
        let file = program::memory_file(c"forebay-window", MemfdFlags::ALLOW_SEALING)?;
        file.set_len(WINDOW_BYTES as u64)?;
        // A file that cannot shrink cannot lose mapped pages: reading them is never SIGBUS.
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        // SAFETY: a new mapping, at an address of the kernel's choice, of a file that is and stays that long.
        let address = unsafe { mmap(std::ptr::null_mut(), WINDOW_BYTES, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
        let address = NonNull::new(address.cast()).expect("the kernel maps nothing at 0 unless it is told to");
        Ok((Arc::new(Self { address, free: AtomicU64::new(u64::MAX) }), file))
    }

    /// Whether an object of usual size could be kept in place.
    pub(super) fn has_room(&self) -> bool {
        Blocks::longest(self.free.load(Acquire)).count >= 2 * RESERVED_BLOCKS
    }

    /// Takes the largest free part; `None` if there is none.
    pub(super) fn view(self: &Arc<Self>) -> Option<View> {
        let mut blocks = Blocks { first: 0, count: 0 };
        let take = |free| {
            blocks = Blocks::longest(free);
            (blocks.count > 0).then_some(free & !blocks.bits())
        };
        // Acquire: the previous owner of these blocks has finished reading.
        self.free.fetch_update(AcqRel, Acquire, take).ok()?;
        Some(View { window: Arc::clone(self), blocks })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and the views, which keep the window, are gone.
        let _unmapped = unsafe { munmap(self.address.as_ptr().cast(), WINDOW_BYTES) };
    }
}

/// A part of a window with one owner in this process. Dropping it frees it.
///
/// The reader writes to it between a request that names it and the answer, and at no other time. A reader that was
/// killed may still do so, but its window is never used again, because only the reader's owner asks it for views.
#[derive(Debug)]
pub(crate) struct View {
    window: Arc<Window>,
    blocks: Blocks,
}

impl View {
    /// Its position, for a request.
    pub(super) fn span(&self) -> Span {
        let [offset, length] = [self.blocks.first, self.blocks.count].map(|blocks| blocks * BLOCK_BYTES as u32);
        Span { offset, length }
    }

    /// All of it, including the bytes that the reader has written. Only valid after its answer.
    pub(super) fn bytes(&self) -> &[u8] {
        let Span { offset, length } = self.span();
        // SAFETY: the span is within the mapping, which lives as long as `self.window`. Nothing writes to it: the
        // reader has answered, and a request that names the view again needs its owner, who cannot have lent it then.
        unsafe { std::slice::from_raw_parts(self.window.address.as_ptr().add(offset as usize), length as usize) }
    }

    /// Keeps the first `count` bytes and frees the rest. If that leaves too little room for the reader, returns the
    /// whole view instead.
    pub(super) fn keep(mut self, count: usize) -> Result<WindowBytes, Self> {
        let kept = Blocks { count: count.div_ceil(BLOCK_BYTES) as u32, ..self.blocks };
        if kept.count > self.blocks.count {
            return Err(self);
        }
        let rest = self.blocks.bits() & !kept.bits();
        if Blocks::longest(self.window.free.load(Acquire) | rest).count < RESERVED_BLOCKS {
            return Err(self);
        }
        self.blocks = kept;
        self.window.free.fetch_or(rest, AcqRel);
        Ok(WindowBytes { view: self, count })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.window.free.fetch_or(self.blocks.bits(), AcqRel);
    }
}

/// An object's bytes, used in place in a window.
#[derive(Debug)]
pub(crate) struct WindowBytes {
    view: View,
    count: usize,
}

impl std::ops::Deref for WindowBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view.bytes()[..self.count]
    }
}

/// A run of adjacent blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    first: u32,
    count: u32,
}

impl Blocks {
    /// The first longest run of ones.
    fn longest(bits: u64) -> Self {
        let (mut longest, mut at) = (Self { first: 0, count: 0 }, 0);
        while let Some(rest) = bits.checked_shr(at).filter(|rest| *rest != 0) {
            let first = at + rest.trailing_zeros();
            let count = (bits >> first).trailing_ones();
            if count > longest.count {
                longest = Self { first, count };
            }
            at = first + count;
        }
        longest
    }

    fn bits(self) -> u64 {
        let ones = u64::MAX.checked_shr(u64::BITS - self.count).unwrap_or(0);
        ones.checked_shl(self.first).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Acts as the reader.
    fn fill(file: &File, view: &View, byte: u8) {
        let Span { offset, length } = view.span();
        file.write_all_at(&vec![byte; length as usize], offset.into()).unwrap();
    }

    #[test]
    fn the_longest_row_is_found_and_counted() {
        let row = |first, count| Blocks { first, count };
        for (bits, longest) in [
            (0, row(0, 0)),
            (1, row(0, 1)),
            (u64::MAX, row(0, 64)),
            (1 << 63, row(63, 1)),
            (0b0111_0110_1111, row(0, 4)),
            (0b0111_1011_0111, row(7, 4)),
            (u64::MAX << 10, row(10, 54)),
        ] {
            assert_eq!(Blocks::longest(bits), longest, "{bits:b}");
        }
        assert_eq!(
            [row(0, 64).bits(), row(63, 1).bits(), row(4, 3).bits(), row(7, 0).bits()],
            [u64::MAX, 1 << 63, 0b111_0000, 0]
        );
    }

    #[test]
    fn what_is_kept_stays_and_the_rest_is_given_out() {
        let (window, file) = Window::new().unwrap();
        let mut kept = Vec::new();
        for byte in 0..6 {
            let view = window.view().unwrap();
            fill(&file, &view, byte);
            kept.push(view.keep(100_000).unwrap());
        }
        // Seven blocks each: 42 are in use, and another seven would leave 15.
        let refused = window.view().unwrap().keep(100_000).unwrap_err();
        assert_eq!(refused.span(), Span { offset: 42 * BLOCK_BYTES as u32, length: 22 * BLOCK_BYTES as u32 });
        fill(&file, &refused, 99);
        for (byte, kept) in (0..).zip(&kept) {
            assert!(kept.len() == 100_000 && kept.iter().all(|&found| found == byte));
        }
        drop(refused);
        kept.drain(1..3);
        let view = window.view().unwrap();
        assert_eq!(view.span(), Span { offset: 42 * BLOCK_BYTES as u32, length: 22 * BLOCK_BYTES as u32 });
        drop((kept, view));
        assert_eq!(window.view().unwrap().span(), Span { offset: 0, length: WINDOW_BYTES as u32 });
    }

    #[test]
    fn nothing_is_given_out_twice() {
        let (window, _file) = Window::new().unwrap();
        let whole = window.view().unwrap();
        assert!(window.view().is_none());
        assert!(whole.keep(WINDOW_BYTES).is_err(), "the reader would have no room left");
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for size in 0..20_000 {
                        let Some(view) = window.view() else { continue };
                        let Ok(kept) = view.keep(size % 200_000) else { continue };
                        let bits = kept.view.blocks.bits();
                        assert_eq!(seen.fetch_or(bits, AcqRel) & bits, 0);
                        seen.fetch_and(!bits, AcqRel);
                    }
                });
            }
        });
        assert_eq!(window.free.load(Acquire), u64::MAX);
    }

    #[test]
    fn what_is_kept_outlives_the_window_and_its_file() {
        let (window, file) = Window::new().unwrap();
        let view = window.view().unwrap();
        fill(&file, &view, 7);
        assert!(file.set_len(0).is_err(), "it would be SIGBUS");
        let kept = view.keep(100).unwrap();
        drop((window, file));
        assert_eq!(*kept, [7; 100]);
    }
}
