# `make demo` and `make test` are all that a newcomer needs; each builds .venv from requirements.lock when it has to.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# The outer pip works on .venv, so that a Python without ensurepip (Debian's) will do.
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check
READY := $(VENV)/.ready
TORCH := torch==2.13.0
# A worker that dies fails one test and is replaced; docs/adr/0031 says why tests are shared out like this.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
HOURS := 8
COUNT :=

# The peers of `make bench` live in an environment of their own, so that no test depends on them.
BENCH := .venv-bench
BENCH_PIP := $(PYTHON) -m pip --python $(BENCH)/bin/python --disable-pip-version-check
MEASURE := $(BENCH)/bin/python benchmarks
ROUNDS := 3
SIZES :=
RESULTS := benchmarks/results$(if $(SIZES),-$(SIZES))
PICTURE := $(if $(SIZES),$(RESULTS)/speed.svg,docs/speed.svg)

.PHONY: setup demo check test prove soak lint types bench bench-gpu bench-lock clean lock

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup  ## kills the example's training on purpose and compares the bits
	$(BIN)/holdfast drill --kills 5 --signals KILL,TERM --seed 7 -- $(BIN)/python examples/digits/train.py

check: lint types  ## under a minute: format, lint, types and tests/fast
	$(PYTEST) tests/fast --quiet --hypothesis-profile=quick

test: setup  ## what proves each guarantee: tests/fast and tests/slow
	$(PYTEST) tests/fast tests/slow --durations=25

prove: setup  ## at most half an hour: all mutants, whole enumerations, kill series, real Slurm's slow stories
	$(PYTEST) tests/prove --durations=25

soak: setup  ## for HOURS, or COUNT cases of each kind: all cuts of all loaders, kills by the thousand; writes docs/soak.json
	$(BIN)/python tests/soak.py $(if $(COUNT),--count $(COUNT),--hours $(HOURS)) --out docs/soak.json

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

bench: $(BENCH)/.ready  ## every table into benchmarks/results, and the picture; SIZES=64 for a look aside
	for table in save restore steps frozen leaves start; do \
	    $(MEASURE)/$$table.py $(if $(SIZES),--sizes $(SIZES)) --rounds $(ROUNDS) --out $(RESULTS) || exit 1; \
	done
	$(MEASURE)/figures.py --out $(RESULTS) shuffle scale ranks
	$(MEASURE)/targets.py --out $(RESULTS)
	$(MEASURE)/beside.py --out $(RESULTS)
	$(MEASURE)/picture.py --out $(RESULTS) --picture $(PICTURE)

bench-gpu: $(BENCH)/.ready  ## saves from a GPU; says so when there is none
	$(MEASURE)/gpu.py $(if $(SIZES),--sizes $(SIZES)) --rounds $(ROUNDS) --out $(RESULTS)

$(BENCH)/.ready: benchmarks/requirements.lock pyproject.toml
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH) || $(PYTHON) -m venv --clear --without-pip $(BENCH)
	$(BENCH_PIP) install --quiet --requirement benchmarks/requirements.lock
	$(BENCH_PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

bench-lock:  ## resolves the peers anew, beside the torch of requirements.lock, and pins what it finds
	rm -rf .lock
	$(PYTHON) -m venv .lock
	.lock/bin/pip install --quiet '$(TORCH)' hatchling torchsnapshot orbax-checkpoint 'jax[cpu]' --editable '.[torch]' safetensors
	grep '^#' benchmarks/requirements.lock > .lock/pinned
	.lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' >> .lock/pinned
	mv .lock/pinned benchmarks/requirements.lock
	rm -rf .lock

lock:  ## resolves the extra `dev` anew and pins what it finds
	rm -rf .lock
	$(PYTHON) -m venv .lock
	.lock/bin/pip install --quiet '$(TORCH)' --editable '.[dev]'
	grep '^#' requirements.lock > .lock/pinned
	.lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' >> .lock/pinned
	mv .lock/pinned requirements.lock
	rm -rf .lock

clean:
	rm -rf $(VENV) $(BENCH) .lock build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The site's tools live in an environment of their own, too. A broken link or an undocumented public name fails the build.
DOCS := .venv-docs
DOCS_PIP := $(PYTHON) -m pip --python $(DOCS)/bin/python --disable-pip-version-check
.PHONY: docs docs-lock docs-clean

docs: $(DOCS)/.ready  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --site-dir site  # with --quiet it counts no warning

$(DOCS)/.ready: docs/requirements.lock pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS) || $(PYTHON) -m venv --clear --without-pip $(DOCS)
	$(DOCS_PIP) install --quiet --requirement docs/requirements.lock
	$(DOCS_PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

docs-lock:  ## resolves the site's tools anew and pins what it finds
	rm -rf .lock
	$(PYTHON) -m venv .lock
	.lock/bin/pip install --quiet hatchling mkdocs-material 'mkdocstrings[python]' mkdocs-click ruff --editable .
	grep '^#' docs/requirements.lock > .lock/pinned
	.lock/bin/pip freeze --exclude-editable >> .lock/pinned
	mv .lock/pinned docs/requirements.lock
	rm -rf .lock

clean: docs-clean
docs-clean:
	rm -rf $(DOCS) site
