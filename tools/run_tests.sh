#!/usr/bin/env bash
# Runs parts of the tests one after the other, all of them even if one fails, and prints a table at the end.
#
#   tools/run_tests.sh PART...     parts: commits lint rustdoc types unit sample rust sim loom threads python
#                                spark interop
#
# Parts that are joined by a plus (types+loom) run at the same time: one computes while the other waits.
#
# Status 1 if a part failed or exceeded its time limit. A part that this machine cannot run is skipped with an
# installation hint. With CI set, it counts as failed. ARGS goes to the runner of each part (cargo test or pytest).
#
#   MQSTORE_SOAK=1            everything, with more seeds and rounds (`make soak`)
#   MQSTORE_TIME_FACTOR=2     twice the time limits, for a slow machine
#   MQSTORE_WORKERS=4         processes of the Python tests; 2 by default

# The parts are called by name, at the end.
# shellcheck disable=SC2329

set -u
set -o pipefail
cd "$(dirname "$0")/.." || exit 1
bin=$PWD/.venv/bin
logs=$PWD/.venv/.mqstore/logs
mkdir -p "$logs"

# The binding is checked with the interpreter for which it is built.
export PYO3_PYTHON=$bin/python
export SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON=$bin/python PYSPARK_DRIVER_PYTHON=$bin/python
# A build from scratch is faster without incremental files, which only a second build reads, and without line numbers. A
# backtrace still has the names. With fewer units, each crate has fewer copies of shared generic code.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=4
ARGS=${ARGS:-}
SOAK=${MQSTORE_SOAK:-}
WORKERS=${MQSTORE_WORKERS:-2}

cannot_run=77 # a part's status, with the reason as the last line of its output
no_tests=5    # pytest's status

# limit PART: the maximum seconds of a part, with its build. Each limit is about two and a half times what an idle
# machine with two cores needs, together with the parts that `make test` runs at the same time. So a run passes on a
# busy machine, but a suite that doubles its time fails.
limit() {
    case ${SOAK:+soak-}$1 in
        lint) echo 300 ;;
        rustdoc) echo 240 ;;
        commits) echo 60 ;;
        types) echo 180 ;;
        unit) echo 300 ;;
        sample) echo 240 ;;
        rust) echo 900 ;;
        sim) echo 800 ;;
        loom) echo 300 ;;
        python) echo 900 ;;
        spark) echo 900 ;;
        interop) echo 900 ;;
        threads) echo 3600 ;;
        soak-sim) echo 18000 ;;
        soak-*) echo 7200 ;;
    esac
}

# each COMMAND...: runs it, and notes a failure in $worst.
each() {
    echo "+ $*"
    "$@" || worst=1
}

part_lint() {
    local worst=0 script
    each cargo fmt --all --check
    each cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
    each "$bin/ruff" check --quiet .
    each "$bin/ruff" format --check --quiet .
    for script in tools/*.sh tools/java_home .ci/run; do
        bash -n "$script" || worst=1
    done
    return "$worst"
}

# Finds broken links in comments. A separate part, not in `make test`, because it checks all crates once more.
part_rustdoc() {
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --workspace --no-deps --exclude mqstore-python
}

# The messages of new commits; not in `make test`, because a merge may bring other messages.
part_commits() {
    "$bin/python" tools/check_commits.py
}

part_types() {
    local worst=0
    each "$bin/mypy"
    each "$bin/python" -m mypy.stubtest mqstore._mqstore
    return "$worst"
}

# cargo_test ARGUMENTS...: the tests of the product's crates and of tests/rust, with the time of each. The binding has
# no Rust tests. The benchmarks and their two tests are built in the soak only. All parts select the same packages,
# because cargo compiles a crate again if another selection changes its features.
cargo_test() {
    local packages="--workspace --exclude mqstore-python"
    [ -n "$SOAK" ] || packages="$packages --exclude mqstore-bench"
    # shellcheck disable=SC2086
    RUSTC_WORKSPACE_WRAPPER=$PWD/tools/rustc_for_tests.sh \
        cargo test --config "target.'cfg(all())'.runner = '$PWD/tools/timed_test.sh'" $packages --locked --no-fail-fast "$@"
}

part_unit() {
    # shellcheck disable=SC2086
    cargo_test --lib --test floors $ARGS
}

part_rust() {
    # shellcheck disable=SC2086
    cargo_test $ARGS
}

# A separate part (`test = false` in tests/rust/Cargo.toml), because it takes as long as all other Rust tests.
part_sim() {
    # shellcheck disable=SC2086
    cargo_test --test sim $ARGS
}

# The lock-free code under the model checker, which replaces the atomics and so needs a separate build. The models run
# for seconds, so a build without optimizations is faster.
part_loom() {
    RUSTFLAGS="--cfg loom" cargo test --profile dev --locked --target-dir target/loom -p mqstore-log -p mqstore-base --lib models
}

# ThreadSanitizer and valgrind. A tool that is not installed is skipped.
part_threads() {
    tools/thread_checks.sh
}

# pytest_run WORKERS ARGUMENTS...: runs the tests in this many processes; 0 means no extra process.
pytest_run() {
    local workers=$1
    shift
    "$bin/python" -m pytest -n "$workers" --durations=10 --durations-min=0.5 "$@"
}

part_sample() {
    # shellcheck disable=SC2086
    pytest_run "$WORKERS" -m "not spark and not interop and not soak and not slow" $ARGS
}

part_python() {
    local without="not spark and not interop"
    [ -n "$SOAK" ] || without="$without and not soak"
    # One process more than cores, because some tests wait.
    # shellcheck disable=SC2086
    pytest_run "$((WORKERS + 1))" -m "$without" $ARGS
}

part_spark() {
    JAVA_HOME=$(tools/java_home) || {
        echo "install Java 17 or newer"
        return "$cannot_run"
    }
    export JAVA_HOME
    local tests="spark"
    [ -n "$SOAK" ] || tests="$tests and not soak"
    # One process, because all tests share one Spark session.
    # shellcheck disable=SC2086
    pytest_run 0 -m "$tests" $ARGS
}

part_interop() {
    local folder=tests/interop
    if ! command -v mvn >/dev/null 2>&1; then
        echo "install maven"
        return "$cannot_run"
    fi
    if ! command -v javac >/dev/null 2>&1 && [ ! -x "${JAVA_HOME:-}/bin/javac" ]; then
        echo "install a JDK, 17 or newer"
        return "$cannot_run"
    fi
    # If a repository does not answer, the result must be an error, not a wait. Later settings of the user override
    # these.
    export MAVEN_OPTS="-Dmaven.wagon.rto=30000 -Dmaven.wagon.http.retryHandler.count=2 \
-Daether.connector.connectTimeout=30000 -Daether.connector.requestTimeout=30000 ${MAVEN_OPTS:-}"
    # Before the tests, because Maven may wait for the network longer than the limit of a test.
    (cd tests && "$bin/python" -m interop.java_build) || return 1
    case $ARGS in *tests/*) folder="" ;; esac
    local tests=interop
    [ -n "$SOAK" ] || tests="$tests and not soak"
    # Twice as many processes as cores, because most of the time is waiting. tests/interop/conftest.py groups the tests.
    # shellcheck disable=SC2086
    pytest_run "$((2 * WORKERS))" --dist loadscope -m "$tests" $folder $ARGS
}

# closing_line PART LOG: the summary line of the runner.
closing_line() {
    case $1 in
        unit | rust | sim | loom)
            awk '/^test result:/ { passed += $4; failed += $6; ignored += $8; suites++ }
                 END { printf "%d passed, %d failed, %d ignored in %d suites", passed, failed, ignored, suites }' "$2"
            ;;
        sample | python | spark | interop)
            grep -E '^=+ .* in [0-9.]+s' "$2" | tail -n 1 | sed 's/^=* *//; s/ *=*$//'
            ;;
        types) grep -E '^(Found|Success)' "$2" | paste -s -d '; ' - ;;
    esac
}

