# `make demo` and `make test` are all that a newcomer needs; each builds .venv from requirements.lock when it has to.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# The outer pip works on .venv, so that a Python without ensurepip (Debian's) will do.
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check
READY := $(VENV)/.ready
TORCH := torch==2.13.0

.PHONY: setup demo test check lint types clean lock

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup  ## kills the example's training on purpose and compares the bits
	$(BIN)/holdfast drill --kills 5 --signals KILL,TERM --seed 7 -- $(BIN)/python examples/digits/train.py

test: setup  ## the whole suite
	$(BIN)/python -m pytest -n 2

check: lint types  ## under a minute: format, lint, types, fast tests
	$(BIN)/python -m pytest -n 2 -q -m "not slow and not drill and not system"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

lock:  ## resolves the extra `dev` anew and pins what it finds
	rm -rf .lock
	$(PYTHON) -m venv .lock
	.lock/bin/pip install --quiet '$(TORCH)' --editable '.[dev]'
	grep '^#' requirements.lock > .lock/pinned
	.lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' >> .lock/pinned
	mv .lock/pinned requirements.lock
	rm -rf .lock

clean:
	rm -rf $(VENV) .lock build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
