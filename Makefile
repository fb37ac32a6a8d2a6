# Every target needs only Python >= 3.11: everything else is installed into .venv (and .venv-cross).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One thread per process: two test processes share two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-fast lint clean

demo: .venv/demo
	$(BIN)/moon demo

test: .venv/dev
	$(PYTEST)

# Without the tests that are marked slow: an answer in under two minutes.
test-fast: .venv/dev
	$(PYTEST) -m 'not slow'

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --warnings

.venv/pip:
	$(PYTHON) -c 'import sys; sys.exit("moon needs Python 3.11 or newer, found " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[demo]'
	touch $@

.venv/dev: .venv/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[dev,tensorboard]'
	touch $@

clean:
	rm -rf .venv .venv-cross runs dist .pytest_cache .ruff_cache .hypothesis
