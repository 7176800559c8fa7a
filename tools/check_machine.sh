#!/usr/bin/env bash
# Checks this machine and lists everything that is missing to build mqstore, with a remedy for each item.
#
# Standard output: the Python interpreter to use, if nothing is missing (status 0).
# Standard error:  the list, otherwise (status 1).
# Reads: PYTHON (the only interpreter to consider), CC (the C compiler), PATH.
# Downloads nothing and writes only two files in a temporary folder.

set -u
root=$(cd "$(dirname "$0")/.." && pwd)
needed_python=11 # of Python 3
needed_disk_kb=5859375 # 6 GB

faults=0
report=""

# fault WHAT FOUND REMEDY
fault() {
    faults=$((faults + 1))
    report="$report
  $faults. $1
     found:  $2
     remedy: $3
"
}

# at_least WANTED FOUND: compares the first two numbers of two versions.
at_least() {
    local wanted_major=${1%%.*} wanted_rest=${1#*.} found_major=${2%%.*} found_rest=${2#*.}
    local wanted_minor=${wanted_rest%%.*} found_minor=${found_rest%%.*}
    [ "$found_major" -gt "$wanted_major" ] ||
        { [ "$found_major" -eq "$wanted_major" ] && [ "$found_minor" -ge "$wanted_minor" ]; }
}

# install_hint DEBIAN FEDORA HOMEBREW OTHERWISE
install_hint() {
    if command -v apt-get >/dev/null 2>&1; then
        echo "apt-get install $1"
    elif command -v dnf >/dev/null 2>&1; then
        echo "dnf install $2"
    elif command -v brew >/dev/null 2>&1; then
        echo "$3"
    else
        echo "$4"
    fi
}

# Sets $python to the first interpreter that is new enough and can make virtual environments.
check_python() {
    local name version seen="" incomplete=""
    python=""
    set -- python3 python3.14 python3.13 python3.12 python3.11
    [ -z "${PYTHON:-}" ] || set -- "$PYTHON"
    for name in "$@"; do
        command -v "$name" >/dev/null 2>&1 || continue
        # A version manager may leave names on the PATH that do not start. A start is the only test.
        version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || version=""
        if [ -z "$version" ]; then
            seen="$seen$name does not start; "
        elif ! at_least "3.$needed_python" "$version"; then
            seen="$seen$name is $version; "
        elif ! "$name" -c 'import ensurepip, venv' >/dev/null 2>&1 </dev/null; then
            seen="$seen$name is $version without venv; "
            incomplete=${incomplete:-$version}
        else
            python=$(command -v "$name")
            return
        fi
    done
    if [ -n "$incomplete" ]; then
        fault "the Python modules venv and ensurepip" "${seen%; }" \
            "$(install_hint "python$incomplete-venv" python3-pip "brew install python" \
                "install the venv package of your Python"), or name another Python: make setup PYTHON=..."
    else
        seen=${seen:-no ${PYTHON:-python3}}
        fault "Python 3.$needed_python or newer" "${seen%; }" \
            "$(install_hint "python3 python3-venv" python3 "brew install python" \
                "install Python 3.$needed_python or newer"), or name one that is there: make setup PYTHON=..."
    fi
}

check_cargo() {
    local wanted version
    wanted=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
    if ! command -v cargo >/dev/null 2>&1; then
        fault "Rust (cargo) $wanted or newer" "no cargo" \
            "install Rust with rustup (see rust-lang.org/tools/install)"
        return
    fi
    # Without this variable, rustup starts a download here if the toolchain is missing.
    version=$(cd "$root" && RUSTUP_AUTO_INSTALL=0 cargo --version 2>/dev/null </dev/null | sed -n 's/^cargo \([0-9][0-9.]*\).*/\1/p')
    if [ -z "$version" ]; then
        fault "Rust (cargo) $wanted or newer" "$(command -v cargo) does not start" "rustup toolchain install stable"
    elif ! at_least "$wanted" "$version"; then
        fault "Rust (cargo) $wanted or newer" "cargo $version" \
            "rustup update stable (or install a newer Rust: rust-lang.org/tools/install)"
    fi
}

check_compiler() {
    local compiler=${CC:-cc} found remedy folder status
    remedy=$(install_hint build-essential "gcc glibc-devel" "xcode-select --install" \
        "install gcc or clang with the C library's headers")
    # On a new Mac, cc exists but opens a window that asks to install the command line tools.
    if ! command -v "${compiler%% *}" >/dev/null 2>&1; then
        found="no ${compiler%% *}"
    elif [ "$(uname -s)" = Darwin ] && ! xcode-select -p >/dev/null 2>&1; then
        found="no command line tools"
        remedy="xcode-select --install"
    else
        folder=$(mktemp -d) || return
        printf '#include <stdlib.h>\nint main(void) { return EXIT_SUCCESS; }\n' >"$folder/probe.c"
        # $CC may carry arguments.
        # shellcheck disable=SC2086
        $compiler -o "$folder/probe" "$folder/probe.c" >/dev/null 2>&1 </dev/null
        status=$?
        rm -rf "$folder"
        [ $status -eq 0 ] && return
        found="$compiler cannot build a program of one line"
    fi
    fault "a C compiler" "$found" "$remedy"
}

check_disk() {
    local free own
    free=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge $needed_disk_kb ] && return
    # The files of earlier runs in this folder count as available space.
    own=$(du -sk "$root/.venv" "$root/target" 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }')
    [ $((free + own)) -ge $needed_disk_kb ] && return
    fault "6 GB of free disk" "$((free * 1024 / 1000000000)).$((free * 1024 / 100000000 % 10)) GB free in $root" \
        "free some space, or work in a copy on a larger disk"
}

check_python
check_cargo
check_compiler
check_disk

if [ $faults -gt 0 ]; then
    echo "mqstore cannot be built on this machine yet. What is missing:" >&2
    echo "$report" >&2
    echo "Then run the same command again." >&2
    exit 1
fi
echo "$python"
