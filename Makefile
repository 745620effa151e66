# Every target sets up what it needs, from git, make and python3 (3.11 or newer) alone. Another Python
# has an environment of its own: make test PYTHON=python3.14
PYTHON := python3
VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
PY := $(VENV)/bin/python
BUILT := $(VENV)/built
HELM := .venv/bin/helm
ACTIONLINT := .venv/bin/actionlint
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: help run demo test test-daemon test-all faults simulate-node model fuzz stress bench lint proto kubernetes schema man pictures lock dist release chart image try-wheel check-tag notes checksums test-packages test-guest test-node test-cluster

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/\1\t\2/p' Makefile | expand -t 16

run: $(BUILT) ## run the daemon: ARGS='--help'
	$(VENV)/bin/nri-policy run $(ARGS)

demo: $(BUILT) ## play pods that come and go, and show who runs where and why
	$(VENV)/bin/nri-policy demo

# mypy keeps one CPU for a minute, without a cache for three: the tests run beside it. One process
# compiles all modules first, else each of them would.
test: $(BUILT) ## format, lint, types and all tests: the gate; PYTHON=python3.14
	@echo "test: format and rules (seconds), then all tests with a dot for each, and beside them types, which are shown"
	@echo "test: last (on two cores a quarter of an hour)"
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check .
	@mkdir -p build
	$(VENV)/bin/mypy > build/types.txt 2>&1 & types=$$!; \
	  $(PY) -m pytest --collect-only --quiet > /dev/null; \
	  $(PY) -m pytest --numprocesses auto; tests=$$?; \
	  wait $$types; types=$$?; cat build/types.txt; test $$tests = 0 -a $$types = 0

# what depends most on the Python: the loop, processes and sockets
test-daemon: $(BUILT) ## unit tests of the daemon alone: PYTHON=python3.14
	$(PY) -m pytest --numprocesses auto tests/unit/control tests/unit/daemon tests/unit/delivery tests/unit/nri tests/unit/plugin

# and on the runtimes, kernels and control planes that take long to build: once, for all clones
# (~/.cache/nri-policy, or what NRI_POLICY_CACHE names); needs Go, a C compiler and, for runtimes, root
test-all: $(BUILT) ## all tests on everything there is to build: an hour more the first time
	@echo "test-all: build what is missing (an hour, once), then make test on every runtime, test-guest (on two cores"
	@echo "test-all: up to half an hour), test-cluster and faults; one that fails does not stop the others"
	$(PY) -m tools.runtimes
	NRI_POLICY_EVERY_RUNTIME=1 $(MAKE) --keep-going test test-guest test-cluster faults

# kill, freeze, starve and confuse the daemon: make faults ROUNDS=5000 SEED=7
faults: $(BUILT) ## kill, freeze and starve the daemon: ROUNDS=5000 SEED=7
	$(PY) -m tests.faults --rounds $(or $(ROUNDS),1000) --seed $(or $(SEED),1)

# the daemon, a runtime and kubelets in one deterministic loop: make simulate-node SEEDS=10000 FIRST=1
simulate-node: $(BUILT) ## play the whole daemon in virtual time: SEEDS=1000 FIRST=1
	$(PY) -m tests.loop --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),1)

# all that can happen to two containers, with each kind of runtime: make model STATES=65000
model: $(BUILT) ## explore how decisions come into force, exhaustively: STATES=65000
	$(PY) -m tests.model --states $(or $(STATES),65000)

# all property tests with new examples, and hostile input of every kind: make fuzz SECONDS=3600; a
# failure again: SEED=7
fuzz: $(BUILT) ## property tests with new examples, hostile input: SECONDS=3600 SEED=7
	$(PY) -m tests.fuzz --seconds $(or $(SECONDS),600) $(addprefix --seed=,$(SEED))

# make stress SECONDS=600 TRIES=200 ROUNDS=500 SEED=7: on each runtime at hand changes outside of events for
# so long, so many races for a CPU, and rounds of everything at once on real cgroups
stress: $(BUILT) ## changes and races on real runtimes: SECONDS=600 TRIES=200 ROUNDS=500 SEED=7
	NRI_POLICY_STRESS=$(or $(SECONDS),120) NRI_POLICY_RACE=$(or $(TRIES),50) \
	  NRI_POLICY_STORM=$(or $(ROUNDS),50) NRI_POLICY_SEED=$(or $(SEED),1) $(PY) -m pytest tests/e2e/test_storm.py \
	  tests/e2e/test_owners.py tests/e2e/test_owners_storm.py --log-cli-level=INFO

