# Every target needs only Python >= 3.11, and the tests a C compiler: everything else is installed into .venv (and
# .venv-cross, .venv-runtime).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUNTIME := runtime/pyproject.toml runtime/setup.py $(wildcard runtime/src/*) $(wildcard runtime/moon_runtime/*.py) \
	$(wildcard runtime/moon_runtime/serve/*.py) $(wildcard runtime/moon_runtime/serve/page/*)
# One thread per process: two test processes share two cores. Tests start many processes, so modules are compiled once.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/cross_check

.PHONY: demo test test-fast test-cross-check test-runtime constraints-serve sbom fuzz-runtime torture lint size results results-check docs docs-serve dist clean

demo: .venv/demo
	@echo 'moon demo: trains two sparse networks, compares them and uses one (about four minutes on 2 cores)'
	@$(BIN)/moon demo

test: .venv/dev
	@echo 'running all tests (make test-fast runs the quick ones)'
	@$(PYTEST)

# All tests but those marked slow: five to nine minutes on 2 cores.
test-fast: .venv/dev
	@$(PYTEST) -m 'not slow'

# Comparisons with independent implementations, whose dependencies need a separate environment.
test-cross-check: .venv-cross/ready
	OMP_NUM_THREADS=1 .venv-cross/bin/python -m pytest tests/cross_check

# The runtime and its server without PyTorch; needs a C compiler, and Chromium for the tests of the page.
test-runtime: .venv-runtime/ready
	.venv-runtime/bin/python -m pytest -q -p no:cacheprovider runtime/tests

# What the server is installed from: versions with digests, and a bill of materials (CycloneDX).
constraints-serve: .venv-serve/ready
	.venv-serve/bin/python runtime/supply.py constraints > build/constraints-serve.txt
	mv build/constraints-serve.txt runtime/constraints-serve.txt

sbom: .venv-serve/ready
	.venv-serve/bin/python runtime/supply.py sbom > build/moon-serve.cdx.json
	@echo 'the bill of materials is build/moon-serve.cdx.json'

# Damaged and malicious files against the runtime, under AddressSanitizer and UBSan, for a minute.
fuzz-runtime: .venv-runtime/ready
	PYTHON=$(CURDIR)/.venv-runtime/bin/python sh runtime/tests/fuzz.sh 60

# How reliable the commands are: killed at any moment, crashed at every operation on files, with damaged run folders.
MINUTES ?= 10
JOBS ?= 1
torture: .venv/dev
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) --jobs $(JOBS)

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --warnings

# Tables, numbers and figures of the documentation, from the kept runs in results/; needs no GPU and no images.
results: .venv/dev
	@OMP_NUM_THREADS=1 $(BIN)/python results/documents.py

results-check: .venv/dev
	@OMP_NUM_THREADS=1 $(BIN)/python results/documents.py --check

# Lines of source and tests, words of documentation, megabytes of results.
size:
	@$(PYTHON) tests/size.py

# The documentation as a site in build/site; warnings are errors.
docs: .venv/dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'the site is in build/site'

docs-serve: .venv/dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Wheels and source distributions of both packages in dist/.
dist: .venv/dev
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@$(BIN)/python -m build --no-isolation --outdir dist runtime >/dev/null
	@ls dist

# pip is quiet, so each target says what it installs.
.venv/pip:
	@$(PYTHON) -c 'import sys; sys.exit("moon needs Python 3.11 or newer, found " + sys.version) if sys.version_info < (3, 11) else None'
	@echo 'creating the virtual environment .venv'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/demo: .venv/pip pyproject.toml constraints.txt $(RUNTIME)
	@echo 'installing moon and its dependencies into .venv (once; a few minutes: PyTorch is large)'
	@$(PIP) --editable '.[demo]'
	@command -v $${CC:-cc} >/dev/null && $(PIP) './runtime[serve]' || \
	  echo 'moon-runtime is not installed, because that needs a C compiler; the demo runs without it'
	@touch $@

.venv/dev: .venv/pip pyproject.toml constraints.txt $(RUNTIME)
	@echo 'installing moon, its dependencies and the tools of the tests into .venv (once; a few minutes: PyTorch is large)'
	@$(PIP) --editable '.[dev,tensorboard]' './runtime[serve]'
	@touch $@

.venv-cross/ready: pyproject.toml constraints.txt tests/cross_check/requirements.txt
	@echo 'installing moon and the implementations it is compared with into .venv-cross (once; a few minutes)'
	@$(PYTHON) -m venv .venv-cross
	@.venv-cross/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable . --requirement tests/cross_check/requirements.txt
	@touch $@

.venv-runtime/ready: $(RUNTIME)
	@echo "installing moon-runtime into .venv-runtime"
	$(PYTHON) -m venv .venv-runtime
	.venv-runtime/bin/python -m pip install --quiet --disable-pip-version-check pytest './runtime[serve]'
	touch $@

.venv-serve/ready: $(RUNTIME)
	@echo 'installing the newest versions of what the server needs into .venv-serve'
	@rm -rf .venv-serve
	@mkdir -p build
	@$(PYTHON) -m venv .venv-serve
	@.venv-serve/bin/python -m pip install --quiet --disable-pip-version-check './runtime[serve]'
	@touch $@

clean:
	rm -rf .venv .venv-cross .venv-runtime .venv-serve runs dist .pytest_cache .ruff_cache .hypothesis
