# Every target sets up what it needs; run any of them on a fresh checkout.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Newer than its inputs when the environment is complete.
READY := $(VENV)/.ready

# Where it is set, each `bridge` command of a test compiles its modules again, a quarter of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help machine demo demo-down test test-fast test-e2e test-long soak faults bench lint lint-types lint-others \
        conformance conformance-smoke docs docs-write test-skew test-kind release release-verify release-reproduce \
        release-sign release-lock

help:
	@echo 'make demo       two real clusters on this machine, joined, with a workload on them'
	@echo 'make demo-down  removes what the demo made'
	@echo 'make test       the tests of test-fast, and the main tests on two real clusters'
	@echo 'make test-fast  the tests that need no cluster, and the linters'
	@echo 'make test-long  100,000 hostile requests, and the end-to-end tests that make test leaves out: 2,000 pods,'
	@echo '                benchmarks in short, the Helm chart, Kueue, variants, rare faults'
	@echo 'make test-kind  the end-to-end tests on clusters of kind; starts a Docker engine where none runs'
	@echo 'make soak       5 minutes of everything at once on two real clusters, then an audit'
	@echo 'make faults     30 minutes of faults, with an audit after each; ARGS for options'
	@echo 'make bench      in under ten minutes, as JSON: streams and pods, with the bridge and without'
	@echo 'make docs       the site of docs/, into site/'
	@echo 'make docs-write  the pages of docs/ that are made from the code'
	@echo 'make test-skew  the main tests with another Kubernetes on one side; builds it the first time'
	@echo 'make release VERSION=1.2.3  everything that a release publishes, into dist/; release-verify installs and runs'
	@echo '                it, release-reproduce builds twice and compares, release-lock updates the locks'
	@echo 'make conformance  the upstream tests on a real node and on the virtual one; ARGS for options'

$(READY): pyproject.toml bridge/base/version.py e2e/setup.sh e2e/release/locks/development.txt
	@sh e2e/setup.sh $(PYTHON) $(VENV) >&2
	@touch $@

demo: machine $(READY)
	@$(BIN)/python -m e2e.demo up

demo-down: $(READY)
	@$(BIN)/python -m e2e.demo down

# mypy has one thread; the other linters run beside it.
lint: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint-types lint-others

lint-types:
	$(BIN)/mypy

# The collection also compiles the tests, which else each worker of test-fast does: 10 s of its time.
lint-others:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.language
	@echo $(BIN)/pytest --collect-only tests
	@found=$$($(BIN)/pytest --collect-only --quiet --quiet tests) || { echo "$$found"; exit 1; }

# Lint, both suites, and the record in .results/green.
test: machine $(READY)
	@$(BIN)/python -m e2e.gate run

test-fast: lint
	@$(BIN)/python -m e2e.gate fast

test-e2e: machine $(READY)
	@$(BIN)/python -m e2e.gate e2e

# Whether this machine can run clusters, before anything is built.
machine:
	@sh e2e/check-machine.sh

# On kind.
KIND_TESTS ?= e2e

test-kind: $(READY)
	CLUSTER_BRIDGE_E2E_BACKEND=kind CLUSTER_BRIDGE_E2E_PREFIX=$${CLUSTER_BRIDGE_E2E_PREFIX:-kind} \
	  $(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations 20 -m core \
	  --junitxml .results/kind.xml $(KIND_TESTS) $(ARGS)

# All tests, with random seeds and fatal warnings, and no second attempt: first those that share the
# machine, then those that measure or load it.
STRICT := -W error::ResourceWarning -W error::pytest.PytestUnraisableExceptionWarning

test-long: machine $(READY)
	$(BIN)/python -m tests.fuzz
	$(BIN)/pytest -n $$(getconf _NPROCESSORS_ONLN) --dist worksteal $(STRICT) \
	  --hypothesis-profile random tests
	$(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder $(STRICT) -m 'not alone' e2e
	$(BIN)/pytest $(STRICT) -m alone e2e

soak: $(READY)
	CLUSTER_BRIDGE_SOAK_SECONDS=$${CLUSTER_BRIDGE_SOAK_SECONDS:-300} $(BIN)/pytest -s e2e/test_soak.py

faults: $(READY)
	@$(BIN)/python -m e2e.faults run $(ARGS)

bench: $(READY)
	@$(BIN)/python -m e2e.bench short $(ARGS)

conformance: $(READY)
	@$(BIN)/python -m e2e.conformance run $(ARGS)

conformance-smoke: $(READY)
	@$(BIN)/python -m e2e.conformance run --smoke --only virtual $(ARGS)

docs-write: $(READY)
	@$(BIN)/python -m e2e.docs write

$(VENV)/.docs: $(READY)
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement e2e/release/locks/docs.txt
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m e2e.docs offline site

# Kubernetes of home and remote, both ways round.
OLDER ?= 1.34
NEWER ?= 1.36
SKEW_TESTS := e2e/test_main_job.py e2e/test_updates.py e2e/test_identity.py e2e/test_pod_spec.py e2e/test_metrics.py

test-skew: $(READY)
	CLUSTER_BRIDGE_E2E_PREFIX=skew CLUSTER_BRIDGE_E2E_KUBERNETES=home=$(OLDER),remote=$(NEWER) \
	  $(BIN)/pytest $(SKEW_TESTS) $(ARGS)
	CLUSTER_BRIDGE_E2E_PREFIX=skew CLUSTER_BRIDGE_E2E_KUBERNETES=home=$(NEWER),remote=$(OLDER) \
	  $(BIN)/pytest $(SKEW_TESTS) $(ARGS)

# Arguments of all: VERSION, and SOURCE, the address of the project in labels and in the manifest for krew.
RELEASE = $(BIN)/python -m e2e.release
RELEASE_SOURCE = $(if $(SOURCE),--source $(SOURCE))

release: $(READY)
	@$(RELEASE) build --version $(VERSION) $(RELEASE_SOURCE)

release-verify: $(READY)
	@$(RELEASE) verify --version $(VERSION)

release-reproduce: $(READY)
	@$(RELEASE) reproduce --version $(VERSION) $(RELEASE_SOURCE)

# By cosign; ARGS=--dry-run prints its commands.
release-sign: $(READY)
	@$(RELEASE) sign $(ARGS)

release-lock: $(READY)
	@$(RELEASE) lock
