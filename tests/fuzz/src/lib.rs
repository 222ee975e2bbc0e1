//! What is fuzzed: one function for each kind of bytes that comes from outside.
//!
//! A target takes any bytes. It must not panic, crash, hang, or take more memory than its input accounts for; what it
//! checks beyond that stands beside it. `fuzz/` runs the targets under libFuzzer, `replay` runs committed inputs and
//! mutations of them without it, and the smoke test runs `replay` for all targets.

mod array;
mod lines;
mod mutate;
mod parity;
mod picture;
mod shards;
mod text;
mod tokens;

use forebay_decode::{ArrayArchive, Format};

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

/// The crate's own Huffman decoding against libjpeg's.
fn huffman(bytes: &[u8]) {
    forebay_decode::fuzzing::huffman_differential(bytes);
}

/// The one list of targets, passed to a macro: name, function, the endings of its golden pictures, and whether it may panic.
/// [`TARGETS`], the smoke test and, through the fuzz program, `fuzz/run_all.sh` are made of it.
#[macro_export]
macro_rules! for_each_target {
    ($then:ident) => {
        $then! {
            jpeg(|bytes| picture::run(Format::Jpeg, bytes), ["jpg"]);
            huffman(huffman, ["jpg"]);
            landmarks(picture::landmarks, []);
            png(|bytes| picture::run(Format::Png, bytes), ["png"]);
            webp(|bytes| picture::run(Format::WebP, bytes), ["webp"]);
            gif(|bytes| picture::run(Format::Gif, bytes), ["gif"]);
            bmp(|bytes| picture::run(Format::Bmp, bytes), ["bmp"]);
            tiff(|bytes| picture::run(Format::Tiff, bytes), ["tif", "tiff"]);
            pnm(|bytes| picture::run(Format::Pnm, bytes), ["pbm", "pgm", "ppm", "pnm"]);
            parquet(text::parquet, [], may_panic);
            npy(array::npy, []);
            npz(|bytes| array::archive(ArrayArchive::Npz, bytes), []);
            safetensors(|bytes| array::archive(ArrayArchive::Safetensors, bytes), []);
            lines(lines::run, []);
            line_index(lines::index, []);
            packed(lines::packed, []);
            seek_table(lines::seek_table, []);
            tar(shards::tar, []);
            shard_index(shards::index, []);
            parity(parity::run, []);
            wds2idx(shards::wds2idx, []);
            chunk_table(shards::chunk_table, []);
            tfrecord(shards::tfrecord, []);
            arrow(shards::arrow, []);
            parquet_shard(shards::parquet_shard, []);
            shard_directory(shards::shard_directory, []);
            record(shards::record, []);
            example(shards::example, []);
            csv(text::csv, []);
            jsonl(text::jsonl, []);
            state(text::state, []);
            ledger(text::ledger, []);
            cache_entry(text::cache_entry, []);
            megatron(tokens::megatron, []);
            token_shards(tokens::shards, []);
            token_heads(tokens::heads, []);
        }
    };
}

macro_rules! table {
    ($($name:ident($run:expr, [$($ending:literal),*] $(, $may_panic:ident)?);)*) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $run,
            golden: &[$($ending),*],
            may_panic: !stringify!($($may_panic)?).is_empty(),
        }),*];
    };
}

for_each_target!(table);

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
