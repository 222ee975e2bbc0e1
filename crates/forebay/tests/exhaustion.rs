//! A lack of memory is an error of the sample, never the end of the process: the nth allocation fails, for every n over a
//! batch of each format (docs/decisions/0031). A program of its own, because it brings its own `malloc`.
//!
//! Each sweep runs in a forked child, so that an abort is a failure of the test with its place.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay::{Column, Config, Detail, Interpolation, Kind, Loader, Op, Pipeline, ResizeTo, Source};

/// Everything whose size a file decides, in pictures of some hundred pixels a side.
const PAGE: usize = 4 << 10;
/// Above what the crates for PNG, LZW and deflate take whatever the file: their memory cannot be refused.
const CRATES: usize = 512 << 10;

/// Allocations of at least so many bytes are counted; the one that takes the count below zero is refused.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LEFT: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static TRACES: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_TRACING: Cell<bool> = const { Cell::new(false) };
}

fn refuses(size: usize) -> bool {
    if size < LEAST.load(SeqCst) || IS_TRACING.get() {
        return false;
    }
    if LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
        return false;
    }
    LEAST.store(usize::MAX, SeqCst);
    REFUSED.store(size, SeqCst);
    if TRACES.load(SeqCst) {
        IS_TRACING.set(true);
        let trace = format!("refused {size} bytes:\n{}", std::backtrace::Backtrace::force_capture());
        // SAFETY: the text is readable for its length. Not through std, whose output tests keep to themselves.
        unsafe { libc::write(2, trace.as_ptr().cast(), trace.len()) };
        IS_TRACING.set(false);
    }
    // SAFETY: this thread's own; as `malloc` does.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    true
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's promises.
    if refuses(size) { std::ptr::null_mut() } else { unsafe { __libc_malloc(size) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promises.
    if refuses(count.saturating_mul(size)) { std::ptr::null_mut() } else { unsafe { __libc_calloc(count, size) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promises.
    if refuses(size) { std::ptr::null_mut() } else { unsafe { __libc_realloc(old, size) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promises.
    if refuses(size) { std::ptr::null_mut() } else { unsafe { __libc_memalign(alignment, size) } }
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

/// What a child tells its parent, in memory that both have.
#[repr(C)]
struct Told {
    /// The allocation that is refused.
    n: AtomicUsize,
    is_done: AtomicBool,
    length: AtomicUsize,
    text: [u8; 4096],
}

/// What is loaded, and the least allocation that may be refused.
struct Case {
    name: &'static str,
    picture: Vec<u8>,
    least: usize,
    ops: Vec<Op>,
    detail: Detail,
    /// Fewer allocations than this were refused only if the sweep does not do what it says.
    min_refused: usize,
}

impl Case {
    fn loader(&self, folder: &Path) -> Loader {
        let pipeline = Pipeline::new(self.ops.clone()).unwrap().with_detail(self.detail);
        let source = Source::image_folder(folder, pipeline).unwrap();
        Loader::new(
            source,
            Config { batch_size: 2, prefetch_batches: 1, io_threads: 1, max_io_threads: 1, ..Config::default() },
        )
        .unwrap()
    }

    /// The only batch of an epoch, with the `n`th allocation refused; and how large that was.
    fn load(&self, folder: &Path, n: Option<usize>) -> (forebay::Result<Vec<u8>>, usize) {
        let loader = self.loader(folder);
        REFUSED.store(0, SeqCst);
        if let Some(n) = n {
            LEFT.store(n, SeqCst);
            LEAST.store(self.least, SeqCst);
        }
        let batch = loader.epoch().and_then(|mut run| run.next().unwrap());
        LEAST.store(usize::MAX, SeqCst);
        let bytes = batch.map(|batch| match batch.into_content() {
            Column::Dense { mut buffer, layout } => buffer.bytes()[..layout.size_bytes() * 2].to_vec(),
            other => panic!("no batch: {other:?}"),
        });
        (bytes, REFUSED.load(SeqCst))
    }

    /// Refuses one allocation after the other, from `first` on.
    fn sweep(&self, folder: &Path, first: usize, told: &Told) {
        let (expected, _) = self.load(folder, None);
        let expected = expected.unwrap();
        for n in first.. {
            told.n.store(n, SeqCst);
            let (made, refused) = self.load(folder, Some(n));
            match made {
                Ok(made) => assert!(made == expected, "allocation {n} of {refused} bytes refused: another batch"),
                Err(error) => assert_eq!(error.kind(), Kind::Exhausted, "allocation {n} of {refused} bytes: {error:?}"),
            }
            if refused == 0 {
                assert!(n >= self.min_refused, "only {n} allocations");
                return;
            }
        }
    }
}

/// Runs the sweep in a child: how it ended, and what it told.
fn in_child(case: &Case, folder: &Path, first: usize, told: &'static Told) -> (c_int, String) {
    told.is_done.store(false, SeqCst);
    told.length.store(0, SeqCst);
    // SAFETY: the child uses what this thread has, threads that it starts itself, and nothing of the harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let swept = catch_unwind(AssertUnwindSafe(|| case.sweep(folder, first, told)));
        if let Err(panic) = swept {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic without words".into());
            let length = text.len().min(told.text.len());
            // SAFETY: the parent reads it after this process has ended.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), told.text.as_ptr().cast_mut(), length) };
            told.length.store(length, SeqCst);
        }
        told.is_done.store(true, SeqCst);
        // SAFETY: ends the child without what the harness registered.
        unsafe { libc::_exit(0) };
    }
    let (mut status, started) = (0, Instant::now());
    // SAFETY: `status` is writable.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if started.elapsed() > Duration::from_secs(60) {
            // SAFETY: the child is ours and was not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (status, String::from_utf8_lossy(&told.text[..told.length.load(SeqCst)]).into_owned())
}

fn told() -> &'static Told {
    // SAFETY: new memory that is shared with children, zeroed, which is valid for what it holds; never unmapped.
    unsafe {
        let (size, access) = (size_of::<Told>(), libc::PROT_READ | libc::PROT_WRITE);
        let start = libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        &*start.cast::<Told>()
    }
}

fn check(case: &Case) {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("class");
    std::fs::create_dir(&class).unwrap();
    for number in 0..2 {
        // The name's ending says nothing: formats are told by content.
        std::fs::write(class.join(format!("{number}.jpg")), &case.picture).unwrap();
    }
    let told = told();
    let (status, text) = in_child(case, folder.path(), 0, told);
    if status == 0 && told.is_done.load(SeqCst) && text.is_empty() {
        return;
    }
    let n = told.n.load(SeqCst);
    // Once more, with the stack of what was refused.
    TRACES.store(true, SeqCst);
    in_child(case, folder.path(), n, told);
    panic!("{}: allocation {n} refused, ended with status {status}: {text} (its stack is above)", case.name);
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../forebay-decode/tests/golden").join(name)).unwrap()
}

fn resize(edge: u32, interpolation: Interpolation) -> Op {
    Op::Resize { size: ResizeTo::Edge(edge), interpolation, max_size: None, antialias: true }
}

/// As for evaluating: into the batch at once.
fn evaluating() -> Vec<Op> {
    let normalize = Op::Normalize { mean: vec![0.5; 3], std: vec![0.5; 3] };
    vec![resize(160, Interpolation::Bicubic), Op::CenterCrop { size: 128.into() }, Op::ToTensor, normalize]
}

/// Samples whose size the transforms do not fix: tensors of their own, put side by side in the end.
fn of_any_size() -> Vec<Op> {
    vec![resize(160, Interpolation::Bilinear), Op::ToTensor]
}

fn case(name: &'static str, file: &str, least: usize, ops: Vec<Op>) -> Case {
    let (picture, detail) = (golden(file), Detail::Faithful);
    Case { name, picture, least, ops, detail, min_refused: 3 }
}

/// Uncompressed RGB.
fn bitmap(width: u32, height: u32) -> Vec<u8> {
    let stride = (width as usize * 3).next_multiple_of(4);
    let size = 54 + stride * height as usize;
    let mut out = b"BM".to_vec();
    out.extend(
        [size as u32, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0].iter().flat_map(|n| n.to_le_bytes()),
    );
    out.extend((54..size).map(|at| (at % 251) as u8));
    out
}

/// The same as TIFF: one strip.
fn tiff(width: u16, height: u16) -> Vec<u8> {
    let size = u32::from(width) * u32::from(height) * 3;
    let entries: [(u16, u16, u32, u32); 9] = [
        (256, 3, 1, width.into()),
        (257, 3, 1, height.into()),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, 8 + 2 + 9 * 12 + 4),
        (277, 3, 1, 3),
        (278, 3, 1, height.into()),
        (279, 4, 1, size),
    ];
    let mut out = b"II*\0\x08\0\0\0\x09\0".to_vec();
    for (tag, kind, count, value) in entries {
        out.extend(tag.to_le_bytes().into_iter().chain(kind.to_le_bytes()));
        out.extend(count.to_le_bytes().into_iter().chain(value.to_le_bytes()));
    }
    out.extend([0; 4]);
    out.extend((0..size).map(|at| (at % 251) as u8));
    out
}

#[test]
fn an_allocation_that_fails_while_a_batch_is_made_is_an_exhausted_sample() {
    let anymap = || [&b"P6 400 300 255\n"[..], &vec![77; 400 * 300 * 3]].concat();
    let everything = vec![
        Op::Pad {
            padding: forebay::Padding { left: 9, top: 9, right: 9, bottom: 9 },
            fill: vec![0.0],
            padding_mode: forebay::PaddingMode::Reflect,
        },
        Op::RandomRotation {
            degrees: (30.0, 30.0),
            interpolation: Interpolation::Bilinear,
            expand: true,
            center: None,
            fill: vec![0.0],
        },
        Op::GaussianBlur { kernel_size: (5, 5), sigma: (1.0, 1.0) },
        Op::Grayscale { num_output_channels: 1 },
        Op::Grayscale { num_output_channels: 3 },
        resize(160, Interpolation::Lanczos),
        Op::ToTensor,
        Op::CenterCrop { size: 100.into() },
        Op::Normalize { mean: vec![0.5; 3], std: vec![0.5; 3] },
    ];
    let cases = [
        case("JPEG", "decode/large-420.jpg", PAGE, evaluating()),
        Case { detail: Detail::Fast, ..case("JPEG, fast", "decode/large-420.jpg", PAGE, evaluating()) },
        case("progressive JPEG", "solid/progressive.jpg", PAGE, evaluating()),
        case("CMYK JPEG", "decode/jpeg-cmyk.jpg", PAGE, of_any_size()),
        case("lossy WebP", "decode/large-lossy.webp", PAGE, evaluating()),
        case("lossless WebP", "decode/large-lossless.webp", PAGE, of_any_size()),
        Case { picture: bitmap(400, 300), ..case("BMP", "decode/bmp-24.bmp", PAGE, everything) },
        case("run-length BMP", "decode/bmp-rle8.bmp", PAGE, evaluating()),
        Case { picture: anymap(), ..case("PNM", "decode/bmp-24.bmp", PAGE, of_any_size()) },
        case("PNG", "solid/palette.png", CRATES, of_any_size()),
        case("GIF", "solid/palette.gif", CRATES, of_any_size()),
        Case { picture: tiff(800, 600), ..case("TIFF", "decode/bmp-24.bmp", CRATES, of_any_size()) },
    ];
    cases.iter().for_each(check);
}
