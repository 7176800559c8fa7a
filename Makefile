# All tasks of the project. `make help` lists them. GNU make 3.81 and bash 3.2 are enough.
#
# Every target first brings .venv up to date (tools/setup.sh). If nothing changed, that takes about a second.

SHELL := bash
# rustup's folder of cargo, for shells that were open before the installation.
export PATH := $(PATH):$(HOME)/.cargo/bin

PY := .venv/bin/python
# Arguments for the test runner: make test-python ARGS="-k lookup".
ARGS ?=
# The folder in which `make demo` puts its store; a temporary folder by default.
STORE ?=
# The parts of `make test`, in order. A plus joins parts that run at the same time, because they use one
# core each. `make check` has shorter ones. `make soak` has two more.
PARTS ?= lint rust sim types+loom python spark interop
check: PARTS = commits lint rustdoc types unit sample
soak: PARTS = lint rustdoc types rust sim loom threads python spark interop

.DEFAULT_GOAL := help
.PHONY: help setup build demo check test test-rust test-sim test-python test-spark test-interop lint types bench bench-python bench-compare bench-curves bench-flames bench-check fuzz soak docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3.12  another interpreter      ARGS="-k lookup"   arguments for the test runner'
	@echo '  STORE=folder       where the demo writes    PARTS="lint rust"  some parts only'

# The tests install a wheel that builds faster. The demo, the benchmarks and `make setup` use the release build.
setup: ## Check the machine, make .venv, build mqstore and install it with all extras
	@bash tools/setup.sh $(if $(filter setup demo bench%,$(MAKECMDGOALS)),--release) $(if $(filter setup,$(MAKECMDGOALS)),--report)

build: setup ## Build the wheel and the source archive into dist/
	@rm -rf dist
	@.venv/bin/maturin sdist --out dist
	@.venv/bin/maturin build --release --locked --out dist --interpreter $(PY)
	@ls dist/*

demo: setup ## Tour of a small store, from the first append to a compaction on Spark (STORE=folder keeps it)
	@JAVA_HOME="$$(tools/java_home)" $(PY) examples/demo.py $(STORE)

check: setup ## For each commit, in minutes: format, lints, types, unit tests, fast Python tests
	@bash tools/run_tests.sh $(PARTS)

test: setup ## For each change: run all parts below; fails if a part fails or exceeds its time limit
	@bash tools/run_tests.sh $(PARTS)

test-rust: setup ## Run the Rust unit tests and the suites in tests/rust, except the simulator
	@bash tools/run_tests.sh rust

test-sim: setup ## Run the crash simulator, and the lock-free code under the model checker
	@bash tools/run_tests.sh sim loom

test-python: setup ## Run the Python tests that need neither Spark nor Maven
	@bash tools/run_tests.sh python

test-spark: setup ## Run the Python tests on a local Spark
	@bash tools/run_tests.sh spark

test-interop: setup ## Exchange stores with RocketMQ's own library in both directions (needs a JDK and Maven)
	@bash tools/run_tests.sh interop

lint: setup ## Check formatting and lints of Rust and Python, and links in the Rust documentation
	@bash tools/run_tests.sh lint rustdoc

types: setup ## Check static types, and the native module against its stub
	@bash tools/run_tests.sh types

bench: setup ## Run the Rust benchmarks, each group with its limit (ARGS=filter)
	@cargo bench --locked -p mqstore-bench $(if $(ARGS),-- $(ARGS))
	@$(PY) benches/table.py

bench-python: setup ## Time single calls in Python, also of other libraries (pip install --group bench; ARGS="-k append")
	@exec $(PY) -m pytest benches/python --import-mode=importlib -q $(ARGS)

bench-compare: setup ## Compare mqstore with RocketMQ's Java store and the machine's limits (ARGS="--list"; needs a JDK and Maven)
	@exec $(PY) -m benches.compare $(ARGS)

bench-curves: setup ## Measure how time and memory grow with the log, queues, waiting threads, keys (ARGS="keys --rounds 1")
	@exec $(PY) -m benches.compare.curves $(ARGS)

bench-flames: setup ## Draw flame graphs of the hot paths in benches/plots (needs perf and inferno)
	@exec $(PY) benches/flames.py $(ARGS)

bench-check: setup ## Compare the instructions of the hot paths with the committed ones (needs valgrind; ARGS="--update" replaces them)
	@exec $(PY) benches/check.py $(ARGS)

fuzz: setup ## Run each fuzz target for a minute (ARGS="SECONDS [TARGET]")
	@sh tests/fuzz/run.sh $(if $(ARGS),$(ARGS),60)

soak: setup ## For each night, in hours: all tests with more seeds and rounds, ThreadSanitizer and valgrind
	@MQSTORE_SOAK=1 bash tools/run_tests.sh $(PARTS)

docs: setup ## Build the documentation into site/; a broken link fails (`make lint` checks the Rust documentation)
	@bash tools/setup.sh --docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

clean: ## Remove all build results except .venv
	@rm -rf target site dist spark-warehouse .pytest_cache .mypy_cache .ruff_cache
	@rm -rf tests/interop/target tests/fuzz/target benches/compare/target benches/compare/results
