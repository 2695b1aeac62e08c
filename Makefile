# `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A rustup that we install is not yet on the PATH of the calling shell, and must take precedence over an older cargo.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(CARGO_HOME)/bin:$(PATH)

TRIPLE := x86_64-unknown-linux-musl
comma := ,
SAGGAR := $(or $(CARGO_TARGET_DIR),target)/$(TRIPLE)/release/saggar
# The small program that `make build` packs the full one behind.
FRONT := $(or $(CARGO_TARGET_DIR),target)/$(TRIPLE)/front/saggar-front
FRONT_BYTES_MAX := 2097151
# The build that the tests run: the same code with debug assertions.
SAGGAR_DEBUG := $(or $(CARGO_TARGET_DIR),target)/$(TRIPLE)/debug/saggar
MUTATED := $(or $(CARGO_TARGET_DIR),target)/mutation
MUTATION_BUILD = cargo test --locked --package saggar --features mutation --test mutation --target-dir "$(MUTATED)"
MUTATION_CHECK = $(MUTATION_BUILD) -- --nocapture
# One rule of each kind, for every `make test`.
FEW_RULES := namespace/network,egress/rules,seccomp/namespaces,landlock/scopes,mask/proc/keys,start/environment,start/descriptors,protect/held,limit/pids

.PHONY: help setup setup-test setup-bench setup-compare build demo test test-all test-clients test-repeat test-services test-harbor test-inspect test-e2b test-frameworks test-models test-mutation test-schema test-upgrade test-vm lint bench soak compare deny clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what the build and the demo need, if missing
	@scripts/setup.sh build

setup-test: ## the same for the tests
	@scripts/setup.sh test

setup-bench: ## the same for the benchmarks
	@scripts/setup.sh bench

setup-compare: ## the same for the comparison
	@scripts/setup.sh compare

build: setup ## build the static release binary and print its path
	@cargo build --locked --profile front --package saggar-front
	@[[ $$(stat -c %s "$(FRONT)") -le $(FRONT_BYTES_MAX) ]] || { echo "error: the front is larger than $(FRONT_BYTES_MAX) bytes" >&2; echo "  help: see profile.front in Cargo.toml; \`nm --size-sort\` on a build with strip = false shows what is large" >&2; exit 1; }
	@cargo build --locked --release --package saggar --bin saggar-full
	@cargo --locked xtask pack "$(FRONT)" "$(SAGGAR)-full" "$(SAGGAR)"
	@echo "$(SAGGAR)"

demo: build ## build, then demonstrate the sandbox, the server and a durable run, step by step
	@scripts/demo.sh "$(SAGGAR)"

lint: setup-test ## project rules, formatting and clippy
	@echo "==> tidy"
	@cargo --locked xtask tidy
	@echo "==> rustfmt"
	@cargo fmt --all --check
	@echo "==> clippy"
	@cargo clippy --locked --workspace --all-targets -- -D warnings

test: lint ## everything a change must pass
	@echo "==> tests"
	@cargo nextest run --locked --workspace
	@echo "==> a minute of fuzzing"
	@SAGGAR_FUZZ_SECONDS=60 cargo nextest run --locked --package saggar-egress --package saggar-image -E 'test(under_fuzzing)'
	@scripts/schemathesis.sh "$(SAGGAR_DEBUG)"
	@$(MAKE) --no-print-directory test-e2b
	@$(MAKE) --no-print-directory test-models CLIENT_FLAGS=--smoke
	@$(MAKE) --no-print-directory test-frameworks FRAMEWORKS=openai
	@$(MAKE) --no-print-directory test-clients CLIENT_FLAGS=--smoke
	@echo "==> mutation check, in short"
	@SAGGAR_MUTATION_RULES="$(FEW_RULES)" $(MUTATION_CHECK)

# CLIENTS=new runs only the newest Python client; old and node are the others.
test-e2b: setup-test ## run E2B's unmodified clients against a real server
	@cargo build --locked --package saggar
	@tests/e2b/run.sh "$(SAGGAR_DEBUG)" $(CLIENTS)

# CLIENTS=python, node or gemini runs only that one.
test-models: setup-test ## run OpenAI's, Anthropic's and Google's unmodified clients against a server and a provider stand-in
	@cargo build --locked --package saggar
	@tests/models/run.sh "$(SAGGAR_DEBUG)" $(CLIENT_FLAGS) $(CLIENTS)

# FRAMEWORKS=openai runs only the OpenAI Agents SDK; smolagents and langchain are the others.
test-frameworks: setup-test ## run one task of each agent framework, unmodified, against a real server
	@cargo build --locked --package saggar
	@tests/frameworks/run.sh "$(SAGGAR_DEBUG)" $(FRAMEWORKS)

