#!/bin/sh
# Compiles the crates of this workspace for cargo's tests. The unit tests of a crate are compiled without optimizations:
# a fifth of the time, and they run almost as fast. A profile cannot say this, because it has one setting for a package.
# The crates that they and the simulator use stay optimized.
#
#   tools/rustc_for_tests.sh RUSTC ARGUMENT...

case " $* " in
    # A test of mqstore-format measures the stack of the SQL parser.
    *" --crate-name mqstore_format "*) ;;
    *" --crate-name mqstore_"*" --test "*) exec "$@" -C opt-level=0 ;;
esac
exec "$@"
