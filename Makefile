# SPDX-License-Identifier: Apache-2.0
# The one door. Every target installs what it needs itself and may be run again at any time.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

PYTHON ?= python3
# The exact pin matters: an open range pulls gigabytes of CUDA. See docs/sandbox.md, "Which torch".
TORCH ?= torch==2.13.0
NAME ?=
N ?= 3
SEED ?=
SUITE ?= trixie
ARGS ?=
GENERATION ?=

BIN := .venv/bin
VENV := .venv/.installed
PROJECTS := pyproject.toml torch_hooks/pyproject.toml

.PHONY: help setup native demo test unit up down bench chaos sweep plugins docs wheels deb lint format clean
.PHONY: wrapper docker-up docker-test docker-down

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: native ## install system packages and the Python environment, nothing else

native: $(VENV)
	@mkdir -p build
	$(BIN)/python -m compileall -q torch_hooks/slipstream # as an installed wheel: jobs import these
	$(BIN)/python -m slipstream.torch_hooks.native build > build/native.log
	$(BIN)/python -m slipstream.estimator.native build >> build/native.log
	# As an installation has them: else each process of a user compiles fifty modules at its start.
	$(BIN)/python -m compileall -q torch_hooks/slipstream

demo: native ## the same PyTorch jobs on stock Slurm and with Slipstream; report in build/demo
	@PYTHONPATH=examples $(BIN)/python -m demo --out build/demo $(ARGS)

test: native lint ## lint and every test layer (ARGS="-k name" to choose)
	@deploy/setup/unpack.sh build/tools
	code=0
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 5 $(ARGS) || code=$$?
	[ "$$code" -eq 1 ] || exit "$$code"
	echo "make test: what failed beside two other clusters runs once more, alone; to fail again is to fail" >&2
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 3 $(ARGS)

unit: native ## only the fast layers: house, unit, property
	@$(BIN)/python -m pytest -m "house or unit or property" $(ARGS)

up: native ## start a sandbox cluster (ARGS="--nodes 2 --gpus-per-node 8")
	@$(BIN)/slipstream sandbox up $(ARGS)

down: $(VENV) ## stop it and remove every trace
	@$(BIN)/slipstream sandbox down $(ARGS)

bench: native ## run one benchmark: make -s bench NAME=sandbox; the last line is JSON
	@if [ ! -f "benchmarks/bench_$(NAME).py" ]; then
	  echo "make bench needs NAME=…, one of: $$(ls benchmarks | sed -nE 's/^bench_(.*)\.py$$/\1/p' | xargs)" >&2
	  exit 2
	fi
	[ "$(NAME)" != programs ] || $(MAKE) --no-print-directory -s .venv/.programs
	$(BIN)/python benchmarks/bench_$(NAME).py $(ARGS)

chaos: native ## faults under load, N rounds of them (SEED=… repeats a campaign); the last line is JSON
	@PYTHONPATH=tests $(BIN)/python -m chaos --rounds $(N) $(if $(SEED),--seed $(SEED)) $(ARGS)

sweep: native ## run what is missing of the estimator's table of trainings (docs/estimator.md)
	@PYTHONPATH=estimator $(BIN)/python -m sweep $(ARGS)

plugins: ## build what Slurm loads, for exactly the installed Slurm (docs/advice-board.md)
	@deploy/setup/select_plugin.sh

wrapper: $(VENV) ## the select wrapper on the Slurm of another Debian release: make wrapper SUITE=trixie (root)
	@PYTHONPATH=tests $(BIN)/python -m releases --suite $(SUITE)

docs: $(VENV) ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	echo "docs: build/site/index.html"

wheels: $(VENV) ## the two wheels, in build/wheels; users need that of the hooks outside of jobs
	@for project in . torch_hooks; do
	  $(BIN)/python -m build --wheel --no-isolation --outdir build/wheels $$project > build/wheels.log 2>&1 || { cat build/wheels.log; exit 1; }
	done
	ls build/wheels/*.whl

deb: ## the Debian package, for this host's Debian and exactly its Slurm; the last line is its file
	@deploy/debian/build.sh

docker-up: ## a cluster in containers (GENERATION=trixie NODES=4; docker/README.md)
	@docker/cluster up $(GENERATION)

docker-test: $(VENV) ## docker and sandbox tests in containers of each Slurm, or of GENERATION="bookworm trixie"
	@docker/cluster test $(GENERATION)

docker-down: ## remove the containers of docker-up, and what they wrote
	@docker/cluster down $(GENERATION)

lint: $(VENV) ## formatting, ruff, mypy, imports, spelling, C and shell
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > build/imports.log || { cat build/imports.log; exit 1; }
	$(BIN)/codespell
	git ls-files '*.c' '*.h' | xargs -r $(BIN)/clang-format --dry-run --Werror
	git ls-files '*.sh' .ci/run docker/cluster docker/controller docker/database docker/healthy \
	  docker/node docker/single deploy/debian/p* | xargs -r shellcheck
	echo "lint: clean"

format: $(VENV) ## rewrite files as lint wants them
	@$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .
	git ls-files '*.c' '*.h' | xargs -r $(BIN)/clang-format -i

clean: ## stop sandboxes of this user, remove what was built; system packages stay
	@if [ -x $(BIN)/slipstream ]; then $(BIN)/slipstream sandbox down --all; fi
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What the programs of tests/programs import beside the project's own environment.
.venv/.programs: $(VENV) tests/programs/requirements.txt
	@echo "slipstream setup: installing the packages of the programs (log: build/programs.log)" >&2
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" -r tests/programs/requirements.txt > build/programs.log 2>&1 || {
	  tail -20 build/programs.log >&2
	  exit 1
	}
	touch $@

# The environment is made anew when a pyproject.toml changes. SKIP_APT=1 leaves the system alone.
$(VENV): $(PROJECTS) deploy/setup/packages.txt
	@[ -n "$${SKIP_APT:-}" ] || deploy/setup/apt.sh
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	  echo "slipstream setup: $$($(PYTHON) --version) is too old, 3.11 or later is needed; choose one with make PYTHON=…" >&2
	  exit 1
	}
	mkdir -p build
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	echo "slipstream setup: installing the Python environment (log: build/setup.log)" >&2
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" > build/setup.log 2>&1 &&
	  $(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" -e ./torch_hooks -e ".[dev]" >> build/setup.log 2>&1 || {
	  tail -20 build/setup.log >&2
	  exit 1
	}
	$(BIN)/python -m slipstream.torch_hooks.native build > build/native.log
	touch $@
