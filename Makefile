.DEFAULT_GOAL := help
BIN := .venv/bin
# Tests side by side. Each worker has a Spark session (2 GiB) and servers of its own.
WORKERS ?= 2
export PYTHONDONTWRITEBYTECODE = 1

.PHONY: help setup servers proto demo dev test check lint types imports unit spark

help: ## Show what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: ## Install everything: Python packages into .venv, Spark jars into the user's cache
	@./scripts/setup

servers: ## The servers that tests run against, into the user's cache
	@$(BIN)/python -m tests.servers.tools

proto: ## Generated code of Canal's protocol, from its .proto files
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. cdc_lakehouse/sources/canal/wire/*.proto

demo: setup ## The sample changefeed through the main job, with the result shown
	@./scripts/demo

dev: setup ## The Dagster UI on http://127.0.0.1:3000, sensors on, the sample changefeed alive
	@./scripts/dev

test: setup servers check unit spark ## Set up and run all tests

check: lint types imports ## Lint, types and import rules

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/basedpyright

imports:
	$(BIN)/lint-imports

unit: ## The tests that need no JVM
	$(BIN)/pytest -q -n $(WORKERS) -m "not spark and not server"

spark: ## The tests in Spark and against servers
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "spark or server" --durations=10
