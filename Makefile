# Every target sets up what it needs; run any of them on a fresh checkout.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Newer than its inputs when the environment is complete.
READY := $(VENV)/.ready

.PHONY: help demo demo-down test test-fast test-e2e soak bench lint conformance conformance-smoke

help:
	@echo 'make demo       two real clusters on this machine, joined, with a workload on them'
	@echo 'make demo-down  removes what the demo made'
	@echo 'make test       all tests, on two real clusters too'
	@echo 'make test-fast  the tests that need no cluster, and the linters'
	@echo 'make soak       5 minutes of everything at once on two real clusters, then an audit'
	@echo 'make bench      streams over the bridge and without it, as JSON; ARGS for options'
	@echo 'make conformance  the upstream tests on a real node and on the virtual one; ARGS for options'

$(READY): pyproject.toml e2e/setup.sh
	@sh e2e/setup.sh $(PYTHON) $(VENV) >&2
	@touch $@

demo: $(READY)
	@$(BIN)/python -m e2e.demo up

demo-down: $(READY)
	@$(BIN)/python -m e2e.demo down

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: lint
	$(BIN)/pytest tests

test-e2e: $(READY)
	$(BIN)/pytest e2e

soak: $(READY)
	CLUSTER_BRIDGE_SOAK_SECONDS=$${CLUSTER_BRIDGE_SOAK_SECONDS:-300} $(BIN)/pytest -s e2e/test_soak.py

bench: $(READY)
	@$(BIN)/python -m e2e.bench streams $(ARGS)

test: test-fast test-e2e

conformance: $(READY)
	@$(BIN)/python -m e2e.conformance run $(ARGS)

conformance-smoke: $(READY)
	@$(BIN)/python -m e2e.conformance run --smoke --only virtual $(ARGS)
