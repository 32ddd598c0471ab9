# Two commands, on a machine with just Python 3.11+ and make:
#   make serve   see it run
#   make test    see its tests pass

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: serve test test-slow lint format mirror public-face bench clean

serve: $(READY)
	@$(BIN)/holdfast serve

test: $(READY)
	@$(BIN)/pytest --durations=15 --durations-min=0.2

test-slow: $(READY)
	@$(BIN)/pytest -m slow

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/python scripts/mirror.py --check

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

mirror: $(READY)
	@$(BIN)/python scripts/mirror.py

public-face: $(READY)
	@$(BIN)/python tests/unit/test_architecture.py

bench: $(READY)
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# Made anew when what it is made of changes. The constraints pin what was tested; they name no index.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Holdfast needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV) (once; it takes a minute) …"
	@$(PYTHON) -m venv --clear $(VENV) || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
