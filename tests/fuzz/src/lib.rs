//! What is fuzzed: one function for each kind of bytes that comes from outside.
//!
//! A target takes any bytes. It must not panic, crash, hang, or take more memory than its input accounts for; what it
//! checks beyond that stands beside it. `fuzz/` runs the targets under libFuzzer, `replay` runs committed inputs and
//! mutations of them without it, and the smoke test runs `replay` for all targets.

mod array;
mod mutate;
mod picture;
mod text;

use forebay_decode::Format;

pub use mutate::Mutations;

/// A function that takes hostile bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of its folders below `fuzz/seeds` and `fuzz/regressions`, and of its libFuzzer program.
    pub name: &'static str,
    /// What it does with its bytes.
    pub run: fn(&[u8]),
    /// Golden pictures of the decoders' tests that are seeds as well, by the ending of their names.
    pub golden: &'static [&'static str],
    /// A panic below is caught and told as an error: the Parquet library promises nothing.
    pub may_panic: bool,
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, golden: &[], may_panic: false }
}

const fn picture(name: &'static str, run: fn(&[u8]), golden: &'static [&'static str]) -> Target {
    Target { name, run, golden, may_panic: false }
}

/// The crate's own Huffman decoding against libjpeg's.
fn huffman(bytes: &[u8]) {
    forebay_decode::fuzzing::huffman_differential(bytes);
}

/// All of them.
pub const TARGETS: &[Target] = &[
    picture("jpeg", |bytes| picture::run(Format::Jpeg, bytes), &["jpg"]),
    picture("huffman", huffman, &["jpg"]),
    picture("png", |bytes| picture::run(Format::Png, bytes), &["png"]),
    picture("webp", |bytes| picture::run(Format::WebP, bytes), &["webp"]),
    picture("gif", |bytes| picture::run(Format::Gif, bytes), &["gif"]),
    picture("bmp", |bytes| picture::run(Format::Bmp, bytes), &["bmp"]),
    picture("tiff", |bytes| picture::run(Format::Tiff, bytes), &["tif", "tiff"]),
    picture("pnm", |bytes| picture::run(Format::Pnm, bytes), &["pbm", "pgm", "ppm", "pnm"]),
    Target { name: "parquet", run: text::parquet, golden: &[], may_panic: true },
    target("npy", array::npy),
    target("csv", text::csv),
    target("jsonl", text::jsonl),
    target("state", text::state),
    target("ledger", text::ledger),
    target("cache_entry", text::cache_entry),
];

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
