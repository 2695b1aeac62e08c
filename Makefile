# The front door. `make` alone lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A rustup that we install on the way is not yet on the PATH of the shell that called us, and must win over an older cargo.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(CARGO_HOME)/bin:$(PATH)

TRIPLE := x86_64-unknown-linux-musl
SAGGAR := $(or $(CARGO_TARGET_DIR),target)/$(TRIPLE)/release/saggar
# What the tests build and run; the same code with its checks on.
SAGGAR_DEBUG := $(or $(CARGO_TARGET_DIR),target)/$(TRIPLE)/debug/saggar
MUTATED := $(or $(CARGO_TARGET_DIR),target)/mutation
MUTATION_BUILD = cargo test --locked --package saggar --features mutation --test mutation --target-dir "$(MUTATED)"
MUTATION_CHECK = $(MUTATION_BUILD) -- --nocapture
# One of each kind, for every `make test`.
FEW_RULES := namespace/network,seccomp/namespaces,landlock/scopes,mask/proc/keys,start/environment,start/descriptors,protect/held,limit/pids

.PHONY: help setup setup-test setup-bench setup-compare build demo test test-all test-e2b test-mutation test-schema test-vm lint bench soak compare deny clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what building and the demo need, if missing
	@scripts/setup.sh build

setup-test: ## the same for the tests
	@scripts/setup.sh test

setup-bench: ## the same for the benchmarks
	@scripts/setup.sh bench

setup-compare: ## the same for the comparison
	@scripts/setup.sh compare

build: setup ## build the static release binary and print its path
	@cargo build --locked --release --package saggar
	@echo "$(SAGGAR)"

demo: build ## build, then see sandbox, server and a durable run hold, step by step
	@scripts/demo.sh "$(SAGGAR)"

lint: setup-test ## house rules, formatting and clippy
	@echo "==> tidy"
	@cargo --locked xtask tidy
	@echo "==> rustfmt"
	@cargo fmt --all --check
	@echo "==> clippy"
	@cargo clippy --locked --workspace --all-targets -- -D warnings

test: lint ## everything a change must pass
	@echo "==> tests"
	@cargo nextest run --locked --workspace
	@scripts/schemathesis.sh "$(SAGGAR_DEBUG)"
	@$(MAKE) --no-print-directory test-e2b
	@echo "==> mutation check, in short"
	@SAGGAR_MUTATION_RULES="$(FEW_RULES)" $(MUTATION_CHECK)

# CLIENTS=new tries only the newest Python client; old and node are the others.
test-e2b: setup-test ## the unmodified clients of E2B against a real server
	@cargo build --locked --package saggar
	@tests/e2b/run.sh "$(SAGGAR_DEBUG)" $(CLIENTS)

test-all: test test-mutation test-vm ## the same, and that every rule is missed when it is off, here or in an emulated machine

test-schema: setup-test ## requests made from the OpenAPI document, well-formed and not (two minutes; needs PyPI the first time)
	@cargo build --locked --package saggar
	@scripts/schemathesis.sh "$(SAGGAR_DEBUG)" $(SEED)

# Built apart, so that nothing that can be weakened lies where a build for use is made. RULES=a,b tries only these.
test-mutation: setup-test ## switch off one rule of enforcement at a time: a conformance case must fail
	@echo "==> mutation check"
	@cargo clippy --locked --package saggar --features mutation --all-targets --target-dir "$(MUTATED)" -- -D warnings
	@$(if $(RULES),SAGGAR_MUTATION_RULES="$(RULES)") $(MUTATION_CHECK)

test-vm: build ## the same binary on Debian 12's kernel with cgroup v2, in an emulated machine, and the rules only that one can show
	@scripts/setup.sh vm
	@echo "==> emulated machine"
	@check=$$($(MUTATION_BUILD) --no-run --message-format=json | sed -n 's|.*"executable":"\([^"]*/deps/mutation-[^"]*\)".*|\1|p'); \
		scripts/test-vm.sh "$(SAGGAR)" "$(MUTATED)/$(TRIPLE)/debug/saggar" "$$check"

# More rounds, `--write` and the like: make bench BENCH_FLAGS="--rounds 15 --write". All of them: cargo measure bench --help.
BENCH_FLAGS ?=

bench: setup-bench build ## measure sandboxes, a server, E2B's client on it and durable runs, side by side with their peers
	@cargo --locked measure bench --saggar "$(SAGGAR)" $(BENCH_FLAGS)

# Minutes, not for CI. Fewer cycles, `--write` and the like: make soak SOAK_FLAGS="--cycles 1000". All of them: cargo measure soak --help.
SOAK_FLAGS ?=

soak: build ## make and end 10,000 sandboxes, kill servers and workers 2,000 times: nothing may be left, lost or done twice
	@cargo --locked measure soak --saggar "$(SAGGAR)" $(SOAK_FLAGS)

compare: setup-compare build ## try the portable conformance cases on bubblewrap, runc, gVisor and unshare; rewrites docs/comparison.md
	@cargo --locked measure compare --saggar "$(SAGGAR)" --write > /dev/null

deny: ## licences, advisories and sources of every dependency (needs the network)
	@command -v cargo-deny >/dev/null || { echo "error: cargo-deny is not installed" >&2; echo "  help: cargo install --locked cargo-deny" >&2; exit 1; }
	@cargo deny --locked check

clean: ## remove what was built
	@cargo clean
