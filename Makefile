# Each target does its own set-up: a machine with Python 3.11 or newer, pip and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export TOKENIZERS_PARALLELISM := false
# set-up compiles nothing, which would take a minute: Python keeps what it compiles at the first import, and most
# modules of the libraries are never imported. So it must be allowed to keep it: tests start hundreds of processes
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-kernels faults test-places test-lowest fuzz tutorials lint docs notebooks bench peers clean

help:
	@echo "make test    set up, lint, type-check and run every test but the tutorials"
	@echo "make test-kernels  run the tests with the kernels of other processors, with one and two threads: six times as long"
	@echo "make faults  strike every command that writes: kills, Ctrl-C, full and broken disks, two writers, readers; an hour"
	@echo "make test-places  run what touches the machine without a home, git, a browser, UTF-8 and a second core"
	@echo "make test-lowest  run the quick tests with the lowest versions that pyproject.toml allows, in .venv-lowest"
	@echo "make fuzz    read 2,000 files that are nearly right with every parser (FILES=, SECONDS=, PARSERS=)"
	@echo "make demo    set up and make a page to look at, from two small models trained on the spot"
	@echo "make tutorials  run the tutorials on real models and data, a minute or two each"
	@echo "make bench   measure speed and memory against peers, as ratios in one run"
	@echo "make peers   the comparisons that need a peer in a virtual environment of its own"
	@echo "make notebooks  write the tutorials as notebooks into notebooks/"
	@echo "make docs    build the documentation into site/"

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

lint: setup
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/mypy
	$(BIN)/lint-imports

# the checks run beside the tests, on whichever core is free; the second worker uses older kernels of numeric libraries
# than the first (tests/conftest.py): what trains runs on both, all other tests on either
test: setup
	@scripts/chromium || true
	@$(MAKE) --no-print-directory lint & checks=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --durations 15 -m "not tutorial and not trains"; tests=$$?; \
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist each -m trains || tests=1; \
	wait $$checks && exit $$tests

test-kernels: setup
	@scripts/chromium || true
	$(BIN)/python scripts/kernels.py

faults: setup
	$(BIN)/python tests/faults/harness.py --each 50

test-places: setup
	$(BIN)/python scripts/places.py

# uv takes the lowest versions of what pyproject.toml names; torch from PyPI brings 3 GB of CUDA along, which
# UV_FIND_LINKS or UV_INDEX_URL with CPU wheels avoids
test-lowest:
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct --editable '.[dev]'
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -n 2 -m "not tutorial and not slow" -p no:cacheprovider

# what is found is kept in tests/fuzz/corpus, which `make test` reads
FILES ?= 2000
SECONDS ?= 400
fuzz: setup
	@scripts/chromium || true
	$(BIN)/python scripts/fuzz.py --files $(FILES) --seconds $(SECONDS) $(PARSERS)

tutorials: setup
	$(BIN)/pytest -m tutorial --durations 5

demo: setup
	$(BIN)/transship demo demo

docs: setup
	$(BIN)/python scripts/reference.py docs/reference
	$(BIN)/python scripts/results.py docs/results
	$(BIN)/python scripts/scaling.py docs
	$(BIN)/mkdocs build --strict --quiet

notebooks: setup
	$(BIN)/python scripts/notebooks.py notebooks

bench: setup
	$(BIN)/python -m benchmarks

peers: setup
	$(BIN)/python -m benchmarks --peers

clean:
	rm -rf $(VENV) $(VENV)-lowest .peers build dist site demo notebooks .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
