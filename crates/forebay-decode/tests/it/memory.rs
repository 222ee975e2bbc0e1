//! An allocator that counts what the thread of a test has taken, and refuses large requests when told to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count(change: isize) {
    // A thread that is ending has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn is_refused(size: usize) -> bool {
    LARGEST.try_with(|largest| size > largest.get()).unwrap_or(false)
}

// SAFETY: every request goes to the system's allocator with the layout it came with; a null pointer means that there is
// no memory, as the trait says.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_refused(size) {
            return std::ptr::null_mut();
        }
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's pointer, layout and size.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that this thread held at once during `work`, beyond those it held before.
pub(crate) fn peak_bytes(work: impl FnOnce()) -> u64 {
    let before = HELD.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as u64
}

/// Calls `work` while requests of this thread for more than `bytes` at once fail.
pub(crate) fn with_largest<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    LARGEST.set(bytes);
    let done = work();
    LARGEST.set(usize::MAX);
    done
}
