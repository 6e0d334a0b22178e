# Two commands on a new machine: `make demo` and `make test`. The rest is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test check format engines test-engines clean

help:
	@echo "make demo          install, then measure speculative decoding on a real llama.cpp server (about 7 minutes)"
	@echo "make test          install, then run the tests, the real llama.cpp server included"
	@echo "make check         lint, format check, types"
	@echo "make engines       real vLLM and SGLang environments outside $(VENV) (7 GB)"
	@echo "make test-engines  the tests that need them"

$(STAMP): pyproject.toml src/spectune/__init__.py
	@echo "== installing spectune into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo,dev]'
	@touch $@
	@echo "== installed"

install: $(STAMP)

demo: install
	@echo "== measuring; Ctrl-C keeps what was measured, and the same command resumes"
	$(BIN)/spectune demo

test: install
	@echo "== tests (the embedded model is fetched once, 93 MB)"
	$(BIN)/python -m pytest -m "not engine" -n 2 --dist loadfile

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

engines: install
	@echo "== real engines, outside the repository"
	$(PYTHON) tools/engines/install.py vllm sglang
	@echo "== the models they serve in the tests"
	$(BIN)/python -c 'from spectune.embedded import models; models.fetch_embedded_target(models.data_home())'
	$(PYTHON) tools/engines/install.py models

test-engines: install
	@echo "== tests against real vLLM and SGLang"
	$(BIN)/python -m pytest -m engine

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
