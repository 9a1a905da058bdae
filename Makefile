# SPDX-License-Identifier: Apache-2.0
# Commands for development. `make` without a target lists them.
FITS := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11; do $$one $(FITS) 2>/dev/null && echo $$one && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# check_python TARGET: ends the recipe unless PYTHON is a version that koordpy runs on.
check_python = $(or $(PYTHON),false) $(FITS) 2>/dev/null || { echo "koordpy runs on Python 3.11 to 3.13, found '$(or $(PYTHON),none on the PATH)': name one, as in make $(1) PYTHON=python3.12" >&2; exit 1; }
COMPILED := $(VENV)/.compiled
SOURCES := $(shell find koordpy -name '*.py')
PYTEST_ARGS ?=
SOAK_ARGS ?=
ATTACK_ARGS ?=
export MINUTES POLICIES

.DEFAULT_GOAL := help
.PHONY: help install lock demo picture test lint dco format type bench soak attack yardstick e2e e2e-oldest e2e-autoscalers realnode realnode-down realnode-bench e2e-realnode hardware docs reference workflows chart image dist dist-check publish-check publish-image publish-chart publish-files version test-pythons controlplane clean oracle golden measures suggestions storms cel-differential kubelet-differential

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(call check_python,install)
	$(PYTHON) -m venv $(if $(wildcard $(STAMP)),,--clear) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Compiles at installation. Otherwise each start compiles all imports if Python must not write bytecode (0.3 s of `koordpy simulate`).
$(COMPILED): $(STAMP) $(SOURCES)
	$(BIN)/python -m compileall -q koordpy
	@touch $@

install: $(COMPILED) ## Create .venv with all dependencies, from the lock file

# Dependencies of packages that the image leaves out, because koordpy never imports them (placement/solver/cpsat.py).
NOT_IN_IMAGE := pandas tzdata pygments
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock: ## Regenerate the lock files from pyproject.toml (needs uv): all dependencies, image, build tools, tools of make dist
	$(COMPILE) --extra agent --group dev pyproject.toml -o requirements.lock
	$(COMPILE) --constraint requirements.lock --extra agent $(NOT_IN_IMAGE:%=--no-emit-package %) pyproject.toml -o requirements-image.lock
	$(COMPILE) --constraint requirements.lock --group build -o requirements-build.lock
	$(COMPILE) --constraint requirements.lock --group dist -o requirements-dist.lock

demo: install ## Run the demo on an embedded cluster: see where gangs are placed and why (CLUSTER=ascend: Ascend NPUs; HEADLESS=1: check the outcome)
	$(BIN)/koordpy demo $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(HEADLESS),--headless) $(DEMO_ARGS)

picture: install ## Record the demo as docs/demo.svg (a minute), and the web UI in light and dark mode (needs Chromium)
	$(BIN)/python -m tests.docs.recording docs/demo.svg
	$(BIN)/python -m tests.docs.page_pictures docs

test: install ## Run all tests that need no control plane
	@$(if $(LEFT_OUT),printf '\n*** LEFT OUT on Python $(VERSION): tests marked "$(LEFT_OUT)" (tests/conftest.py). make test runs them.\n\n' >&2)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not controlplane and not realnode and not published$(LEFT_OUT:%= and not %)" $(PYTEST_ARGS)

VERSIONS ?= 3.11 3.12 3.13

# pyenv has more Python versions than its shims show.
test-pythons: ## Run the version-dependent tests on every installed Python (VERSIONS="3.11 3.12 3.13")
	@for version in $(VERSIONS); do found=; \
	for one in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python; do \
		if [ -z "$$found" ] && $$one $(FITS) 2>/dev/null; then found=$$one; fi; done; \
	if [ -z "$$found" ]; then echo "NOT TRIED: Python $$version is not installed" >&2; continue; fi; \
	$(MAKE) test PYTHON=$$found VENV=build/python$$version VERSION=$$version LEFT_OUT=once || exit; done

lint: install type ## Check style, import layers and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.structure.license_headers
	$(BIN)/lint-imports

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

