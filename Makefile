# 'make demo' and 'make test' set everything up in .venv and need nothing else installed but
# Python 3.10 or later with its venv module, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Most tests wait for processes, so more workers than cores serve best: see docs/benchmarks.md.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --maxfail 50 --durations 10
# Where this is set, every command of every test compiles zeusrun again; empty means unset.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-long check format docs pictures clean

demo: $(DEMO)
	$(BIN)/zeusrun submit jobs/digits.yaml

# Collecting once compiles the tests for all workers.
test: $(READY)
	@$(BIN)/python -m pytest --collect-only --quiet --quiet > $(VENV)/.collected || \
	  { tail -n 20 $(VENV)/.collected; exit 1; }
	$(PYTEST)

test-long: $(READY)
	$(PYTEST) -m 'not gpu' --hypothesis-profile new --timeout 1800 -o faulthandler_timeout=2400

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(PYTEST)

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Builds the site in build/site; a broken link or a missing section is an error.
docs: $(READY)
	@test -x $(BIN)/mkdocs || $(INSTALL) --editable '.[docs]'
	$(BIN)/mkdocs build --strict --quiet

# Makes docs/images again; it needs Chromium, for example from: apt-get install chromium
pictures: $(READY)
	$(INSTALL) --editable '.[browser]'
	$(BIN)/python benchmarks/pictures.py

# The demo needs few packages; the tests also need the libraries that zeusrun has hooks for.
$(READY): $(DEMO)
	$(INSTALL) --editable '.[dev,examples]'
	@touch $(READY)

$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "zeusrun needs Python 3.10 or later; name one with 'make PYTHON=python3.11 $(MAKECMDGOALS)'."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing into $(VENV). The first time takes minutes and downloads torch, with CUDA up to several"
	@echo "gigabytes. README.md, \"Sixty seconds\", says how to get the CPU build of torch instead."
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) --editable '.[demo]'
	@touch $(DEMO)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
