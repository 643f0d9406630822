# Two commands do everything: `make demo` trains through the splicing switch, `make test` is what CI runs.
# A fresh machine needs Python 3.10 or later, python3-venv and make.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
PIP_FLAGS := --quiet --disable-pip-version-check --no-warn-script-location
SOAK_SECONDS ?= 120
FUZZ_SECONDS ?= 60
# Live tests start several processes each: they run one after the other, the rest on two cores.
PYTEST := $(BIN)/python -m pytest -q

.PHONY: demo test lint compile unit plain live soak fuzz clean

demo: $(INSTALLED)
	@$(BIN)/netreduce demo

test: lint unit plain live

lint: $(INSTALLED)
	@echo "== ruff, mypy"
	@$(BIN)/ruff check src tests examples benchmarks
	@$(BIN)/ruff format --check src tests examples benchmarks
	@$(BIN)/mypy

# Before the tests, whose time limits do not allow for it; says so if there is anything to do.
compile: $(INSTALLED)
	@$(BIN)/python -c 'from netreduce.runtime.warmup import ensure_compiled; ensure_compiled(print)'

unit: compile
	@echo "== unit tests"
	@$(PYTEST) -m "not live" -n 2

plain: $(INSTALLED)
	@echo "== the data path once more, as plain Python"
	@NUMBA_DISABLE_JIT=1 $(PYTEST) -m "not live" -n 2 tests/nic tests/switch tests/fuzz

live: compile
	@echo "== tests that start real processes"
	@$(PYTEST) -m live

# Random networks and faults from a fresh seed, which it prints.
soak: compile
	@echo "== soak"
	@$(BIN)/netreduce soak --seconds $(SOAK_SECONDS)

# Every fuzz target for so long, in plain Python so that the fuzzer sees each line; what it finds is kept in .fuzz.
fuzz: $(INSTALLED)
	@echo "== fuzz"
	@$(BIN)/python -m tests.fuzz.fuzz --seconds $(FUZZ_SECONDS)

# Installed again whenever pyproject.toml changes; the sources are used where they lie.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "NetReduce needs Python 3.10 or later, this is " + sys.version)'
	@test -x $(BIN)/python || echo "== creating .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "python3-venv is missing: apt-get install python3-venv"; rm -rf .venv; exit 1; }
	@echo "== installing (about 1 minute; about 400 MB with the CPU build of PyTorch, more where pip picks the CUDA build)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
