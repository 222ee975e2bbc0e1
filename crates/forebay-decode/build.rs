//! Compiles the C shim around libjpeg-turbo.

fn main() {
    println!("cargo::rerun-if-changed=src/jpeg");
    let mut build = cc::Build::new();
    // Set by turbojpeg-sys: where the headers of the very library that is linked lie, separated by commas.
    if let Ok(include) = std::env::var("DEP_TURBOJPEG_INCLUDE") {
        build.includes(include.split(','));
    }
    // Optimised in development too: the shim's loop runs once a row, but a slow one would mislead measurements.
    let files =
        ["shim", "memory", "huffman", "huffman_tables", "huffman_data"].map(|name| format!("src/jpeg/{name}.c"));
    // GCC would keep pairs of hot variables in vector registers, and move them back and forth.
    build.flag_if_supported("-fno-tree-slp-vectorize");
    build.files(files).opt_level(2).warnings(true).compile("forebay_jpeg_shim");
}
