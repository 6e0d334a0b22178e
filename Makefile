# Two commands on a new machine: `make demo` and `make test`. The rest is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Training needs torch, which everything else does without: an environment of its own keeps that true.
DRAFTER_VENV := .venv-drafter
DRAFTER_BIN := $(DRAFTER_VENV)/bin
DRAFTER_STAMP := $(DRAFTER_VENV)/.installed
# Ray brings gRPC and starts processes of its own: the same.
RAY_VENV := .venv-ray
RAY_BIN := $(RAY_VENV)/bin
RAY_STAMP := $(RAY_VENV)/.installed
TORCH ?= torch==2.13.0
# The site's tool shares nothing with spectune: it reads docs/ alone.
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
# MLflow's server brings a hundred packages that nothing else here needs.
STORES_VENV := .venv-stores
STORES_BIN := $(STORES_VENV)/bin
STORES_STAMP := $(STORES_VENV)/.installed

.PHONY: help install demo test check format docs engines test-engines test-browser test-stores install-drafter drafter-demo \
	test-drafter install-ray test-ray test-docker clean

help:
	@echo "make demo          install, then measure speculative decoding on a real llama.cpp server (5 to 10 minutes)"
	@echo "make test          install, then run the tests, the real llama.cpp server included"
	@echo "make drafter-demo  install torch, then data, training, export, serving and forecast (under 45 minutes)"
	@echo "make test-drafter  install torch, then the tests of the drafter"
	@echo "make test-browser  the tests of report and live page in a real browser (chromium, if there is one)"
	@echo "make test-stores   install an S3-compatible server and MLflow's, and the tests that need them"
	@echo "make test-docker   bring a Docker engine (Debian, root), and the tests of servers in containers"
	@echo "make test-ray      install Ray, then the tests on clusters of several nodes"
	@echo "make check         lint, format check, types"
	@echo "make docs          the documentation site, into site/"
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
	$(BIN)/python -m pytest -m "not engine and not drafter and not browser and not stores and not ray and not docker" -n 4 --dist worksteal

test-browser: install
	@echo "== tests of the report and the live page in a real browser"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	$(BIN)/python -m pytest -m browser

$(DRAFTER_STAMP): pyproject.toml src/spectune/__init__.py
	@echo "== installing spectune with torch into $(DRAFTER_VENV)"
	$(PYTHON) -m venv $(DRAFTER_VENV)
	$(DRAFTER_BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' -e '.[demo,dev,drafter]'
	@touch $@
	@echo "== installed"

install-drafter: $(DRAFTER_STAMP)

drafter-demo: install-drafter
	@echo "== data, training, export, serving; Ctrl-C keeps what is done, and the same command resumes"
	$(DRAFTER_BIN)/spectune drafter demo

# Two runners: with a thread for each core in both, torch's threads wait for each other (281 s against 74 for one test).
test-drafter: install-drafter
	@echo "== tests of the drafter"
	OMP_NUM_THREADS=1 $(DRAFTER_BIN)/python -m pytest -m "drafter and not engine" -n 2 --dist loadfile -o timeout=1800

$(STORES_STAMP): pyproject.toml src/spectune/__init__.py
	@echo "== installing spectune with an S3-compatible server and MLflow into $(STORES_VENV)"
	$(PYTHON) -m venv $(STORES_VENV)
	$(STORES_BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,stores]'
	@touch $@
	@echo "== installed"

test-stores: $(STORES_STAMP)
	@echo "== tests of studies in an object store and of the export to MLflow"
	$(STORES_BIN)/python -m pytest -m stores -n 3 --dist loadfile

$(RAY_STAMP): pyproject.toml src/spectune/__init__.py
	@echo "== installing spectune with Ray into $(RAY_VENV)"
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo,dev,ray]'
	@touch $@
	@echo "== installed"

install-ray: $(RAY_STAMP)

test-ray: install-ray
	@echo "== tests on Ray clusters of several nodes"
	$(RAY_BIN)/python -m pytest -m "ray and not engine"

DOCKER_FOLDER := $(CURDIR)/.docker-engine

test-docker: install
	@echo "== a Docker engine of our own, in $(DOCKER_FOLDER)"
	@if tools/docker_engine.sh $(DOCKER_FOLDER) start; then \
	  . $(DOCKER_FOLDER)/env; $(BIN)/python -m pytest -m docker; code=$$?; \
	  tools/docker_engine.sh $(DOCKER_FOLDER) stop; exit $$code; \
	elif [ $$? = 3 ]; then echo "== the tests with it are left out"; else exit 1; fi

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(DOCS_STAMP): pyproject.toml
	@echo "== installing the site's tool into $(DOCS_VENV)"
	$(PYTHON) -m venv $(DOCS_VENV)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS_VENV)/requirements.txt
	@touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet
	@echo "== site/index.html; its search needs a server: $(PYTHON) -m http.server -d site"

engines: install
	@echo "== real engines, outside the repository"
	$(PYTHON) tools/engines/install.py vllm sglang
	@echo "== the models they serve in the tests"
	$(BIN)/python -c 'from spectune.embedded.models import fetch_embedded_target; from spectune.home import data_home; fetch_embedded_target(data_home())'
	$(PYTHON) tools/engines/install.py models
	@echo "== each serves the shipped EAGLE-3 draft"
	$(PYTHON) tools/engines/install.py proof

test-engines: install install-drafter install-ray
	@echo "== tests against real vLLM and SGLang"
	$(BIN)/python -m pytest -m "engine and not drafter and not ray"
	$(DRAFTER_BIN)/python -m pytest -m "engine and drafter"
	$(RAY_BIN)/python -m pytest -m "engine and ray"

clean:
	rm -rf $(DOCKER_FOLDER) $(VENV) $(DRAFTER_VENV) $(STORES_VENV) $(RAY_VENV) $(DOCS_VENV) site .mypy_cache .ruff_cache .pytest_cache
