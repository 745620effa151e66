# Every target sets up what it needs, from git, make and python3 (3.11 or newer) alone.
VENV := .venv
PY := $(VENV)/bin/python
BUILT := $(VENV)/built

.PHONY: help run demo test test-all faults fuzz stress bench lint proto kubernetes schema man pictures lock dist release test-packages test-guest test-cluster

help:
	@echo "make TARGET, one of: $$(sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile | tr '\n' ' ')"

# make run ARGS='--help'
run: $(BUILT)
	$(VENV)/bin/nri-policy run $(ARGS)

# on this host's own hardware if it has CPUs enough to show something
demo: $(BUILT)
	@echo "demo: pods come to a node and go, played in some seconds; after each step: who runs where, and why"
	test $$(nproc) -ge 16 || set -- --synthetic "package:2 numa:2 core:2 pu:2"; \
	  $(VENV)/bin/nri-policy simulate configs/demo.yaml "$$@"

# on all cores; the end-to-end tests in one process
test: $(BUILT)
	@echo "test: format, lint and types (a minute), then all tests with a dot for each (some minutes)"
	$(MAKE) lint
	$(PY) -m pytest --numprocesses auto

# and on the runtimes, kernels and control planes that take long to build: once, for all clones
# (~/.cache/nri-policy, or what NRI_POLICY_CACHE names); needs Go, a C compiler and, for runtimes, root
test-all: $(BUILT)
	$(PY) -m tools.runtimes
	$(MAKE) --keep-going test test-guest test-cluster faults

# kill, freeze, starve and confuse the daemon: make faults ROUNDS=5000 SEED=7
faults: $(BUILT)
	$(PY) -m tests.faults --rounds $(or $(ROUNDS),1000) --seed $(or $(SEED),1)

# all property tests with new examples, and hostile input of every kind: make fuzz SECONDS=3600; a
# failure again: SEED=7
fuzz: $(BUILT)
	$(PY) -m tests.fuzz --seconds $(or $(SECONDS),600) $(addprefix --seed=,$(SEED))

# make stress SECONDS=600 TRIES=200 ROUNDS=500 SEED=7: on each runtime at hand changes outside of events for
# so long, so many races for a CPU, and rounds of everything at once on real cgroups
stress: $(BUILT)
	NRI_POLICY_STRESS=$(or $(SECONDS),120) NRI_POLICY_RACE=$(or $(TRIES),50) \
	  NRI_POLICY_STORM=$(or $(ROUNDS),50) NRI_POLICY_SEED=$(or $(SEED),1) $(PY) -m pytest tests/e2e/test_storm.py \
	  tests/e2e/test_owners.py tests/e2e/test_owners_storm.py --log-cli-level=INFO

# all that docs/performance.md has, and ARGS=--write makes that page of it
bench: $(BUILT)
	$(PY) -m benchmarks $(ARGS)

lint: $(BUILT)
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check . && $(VENV)/bin/mypy

proto: $(BUILT)
	$(PY) tools/protos.py

# of what commands print as JSON
schema: $(BUILT)
	$(PY) -m tools.report_schema

man: $(BUILT)
	$(PY) -m tools.manual
	$(PY) -m tools.completion

# schemas and chart from the settings; all that is applied, held against helm and the published
# schemas; needs Go
kubernetes: $(BUILT)
	$(PY) -m tools.settings_schema
	$(PY) -m tools.cluster_schema
	GOBIN=$(CURDIR)/$(VENV)/bin go install helm.sh/helm/v3/cmd/helm@v3.16.4
	$(PY) -m pytest tests/unit/test_kubernetes.py

# the documentation's, by the program itself
pictures: $(BUILT)
	$(PY) -m tests.support.docs_pictures

# the exact versions of what is installed with a release: after a change of the dependencies
lock: $(BUILT)
	$(PY) -m tools.lock

# sdist, wheel, bill of materials, of what is committed
dist: $(BUILT)
	$(PY) -m tools.release

# and Debian packages; all of it built twice and compared; as root
release: $(BUILT)
	$(PY) -m tools.release --twice bookworm trixie

# the Debian packages, installed on fresh systems of both suites, and the image; as root
test-packages: $(BUILT)
	$(PY) -m pytest tests/e2e/debian

# on the kernels of emulated machines with several NUMA nodes
test-guest: $(BUILT)
	$(PY) -m pytest tests/guest

# a real API server, controllers, scheduler and etcd; needs Go, and builds them once (20 minutes)
test-cluster: $(BUILT)
	$(PY) -m tools.control_plane
	GOBIN=$(CURDIR)/$(VENV)/bin go install helm.sh/helm/v3/cmd/helm@v3.16.4
	$(PY) -m pytest tests/cluster

$(BUILT): pyproject.toml setup.py $(wildcard native/*.h native/nri_policy/*)
	python3 -m tools.environment
	touch $@