# NETWORK_CLIENTS=curl,git runs only these. As an ordinary user there is no world to run them in.
test-clients: setup-test ## run the usual network clients in a sandbox with a managed network
	@cargo build --locked --package saggar
	@echo "==> network clients"
	@if [[ $$EUID -eq 0 ]]; then tests/network/clients.py $(CLIENT_FLAGS) "$(SAGGAR_DEBUG)" "$(MUTATED)/../clients" $(subst $(comma), ,$(NETWORK_CLIENTS)); \
		else echo "not run here: only root can make the small internet that they need"; fi

test-all: export WHOLE_SUITE = 1
test-all: test test-clients test-models test-frameworks test-services test-harbor test-inspect test-mutation test-vm ## test, the network clients, models' clients, services from an image, agent frameworks and harnesses, and the full mutation check here and in an emulated machine

# ROUNDS=200 TESTS="--package saggar --test server_life" repeats those tests. Takes 10 minutes a round on two quiet cores.
ROUNDS ?= 10
BUSY ?= 6

test-repeat: setup-test ## run the suite 10 times from one build, 5 of them beside six busy processes, to find tests that depend on chance
	@scripts/test-repeat.sh "$(ROUNDS)" "$(BUSY)" $(TESTS)

# Needs a Debian mirror the first time; the image is kept.
test-services: setup-test ## run PostgreSQL, Redis, nginx, Chromium and apt-get in sandboxes of a server, from an image of Debian's packages
	@cargo build --locked --package saggar
	@scripts/setup.sh services
	@echo "==> services"
	@if [[ $$EUID -eq 0 ]]; then tests/services/run.py "$(SAGGAR_DEBUG)" "$(MUTATED)/../services"; \
		else echo "not run here: only root can make the image and keep files on disk"; fi

# Both need Python 3.12 and, the first time, PyPI.
test-inspect: setup-test ## run Inspect's self-check of sandboxes over inspect-sandboxes' provider for E2B
	@cargo build --locked --package saggar
	@tests/frameworks/inspect/run.sh "$(SAGGAR_DEBUG)"

test-harbor: setup-test ## run Harbor's oracle agent on a small task with a Dockerfile
	@cargo build --locked --package saggar
	@tests/frameworks/harbor/run.sh "$(SAGGAR_DEBUG)"

# SEED=random sends other requests than the last time; SEED=1 repeats those of a report.
test-schema: setup-test ## send valid and invalid requests generated from the OpenAPI document (two minutes; needs PyPI the first time)
	@cargo build --locked --package saggar
	@scripts/schemathesis.sh "$(SAGGAR_DEBUG)" $(SEED)

# OLD=path names the earlier binary; UPGRADE_FROM=commit builds that one instead of the parent of HEAD.
test-upgrade: setup-test ## replace a server of an earlier version by this one, over live sandboxes
	@scripts/test-upgrade.sh $(OLD)

# Built in its own directory, so that no weakened binary ends up among the ordinary builds. RULES=a,b runs only these.
test-mutation: setup-test ## switch off one enforcement rule at a time: a conformance case must fail
	@echo "==> mutation check"
	@cargo clippy --locked --package saggar --features mutation --all-targets --target-dir "$(MUTATED)" -- -D warnings
	@$(if $(RULES),SAGGAR_MUTATION_RULES="$(RULES)") $(MUTATION_CHECK)

test-vm: build ## test the binary on Debian 12's kernel with cgroup v2 in an emulated machine, with the rules that only it can check
	@scripts/setup.sh vm
	@echo "==> emulated machine"
	@check=$$($(MUTATION_BUILD) --no-run --message-format=json | sed -n 's|.*"executable":"\([^"]*/deps/mutation-[^"]*\)".*|\1|p'); \
		scripts/test-vm.sh "$(SAGGAR)" "$(MUTATED)/$(TRIPLE)/debug/saggar" "$$check"

# Options: make bench BENCH_FLAGS="--rounds 15 --write". List them: cargo measure bench --help.
BENCH_FLAGS ?=

bench: setup-bench build ## benchmark sandboxes, the server, E2B's client and durable runs against their peers
	@cargo --locked measure bench --saggar "$(SAGGAR)" $(BENCH_FLAGS)

# Takes minutes, not for CI. Options: make soak SOAK_FLAGS="--cycles 1000". List them: cargo measure soak --help.
SOAK_FLAGS ?=

soak: build ## create and end 10,000 sandboxes, kill servers and workers 2,000 times: nothing may be left over, lost or done twice
	@cargo --locked measure soak --saggar "$(SAGGAR)" $(SOAK_FLAGS)

compare: setup-compare build ## run the portable conformance cases on bubblewrap, runc, gVisor and unshare; rewrites docs/comparison.md
	@cargo --locked measure compare --saggar "$(SAGGAR)" --write > /dev/null

deny: ## check licences, advisories and sources of every dependency (needs the network)
	@command -v cargo-deny >/dev/null || { echo "error: cargo-deny is not installed" >&2; echo "  help: cargo install --locked cargo-deny" >&2; exit 1; }
	@cargo deny --locked check

clean: ## remove build output
	@cargo clean
