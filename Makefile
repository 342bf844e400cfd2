# `make demo` and `make test` are all that a newcomer needs; each builds .venv from requirements.lock when it has to.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := torch==2.13.0
# A worker that dies fails one test and is replaced; docs/adr/0031 says why tests are shared out like this.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Else each process that a test starts compiles all that it imports, and pytest rewrites each test anew.
unexport PYTHONDONTWRITEBYTECODE
HOURS := 8
COUNT :=
SLURM :=

# Frameworks, the peers of `make bench` and the site's tools have environments of their own, so that no other test depends on them.
# LOCK=lowest: the frameworks' lowest supported versions, in one more. SAMPLE=word: of `test-frameworks` one case of each law,
# drawn by the word; of `prove` likewise, of half of its laws, and a quarter of the mutants.
LOCK :=
CORNERS :=
DEBIAN :=
SAMPLE :=
FRAMEWORKS := .venv-frameworks$(LOCK:%=-%)
FRAMEWORKS_LOCK := tests/frameworks/$(or $(LOCK),requirements).lock
VISION := .venv-vision
BENCH := .venv-bench
DOCS := .venv-docs
MEASURE := $(BENCH)/bin/python benchmarks
ROUNDS := 3
SIZES :=
RESULTS := benchmarks/results$(if $(SIZES),-$(SIZES))
PICTURE := $(if $(SIZES),$(RESULTS)/speed.svg,docs/speed.svg)

# $(call build,ENVIRONMENT,LOCK): the outer pip works on it, so that a Python without ensurepip (Debian's) will do.
# torch's wheel for the CPU is a tenth of the other one. It is taken where the index has it and the machine has no GPU.
define build
@echo "$(1) is built, once; this takes some minutes. 1 of 3: an empty environment"
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1) || $(PYTHON) -m venv --clear --without-pip $(1)
@echo "2 of 3: the $$(grep -c == $(2)) packages of $(2)"
@! grep -q '^$(TORCH)$$' $(2) || command -v nvidia-smi >/dev/null || \
    $(call pip,$(1)) --no-deps '$(TORCH)+cpu' 2>/dev/null || echo "the index has no $(TORCH)+cpu: the larger wheel is taken"
@$(call pip,$(1)) --requirement $(2)
@echo "3 of 3: Holdfast itself, as it lies here"
@$(call pip,$(1)) --no-deps --no-build-isolation --editable .
@touch $@
endef

pip = $(PYTHON) -m pip --python $(1)/bin/python --disable-pip-version-check install --quiet

# $(call pin,LOCK,REQUIREMENTS): resolves them anew and pins what it finds.
define pin
rm -rf .lock
$(PYTHON) -m venv .lock
.lock/bin/pip install --quiet $(2)
grep '^#' $(1) > .lock/pinned
.lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' >> .lock/pinned
mv .lock/pinned $(1)
rm -rf .lock
endef

.PHONY: setup demo check test prove test-slurm test-frameworks test-vision test-versions soak lint types docs bench bench-gpu trust lock frameworks-lock bench-lock docs-lock clean

ifeq ($(MAKECMDGOALS),demo)
$(info make demo: trains examples/digits/train.py, kills it five times, damages its files twice, and compares every bit)
endif

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(call build,$(VENV),requirements.lock)

demo: setup  ## kills the example's training on purpose and compares the bits
	@echo "the drill: two undisturbed runs, then five kills; one or two minutes"
	@rm -rf build/demo
	$(BIN)/holdfast drill --kills 5 --signals KILL,TERM --seed 7 --keep build/demo -- $(BIN)/python examples/digits/train.py

check: lint types  ## one or two minutes: format, lint, types and tests/fast
	$(PYTEST) tests/fast --quiet --hypothesis-profile=quick

test: setup  ## what proves each guarantee: tests/fast and tests/slow; a third worker works while others wait, as for Slurm
	$(PYTEST) -n 3 tests/fast tests/slow --durations=25

prove: setup  ## about an hour on two cores: all mutants, whole enumerations, kill series, real Slurm's slow stories; or a SAMPLE
	$(if $(SAMPLE),,rm -f docs/proved.json)
	$(PYTEST) tests/prove --durations=25 $(or $(SAMPLE:%=--sample=%),--tally=docs/proved.json)

test-slurm: setup  ## all stories of a real Slurm; parts of `make test` and `make prove`; SLURM=trixie: with that Debian's Slurm
	$(SLURM:%=tests/cluster/slurm-of %) $(PYTEST) tests/slow/test_slurm*.py tests/slow/test_lint_oracle.py tests/prove/test_*slurm*.py --durations=25

