# Two commands carry a newcomer: `make demo` shows a plan, `make test` checks everything.
# PYTHON chooses the interpreter, a name on PATH or a version of pyenv such as python3.12, and each
# has an environment of its own; JOBS is the number of test processes.

PYTHON ?= python3
JOBS ?= 2
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)
VERSIONS := 3.11 3.12 3.13

# The interpreter of that name: what runs (a shim of pyenv may not), else the newest of pyenv.
find = $(firstword $(shell $(1) -c 'import sys; print(sys.executable)' 2>/dev/null) \
  $(lastword $(sort $(wildcard $(PYENV)/versions/$(patsubst python%,%,$(1)).*/bin/python))))

FOUND := $(call find,$(PYTHON))
VERSION := $(if $(FOUND),$(shell $(FOUND) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(VERSION))
BIN := $(VENV)/bin
READY := $(VENV)/.meshwright-ready
# Read by every version of Python and JAX that is declared, in half a minute.
SMOKE := tests/test_smoke.py tests/ir/test_jax_internals.py

.PHONY: docs help demo test check lint format types kernels pytest smoke smoke-here quick exhaustive bench clean

help:
	@echo "make demo    plan a 1.3 B parameter GPT for 8xh100, then run a small plan on 8 CPU devices"
	@echo "make test    lint, format, types, every test, and a short run on each other Python here"
	@echo "             (alias: make check)"
	@echo "make smoke   that short run alone"
	@echo "make quick   the tests without those marked slow"
	@echo "make exhaustive  every example on every mesh, and the like"
	@echo "make format  rewrite the sources in the house format"
	@echo "make bench   time the planner on the benchmark models"
	@echo "make docs    build the site into build/site; any warning is an error"
	@echo "make clean   remove the environment and all caches"

# The stamp is written last: an interrupted installation is taken up again.
$(READY): pyproject.toml
	@test -n "$(FOUND)" || { echo "$(PYTHON) is neither on PATH nor in $(PYENV)" >&2; exit 1; }
	test -x $(BIN)/python || $(FOUND) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/meshwright plan examples/gpt.py:gpt_1_3b --cluster 8xh100
	$(BIN)/python -m examples.demo

# Pyright has one thread; the loops of the solver are compiled beside it, else each test process
# compiles them.
test: lint
	$(MAKE) --no-print-directory -j $(JOBS) types kernels
	$(MAKE) --no-print-directory pytest smoke

check: test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python --pythonversion $(VERSION)

kernels: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.kernels

pytest: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal

# Graphs are the same whichever version traced them.
smoke: $(READY)
	@mkdir -p build
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.digests > build/digests.txt
	@$(foreach v,$(filter-out $(VERSION),$(VERSIONS)),$(if $(call find,python$(v)), \
	  $(MAKE) --no-print-directory smoke-here PYTHON=python$(v) &&, \
	  echo "Python $(v) is not here: nothing was run on it" &&)) true

smoke-here: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.digests | diff build/digests.txt -
	$(BIN)/pytest -q $(SMOKE)

quick: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow and not exhaustive"

exhaustive: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m exhaustive -o faulthandler_timeout=0

bench: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv .venv-3.* .hypothesis .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
