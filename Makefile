# Every target does all of its own set-up; scripts/setup.sh says what it installs. CI runs these same lines (.ci/run).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup native python servers develop wheel demo build-tests test test-rust test-schedules test-python test-asan test-freethreaded \
    test-neon \
    test-nfs torture-cache soak fuzz fuzz-smoke coverage lint deny bench bench-datasets bench-files bench-formats bench-manifest bench-peers \
    bench-profile bench-remote bench-startup \
    bench-scan bench-shards docs clean

VENV ?= .venv
BIN := $(VENV)/bin
export VENV
# Two targets at once would fight for the processors and for cargo's lock.
.NOTPARALLEL:

# An extension module is linked by the interpreter that loads it; it is tested through Python.
RUST := --workspace --exclude forebay-python
# The same build for all tests, and for clippy, which then shares the C libraries, build scripts and macros; see Cargo.toml.
CHECKED := --profile checked

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: native python servers ## everything that test, lint and bench need (they do it themselves)

native:
	@scripts/setup.sh native

python:
	@scripts/setup.sh python

demo: native ## load a small folder with damaged files and print the report (no torch needed)
	@cargo run --locked --release --package forebay-cli --bin forebay -- demo

test: test-rust test-schedules test-python ## all tests: Rust, documentation, Python

# Where a server is missing, the tests that need it fail, and say how to allow that.
servers:
	@scripts/setup.sh servers || echo "tests: servers are missing; FOREBAY_ALLOW_MISSING=nginx,azurite skips what needs them"

# Tests that were allowed to do without something are listed at the end.
SKIPPED := $(abspath target/tests-skipped)
# Without the examples, which clippy compiles.
TARGETS := --lib --bins --tests
build-tests: native ## the Rust tests, built and not run
	@cargo test $(RUST) --locked --quiet $(CHECKED) $(TARGETS) --no-run

test-rust: native python servers ## the Rust tests only
	@set -x
	export PATH=$(abspath $(BIN)):$$PATH FOREBAY_SKIPPED=$(SKIPPED)
	rm -f $(SKIPPED)
	if cargo nextest --version >/dev/null 2>&1; then
	    cargo nextest run $(RUST) --locked --cargo-profile checked --config-file scripts/nextest.toml $(TARGETS)
	else
	    cargo test $(RUST) --locked $(CHECKED) $(TARGETS)
	fi
	cargo test $(RUST) --locked $(CHECKED) --doc
	if [ -s $(SKIPPED) ]; then sort -u $(SKIPPED); fi

test-schedules: native ## the work queue of the loader under 100,000 seeded orders of its threads
	@cargo test --quiet --locked $(CHECKED) --package forebay --features shuttle --lib engine::work_queue::interleavings

MATURIN := env -u CONDA_PREFIX VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --quiet --locked
develop: native python
	@$(MATURIN) --release

test-python: native python ## the Python tests only
	@$(MATURIN) $(CHECKED)
	# Twice as many as processors, because tests wait half of their time; the order is conftest.py's.
	$(BIN)/python -m pytest -n $$(( 2 * $$(nproc) )) --maxprocesses 8 --dist loadfile --no-loadscope-reorder python/tests

# What is published, with its SBOM compared with Cargo.lock. A wheel for other machines is built on an old system (manylinux).
wheel: native python ## the wheel for this machine, into dist/, and a look into it (minutes; not in CI)
	@rm -rf dist
	env -u CONDA_PREFIX VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --quiet --release --locked --out dist
	FOREBAY_WHEEL=$$(echo dist/forebay-*.whl) $(BIN)/python -m pytest -q -p no:cacheprovider python/tests/docs/test_sbom.py