test-frameworks: $(FRAMEWORKS)/.ready  ## Keras, Lightning, Hugging Face, JAX: killed and resumed; LOCK=lowest: the lowest versions
	FRAMEWORKS=1 $(FRAMEWORKS)/bin/python -m pytest -n 2 --dist loadfile tests/frameworks --durations=10 $(SAMPLE:%=--sample=%)

test-versions:  ## tests/fast and a drill on other versions of Python, torch, NumPy: docs/versions.md; CORNERS=lowest, DEBIAN=sid, a SAMPLE
	$(DEBIAN:%=PACKAGES=python3-venv,g++,git,openssh-client,patch,procps,rsync tests/cluster/slurm-of %) $(PYTHON) tools/versions.py $(CORNERS) $(SAMPLE:%=--sample=%)

$(FRAMEWORKS)/.ready: $(FRAMEWORKS_LOCK) pyproject.toml
	$(call build,$(FRAMEWORKS),$(FRAMEWORKS_LOCK))
	@$(call pip,$(FRAMEWORKS)) --no-deps ml-goodput-measurement==0.2.3  # test_goodput.py says why without them

test-vision: $(VISION)/.ready  ## Ultralytics, in an environment with torchvision: killed and resumed; or a SAMPLE
	VISION=1 $(VISION)/bin/python -m pytest -n 2 --dist loadfile tests/vision --durations=10 $(SAMPLE:%=--sample=%)

# torchvision's wheels are built for CUDA alone: nothing that they depend on is installed but what the lock names.
$(VISION)/.ready: tests/vision/requirements.lock pyproject.toml
	@echo "$(VISION) is built, once; this takes a minute or two"
	@test -x $(VISION)/bin/python || $(PYTHON) -m venv $(VISION) || $(PYTHON) -m venv --clear --without-pip $(VISION)
	@$(call pip,$(VISION)) --no-deps --requirement tests/vision/requirements.lock
	@$(call pip,$(VISION)) --no-deps --no-build-isolation --editable .
	@$(PYTHON) tools/cuda_stubs.py $(VISION)/lib/python3.*/site-packages
	@touch $@

soak: setup  ## for HOURS, or COUNT cases of each kind: all cuts of all loaders, kills by the thousand; writes docs/soak.json
	$(BIN)/python tests/soak.py $(if $(COUNT),--count $(COUNT),--hours $(HOURS)) --out docs/soak.json

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/weight.py --lower

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

trust: setup $(FRAMEWORKS)/.ready $(BENCH)/.ready  ## what checkpoint libraries do when something fails, into docs/trust.md: half an hour; needs strace
	$(BIN)/python benchmarks/trust/run.py

bench-gpu: $(BENCH)/.ready  ## saves from a GPU; says so when there is none
	$(MEASURE)/gpu.py $(if $(SIZES),--sizes $(SIZES)) --rounds $(ROUNDS) --out $(RESULTS)

$(BENCH)/.ready: benchmarks/requirements.lock pyproject.toml
	$(call build,$(BENCH),benchmarks/requirements.lock)

lock:  ## resolves the extra `dev` anew and pins what it finds; the next three: for their environments
	$(call pin,requirements.lock,'$(TORCH)' --editable '.[dev]')

frameworks-lock:  ## with LOCK=lowest: beside the versions of tests/frameworks/lowest.in
	$(call pin,$(FRAMEWORKS_LOCK),'$(TORCH)' --editable '.[torch]' -r tests/frameworks/requirements.in $(LOCK:%=-c tests/frameworks/%.in))

bench-lock:
	$(call pin,benchmarks/requirements.lock,'$(TORCH)' hatchling torchsnapshot orbax-checkpoint 'jax[cpu]' --editable '.[torch]' safetensors)

docs-lock:
	$(call pin,docs/requirements.lock,hatchling mkdocs-material 'mkdocstrings[python]' mkdocs-click ruff --editable .)

# A broken link, an undocumented public name, or a question that the search does not answer fails the build.
docs: $(DOCS)/.ready  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --site-dir site  # with --quiet it counts no warning
	if command -v node >/dev/null; then node docs/finds.js site; else echo "not asked, since node is not here: the site's search"; fi

$(DOCS)/.ready: docs/requirements.lock pyproject.toml
	$(call build,$(DOCS),docs/requirements.lock)

clean:
	rm -rf .venv .venv-* .lock build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
