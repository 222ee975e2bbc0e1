#!/usr/bin/env bash
# Line coverage of the Rust and of the Python code by all tests, into docs/coverage.md: `make coverage`.
#
# It needs rustup's llvm-tools (those of a distribution may not read what this rustc writes) and coverage.py, and takes
# about twice as long as `make test`. Processes that are killed with SIGKILL, as many tests do, write nothing:
# what they alone have run counts as not covered.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
target=$PWD/target/coverage
tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
for tool in "$tools/llvm-profdata" "$tools/llvm-cov"; do
    [ -x "$tool" ] || { echo "coverage: $tool is missing: rustup component add llvm-tools"; exit 1; }
done
"$VENV/bin/python" -c "import coverage" 2>/dev/null || { echo "coverage: pip install coverage in $VENV first"; exit 1; }

mkdir -p "$target/profiles"
rm -f "$target"/profiles/*.profraw "$target"/.coverage*
VENV=$(realpath --no-symlinks "$VENV")
export VENV PYO3_PYTHON=$VENV/bin/python PATH=$VENV/bin:$PATH
# Only the crates of this repository are instrumented, so that their dependencies need no build of their own.
printf '#!/bin/sh\nexec "$@" -C instrument-coverage\n' >"$target/rustc"
chmod +x "$target/rustc"
export RUSTC_WORKSPACE_WRAPPER=$target/rustc LLVM_PROFILE_FILE="$target/profiles/%4m.profraw"

tests=(--workspace --exclude forebay-python --profile checked --lib --bins --tests)
cargo test "${tests[@]}" --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' >"$target/objects"
cargo test "${tests[@]}" --no-fail-fast || echo "coverage: some Rust tests failed"

cargo build --profile checked --package forebay-python
cp target/checked/lib_forebay.so python/forebay/_forebay.abi3.so
echo "$PWD/python/forebay/_forebay.abi3.so" >>"$target/objects"
# Processes that tests start are measured, too: a .pth file begins it in each.
cat >"$target/coveragerc" <<END
[run]
source = forebay
data_file = $target/.coverage
parallel = true
sigterm = true
patch = subprocess
END
PYTHONPATH=$PWD/python COVERAGE_PROCESS_START=$target/coveragerc "$VENV/bin/python" -m coverage run \
    --rcfile "$target/coveragerc" -m pytest -q -n 2 --dist loadfile -p no:cacheprovider python/tests || echo "coverage: some Python tests failed"

"$VENV/bin/python" -m coverage combine --quiet --rcfile "$target/coveragerc"
"$VENV/bin/python" -m coverage json --quiet --rcfile "$target/coveragerc" -o "$target/python.json"
"$tools/llvm-profdata" merge --sparse --failure-mode=all -o "$target/all.profdata" "$target"/profiles/*.profraw
mapfile -t objects < <(sort -u "$target/objects")
"$tools/llvm-cov" export --summary-only --instr-profile "$target/all.profdata" \
    --ignore-filename-regex '/(\.cargo|rustc|target|tests|examples|benches)/' \
    "${objects[0]}" "${objects[@]/#/--object=}" >"$target/rust.json"
"$VENV/bin/python" scripts/coverage_page.py "$target/rust.json" "$target/python.json" docs/coverage.md
