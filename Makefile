# Every target sets up what it needs by itself; see docs/contributors.md. PYTHON=/path/to/python3 picks the interpreter.
PYTHON ?= /usr/bin/python3
export PYTHON
PY := .venv/bin/python
RUN := $(PY) -X utf8
PYTEST_ARGS ?=
WORKERS ?= 2

.PHONY: help setup programs browser demo run test lint types unit bench load parity inspector lock \
  image image-base wheelhouse up down integration clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## .venv with the program, from the lock
	@tools/setup.sh

programs: # setup, and the programs that tests and the demo start
	@tools/setup.sh --with-tests

demo: programs ## the whole story against a copy of this repository, narrated
	@$(RUN) -m gateway demo

run: setup ## serve REGISTRY=FILE until ^C
	@test -n "$(REGISTRY)" || { echo "error: no registry: make run REGISTRY=FILE" >&2; exit 2; }
	@$(RUN) -m gateway serve --registry "$(REGISTRY)"

browser: # programs, and Chromium for the console's tests
	@tools/setup.sh --with-browser

test: lint types unit integration ## everything that CI checks

lint: programs ## ruff, import contracts, boundaries
	@$(PY) -m ruff check .
	@.venv/bin/lint-imports --no-logo
	@$(PY) tools/check_boundaries.py
	@$(PY) tools/seccomp_profile.py --check
	@$(PY) tools/console_palette.py --check

types: programs ## mypy --strict over packages and tests
	@$(PY) -m mypy

unit: browser ## pytest in WORKERS=2 processes; PYTEST_ARGS="-k words"
	@$(RUN) -m tests.contained $(RUN) -m pytest -n $(WORKERS) $(PYTEST_ARGS)

bench: programs ## benchmarks, each beside its reference; BENCH_ARGS=--quick
	@$(PY) -c 'import matplotlib' 2>/dev/null || \
	  $(PY) -m pip --disable-pip-version-check --no-input install --quiet --require-hashes --no-build-isolation -r requirements/bench.txt
	@$(RUN) -m benchmarks $(BENCH_ARGS)

load: programs ## many clients, each answer checked, ten minutes; LOAD_ARGS="--seconds 60"
	@$(RUN) -m tests.contained $(RUN) -m benchmarks.load $(LOAD_ARGS)

parity: programs ## V4A engine against the pinned upstream (CODEX_BIN=FILE)
	@$(RUN) -m tests.parity $(PARITY_ARGS)

inspector: programs ## the MCP Inspector command line against a server on TCP (needs npm)
	@$(RUN) tools/inspector_check.py

lock: setup ## requirements/*.txt anew from pyproject.toml; UPGRADE=1 takes the newest
	@tools/lock.sh

image: ## the appliance image, as TAG=codespace:latest; picks base and wheels, and says which
	@image/build.sh $(TAG)

image-base: # a base like debian:trixie-slim, for machines that reach no registry
	@image/base.sh $(BASE_IMAGE)

wheelhouse: # wheels for the image, for builds that reach no package index
	@image/wheelhouse.sh $(or $(BASE_IMAGE),codespace-base:trixie)

up: ## start the image as TAG=codespace:latest with the least privilege, from deploy/local
	@deploy/up.sh $(TAG)

down: # end what `make up` started
	@deploy/down.sh

integration: programs ## the image's tests; as root on Debian sets the engine up; PYTEST_ARGS="-k words"
	@$(RUN) -m tests.integration.engine $(RUN) -m pytest tests/integration $(PYTEST_ARGS)

clean: ## removes the environment and every cache
	rm -rf .venv .setup.lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
