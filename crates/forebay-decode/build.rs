//! Compiles the C shim around libjpeg-turbo.

fn main() {
    println!("cargo::rerun-if-changed=src/jpeg");
    println!("cargo::rustc-check-cfg=cfg(address_sanitizer)");
    let mut build = cc::Build::new();
    // Set by turbojpeg-sys: where the headers of the very library that is linked lie, separated by commas.
    if let Ok(include) = std::env::var("DEP_TURBOJPEG_INCLUDE") {
        build.includes(include.split(','));
    }
    let files =
        ["shim", "memory", "huffman", "huffman_tables", "huffman_data"].map(|name| format!("src/jpeg/{name}.c"));
    // GCC would keep pairs of hot variables in vector registers, and move them back and forth.
    build.flag_if_supported("-fno-tree-slp-vectorize");
    build.flag_if_supported("-fstack-protector-strong");
    // Cargo tells only where the compiler accepts unstable options, and no other one sanitizes.
    if std::env::var("CARGO_CFG_SANITIZE").is_ok_and(|kinds| kinds.split(',').any(|kind| kind == "address")) {
        println!("cargo::rustc-cfg=address_sanitizer");
        build.flag("-fsanitize=address").flag("-fno-omit-frame-pointer");
    } else {
        // Distributions' compilers may define another level. The sanitizer sees less of functions that check themselves.
        build.flag_if_supported("-U_FORTIFY_SOURCE").flag_if_supported("-D_FORTIFY_SOURCE=3");
    }
    // Optimised in development too: the shim's loop runs once a row, but a slow one would mislead measurements.
    build.files(files).opt_level(2).warnings(true).compile("forebay_jpeg_shim");
}
