# 'make demo' and 'make test' set everything up in .venv and need nothing else installed but
# Python 3.10 or later with its venv module, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check format clean

demo: $(READY)
	$(BIN)/zeusrun submit jobs/digits.yaml

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "zeusrun needs Python 3.10 or later; name one with 'make PYTHON=python3.11 $(MAKECMDGOALS)'."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing into $(VENV); the first time that is some minutes, most of them for torch."
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,examples]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
