# The one door: `make help` lists what is behind it. GNU make 3.81 and bash 3.2 are enough.
#
# Every target first brings .venv up to date (tools/setup.sh); when nothing changed, that takes about a second.

SHELL := bash
# Where rustup puts cargo, for shells that were open before it was installed.
export PATH := $(PATH):$(HOME)/.cargo/bin

PY := .venv/bin/python
# Arguments that go to the runner: make test-python ARGS="-k lookup".
ARGS ?=
# Where `make demo` puts its store; a temporary folder unless given.
STORE ?=
# The parts of `make test` in this order. `make check` has shorter ones; `make soak` has one more.
PARTS ?= lint types rust sim loom python spark interop
check: PARTS = lint types unit sample
soak: PARTS = lint types rust sim loom threads python spark interop

.DEFAULT_GOAL := help
.PHONY: help setup build demo check test test-rust test-sim test-python test-spark test-interop lint types bench bench-python bench-compare bench-curves bench-flames bench-check fuzz soak docs clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3.12  another interpreter      ARGS="-k lookup"   arguments for the test runner'
	@echo '  STORE=folder       where the demo writes    PARTS="lint rust"  some parts only'

# The tests install a wheel that builds faster; what a person uses or measures is the release build.
setup: ## Check the machine, make .venv, build and install mqstore with all extras
	@bash tools/setup.sh $(if $(filter setup demo bench%,$(MAKECMDGOALS)),--release) $(if $(filter setup,$(MAKECMDGOALS)),--report)

build: setup ## Build the wheel and the source archive into dist/
	@rm -rf dist
	@.venv/bin/maturin sdist --out dist
	@.venv/bin/maturin build --release --locked --out dist --interpreter $(PY)
	@ls dist/*

demo: setup ## A tour of a small store, from the first append to a compaction on Spark (STORE=folder keeps it)
	@JAVA_HOME="$$(tools/java_home)" $(PY) examples/demo.py $(STORE)

check: setup ## For each commit, in minutes: format, lints, types, unit tests, the fast Python tests
	@bash tools/run_tests.sh $(PARTS)

test: setup ## For each change: all parts below, each timed; fails if one fails or takes too long
	@bash tools/run_tests.sh $(PARTS)

test-rust: setup ## Rust unit tests and the suites in tests/rust, except the simulator
	@bash tools/run_tests.sh rust

test-sim: setup ## The crash simulator, and the lock-free parts under the model checker
	@bash tools/run_tests.sh sim loom

test-python: setup ## The Python tests that need neither Spark nor Maven
	@bash tools/run_tests.sh python

test-spark: setup ## The Python tests on a local Spark
	@bash tools/run_tests.sh spark

test-interop: setup ## Stores exchanged with RocketMQ's own library, both ways (needs a JDK and Maven)
	@bash tools/run_tests.sh interop

lint: setup ## Formatting and lints, Rust and Python
	@bash tools/run_tests.sh lint

types: setup ## Static types, and the native module against its stub
	@bash tools/run_tests.sh types

bench: setup ## The Rust benchmarks, each group beside its limit (ARGS=filter)
	@cargo bench --locked -p mqstore-bench $(if $(ARGS),-- $(ARGS))
	@$(PY) benches/table.py

bench-python: setup ## What single calls take in Python, beside other libraries (pip install --group bench; ARGS="-k append")
	@exec $(PY) -m pytest benches/python --import-mode=importlib -q $(ARGS)

bench-compare: setup ## mqstore beside RocketMQ's Java store and the machine's limits (ARGS="--list"; needs a JDK and Maven)
	@exec $(PY) -m benches.compare $(ARGS)

bench-curves: setup ## How times and memory grow: with the log, queues, waiting threads, keys (ARGS="keys --rounds 1")
	@exec $(PY) -m benches.compare.curves $(ARGS)

bench-flames: setup ## Where the time of the hot paths goes, as flame graphs in docs/plots (needs perf and inferno)
	@exec $(PY) benches/flames.py $(ARGS)

bench-check: setup ## Instructions of the hot paths beside the committed ones (needs valgrind; ARGS="--update" commits to new ones)
	@exec $(PY) benches/check.py $(ARGS)

fuzz: setup ## The fuzz targets, a minute each (ARGS="SECONDS [TARGET]")
	@sh tests/fuzz/run.sh $(if $(ARGS),$(ARGS),60)

soak: setup ## For each night, in hours: all tests with more seeds and rounds, ThreadSanitizer and valgrind
	@MQSTORE_SOAK=1 bash tools/run_tests.sh $(PARTS)

docs: setup ## The documentation site into site/; any broken link fails (`make lint` checks the Rust documentation)
	@bash tools/setup.sh --docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

clean: ## Remove everything that was built; .venv stays
	@rm -rf target site dist spark-warehouse .pytest_cache .mypy_cache .ruff_cache
	@rm -rf tests/interop/target tests/fuzz/target benches/compare/target benches/compare/results
