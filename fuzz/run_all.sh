#!/usr/bin/env bash
# run_all.sh PROGRAM SUMMARY [TARGET...]: runs fuzz targets, as many at a time as there are processors, and writes what
# came of it. Needs nothing but the program and this repository's files.
#
# FUZZ_SECONDS (600) is the time of each, FUZZ_JOBS the number at a time, FUZZ_WORK (target/fuzz/work) where their corpora
# and logs lie, FUZZ_MEGABYTES (2048) the memory and FUZZ_INPUT_SECONDS (25) the time of one input.
# Exit status 1: something was found; the inputs lie in FUZZ_WORK/TARGET/found.
set -euo pipefail
program=$(realpath "$1") summary=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600} jobs=${FUZZ_JOBS:-$(nproc)}
work=$(realpath -m "${FUZZ_WORK:-target/fuzz/work}")
golden=crates/forebay-decode/tests/golden/decode
# The program knows its targets: lines with a name and the endings of golden pictures.
declare -A endings
all=()
list=$(FOREBAY_FUZZ_TARGET=list "$program")
while read -r name rest; do
    all+=("$name") endings[$name]=$rest
done <<<"$list"
[ $# -gt 0 ] && all=("$@")

run() {
    local target=$1 place=$work/$1
    mkdir -p "$place/corpus" "$place/found"
    local source
    for source in fuzz/seeds/"$target" fuzz/regressions/"$target"; do
        if [ -d "$source" ]; then cp -r "$source"/. "$place/corpus/"; fi
    done
    local ending
    for ending in ${endings[$target]:-}; do
        # The expected pixels of a.png are in a.png.ppm.
        find "$golden" -name "*.$ending" ! -name '*.*.ppm' -exec cp -t "$place/corpus" {} +
    done
    # A picture may be 64 MiB, an input 64 KiB: more finds nothing else.
    FOREBAY_FUZZ_TARGET=$target ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0 \
        "$program" "$place/corpus" -artifact_prefix="$place/found/" -max_total_time="$seconds" -max_len=65536 \
        -timeout="${FUZZ_INPUT_SECONDS:-25}" -rss_limit_mb="${FUZZ_MEGABYTES:-2048}" -print_final_stats=1 \
        -verbosity=1 >"$place/log" 2>&1 || echo "$target: ended with $?" >>"$place/log"
}

for target in "${all[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    run "$target" &
done
wait

status=0
{
    echo "# Fuzzing"
    echo
    echo "Written by \`make fuzz\`: each target for $seconds s, from the committed seeds and regressions. Executions are libFuzzer's;"
    echo "coverage is edges of instrumented code, features count how often they were taken as well."
    echo
    echo "| target | executions | a second | coverage | features | corpus | largest memory | found |"
    echo "|---|---|---|---|---|---|---|---|"
    for target in "${all[@]}"; do
        log=$work/$target/log
        stat() { sed -n "s/^stat::$1: *//p" "$log" | tail -1; }
        last=$(grep -E '^#[0-9]+' "$log" | tail -1)
        part() { sed -nE "s/.* $1: ([^ ]+).*/\1/p" <<<"$last"; }
        found=$(find "$work/$target/found" -type f ! -name 'slow-unit-*' | wc -l)
        [ "$found" -eq 0 ] && [ -n "$(stat number_of_executed_units)" ] || status=1
        printf '| %s | %s | %s | %s | %s | %s | %s MB | %s |\n' "$target" "$(stat number_of_executed_units)" \
            "$(stat average_exec_per_sec)" "$(part cov)" "$(part ft)" "$(part corp)" "$(stat peak_rss_mb)" "$found"
    done
} >"$summary"
cat "$summary"
for target in "${all[@]}"; do
    grep -hE 'ERROR: |panicked at|SUMMARY: |ended with' -A1 "$work/$target/log" | sed "s/^/$target: /" || true
done
exit $status
