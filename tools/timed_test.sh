#!/bin/sh
# Runs a test binary for cargo, with the time of each test. The option is not stable yet. The variable allows it for
# this process only, and the compiler never sees the variable.
#
#   tools/timed_test.sh BINARY ARGUMENT...

binary=$1
shift
RUSTC_BOOTSTRAP=1 exec "$binary" -Zunstable-options --report-time "$@"
