#!/usr/bin/env bash
# Threads under the eyes of two tools.
#
#   tools/thread_checks.sh [MESSAGES]     messages of each appending thread of the hammer under valgrind, 400 by default
#
# * ThreadSanitizer runs the core's own tests and the thread hammer (tests/rust/hammer). It needs a nightly compiler with
#   the standard library's sources (rustup toolchain install nightly --component rust-src), since it must see the locks
#   of the standard library, too.
# * valgrind's memory checker runs the hammer. It sees a read of memory that was given back, of a map that is gone, and
#   of bytes that nobody wrote, while threads append, read, flush and roll; its threads run one at a time, in an order
#   that an ordinary run hardly ever takes. Its race detector (helgrind) is of no use here: it knows the locks of
#   pthreads, while these are made of atomics and futexes, so that it takes every hand-over between threads for a race.
#
# What is not installed is skipped with a word.

set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

sanitize() {
    sources=$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library
    if [ ! -d "$sources" ]; then
        echo "thread checks: ThreadSanitizer skipped, there is no nightly compiler with rust-src"
        return
    fi
    host=$(rustc +nightly --print host-tuple)
    # Without mqstore-compaction; `--skip` leaves out the tests of compaction in the other crates.
    crates="-p mqstore-base -p mqstore-log -p mqstore-meta -p mqstore-engine -p mqstore-inspect"
    for tests in "$crates --lib" "-p mqstore-tests --test hammer"; do
        echo "+ ThreadSanitizer, $tests"
        # shellcheck disable=SC2086 # several words on purpose
        RUSTFLAGS="-Zsanitizer=thread --cfg=tsan" CARGO_TARGET_DIR="$target/tsan" TSAN_OPTIONS="history_size=4" \
            cargo +nightly test --locked --quiet -Zbuild-std --target "$host" $tests -- --skip compaction
    done
}

check_memory() {
    if ! command -v valgrind >/dev/null 2>&1; then
        echo "thread checks: valgrind skipped, it is not installed"
        return
    fi
    # valgrind hides the page of the kernel in which rustix looks for the page size; asked through libc it is found.
    export RUSTFLAGS="--cfg=rustix_use_libc"
    export CARGO_TARGET_DIR="$target/valgrind"
    # The binary's name has a hash in it; cargo tells.
    binary=$(cargo test --locked --quiet -p mqstore-tests --test hammer --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\/hammer-[^"]*\)".*/\1/p' | tail -n 1)
    [ -x "$binary" ] || {
        echo "thread checks: cargo did not say where the hammer is" >&2
        exit 1
    }
    export MQSTORE_HAMMER_MESSAGES=${1:-400}
    echo "+ valgrind, $MQSTORE_HAMMER_MESSAGES messages a thread"
    valgrind --tool=memcheck --quiet --error-exitcode=9 --fair-sched=yes \
        "$binary" threads --test-threads=1 --nocapture
}

sanitize
check_memory "$@"
