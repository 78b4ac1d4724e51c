# Two commands carry a newcomer: `make demo` shows a plan, `make test` checks everything.
# PYTHON chooses the interpreter of the environment; JOBS the number of test processes.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.meshwright-ready

.PHONY: docs help demo test check lint format types pytest quick exhaustive bench clean

help:
	@echo "make demo    plan a 1.3 B parameter GPT for 8xh100, then run a small plan on 8 CPU devices"
	@echo "make test    lint, format, types and every test (alias: make check)"
	@echo "make quick   the tests without those marked slow"
	@echo "make exhaustive  every example on every mesh, and the like"
	@echo "make format  rewrite the sources in the house format"
	@echo "make bench   time the planner on the benchmark models"
	@echo "make docs    build the site into build/site; any warning is an error"
	@echo "make clean   remove the environment and all caches"

# The stamp is written last: an interrupted installation is taken up again.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/meshwright plan examples/gpt.py:gpt_1_3b --cluster 8xh100
	$(BIN)/python -m examples.demo

test: lint types pytest

check: test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/pyright

pytest: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal

quick: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow and not exhaustive"

exhaustive: $(READY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m exhaustive

bench: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .hypothesis .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
