# What CI runs, target by target; `.ci/run` runs them all.

CARGO ?= cargo
EXAMPLES = booking payments cron long_job graceful_shutdown
BENCHES = uncontended handoff held failovers

# The server that tests, examples and benches start for themselves. `servers` has brought one by the time a recipe runs.
WITH_SERVER = REDIS_SERVER_BIN="$$(.ci/server)"

.PHONY: demo test test-release fmt lint doc examples deny bench servers clean

# The two examples to begin with.
demo: servers
	$(WITH_SERVER) $(CARGO) run --release --example booking
	$(WITH_SERVER) $(CARGO) run --release --example payments

# Unit tests, integration tests and doctests.
test: servers
	$(WITH_SERVER) $(CARGO) test
	$(WITH_SERVER) $(CARGO) test --features tls --lib --test tls
	$(WITH_SERVER) $(CARGO) test --features tls --test conformance tls::
	$(WITH_SERVER) $(CARGO) test --features tls --doc
	$(WITH_SERVER) $(CARGO) test --features cli --bin leasehold --test cli

test-release: servers
	$(WITH_SERVER) $(CARGO) test --release --lib --tests

fmt:
	$(CARGO) fmt --all -- --check

lint:
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --features tls -- -D warnings
	$(CARGO) clippy --all-targets --features cli -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --all-features

examples: servers
	@set -e; for example in $(EXAMPLES); do \
		echo "example $$example"; \
		$(WITH_SERVER) $(CARGO) run --release --example $$example; \
	done

# Installing the tool takes minutes, so only CI does it unasked.
deny:
	@if [ -n "$$CI" ] && ! $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) install cargo-deny --locked --quiet; \
	fi
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --all-features check bans licenses sources; \
	else \
		echo "cargo-deny is not installed, so dependencies go unchecked: cargo install cargo-deny --locked"; \
	fi

bench: servers
	@set -e; for bench in $(BENCHES); do \
		$(WITH_SERVER) $(CARGO) bench --bench $$bench; \
	done

servers:
	@.ci/server >/dev/null

clean:
	$(CARGO) clean
	rm -rf .servers
