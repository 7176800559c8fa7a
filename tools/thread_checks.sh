#!/usr/bin/env bash
# Runs the thread hammer (tests/rust/hammer) under valgrind's memory checker.
#
#   tools/thread_checks.sh [MESSAGES]     messages of each appending thread, 400 by default
#
# It sees a read of memory that was given back, of a map that is gone, and of bytes that nobody wrote, while threads
# append, read, flush and roll; its threads run one at a time, in an order that an ordinary run hardly ever takes.
# Its race detector (helgrind) is of no use here: it knows the locks of pthreads, while these are made of atomics and
# futexes, so that it takes every hand-over between threads for a race.
#
# Without valgrind it says so and succeeds.

set -eu
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null 2>&1; then
    echo "thread checks: skipped, valgrind is not installed"
    exit 0
fi

# valgrind hides the page of the kernel in which rustix looks for the page size; asked through libc it is found.
export RUSTFLAGS="--cfg=rustix_use_libc"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/valgrind"

# The binary's name has a hash in it; cargo tells.
binary=$(cargo test --locked --quiet -p mqstore-tests --test hammer --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/hammer-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$binary" ] || {
    echo "thread checks: cargo did not say where the hammer is" >&2
    exit 1
}

export MQSTORE_HAMMER_MESSAGES=${1:-400}
echo "+ valgrind, $MQSTORE_HAMMER_MESSAGES messages a thread"
exec valgrind --tool=memcheck --quiet --error-exitcode=9 --fair-sched=yes \
    "$binary" threads --test-threads=1 --nocapture
