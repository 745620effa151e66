# Every target sets up what it needs.
VENV := .venv
PY := $(VENV)/bin/python
BUILT := $(VENV)/built

.PHONY: test lint proto demo

test: $(BUILT) lint
	$(PY) -m pytest

lint: $(BUILT)
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check . && $(VENV)/bin/mypy

proto: $(BUILT)
	$(PY) tools/protos.py

$(BUILT): pyproject.toml setup.py $(wildcard native/*.h native/nri_policy/*)
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --editable '.[dev]'
	touch $@
