# Everything a person does with this repository. `make` alone lists it.
FITS := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11; do $$one $(FITS) 2>/dev/null && echo $$one && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
SOURCES := $(shell find koordpy -name '*.py')
PYTEST_ARGS ?=
SOAK_ARGS ?=
ATTACK_ARGS ?=
export MINUTES POLICIES

.DEFAULT_GOAL := help
.PHONY: help install lock demo picture test lint format type bench soak attack yardstick e2e realnode realnode-down realnode-bench e2e-realnode hardware docs reference workflows chart image test-pythons controlplane clean oracle golden measures suggestions storms

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(or $(PYTHON),false) $(FITS) || { echo "koordpy runs on Python 3.11 to 3.13, found '$(PYTHON)': name one, as in make install PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(if $(wildcard $(STAMP)),,--clear) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Else every start compiles what it imports where Python is told to write no bytecode (0.3 s of `koordpy simulate`).
$(COMPILED): $(STAMP) $(SOURCES)
	$(BIN)/python -m compileall -q koordpy
	@touch $@

install: $(COMPILED) ## Make .venv with everything the project needs, from the lock file

# What the image does not take of its packages' own: nothing of koordpy imports it (placement/solver/cpsat.py).
NOT_IN_IMAGE := pandas tzdata pygments
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock: ## Write the lock files anew from pyproject.toml (needs uv): of everything, of the image, of what builds it
	$(COMPILE) --extra agent --group dev pyproject.toml -o requirements.lock
	$(COMPILE) --constraint requirements.lock --extra agent $(NOT_IN_IMAGE:%=--no-emit-package %) pyproject.toml -o requirements-image.lock
	$(COMPILE) --constraint requirements.lock --group build -o requirements-build.lock

demo: install ## Gangs arrive on an embedded cluster: see where they go and why (CLUSTER=ascend: Ascend NPUs; HEADLESS=1 asserts the outcome)
	$(BIN)/koordpy demo $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(HEADLESS),--headless) $(DEMO_ARGS)

picture: install ## Record the demo as docs/demo.svg (a minute), and the page in light and dark (Chromium)
	$(BIN)/python -m tests.docs.recording docs/demo.svg
	$(BIN)/python -m tests.docs.page_pictures docs

test: install ## The whole test suite that needs no control plane
	@$(if $(LEFT_OUT),printf '\n*** LEFT OUT on Python $(VERSION): tests marked "$(LEFT_OUT)" (tests/conftest.py). make test runs them.\n\n' >&2)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not controlplane and not realnode$(LEFT_OUT:%= and not %)" $(PYTEST_ARGS)

VERSIONS ?= 3.11 3.12 3.13

# pyenv has more of them than its shims show.
test-pythons: ## The tests that depend on the Python version, on each Python that is here (VERSIONS="3.11 3.12 3.13")
	@for version in $(VERSIONS); do found=; \
	for one in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python; do \
		if [ -z "$$found" ] && $$one $(FITS) 2>/dev/null; then found=$$one; fi; done; \
	if [ -z "$$found" ]; then echo "NOT TRIED: Python $$version is not here" >&2; continue; fi; \
	$(MAKE) test PYTHON=$$found VENV=build/python$$version VERSION=$$version LEFT_OUT=once || exit; done

lint: install type ## Style, import layers, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