# slowest LOG: the ten slowest tests of cargo. pytest prints its own list.
slowest() {
    sed -n 's/^test \(.*\) \.\.\. .* <\([0-9.]*\)s>$/\2 s  \1/p' "$1" | sort -rn | head -n 10
}

# judge PART STATUS SECONDS: prints the slowest tests of cargo and adds the part's row to the table.
judge() {
    local part=$1 status=$2 seconds=$3 log=$logs/$1.log most line result
    most=$(awk "BEGIN { printf \"%d\", $(limit "$part") * ${MQSTORE_TIME_FACTOR:-1} }")
    line=$(closing_line "$part" "$log")
    case $part in
        unit | rust | sim)
            printf 'slowest tests:\n'
            slowest "$log"
            ;;
    esac
    case $status in
        0) result=passed ;;
        "$cannot_run") result=skipped line=$(tail -n 1 "$log") ;;
        "$no_tests") result=skipped line="no tests" ;;
        *) result=FAILED ;;
    esac
    # A person sees a skip. A build machine reports to others, so a skip must be a failure there.
    [ $result = skipped ] && [ -n "${CI:-}" ] && result=FAILED
    if [ $result = passed ] && [ "$seconds" -gt "$most" ]; then
        result=FAILED line="took more than $most s: make it faster, or see MQSTORE_TIME_FACTOR in CONTRIBUTING.md; $line"
    fi
    [ $result = FAILED ] && failed=1
    table="$table$(printf '%-8s %-8s %5d s of %5d   %s' "$part" "$result" "$seconds" "$most" "$line")
"
}

# run_one PART: runs a part and shows its output.
run_one() {
    local started status
    printf '\n==== %s ====\n' "$1"
    started=$(date +%s)
    (part_"$1") 2>&1 | tee "$logs/$1.log"
    status=$?
    judge "$1" $status $(($(date +%s) - started))
}

groups=() # the process groups of the parts that run at the same time

# run_together PART...: runs the parts at the same time, and shows the output of each when it ends.
run_together() {
    local parts=("$@") started status index
    printf '\n==== %s: at the same time; the output of each follows at its end ====\n' "$*"
    started=$(date +%s)
    # Each part gets a process group, so that an interrupt ends all its processes.
    set -m
    for index in "${!parts[@]}"; do
        (part_"${parts[$index]}") >"$logs/${parts[$index]}.log" 2>&1 </dev/null &
        groups[index]=$!
    done
    set +m
    while [ ${#groups[@]} -gt 0 ]; do
        sleep 1
        for index in "${!groups[@]}"; do
            kill -0 "${groups[$index]}" 2>/dev/null && continue
            wait "${groups[$index]}"
            status=$?
            unset "groups[$index]"
            printf '\n==== %s ====\n' "${parts[$index]}"
            cat "$logs/${parts[$index]}.log"
            judge "${parts[$index]}" $status $(($(date +%s) - started))
        done
    done
}

interrupted() {
    local group
    for group in ${groups[@]+"${groups[@]}"}; do
        kill -TERM -- "-$group" 2>/dev/null
    done
    exit 130
}
trap interrupted INT TERM HUP

table=""
failed=0
for word in "$@"; do
    case $word in
        # shellcheck disable=SC2086
        *+*) run_together ${word//+/ } ;;
        *) run_one "$word" ;;
    esac
done

printf '\n==== summary ====\n%s' "$table"
exit $failed