# RUSTC_BOOTSTRAP lets a stable compiler sanitize. CFLAGS are for the C code of every crate: libjpeg-turbo, libwebp, our own.
# Assembler is not instrumented. ASAN="--package forebay-decode --lib" runs less.
ASAN ?= --package forebay --package forebay-decode --lib --test it
test-asan: native ## the tests of the unsafe code, Rust and C, under AddressSanitizer (ten minutes; not in CI)
	@host=$$(rustc -vV | sed -n 's/^host: //p')
	export "CFLAGS_$${host//-/_}=-fsanitize=address -fno-omit-frame-pointer"
	# Some tests ask for more memory than there is.
	export ASAN_OPTIONS=allocator_may_return_null=1
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test --locked --target "$$host" --target-dir target/asan $(ASAN)

# The interpreter is the user's: test-freethreaded PYTHON=python3.14t TESTS=python/tests/python_dataset/test_dropin.py
test-freethreaded: native ## the Python tests on a Python without a GIL, which PYTHON= names (not in CI)
	@scripts/freethreaded.sh "$(PYTHON)" $(TESTS)

NEON := aarch64-unknown-linux-gnu
test-neon: native ## the decoders' tests and lints for Arm (elsewhere by a cross compiler and qemu; minutes; not in CI)
	@if [ "$$(uname -m)" != aarch64 ]; then
	    missing=()
	    command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
	    command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
	    if [ $${#missing[@]} -gt 0 ]; then
	        echo "test-neon: not run: please install $${missing[*]} (Debian: apt-get install $${missing[*]})"
	        exit 1
	    fi
	    if [ ! -d "$$(rustc --print sysroot)/lib/rustlib/$(NEON)/lib" ]; then
	        echo "test-neon: not run: Rust cannot compile for it yet: rustup target add $(NEON)"
	        exit 1
	    fi
	    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
	    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
	fi
	set -x
	cargo clippy --locked --quiet --package forebay-decode --all-targets --target $(NEON) -- -D warnings
	cargo test --locked --package forebay-decode --target $(NEON) --lib --test it

test-nfs: native ## the loader on real NFS mounts that fail, into docs/nfs.md (Debian; seven minutes; not in CI)
	@scripts/setup.sh nfs || { echo "skipped: test-nfs: what it needs is not installed"; exit 0; }
	mkdir -p target/nfs
	cc -O2 -Wall -Wextra -shared -fPIC -o target/nfs/xstate.so tests/nfs/xstate.c
	cargo run --locked --quiet --package nfstest -- boot docs/nfs.md target/nfs/xstate.so

TORTURE_SECONDS ?= 120
torture-cache: native ## 2 minutes of kills, damage and a full disk for the cache, with a proof at the end (needs root to fill it)
	@FOREBAY_TORTURE_SECONDS=$(TORTURE_SECONDS) cargo test --locked --quiet --package forebay-store --test it \
	    cache_torture::a_tortured -- --nocapture

# tests/faultfs is built by it, when it is first needed.
SOAK_SECONDS ?= 600
soak: develop ## 10 minutes of random faults, kills and resumes, with a proof at the end (SOAK_SECONDS=60 for less)
	@$(BIN)/python tests/soak/soak.py --seconds $(SOAK_SECONDS)

coverage: native python ## line coverage of Rust and Python by all tests, into docs/coverage.md (an hour; not in CI)
	@scripts/coverage.sh

# Needs a nightly compiler and clang to see into the C code and to find misuse of memory; without, it finds less.
FUZZ_SECONDS ?= 600
fuzz: native ## all fuzz targets, 10 minutes each and as many at a time as there are processors, into fuzz/SUMMARY.md
	@fuzz/build.sh
	FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz/run_all.sh target/fuzz/forebay-fuzz fuzz/SUMMARY.md

fuzz-smoke: native ## committed inputs of the fuzz targets and 1000 mutations of each (20 in `make test`)
	@FUZZ_MUTATIONS=1000 cargo test --locked --package fuzztargets $(CHECKED) --test it

# clippy looks into the extension too; with one fixed interpreter, whatever `python3` is elsewhere.
lint: export PYO3_PYTHON := $(abspath $(BIN)/python)
lint: native python ## formatting, clippy, the layers, measured numbers, ruff, mypy
	@set -x
	cargo fmt --all --check
	cargo clippy --locked --quiet $(CHECKED) --workspace --all-targets -- -D warnings
	$(BIN)/python scripts/check_layers.py --self-test
	$(BIN)/python scripts/check_layers.py
	$(BIN)/python scripts/check_supply.py --self-test
	$(BIN)/python scripts/check_supply.py
	$(BIN)/python scripts/check_yanked.py --self-test
	$(BIN)/python scripts/check_numbers.py --self-test
	$(BIN)/python scripts/check_numbers.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict python/forebay

deny: python ## advisories, licences, duplicates and sources of all crates (needs cargo-deny: cargo install --locked cargo-deny)
	@cargo deny --version >/dev/null || { echo "deny: not run: cargo install --locked cargo-deny"; exit 1; }
	cargo deny --locked check licenses bans sources
	if cargo deny --locked fetch db; then
	    cargo deny --locked check advisories
	else
	    echo "skipped: advisories: their database (github.com/rustsec/advisory-db) cannot be reached; crates.io is asked"
	    $(BIN)/python scripts/check_yanked.py
	fi

bench: develop ## images/s against torch and against the bare kernels, into benchmarks/results/
	@cargo build --locked --quiet --release --package forebay --example kernel
	$(BIN)/python benchmarks/bench.py

bench-datasets: develop ## forebay and torch on datasets that are Python code, into benchmarks/results/
	@$(BIN)/python benchmarks/python_datasets.py

bench-startup: develop ## time to the first batch of Python datasets, and their memory, into benchmarks/results/
	@$(BIN)/python benchmarks/startup.py

bench-formats: develop ## PNG and WebP against Pillow and torchvision, into benchmarks/results/
	@cargo build --locked --quiet --release --package forebay --example decode
	$(BIN)/python benchmarks/formats.py

bench-profile: native python ## where processor time goes (by perf, if installed), allocations, into benchmarks/results/
	@cargo build --locked --quiet --release --package forebay --example load
	$(BIN)/python benchmarks/profiling.py

bench-files: develop ## text files, arrays and a cache in memory against torch's DataLoader, into benchmarks/results/
	@$(BIN)/python benchmarks/files.py

bench-scan: develop ## seconds to scan a million files (SCAN="--files 100000": fewer), into benchmarks/results/
	@cargo build --locked --quiet --release --package forebay --example walk
	$(BIN)/python benchmarks/scan.py $(SCAN)

bench-manifest: develop ## seconds to make, open and renew a manifest of a million files, into benchmarks/results/
	@$(BIN)/python benchmarks/manifest.py $(MANIFEST)

# The peers are installed into benchmarks/peers/.envs, 2 GB over the torch that is there already. Without FFmpeg's
# libraries one of them does not run, and says so in its row.
bench-peers: develop ## beside ten other loaders, which it installs (PEERS="--rounds 5"), into benchmarks/results/
	@scripts/setup.sh ffmpeg || echo "bench-peers: without FFmpeg"
	$(BIN)/python benchmarks/compare.py $(PEERS)

# The peers that write these formats are installed into benchmarks/peers/.envs as well.
bench-shards: develop ## shards, tokens and lines beside other loaders (SHARDS="--only tar,tokens"), into benchmarks/results/
	@$(BIN)/python benchmarks/shards.py $(SHARDS)

bench-remote: native ## an object store with 50 ms a request: the loader against the bare client
	@cargo run --locked --quiet --release --package forebay --example remote

docs: native ## the Rust documentation, in target/doc
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked $(RUST) --no-deps

clean: ## remove what was built, the environment and the benchmark's pictures
	@cargo clean
	rm -rf $(VENV) benchmarks/data benchmarks/peers/.envs .pytest_cache .mypy_cache .ruff_cache
	rm -f python/forebay/*.so
	find python scripts benchmarks tests -name __pycache__ -prune -exec rm -rf {} +
