#!/usr/bin/env bash
# Checks threads with two tools.
#
#   tools/thread_checks.sh [MESSAGES]     messages of each appending thread of the hammer under valgrind, 400 by default
#
# * ThreadSanitizer runs the core's own tests and the thread hammer (tests/rust/hammer). It needs a nightly compiler
#   with the sources of the standard library (rustup toolchain install nightly --component rust-src), because it must
#   also see the locks of the standard library.
# * valgrind's memory checker runs the hammer. While threads append, read, flush and roll, it detects reads of freed
#   memory, of closed maps, and of uninitialized bytes. It runs one thread at a time, in an order that an ordinary run
#   hardly ever has. Its race detector (helgrind) is of no use here: it knows only the locks of pthreads. Ours are made
#   of atomics and futexes, so it would report every transfer between threads as a race.
#
# A tool that is not installed is skipped with a message.

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
    # Without mqstore-compaction. `--skip` leaves out the compaction tests of the other crates.
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
    # valgrind hides the kernel page from which rustix reads the page size. Through libc, it is found.
    export RUSTFLAGS="--cfg=rustix_use_libc"
    export CARGO_TARGET_DIR="$target/valgrind"
    # The name of the binary contains a hash. cargo prints it.
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