workflows: ## Check the workflows of the forge with actionlint (needs Go)
	GOFLAGS= go run $(ACTIONLINT) .github/workflows/*.yml

export SINCE

# The address counts, not the name. Merge commits need no sign-off.
dco: ## Check that commits after SINCE (origin/main) are signed off by their authors (Developer Certificate of Origin)
	@since=$${SINCE:-origin/main}; git rev-parse --quiet --verify "$$since^{commit}" >/dev/null || { echo "dco: there is no commit $$since: set SINCE" >&2; exit 1; }; \
	git log --no-merges --format='%ae%x09%(trailers:key=Signed-off-by,valueonly,separator=%x2C)%x09%h %s' "$$since..HEAD" | \
	awk -F'\t' 'index(tolower($$2), "<" tolower($$1) ">") == 0 { print $$3 ": no Signed-off-by with <" $$1 ">"; bad = 1 } \
	END { if (bad) print "Add it with: git rebase --signoff SINCE (CONTRIBUTING.md, Commits)"; exit bad }' >&2

format: install ## Format the code, and add missing license headers
	$(BIN)/python -m tests.structure.license_headers --write
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

type: install ## Check types (mypy, strict)
	$(BIN)/mypy

bench: install ## Measure the speed of the reflector, the planner and binding
	$(BIN)/python -m bench

soak: install ## Run the live scheduler on a real control plane, each measurement next to its threshold (MINUTES=3, SOAK_ARGS=...)
	$(BIN)/python -m bench.soak $(SOAK_ARGS)

attack: install ## Measure how much hostile tenants slow down a well-behaved one, on a real control plane (POLICIES=off|on|both, ATTACK_ARGS=...)
	$(BIN)/python -m bench.attack $(ATTACK_ARGS)

yardstick: install ## Compare koordpy with kube-scheduler on a real control plane, one table (ROUNDS=1, YARDSTICK_ARGS=...)
	$(BIN)/python -m bench.yardstick --rounds $(or $(ROUNDS),1) $(YARDSTICK_ARGS)

storms: install ## Fault injection: COUNT (20000) random schedules, as many with competing units and with claims, and a crash at every step of a commit
	KOORDPY_STORMS=$(or $(COUNT),20000) KOORDPY_CONTENTIONS=$(or $(COUNT),20000) KOORDPY_CARD_STORMS=$(or $(COUNT),20000) KOORDPY_ZONE_STORMS=$(or $(COUNT),20000) KOORDPY_REPAIR_STORMS=$(or $(COUNT),20000) $(BIN)/python -m pytest -n 2 --dist worksteal tests/engine/test_storms.py tests/engine/test_card_storms.py tests/engine/test_zone_storms.py tests/engine/test_repair_storms.py tests/engine/test_contention.py tests/engine/test_deaths.py $(PYTEST_ARGS)

oracle: install ## Compare planner and solver with brute force on COUNT (1000) random problems per family, random clusters and faulty examples
	$(BIN)/python -m tests.planning.agreement $(or $(COUNT),1000)
	$(BIN)/python -m tests.planning.victims_at_size $(or $(COUNT),1000)
	$(BIN)/python -m tests.cli.random_manifests 0 $(or $(COUNT),1000)
	$(BIN)/python -m tests.cli.mutations 0 $(or $(COUNT),1000)

cel-differential: install ## Compare the verdicts of device selectors with Kubernetes' own CEL package: 500 given, COUNT (20000) random ones (needs Go; RECORD=1: write the table)
	@if command -v go >/dev/null; then $(BIN)/python -m tests.devices.dra.cel_differential --count $(or $(COUNT),20000) $(if $(RECORD),--record); \
	else echo "NOT TRIED: Go is not installed, so no selector was compared" >&2; fi

kubelet-differential: install ## Compare admission by NUMA zones with the kubelet's own hint merging, for COUNT (20000) random requests (needs Go)
	@if command -v go >/dev/null; then $(BIN)/python -m tests.numa.kubelet_differential --count $(or $(COUNT),20000); \
	else echo "NOT TRIED: Go is not installed, so no request was compared" >&2; fi

golden: install ## Compare the plans of all scenarios, benchmarks and 2,500 random clusters with recorded hashes (ARGS="--quick", "--record", "--show FAMILY SEED")
	$(BIN)/python -m tests.golden -j 2 $(ARGS)

measures: install ## Count the modules that a device family, a plain pod, a gang, and a gang with victims use (ARGS=--static)
	$(BIN)/python -m tests.structure.measures $(ARGS)

suggestions: install ## Apply the suggestions of explain on random clusters, and print wrong ones (COUNT=100 clusters, about 1,000 pending units)
	$(BIN)/python -m tests.cli.test_explanations_hold 0 $(or $(COUNT),100)

controlplane: ## Get etcd, kube-apiserver and helm, from KUBEBUILDER_ASSETS or built with Go (KUBERNETES=1.34: that version); the last line is their folder
	@controlplane/build.sh

# A test that timed out runs once more, alone, because the machine may have been busy; the summary shows it. Other failures are final.
SECOND_TRY := -p rerunfailures --reruns 1 --only-rerun '^WaitedInVain: not within'

# Three workers, each with a control plane of its own, also on two cores, because the tests mostly wait; a module stays with one worker.
PLANES := -n 3 --dist loadfile

e2e: install ## Test the scheduler against a real API server
	$(BIN)/python -m pytest $(PLANES) -m controlplane tests/e2e $(SECOND_TRY) $(PYTEST_ARGS)

# The tests that depend on what the API server and its controllers do, and a sample of the others.
VERSION_TESTS := $(addprefix tests/e2e/test_,$(addsuffix .py,controlplane crds definitions devices volumes preemption quota_webhook process differential chart_schemas chart_webhook chart_work upstream_groups gang_defaults))
OLDEST := $(firstword $(notdir $(sort $(wildcard controlplane/kubernetes/*))))

e2e-oldest: install ## Test a part of it on the oldest supported Kubernetes (in KUBEBUILDER_ASSETS_OLDEST, else built)
	KUBERNETES=$(OLDEST) KUBEBUILDER_ASSETS="$(KUBEBUILDER_ASSETS_OLDEST)" $(BIN)/python -m pytest $(PLANES) -m controlplane $(VERSION_TESTS) $(SECOND_TRY) $(PYTEST_ARGS)

# Tests of the decisions of Karpenter, which make e2e skips.
e2e-autoscalers: install ## Test for which pods Karpenter adds nodes, by its own code and with its KWOK provider (needs Go, which builds it in two minutes)
	@if command -v go >/dev/null; then built=$$(controlplane/build.sh karpenter) && export "$$built" && \
	$(BIN)/python -m pytest -m controlplane tests/e2e/test_autoscalers.py $(SECOND_TRY) $(PYTEST_ARGS); \
	else echo "NOT TRIED: Go is not installed, so Karpenter was not asked" >&2; fi

# Uses the machine's containerd, unless CONTAINERD is set.
ON_NODES := $(if $(CONTAINERD),own=$$(controlplane/build.sh containerd) && export "$$own" && )

realnode: install ## Start a cluster of NODES (3) real kubelets that keeps running, for kubectl (needs root; INSTALL=1 installs what is missing, CONTAINERD=2 builds containerd 2)
	@$(ON_NODES)$(BIN)/python -m tests.realnode up --nodes $(or $(NODES),3) $(if $(INSTALL),--install)

realnode-down: install ## Stop that cluster, and clean up leftovers
	@$(BIN)/python -m tests.realnode down

e2e-realnode: install ## Test scheduler, agent and chart on temporary real nodes (CONTAINERD=2: with containerd 2)
	$(ON_NODES)$(BIN)/python -m pytest -m realnode tests/realnode $(SECOND_TRY) $(PYTEST_ARGS)

realnode-bench: install ## Measure the image and the chart on real nodes (ROUNDS=3)
	$(BIN)/python -m bench.realnode --rounds $(or $(ROUNDS),3)

hardware: install ## Test the agent on the GPUs of this machine (needs an NVIDIA driver)
	$(BIN)/python -m pytest tests/hardware -rs $(PYTEST_ARGS)

docs: install ## Build the documentation in build/docs; warnings are errors
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -c docs . build/docs

reference: install ## Write docs/reference from the code: custom resources, labels, configuration, metrics
	$(BIN)/python -m tests.docs.api_reference

chart: install ## Regenerate the chart's schema from the configuration, then lint and render the chart
	$(BIN)/python -m tests.charts.configuration_schema
	$(BIN)/python -m pytest tests/charts tests/e2e/test_chart.py $(PYTEST_ARGS)

image: install ## Build and test the image koordpy:VERSION and build/koordpy.oci.tar, with docker, podman or buildah (BASE=bootstrap: without a registry)
	BASE="$(BASE)" image/build.sh
	$(BIN)/python -m pytest tests/image -rs $(PYTEST_ARGS)
	@$(BIN)/python -m tests.image.archive

DIST_TOOLS := build/dist-tools
SPACED = $(if $($(1)),$(2) $($(1)))

$(DIST_TOOLS)/.installed: requirements-dist.lock
	@$(call check_python,dist)
	$(PYTHON) -m venv --clear $(DIST_TOOLS)
	$(DIST_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dist.lock
	@touch $@

dist: $(DIST_TOOLS)/.installed ## Build a release from the last commit in dist/ (PARTS="python chart crds plugin krew sbom image": only these)
	$(DIST_TOOLS)/bin/python -m release $(call SPACED,PARTS,--parts) $(call SPACED,PLATFORMS,--plugin-platforms) \
		$(call SPACED,PYTHONS,--plugin-pythons) $(call SPACED,IMAGES,--image-platforms)

dist-check: install ## Test the files in dist/: the wheel in an empty environment, the plugin, the image of each architecture
	$(BIN)/python -m pytest tests/release -rs -m published $(PYTEST_ARGS)

PUBLISH = $(DIST_TOOLS)/bin/python -m release.publishing
export DRY_RUN TAG

publish-check: $(DIST_TOOLS)/.installed ## Check that TAG (v1.2.3), chart, changelog and upgrade notes name the version of koordpy
	@$(PUBLISH) check "$$TAG"

publish-image: $(DIST_TOOLS)/.installed ## Push, sign and attest the image of make dist; needs skopeo and cosign (DRY_RUN=1: print the commands)
	@$(PUBLISH) image

publish-chart: $(DIST_TOOLS)/.installed ## Push and sign the chart of make dist; needs helm and cosign (DRY_RUN=1: print the commands)
	@$(PUBLISH) chart

publish-files: $(DIST_TOOLS)/.installed ## Sign the checksums of make dist, and create the release of the forge; needs cosign and gh (DRY_RUN=1: print the commands)
	@$(PUBLISH) files

version: ## Write VERSION into every file that names the version (VERSION=0.2.0)
	@$(BIN)/python -m release.set_version $(VERSION)

clean: ## Remove build outputs
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache
	find koordpy -name __pycache__ -prune -exec rm -rf {} +