workflows: ## Check the workflows of the forge with actionlint (needs Go)
	GOFLAGS= go run $(ACTIONLINT) .github/workflows/*.yml

format: install ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

type: install ## Types (mypy, strict)
	$(BIN)/mypy

bench: install ## Speed of the reflector, the planner and binding, as a table
	$(BIN)/python -m bench

soak: install ## The live scheduler against a real control plane, each figure beside its bar (MINUTES=3, SOAK_ARGS=...)
	$(BIN)/python -m bench.soak $(SOAK_ARGS)

attack: install ## Hostile tenants beside an honest one on a real control plane, each attack beside its bar (POLICIES=off|on|both, ATTACK_ARGS=...)
	$(BIN)/python -m bench.attack $(ATTACK_ARGS)

yardstick: install ## koordpy beside kube-scheduler on a real control plane, one table (ROUNDS=1, YARDSTICK_ARGS=...)
	$(BIN)/python -m bench.yardstick --rounds $(or $(ROUNDS),1) $(YARDSTICK_ARGS)

storms: install ## Random schedules in bad weather, COUNT (20000) of them, as many of units that take room from one another, and a death at every turn of a commit
	KOORDPY_STORMS=$(or $(COUNT),20000) KOORDPY_CONTENTIONS=$(or $(COUNT),20000) $(BIN)/python -m pytest -n 2 --dist worksteal tests/engine/test_storms.py tests/engine/test_contention.py tests/engine/test_deaths.py $(PYTEST_ARGS)

oracle: install ## The planner and the solver against enumeration, COUNT (1000) random problems a family; then random clusters, and examples with a fault
	$(BIN)/python -m tests.planning.agreement $(or $(COUNT),1000)
	$(BIN)/python -m tests.planning.victims_at_size $(or $(COUNT),1000)
	$(BIN)/python -m tests.cli.random_manifests 0 $(or $(COUNT),1000)
	$(BIN)/python -m tests.cli.mutations 0 $(or $(COUNT),1000)

golden: install ## Plans of all scenarios, benchmarks and 2,200 random clusters beside their recorded hashes (ARGS="--quick", "--record", "--show FAMILY SEED")
	$(BIN)/python -m tests.golden -j 2 $(ARGS)

measures: install ## Figures of the structure: modules that a device family, a plain pod, a gang and one with victims touch (ARGS=--static)
	$(BIN)/python -m tests.structure.measures $(ARGS)

suggestions: install ## Suggestions of explain carried out on random clusters, faults printed (COUNT=100 clusters, about 1,000 waiting units)
	$(BIN)/python -m tests.cli.test_explanations_hold 0 $(or $(COUNT),100)

controlplane: ## etcd, kube-apiserver, helm: from KUBEBUILDER_ASSETS, else built with Go; the last line tells the folder
	@controlplane/build.sh

# Who waited in vain is tried once more, alone, for the machine may have been busy; the summary says so. All else is final.
SECOND_TRY := -p rerunfailures --reruns 1 --only-rerun '^WaitedInVain: not within'

e2e: install ## The scheduler against the real API server
	$(BIN)/python -m pytest -m controlplane tests/e2e $(SECOND_TRY) $(PYTEST_ARGS)

# The machine's own containerd is used, unless another one is asked for.
ON_NODES := $(if $(CONTAINERD),own=$$(controlplane/build.sh containerd) && export "$$own" && )

realnode: install ## A cluster of NODES (3) real nodes on this machine that goes on, for kubectl (root; INSTALL=1 gets what is missing, CONTAINERD=2 builds containerd 2)
	@$(ON_NODES)$(BIN)/python -m tests.realnode up --nodes $(or $(NODES),3) $(if $(INSTALL),--install)

realnode-down: install ## End it, and remove what killed ones have left
	@$(BIN)/python -m tests.realnode down

e2e-realnode: install ## The scheduler, the agent and the chart on real nodes, which are gone at the end (CONTAINERD=2: with containerd 2)
	$(ON_NODES)$(BIN)/python -m pytest -m realnode tests/realnode $(SECOND_TRY) $(PYTEST_ARGS)

realnode-bench: install ## The image and the chart on real nodes, measured, one table (ROUNDS=3)
	$(BIN)/python -m bench.realnode --rounds $(or $(ROUNDS),3)

hardware: install ## The agent on the GPUs of this machine (needs an NVIDIA driver)
	$(BIN)/python -m pytest tests/hardware -rs $(PYTEST_ARGS)

docs: install ## The documentation as pages in build/docs; every warning is an error
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -c docs . build/docs

reference: install ## Write docs/reference from the code: custom resources, labels, configuration, metrics
	$(BIN)/python -m tests.docs.api_reference

chart: install ## Write the chart's schema anew from the configuration, then lint and render the chart
	$(BIN)/python -m tests.charts.configuration_schema
	$(BIN)/python -m pytest tests/charts tests/e2e/test_chart.py $(PYTEST_ARGS)

image: install ## The image koordpy:VERSION and build/koordpy.oci.tar, by docker, podman or buildah, then tried (BASE=bootstrap: without a registry)
	BASE="$(BASE)" image/build.sh
	$(BIN)/python -m pytest tests/image -rs $(PYTEST_ARGS)
	@$(BIN)/python -m tests.image.archive

clean: ## Remove what was built here
	rm -rf $(VENV) build .cache .mypy_cache .ruff_cache .pytest_cache
	find koordpy -name __pycache__ -prune -exec rm -rf {} +
