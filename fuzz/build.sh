#!/usr/bin/env bash
# Builds all fuzz targets into one program, target/fuzz/forebay-fuzz: instrumented for libFuzzer and, where clang is
# installed, with the C code of the decoders instrumented as well and everything under AddressSanitizer.
#
# TOOLCHAIN chooses the compiler (nightly). Without one, a stable compiler builds it without AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

toolchain=${TOOLCHAIN:-nightly}
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
# As cargo-fuzz does. Crates leave checksums out under it (png): no mutation would get past them.
export RUSTFLAGS="$coverage --cfg fuzzing -Cforce-frame-pointers=yes"
if rustup run "$toolchain" rustc --version >/dev/null 2>&1; then
    RUSTFLAGS+=" -Zsanitizer=address"
    address=,address
else
    echo "fuzz: there is no $toolchain toolchain: built with the default one, without AddressSanitizer" >&2
    toolchain=$(rustup show active-toolchain | cut -d' ' -f1)
    address=
fi
if command -v clang >/dev/null && command -v clang++ >/dev/null; then
    export CC=clang CXX=clang++
    export CFLAGS="-fsanitize=fuzzer-no-link$address -O2 -g1"
else
    echo "fuzz: there is no clang: the C code of the decoders is not instrumented" >&2
fi
# The same versions as everywhere; only libFuzzer is added.
cp Cargo.lock fuzz/Cargo.lock
host=$(rustc -vV | sed -n 's/^host: //p')
cargo "+$toolchain" build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz
cp "target/fuzz/$host/release/forebay-fuzz" target/fuzz/forebay-fuzz
