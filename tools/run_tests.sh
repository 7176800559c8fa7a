#!/usr/bin/env bash
# Runs parts of the tests one after the other, all of them even if one fails, and prints a table at the end.
#
#   tools/run_tests.sh PART...     parts: lint types rust python spark interop
#
# Status 1 if a part failed. A part that this machine cannot run is skipped with what to install, but with CI set it
# counts as failed. ARGS goes to the runner of each part (cargo test or pytest).

# The parts are called by name, at the end.
# shellcheck disable=SC2329

set -u
set -o pipefail
cd "$(dirname "$0")/.." || exit 1
bin=$PWD/.venv/bin
logs=$PWD/.venv/.mqstore/logs
mkdir -p "$logs"

# The binding is checked against the interpreter it is built for.
export PYO3_PYTHON=$bin/python
export SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON=$bin/python PYSPARK_DRIVER_PYTHON=$bin/python
ARGS=${ARGS:-}

cannot_run=77 # a part's status, with the reason as the last line of its output
no_tests=5    # pytest's status

# each COMMAND...: runs it, remembers a failure in $worst.
each() {
    echo "+ $*"
    "$@" || worst=1
}

part_lint() {
    local worst=0 script
    each cargo fmt --all --check
    each cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
    # A link in a comment that leads nowhere.
    each env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --workspace --no-deps --exclude mqstore-python
    each "$bin/ruff" check --quiet .
    each "$bin/ruff" format --check --quiet .
    for script in tools/*.sh tools/java_home .ci/run; do
        bash -n "$script" || worst=1
    done
    return "$worst"
}

part_types() {
    local worst=0
    each "$bin/mypy"
    each "$bin/python" -m mypy.stubtest mqstore._mqstore
    return "$worst"
}

part_rust() {
    # shellcheck disable=SC2086
    cargo test --workspace --locked --no-fail-fast $ARGS
    status=$?
    # The lock-free parts under the model checker, which replaces the atomics and so wants a build of its own.
    [ -n "$ARGS" ] ||
        RUSTFLAGS="--cfg loom" cargo test --locked --target-dir target/loom -p mqstore-log -p mqstore-base --lib models || status=1
    return "$status"
}

part_python() {
    # shellcheck disable=SC2086
    "$bin/python" -m pytest -m "not spark and not interop" $ARGS
}

part_spark() {
    JAVA_HOME=$(tools/java_home) || {
        echo "install Java 17 or newer"
        return "$cannot_run"
    }
    export JAVA_HOME
    # shellcheck disable=SC2086
    "$bin/python" -m pytest -m spark $ARGS
}

part_interop() {
    if ! command -v mvn >/dev/null 2>&1; then
        echo "install maven"
        return "$cannot_run"
    fi
    if ! command -v javac >/dev/null 2>&1 && [ ! -x "${JAVA_HOME:-}/bin/javac" ]; then
        echo "install a JDK, 17 or newer"
        return "$cannot_run"
    fi
    # A repository that does not answer ends in an error, not in a wait. Settings of the user come later and win.
    export MAVEN_OPTS="-Dmaven.wagon.rto=30000 -Dmaven.wagon.http.retryHandler.count=2 \
-Daether.connector.connectTimeout=30000 -Daether.connector.requestTimeout=30000 ${MAVEN_OPTS:-}"
    # Ahead of the tests: Maven may have to wait for the network longer than a test may take.
    (cd tests && "$bin/python" -m interop.java_build) || return 1
    # shellcheck disable=SC2086
    "$bin/python" -m pytest -m interop $ARGS
}

# closing_line PART LOG: what the runner itself said at the end.
closing_line() {
    case $1 in
        rust)
            awk '/^test result:/ { passed += $4; failed += $6; ignored += $8; suites++ }
                 END { printf "%d passed, %d failed, %d ignored in %d suites", passed, failed, ignored, suites }' "$2"
            ;;
        python | spark | interop) grep -E '^=+ .* in [0-9.]+s' "$2" | tail -n 1 | sed 's/^=* *//; s/ *=*$//' ;;
        types) grep -E '^(Found|Success)' "$2" | paste -s -d '; ' - ;;
    esac
}

table=""
failed=0
for part in "$@"; do
    printf '\n==== %s ====\n' "$part"
    log=$logs/$part.log
    started=$(date +%s)
    (part_"$part") 2>&1 | tee "$log"
    status=$?
    seconds=$(($(date +%s) - started))
    line=$(closing_line "$part" "$log")
    case $status in
        0) result=passed ;;
        "$cannot_run") result=skipped line=$(tail -n 1 "$log") ;;
        "$no_tests") result=skipped line="no tests" ;;
        *) result=FAILED ;;
    esac
    # A skip is fine for a person who sees it, not for a machine that reports on others' behalf.
    [ $result = skipped ] && [ -n "${CI:-}" ] && result=FAILED
    [ $result = FAILED ] && failed=1
    table="$table$(printf '%-8s %-8s %5d s   %s' "$part" "$result" "$seconds" "$line")
"
done

printf '\n==== summary ====\n%s' "$table"
exit $failed
