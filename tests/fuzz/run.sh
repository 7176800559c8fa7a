#!/bin/sh
# Runs the fuzz targets: tests/fuzz/run.sh SECONDS [TARGET]
#
# Each target runs for SECONDS under libFuzzer, with coverage feedback, on the stable toolchain. LLVM instruments the
# code, switched on by stable compiler flags. The crate libfuzzer-sys compiles the runtime of the fuzzer, which needs a
# C++ compiler. The script prints the executions of each target. If a target crashes, or takes too much time or memory,
# the script prints the input and exits with status 1.
#
# The committed seeds are in seeds/. New inputs that the fuzzer finds are kept in the target directory
# (CARGO_TARGET_DIR, or target/ here), and the next run uses them.
set -eu

if [ $# -lt 1 ]; then
    echo "usage: $0 SECONDS [TARGET]" >&2
    exit 2
fi
seconds=$1
case ${CARGO_TARGET_DIR:-} in
'' | /*) ;;
*) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;;
esac
cd "$(dirname "$0")"
targets=${2:-"record properties batch queue_units index checkpoint raft tiered json ids_names sql compression archive_file"}
out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# Counters and a table of program counters for every edge, and the operands of comparisons. With an explicit --target,
# the flags reach neither build scripts nor macros.
export RUSTFLAGS="-C passes=sancov-module \
 -C llvm-args=-sanitizer-coverage-level=4 \
 -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
 -C llvm-args=-sanitizer-coverage-pc-table \
 -C llvm-args=-sanitizer-coverage-trace-compares"
cargo build --quiet --release --bins --target "$host" --target-dir "$out"

failed=0
for target in $targets; do
    corpus=$out/corpus/$target
    artifacts=$out/artifacts/$target/
    mkdir -p "$corpus" "$artifacts"
    log=$out/$target.log
    status=0
    "$out/$host/release/$target" "$corpus" "seeds/$target" \
        -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="$artifacts" -print_final_stats=1 >"$log" 2>&1 || status=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    echo "$target: ${runs:-0} executions, ${rate:-0} a second, ${covered:-0} edges"
    if [ "$status" -ne 0 ]; then
        failed=1
        echo "$target: failed, see $log" >&2
        grep -E -A3 'panicked at|ERROR: libFuzzer|Test unit written' "$log" >&2 || tail -n 20 "$log" >&2
    fi
done
exit "$failed"
