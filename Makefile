# Everything a newcomer needs: `make demo` and `make test` set up what they use by themselves.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= $(shell nproc | awk '{ print ($$1 < 3 ? $$1 : 3) + 1 }')

.DEFAULT_GOAL := help
.PHONY: help setup model demo test lint vectors bench clean

help:
	@echo "make demo    two nodes on this machine: compute, pull, push, graft, tamper, with a real model"
	@echo "make test    every test"
	@echo "make lint    ruff, mypy, import contracts, generated vectors"
	@echo "make bench   the programs under benchmarks/, one after the other"
	@echo "make clean   remove $(VENV) and build outputs (fetched models stay in the user's cache)"

setup: $(READY)

# The stamp is written last: an interrupted set-up is simply done again.
$(READY): pyproject.toml constraints.txt .ci/venv
	@bash .ci/venv "$(PYTHON)" "$(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	@touch $@

model: $(READY)
	@$(BIN)/kvsync model fetch smollm2-135m

demo: model
	@$(BIN)/kvsync demo

# Tests run several processes with a model each; threads that spin at barriers would slow all of them. One worker more
# than cores, at most 4: tests of stalls and kills wait more than they work.
test: export OMP_WAIT_POLICY = PASSIVE
test: model
	@bash .ci/packages
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: vectors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

vectors: $(READY)
	$(BIN)/python protocol/vectors/generate.py --check

bench: model
	@set -e; for program in exactness graft transfer audit; do \
	    echo "== $$program"; $(BIN)/python "benchmarks/$$program.py"; \
	done

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
