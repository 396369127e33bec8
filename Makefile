.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
BIN := .venv/bin
# The tests that touch nothing outside the process: the fast inner loop.
QUICK := $(wildcard tests/unit tests/property)
# Extra words for pytest: make test ARGS="-k lease -x"
ARGS ?=

.PHONY: help
help: ## list these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## make .venv and install the locked dependencies (does nothing when they are there)
	@.ci/setup

.PHONY: demo
demo: setup ## see the whole thing work: broker, workers, a failure, nothing lost
	@$(BIN)/python examples/demo.py

.PHONY: test
test: lint ## everything: format, lint, imports, types, all the tests
	@$(BIN)/python -m pytest tests $(ARGS)

.PHONY: nightly
nightly: setup ## the long runs: chaos, kills, simulation, for an hour or two
	@$(BIN)/python -m pytest tests -m nightly $(ARGS)

.PHONY: check
check: lint ## the fast inner loop: format, lint, imports, types, unit and property tests
	@$(BIN)/python -m pytest -q $(QUICK) $(ARGS)

.PHONY: lint
lint: setup
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'some files are not formatted: make format' >&2; exit 1; }
	@$(BIN)/lint-imports --no-logo >.venv/lint-imports.log || { cat .venv/lint-imports.log >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

.PHONY: format
format: setup ## format the code and mend what ruff can mend by itself
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

.PHONY: bench
bench: setup ## the whole table of measurements
	@$(BIN)/spillway bench all

.PHONY: docs
docs: setup ## write the generated pages of docs/ afresh
	@$(BIN)/python docs/generator

.PHONY: serve
serve: setup ## a broker with an embedded PostgreSQL in ./spillway-data
	@$(BIN)/spillway serve

.PHONY: lock
lock: setup ## add to requirements.lock what pyproject.toml asks for (needs uv; ARGS=--upgrade renews all of it)
	@uv pip compile --quiet pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate $(ARGS) -o requirements.lock
	@! grep -nE '^--|://' requirements.lock

.PHONY: clean
clean: ## remove .venv and caches (never spillway-data: that is yours)
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
