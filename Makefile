# Each target does all its own set-up: Python 3.11+, git and this file are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: tour test check bench clean

$(STAMP): pyproject.toml scripts/gatebook
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gatebook needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m compileall -q ledger projections commands
	@touch $(STAMP)

tour: $(STAMP)  ## the main job, really run
	$(BIN)/gatebook tour

test: $(STAMP)  ## every test, on the source tree and on the built wheel
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(STAMP)  ## lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## this machine's numbers, as ratios
	$(BIN)/gatebook bench

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
