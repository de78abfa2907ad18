.DEFAULT_GOAL := help
BIN := .venv/bin
# Tests side by side. Each worker of those in Spark has a session (2 GiB), and waits a third of the time for servers.
WORKERS ?= 2
SPARK_WORKERS ?= 4
# Two more, as some wait for a server or the JVM.
QUICK_WORKERS := $(if $(filter file undefined,$(origin WORKERS)),4,$(WORKERS))
# What a run plays that none before has: histories and examples. `make test SEED=7` plays those of another run again.
SEED := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
# Where runs write each test's outcome and seconds.
REPORTS ?= .reports
# A run that hangs ends, with what it was about. A single test ends after `faulthandler_timeout` (pyproject.toml).
WITHIN := $(if $(shell command -v timeout),timeout --kill-after 60)
# Each of the many processes that tests start would compile all that it imports: 7 s for a command that starts Spark.
export PYTHONDONTWRITEBYTECODE =
# `time` is bash's: what each part of a target costs.
SHELL := bash
export TIMEFORMAT = $@: %0R s (%0U s of CPU in user mode, %0S s in the kernel)

.PHONY: help setup servers proto demo dev test quick near museum golden test-long chaos fuzz bench docs reference check lint types imports all pythons unit spark

help: ## Show what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

pythons: ## The tests that depend on the interpreter, on each Python of this machine or that uv can install
	time $(BIN)/python scripts/pythons.py $(if $(filter all,$(MAKECMDGOALS)),$(SEED))

setup: ## Install everything: Python packages into .venv, Spark jars into the user's cache
	@./scripts/setup

servers: ## The servers that tests run against, into the user's cache
	@$(BIN)/python -m tests.servers.tools

proto: ## Generated code of Canal's protocol, from its .proto files
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. cdc_lakehouse/sources/canal/wire/*.proto

demo: ## A sample changefeed in one pass, with the result shown; about 3 GB of downloads the first time
	@./scripts/setup --no-dev
	@./scripts/demo

dev: setup ## The Dagster UI on http://127.0.0.1:3000, sensors on, the sample changefeed alive
	@./scripts/dev

test: setup servers ## Set up, then lint, types, import rules, tests, and another version of Python, side by side
	@$(MAKE) --no-print-directory -j3 SEED=$(SEED) WORKERS=1 check pythons all

quick: setup ## Lint, unit tests but the slow ones and with few random examples, one feed through Spark
	time $(BIN)/ruff check .
	time CDC_TESTS=few $(WITHIN) 900 $(BIN)/pytest -q -n $(QUICK_WORKERS) --ignore tests/servers \
	  -m "smoke or not (spark or server or slow)"

near: ## The tests that reach what was changed, for LIMIT (10) seconds, and one feed through Spark
	time $(BIN)/python -m tests.near $(if $(LIMIT),--seconds $(LIMIT))

museum: setup servers ## Real faults, put into the product again one at a time: the tests named for each should fail
	time $(BIN)/python -m tests.museum $(NAMES)

golden: setup servers ## Ask a real MySQL the questions of tests/golden again, and write its answers
	$(BIN)/pytest -q tests/servers/test_mysql.py -k answers --update

# A part of the large products, PART of PARTS; each time another one, if none is named.
PARTS ?= 12
PART ?= $(shell expr $(SEED) % $(PARTS))
test-long: setup servers ## A part (PART of PARTS, 12) of all tests and the large products, with random examples: an hour
	@echo "PART=$(PART) PARTS=$(PARTS) SEED=$(SEED)"
	time CDC_TESTS=long CDC_TESTS_PART=$(PART)/$(PARTS) CDC_TESTS_SEED=$(SEED) $(BIN)/pytest -q -n $(WORKERS) \
	  --dist loadgroup --durations=30 --hypothesis-seed=$(SEED) --junitxml=$(REPORTS)/long.xml $(TESTS)

MINUTES ?= 10
chaos: setup ## Random histories and faults for MINUTES (10), the first one of SEED (a random one)
	time $(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

fuzz: setup ## Spoilt bytes for each decoder for MINUTES (10) of CPU each, the first ones of SEED (a random one)
	time $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: setup servers ## Figures of docs/benchmarks.md, of SECTIONS (all; "files flink topics load lines start tables dagster wide scaling listing growth")
	time $(BIN)/python -m benchmarks.every $(SECTIONS)

docs: setup ## The documentation as a site, into site/; links and navigation are checked
	time ./scripts/docs

reference: ## The pages of docs/reference that are made from the code
	$(BIN)/python scripts/reference.py

check: lint types imports ## Lint, types and import rules

lint:
	time $(BIN)/ruff check .
	time $(BIN)/ruff format --check .

types:
	time $(BIN)/basedpyright

imports:
	time $(BIN)/lint-imports

all: ## All tests, with the random examples and histories of SEED. Writes which modules each test reaches, for `make near`
	@echo "SEED=$(SEED)"
# Once, for else each worker compiles all that it imports at the same moment as the others: 12 s of CPU instead of 4.
	@CDC_TESTS_MAP=1 $(BIN)/pytest -qq --collect-only >/dev/null || true
	time CDC_TESTS_MAP=1 CDC_TESTS_SEED=$(SEED) $(WITHIN) 2700 $(BIN)/pytest -q -n $(SPARK_WORKERS) --dist loadgroup \
	  --hypothesis-seed=$(SEED) --durations=20 --junitxml=$(REPORTS)/all.xml

unit: ## The tests that need no JVM
	time $(BIN)/pytest -q -n $(WORKERS) --ignore tests/spark --ignore tests/servers

spark: ## The tests in Spark and against servers; each server is started once, for one of the workers
	time $(BIN)/pytest -q -n $(SPARK_WORKERS) --dist loadgroup --durations=20 tests/servers tests/spark
