# What CI runs, target by target; `.ci/run` runs them all.

CARGO ?= cargo
EXAMPLES = booking payments transfer ticket_queue cron long_job graceful_shutdown health_endpoint fail_fast stats
BENCHES = uncontended handoff local_handoff fair threads waiting fleet held deployments failovers

# The server that tests, examples and benches start for themselves. `servers` has brought one by the time a recipe runs.
WITH_SERVER = REDIS_SERVER_BIN="$$(.ci/server)"

# Redis 6.2 is tested as one server with nothing around it: its nodes find their ports for the cluster by chance, which
# is why `harness` is left out too, and the binary that `.ci/server` brings has no TLS. Of `conformance` it gets the part
# for one server. The command line is tested on the other servers.
BEYOND_ONE_SERVER = sentinel cluster quorum tls harness conformance cli program several_servers

# As deny.toml names them.
RUNTIMES = async-executor|async-io|async-std|futures|futures-executor|futures-util|mio|smol|tokio|tokio-util

# What differs most between servers: the scripts, the wire, pub/sub. Less than a minute.
SHORT = fencing lock loss waking wire

# What a race or a deadline may hide from a slow build.
RACES = exclusion waking deadlines ambiguity loss conformance

ROUND = CARGO="$(CARGO)" .ci/round

.PHONY: demo test test-without-tls test-tls test-release test-servers test-valkey fmt lint doc examples deny bench peers pictures servers clean

# The two examples to begin with.
demo: servers
	$(WITH_SERVER) $(CARGO) run --release --example booking
	$(WITH_SERVER) $(CARGO) run --release --example payments

# Unit tests, integration tests and doctests, built once with all features.
test: servers
	$(WITH_SERVER) $(CARGO) test --all-features --no-fail-fast --tests
	$(WITH_SERVER) $(CARGO) test --all-features --doc

# What a build says that lacks a feature.
test-without-tls:
	$(CARGO) test --lib tls_names_its_feature

# What of that needs a server with TLS.
test-tls: servers
	$(WITH_SERVER) $(CARGO) test --all-features --test it tls::

# Some of it in a release build.
test-release: servers
	$(WITH_SERVER) $(CARGO) test --release --all-features --lib
	@set -e; for promise in $(RACES); do \
		$(WITH_SERVER) $(CARGO) test --release --all-features --test it -- $$promise:: --skip conformance::tls::; \
	done

# Every test on Redis as the system packages it (7.0 on Debian) and on Valkey 9; on Redis 6.2 those for one server.
test-servers:
	$(ROUND) redis
	$(ROUND) valkey
	$(ROUND) redis-6.2 --lib --test lease_model --test memory --test panicking_logger
	$(ROUND) redis-6.2 --test it --test logs -- $(BEYOND_ONE_SERVER:%=--skip %::)
	$(ROUND) redis-6.2 --test it conformance::one::
	$(ROUND) redis-6.2 --test it conformance::unix_socket::

# A short round on Valkey: those modules, and the tests of the others whose names say `basic`.
test-valkey:
	@set -e; for promise in $(SHORT); do $(ROUND) valkey --test it $$promise::; done
	$(ROUND) valkey --tests basic

fmt:
	$(CARGO) fmt --all -- --check

lint:
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --all-features -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --all-features

examples: servers
	@set -e; for example in $(EXAMPLES); do \
		echo "example $$example"; \
		$(WITH_SERVER) $(CARGO) run --all-features --example $$example; \
	done

# Licences, sources and what may not come in, for whoever has the tool: to install it takes minutes.
deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --all-features check bans licenses sources; \
	else \
		echo "cargo-deny is not installed, so only runtimes are looked for: cargo install cargo-deny --locked"; \
	fi
	@if $(CARGO) tree --locked --all-features --edges all --prefix none | grep -E '^($(RUNTIMES)) '; then \
		echo "no async runtime may come into the dependency tree"; exit 1; \
	fi

bench: servers
	@set -e; for bench in $(BENCHES); do \
		$(WITH_SERVER) $(CARGO) bench --bench $$bench; \
	done

# The same contention through other crates: a package of its own, which nothing else here builds.
peers: servers
	$(WITH_SERVER) $(CARGO) bench --locked --manifest-path benches/peers/Cargo.toml \
		--target-dir "$${CARGO_TARGET_DIR:-target}"

# Draws docs/*.svg anew. Each run draws its picture, but elsewhere: see the README.
pictures: export LEASEHOLD_PICTURES = 1
pictures: bench peers

servers:
	@.ci/server >/dev/null

clean:
	$(CARGO) clean
	rm -rf .servers
