# Everything one does here. `make help` lists it.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test chaos soak schemathesis lint doc

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install Postgres, Redis, Prometheus and a C compiler if they are missing (apt, as root)
	@sh infra/setup.sh

build: setup ## Build the release executable: target/release/dedup
	cargo build --release -p dedup

demo: setup ## Run three regions with live traffic on this machine; options by ARGS="--seconds 0"
	cargo run --release -p dedup -- demo $(ARGS)

# The black-box tests run target/debug/dedup, which `cargo test` alone would not bring up to date.
test: setup ## Run all tests, on real Postgres and Redis servers
	cargo build -p dedup
	cargo test --workspace

chaos: setup ## Break everything once, a few seconds each, and judge what callers were told
	cargo build -p dedup -p dedup-chaos
	target/debug/dedup-chaos --seconds 4

soak: setup ## The long tests: a simulated year against an oracle, kills of the janitor, generated requests, faults; ARGS="--minutes 60 --seed 1"
	cargo build -p dedup -p dedup-chaos
	target/debug/dedup-chaos $(or $(ARGS),--minutes 60)
	DEDUP_FUZZ_REQUESTS=50000 DEDUP_SERIES_KEYS=1000000 cargo test -p dedup-tests --test suite -- --nocapture fuzz:: case_p1
	DEDUP_DAYS=365 DEDUP_KEYS_A_DAY=20000 DEDUP_KILLS=300 cargo test -p dedup-tests --test suite -- --nocapture cold::month cold::faults::p3

schemathesis: ## Thousands of requests made up from the OpenAPI document (installs Schemathesis into target/)
	sh tests/schemathesis.sh

lint: ## Check formatting and lints; warnings are errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

doc: ## Build the documentation of all crates: target/doc
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