# all that docs/performance.md, docs/dev/figures.md and the table of docs/cluster-figures.md have; ARGS=--write writes them, and their pictures
bench: $(BUILT) ## measure what docs/performance.md has; ARGS=--write writes it
	$(PY) -m benchmarks $(ARGS)

lint: $(BUILT) ## format check, lint and types alone
	@echo "lint: format and rules (seconds), then types (a minute, without a cache three)"
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check . && $(VENV)/bin/mypy

proto: $(BUILT) ## the protobuf modules, of proto/
	$(PY) tools/protos.py

schema: $(BUILT) ## the schema of the documents that commands print
	$(PY) -m tools.report_schema

man: $(BUILT) ## manual pages and completions
	$(PY) -m tools.manual
	$(PY) -m tools.completion

# schemas and chart from the settings; all that is applied, held against helm and the published
# schemas, and the workflow of a release against actionlint; needs Go
kubernetes: $(BUILT) $(HELM) $(ACTIONLINT) ## schemas and chart, of the settings; needs Go
	$(PY) -m tools.settings_schema
	$(PY) -m tools.cluster_schema
	$(PY) -m pytest tests/unit/test_kubernetes.py tests/unit/test_release_workflow.py

pictures: $(BUILT) ## the documentation's pictures
	$(PY) -m tests.support.docs_pictures

lock: $(BUILT) ## the exact versions of what a release is installed with
	$(PY) -m tools.lock

dist: $(BUILT) ## sdist, wheel and bill of materials of what is committed
	$(PY) -m tools.release

release: $(BUILT) ## the same and Debian packages, built twice; as root
	$(PY) -m tools.release --twice bookworm trixie

chart: $(HELM) ## the chart, packaged; needs Go, which fetches helm
	$(HELM) package configs/helm/nri-policy --destination dist

image: ## the image, by podman or ENGINE=docker
	$(or $(ENGINE),podman) build --file Containerfile --tag nri-policy:$(VERSION) .

try-wheel: ## the wheel of dist/ alone in an environment: PYTHON=python3.14
	$(PYTHON) -m venv --clear build/try-wheel
	build/try-wheel/bin/pip install --quiet --no-deps --require-hashes --requirement release/runtime.lock
	build/try-wheel/bin/pip install --quiet --no-deps --no-index dist/nri_policy-$(VERSION)-*.whl
	cd build && try-wheel/bin/nri-policy demo

check-tag: ## whether the commit's version is the tag's: TAG=v0.1.0
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag $(TAG) is not v$(VERSION), the version in pyproject.toml" >&2; exit 1; }

notes: ## what CHANGELOG.md says of this version
	@sed -n '/^## $(subst .,\.,$(VERSION))\b/,/^## /{/^## /!p}' CHANGELOG.md

checksums: ## checksums of all files in dist/
	rm -f dist/SHA256SUMS
	cd dist && sha256sum -- * > SHA256SUMS

test-packages: $(BUILT) ## Debian packages and the image on fresh systems; as root
	$(PY) -m pytest tests/e2e/debian

test-guest: $(BUILT) ## tests on the kernels of emulated machines
	$(PY) -m pytest tests/guest

# `make test-cluster` builds the nodes' programs and runs these tests too
test-node: $(BUILT) ## tests on real nodes, if their programs are built
	$(PY) -m pytest --numprocesses 3 tests/cluster/test_node*.py

# a real API server, controllers, scheduler and etcd; needs Go, and builds them once (40 minutes)
test-cluster: $(BUILT) $(HELM) ## tests on a real control plane; needs Go
	$(PY) -m tools.control_plane
	$(PY) -m tools.dra_programs
	$(PY) -m pytest tests/cluster

$(BUILT): pyproject.toml setup.py $(wildcard native/*.h native/nri_policy/native/*)
	$(PYTHON) -m tools.environment $(VENV)
	touch $@

$(HELM):
	mkdir -p $(@D)
	GOBIN=$(CURDIR)/$(@D) go install helm.sh/helm/v3/cmd/helm@v3.16.4

$(ACTIONLINT):
	mkdir -p $(@D)
	GOBIN=$(CURDIR)/$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
