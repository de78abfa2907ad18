.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
export PYTHONDONTWRITEBYTECODE = 1

.PHONY: help setup lint unit spark test demo dev clean

help: ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-8s %s\n", $$1, $$2}'

setup: ## Install everything into .venv (Python packages, Spark jars)
	@./scripts/setup
