#!/usr/bin/env bash
# Tests the decoders with another release of libjpeg-turbo than the one that turbojpeg-sys brings: docs/libjpeg-turbo.md.
#
#     scripts/libjpeg_turbo.sh path/to/libjpeg-turbo-3.1.3.tar.gz
#     scripts/libjpeg_turbo.sh                                       3.1.2, as a package on PyPI brings it
set -euo pipefail
[ $# -le 1 ] || { echo "usage: $0 [SOURCE.tar.gz]"; exit 2; }
source=$(realpath "${1:-/dev/null}")
cd "$(dirname "$0")/.."
place=$PWD/target/libjpeg-turbo
rm -rf "$place" && mkdir -p "$place/source" "$place/build"
if [ $# -eq 1 ]; then
    tar -xzf "$source" -C "$place/source" --strip-components=1
else
    # The source archive of simplejpeg 1.9.0, whose code is not used.
    curl -fsSL -o "$place/package.tar.gz" https://files.pythonhosted.org/packages/90/64/da60f0ba80570f9a36c9b6e055f4364bda2c547715296d5773d2ea6d5a60/simplejpeg-1.9.0.tar.gz
    echo "5ac7d9489eeb812c2e7ea5c283994a29d9fefdfe5ed7b86c09d485e0dd366689  $place/package.tar.gz" | sha256sum --check --quiet
    tar -xzf "$place/package.tar.gz" -C "$place/source" --strip-components=3 simplejpeg-1.9.0/lib/libjpeg-turbo-3.1.2
fi
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
