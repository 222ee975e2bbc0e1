#!/usr/bin/env bash
# Tests the decoders with another release of libjpeg-turbo than the one that turbojpeg-sys brings: docs/libjpeg-turbo.md.
#
#     scripts/libjpeg_turbo.sh path/to/libjpeg-turbo-3.1.3.tar.gz
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 SOURCE.tar.gz"; exit 2; }
cd "$(dirname "$0")/.."
source=$(realpath "$1")
place=$PWD/target/libjpeg-turbo
rm -rf "$place" && mkdir -p "$place/source" "$place/build"
tar -xzf "$source" -C "$place/source" --strip-components=1
cmake -S "$place/source" -B "$place/build" -DCMAKE_BUILD_TYPE=Release -DENABLE_SHARED=0 -DREQUIRE_SIMD=1 \
    -DCMAKE_POSITION_INDEPENDENT_CODE=1 -DCMAKE_INSTALL_PREFIX="$place/installed" -DCMAKE_INSTALL_DEFAULT_LIBDIR=lib >/dev/null
cmake --build "$place/build" --parallel "$(nproc)" --target turbojpeg-static >/dev/null
mkdir -p "$place/installed/lib" "$place/installed/include"
cp "$place/build/libturbojpeg.a" "$place/installed/lib"
cp "$place"/source/src/{jerror,jmorecfg,jpeglib,turbojpeg}.h "$place/build/jconfig.h" "$place/installed/include"
grep -h 'define LIBJPEG_TURBO_VERSION ' "$place/installed/include/jconfig.h"
export TURBOJPEG_SOURCE=explicit TURBOJPEG_STATIC=1
export TURBOJPEG_LIB_DIR=$place/installed/lib TURBOJPEG_INCLUDE_DIR=$place/installed/include
cargo test --package forebay-decode --profile checked --target-dir "$place/target" --lib --test it
