//! The memory that a reader fills and this process reads. What came in one piece is used where it lies; the reader
//! fills other parts of the window meanwhile, so nobody waits for whoever uses it.

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

/// The unit that parts of a window are given out in: one bit of a word each.
const PANE_BYTES: usize = WINDOW_BYTES / u64::BITS as usize;
/// Panes in a row that stay free whatever is held, for the next object: 256 KiB. What would leave fewer is copied.
const RESERVED_PANES: u32 = 16;

/// The memory of one reader, mapped in both processes. It keeps its size: neither side can run past its end.
#[derive(Debug)]
pub(super) struct Window {
    address: NonNull<u8>,
    /// The panes that nobody has, a bit each.
    free: AtomicU64,
}

// SAFETY: the mapping belongs to no thread. Which part may be read by whom is said by the views, whose panes are given
// out and taken back with atomic operations.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// A new one, and the descriptor that a reader needs to map it; it is not needed here.
    pub(super) fn new() -> io::Result<(Arc<Self>, File)> {
        let file = program::memory_file(c"forebay-window", MemfdFlags::ALLOW_SEALING)?;
        file.set_len(WINDOW_BYTES as u64)?;
        // What cannot shrink cannot take pages away that are mapped: reading them is never SIGBUS.
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        // SAFETY: a new mapping, at an address of the kernel's choice, of a file that is and stays that long.
        let address = unsafe { mmap(std::ptr::null_mut(), WINDOW_BYTES, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
        let address = NonNull::new(address.cast()).expect("the kernel maps nothing at 0 unless it is told to");
        Ok((Arc::new(Self { address, free: AtomicU64::new(u64::MAX) }), file))
    }

    /// Whether an object of usual size could be kept.
    pub(super) fn has_room(&self) -> bool {
        Panes::longest(self.free.load(Acquire)).count >= 2 * RESERVED_PANES
    }

    /// The largest part that nobody has; `None` when there is none at all.
    pub(super) fn view(self: &Arc<Self>) -> Option<View> {
        let mut panes = Panes { first: 0, count: 0 };
        let take = |free| {
            panes = Panes::longest(free);
            (panes.count > 0).then_some(free & !panes.bits())
        };
        // Acquire: whoever had these panes before has read what it wanted.
        self.free.fetch_update(AcqRel, Acquire, take).ok()?;
        Some(View { window: Arc::clone(self), panes })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and the views, which keep the window, are gone.
        let _unmapped = unsafe { munmap(self.address.as_ptr().cast(), WINDOW_BYTES) };
    }
}

/// A part of a window that nobody else has here. Dropping it gives it back.
///
/// The reader writes to it between a request that names it and the answer, and at no other time. A reader that was
/// written off may still do so: its window is never given out again, because only the reader's owner asks it for views.
#[derive(Debug)]
pub(crate) struct View {
    window: Arc<Window>,
    panes: Panes,
}

impl View {
    /// Where it lies, for a request.
    pub(super) fn span(&self) -> Span {
        let [offset, length] = [self.panes.first, self.panes.count].map(|panes| panes * PANE_BYTES as u32);
        Span { offset, length }
    }

    /// All of it, with what the reader has put there. Only after its answer.
    pub(super) fn bytes(&self) -> &[u8] {
        let Span { offset, length } = self.span();
        // SAFETY: the span is within the mapping, which lives as long as `self.window`. Nobody writes to it: the reader
        // has answered, and a request that names the view again needs its owner, who cannot have lent it then.
        unsafe { std::slice::from_raw_parts(self.window.address.as_ptr().add(offset as usize), length as usize) }
    }

    /// Keeps the first `count` bytes for whoever will use them, and gives back the rest; or, when that leaves too little
    /// for the reader to go on with, returns all of it.
    pub(super) fn keep(mut self, count: usize) -> Result<Kept, Self> {
        let kept = Panes { count: count.div_ceil(PANE_BYTES) as u32, ..self.panes };
        if kept.count > self.panes.count {
            return Err(self);
        }
        let rest = self.panes.bits() & !kept.bits();
        if Panes::longest(self.window.free.load(Acquire) | rest).count < RESERVED_PANES {
            return Err(self);
        }
        self.panes = kept;
        self.window.free.fetch_or(rest, AcqRel);
        Ok(Kept { view: self, count })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.window.free.fetch_or(self.panes.bits(), AcqRel);
    }
}

/// An object that is used in a window.
#[derive(Debug)]
pub(crate) struct Kept {
    view: View,
    count: usize,
}

impl std::ops::Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view.bytes()[..self.count]
    }
}

/// Panes in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Panes {
    first: u32,
    count: u32,
}

impl Panes {
    /// The longest row of ones, the first of them.
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

    /// What the reader does.
    fn fill(file: &File, view: &View, byte: u8) {
        let Span { offset, length } = view.span();
        file.write_all_at(&vec![byte; length as usize], offset.into()).unwrap();
    }

    #[test]
    fn the_longest_row_is_found_and_counted() {
        let row = |first, count| Panes { first, count };
        for (bits, longest) in [
            (0, row(0, 0)),
            (1, row(0, 1)),
            (u64::MAX, row(0, 64)),
            (1 << 63, row(63, 1)),
            (0b0111_0110_1111, row(0, 4)),
            (0b0111_1011_0111, row(7, 4)),
            (u64::MAX << 10, row(10, 54)),
        ] {
            assert_eq!(Panes::longest(bits), longest, "{bits:b}");
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
        // Seven panes each: 42 are held, and one of the same size leaves 15.
        let refused = window.view().unwrap().keep(100_000).unwrap_err();
        assert_eq!(refused.span(), Span { offset: 42 * PANE_BYTES as u32, length: 22 * PANE_BYTES as u32 });
        fill(&file, &refused, 99);
        for (byte, kept) in (0..).zip(&kept) {
            assert!(kept.len() == 100_000 && kept.iter().all(|&found| found == byte));
        }
        drop(refused);
        kept.drain(1..3);
        let view = window.view().unwrap();
        assert_eq!(view.span(), Span { offset: 42 * PANE_BYTES as u32, length: 22 * PANE_BYTES as u32 });
        drop((kept, view));
        assert_eq!(window.view().unwrap().span(), Span { offset: 0, length: WINDOW_BYTES as u32 });
    }

    #[test]
    fn nothing_is_given_out_twice_whoever_gives_back() {
        let (window, _file) = Window::new().unwrap();
        let whole = window.view().unwrap();
        assert!(window.view().is_none());
        assert!(whole.keep(WINDOW_BYTES).is_err(), "the reader would have nothing to go on with");
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for size in 0..20_000 {
                        let Some(view) = window.view() else { continue };
                        let Ok(kept) = view.keep(size % 200_000) else { continue };
                        let bits = kept.view.panes.bits();
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
