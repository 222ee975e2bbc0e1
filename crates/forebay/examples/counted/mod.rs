//! Counts what is allocated, by the thread that does it and by the language it is done in.
//!
//! A program may bring its own `malloc`, which then serves the C libraries, too. This one counts and passes on to the C
//! library's; Rust comes the same way, through an allocator that notes that it was Rust.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who allocates, by the names of the loader's threads.
const ROLES: [(&str, &str); 3] = [("io", "forebay-io"), ("cpu", "forebay-cpu"), ("consumer", "")];
const UNKNOWN: usize = ROLES.len();

thread_local! {
    static ROLE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static IS_RUST: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
struct Counter {
    rust: AtomicU64,
    c: AtomicU64,
    bytes: AtomicU64,
}

static COUNTERS: [Counter; ROLES.len()] =
    [const { Counter { rust: AtomicU64::new(0), c: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; ROLES.len()];

fn count(size_bytes: usize) {
    let role = ROLE.get();
    // A thread gets its name before it does any work; until then it is looked at each time.
    let role = if role == UNKNOWN { find_role() } else { role };
    let counter = &COUNTERS[role];
    if IS_RUST.get() { &counter.rust } else { &counter.c }.fetch_add(1, Relaxed);
    counter.bytes.fetch_add(size_bytes as u64, Relaxed);
}

fn find_role() -> usize {
    let mut name = [0u8; 16];
    // SAFETY: the name is writable for its length, which is the longest that Linux gives a thread.
    unsafe { libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len()) };
    let role = ROLES.iter().position(|(_, prefix)| name.starts_with(prefix.as_bytes())).unwrap_or(UNKNOWN - 1);
    if role < UNKNOWN - 1 {
        ROLE.set(role);
    }
    role
}

/// What was allocated so far: of each role by Rust, by C, and bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts([[u64; 3]; ROLES.len()]);

impl Counts {
    /// Up to now.
    pub(crate) fn now() -> Self {
        Self(COUNTERS.each_ref().map(|counter| [&counter.rust, &counter.c, &counter.bytes].map(|n| n.load(Relaxed))))
    }

    /// Calls since then, of all threads.
    #[allow(dead_code, reason = "not every program that counts asks")]
    pub(crate) fn calls_since(self) -> u64 {
        let calls = |counts: Self| counts.0.iter().map(|[rust, c, _]| rust + c).sum::<u64>();
        calls(Self::now()) - calls(self)
    }

    /// Since then, as a member of a JSON object.
    #[allow(dead_code, reason = "not every program that counts asks")]
    pub(crate) fn since(self) -> String {
        let now = Self::now();
        let role = |at: usize| {
            let [rust, c, bytes] = std::array::from_fn(|k| now.0[at][k] - self.0[at][k]);
            format!(r#""{}": {{"rust": {rust}, "c": {c}, "bytes": {bytes}}}"#, ROLES[at].0)
        };
        format!(r#""allocations": {{{}}}"#, (0..ROLES.len()).map(role).collect::<Vec<_>>().join(", "))
    }
}

/// The system's allocator, noting that Rust asked.
struct Noting;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

fn as_rust<T>(work: impl FnOnce() -> T) -> T {
    IS_RUST.set(true);
    let result = work();
    IS_RUST.set(false);
    result
}

// SAFETY: all four pass on to the system's allocator.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        as_rust(|| unsafe { System.alloc(layout) })
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        as_rust(|| unsafe { System.alloc_zeroed(layout) })
    }
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises.
        as_rust(|| unsafe { System.realloc(old, layout, size) })
    }
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(old, layout) }
    }
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    count(size);
    // SAFETY: the caller's promises.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(items: usize, size: usize) -> *mut c_void {
    count(items.saturating_mul(size));
    // SAFETY: the caller's promises.
    unsafe { __libc_calloc(items, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    count(size);
    // SAFETY: the caller's promises.
    unsafe { __libc_realloc(old, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    count(size);
    // SAFETY: the caller's promises.
    unsafe { __libc_memalign(alignment, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    // SAFETY: the caller's promises.
    let made = unsafe { aligned_alloc(alignment, size) };
    if made.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller gives a place for the result.
    unsafe { *out = made };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    // SAFETY: the caller's promises.
    unsafe { __libc_free(old) }
}
