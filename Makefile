# The targets that `.ci/run` runs, and some for developers.

CARGO ?= cargo
EXAMPLES = booking payments transfer ticket_queue concurrency_limit catalogue cron long_job graceful_shutdown health_endpoint fail_fast stats testing
BENCHES = uncontended first_lock server_cost handoff local_handoff fair semaphore rw_lock threads waiting polling crowd fleet held deployments failovers bounds losses idle stuck sets

# The server binary that tests, examples and benches start. The target `servers` installs one first.
WITH_SERVER = REDIS_SERVER_BIN="$$(.ci/server)"

# Modules that do not run on Redis 6.2, which is tested as a single server. Its cluster nodes cannot
# choose their bus ports, and the binary of `.ci/server` has no TLS. The parts of `conformance` for
# one server do run. The command line (`cli`, `program`) is tested on the other servers.
BEYOND_ONE_SERVER = sentinel cluster quorum tls harness conformance cli program several_servers

# The async runtimes that deny.toml forbids.
RUNTIMES = async-executor|async-io|async-std|futures|futures-executor|futures-util|mio|smol|tokio|tokio-util

# Modules about scripts, wire format and pub/sub, which differ most between servers. Under a minute.
SHORT = fencing lock loss waking wire

# Modules about races and deadlines, which a slow debug build may hide.
RACES = exclusion waking deadlines ambiguity loss conformance

ROUND = CARGO="$(CARGO)" .ci/round

# Returns the filter that selects the tests of all these modules: `lock wire` gives `lock::,wire::`.
EMPTY =
ANY_OF = $(subst $(EMPTY) $(EMPTY),$(COMMA),$(1:%=%::))
COMMA = ,

.PHONY: demo test sim mutants test-without-tls test-async test-sqlite test-tls test-release test-servers alerts msrv test-valkey kit kit-list test-kit test-kit-short fmt lint doc package examples deny bench benchmarks peers diagrams servers clean

# Runs two examples, for a first impression. README.md says what they show. Their package has only
# the dependencies that they need: other examples are built with those of all tests.
demo: servers
	@echo "Builds leasehold and two examples: 35 crates in a debug build, about half a minute on two cores."
	@echo "They run a few seconds. The first shows a holder that dies and is replaced. The second shows four"
	@echo "processes that withdraw from one account, and a holder that comes back late and is rejected."
	$(CARGO) build -p leasehold-demo
	$(WITH_SERVER) $(CARGO) run --quiet -p leasehold-demo --bin booking
	$(WITH_SERVER) $(CARGO) run --quiet -p leasehold-demo --bin payments

# What `make test` runs: unit tests, integration tests and doctests of all features, and the
# simulation and the orders of threads, which have a package each.
TEST = $(CARGO) test --all-features
# Examples with tests, which start the test kit.
KIT_EXAMPLES = testing payments transfer fail_fast health_endpoint long_job
# The binaries of the integration tests, and those that run at the same time as `it`: they compute,
# or load the machine little.
BINARIES = $(patsubst tests/%.rs,%,$(wildcard tests/*.rs)) $(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs))
LIGHT = checks differential testing
WITH_IT = --lib --bins $(LIGHT:%=--test %) $(KIT_EXAMPLES:%=--example %)
IT_AND_AFTER = $(patsubst %,--test %,$(filter-out $(LIGHT),$(BINARIES)))

# The simulation of the kernel, and its threads in many orders, without the other unit tests there.
SIM = $(TEST) --test sim
SIMULATED = sim:: members::
THREADS = $(TEST) --test threads
ORDERS = models:: pairs:: runtime:: model::

PHASE = @.ci/phase

# Builds everything once, then runs four jobs: most tests of `it` wait, and the other jobs assert no
# narrow bounds of time. Their lower priority leaves the processor to the tests that do. Prints how
# long each phase took.
test: servers
	$(PHASE) "builds" $(TEST) --no-run $(WITH_IT) $(IT_AND_AFTER) --test sim --test threads
	@logs=$$(mktemp -d); trap 'rm -rf "$$logs"' EXIT; status=0; jobs=; \
	job() { \
		name=$$1; shift; \
		.ci/phase "$$name" "$$@" >"$$logs/$$name" 2>&1 & \
		jobs="$$jobs $$!"; \
	}; \
	export $(WITH_SERVER); \
	job simulation nice -n 15 $(SIM) -- $(SIMULATED); \
	job threads nice -n 15 $(THREADS) -- $(ORDERS); \
	job doctests nice -n 2 $(TEST) --doc; \
	job others nice -n 2 $(TEST) --no-fail-fast $(WITH_IT); \
	.ci/phase "it, logs, process" $(TEST) --no-fail-fast $(IT_AND_AFTER) || status=$$?; \
	for others in $$jobs; do wait $$others || status=$$?; done; \
	cat "$$logs"/*; exit $$status

# Simulates the kernel for that many seconds with new seeds, and its threads in new orders.
SECONDS = 60
sim:
	SIM_SECONDS=$(SECONDS) $(SIM) sim:: -- --nocapture
	SHUTTLE_RANDOM_SEED=$$(date +%s) $(THREADS) -- $(ORDERS)

# Looks for a plan that shows each deliberate mistake in the kernel, among 2,000 seeds of each family,
# and prints it as a line of `src/sim/mutants.txt`. MUTANTS=list looks in the
# lists of `make test` only.
MUTANTS = 1
mutants:
	SIM_MUTANTS=$(MUTANTS) $(SIM) sim::each_mutant_is_caught -- --nocapture

# Runs the unit tests with `tls` in their names in a build without that feature.
test-without-tls:
	$(CARGO) test --lib tls

# Runs the examples of the guide that need Tokio or tracing: a separate package.
test-async:
	$(CARGO) test --manifest-path tests/async/Cargo.toml --doc \
		--target-dir "$${CARGO_TARGET_DIR:-target}"

# Runs the tests of the example with a database: a separate package.
test-sqlite:
	$(CARGO) test --manifest-path examples/sqlite/Cargo.toml \
		--target-dir "$${CARGO_TARGET_DIR:-target}"

# Runs the tests that need a server with TLS.
test-tls: servers
	$(WITH_SERVER) $(CARGO) test --all-features --test it tls::

# Runs the unit tests and some modules in a release build.
test-release: servers
	$(WITH_SERVER) $(CARGO) test --release --all-features --lib
	$(WITH_SERVER) $(CARGO) test --release --all-features --test it -- $(call ANY_OF,$(RACES)) --skip conformance::tls::

# Runs every test on the system's Redis (7.0 on Debian), on Valkey 9 and on Redis 8. On Redis 6.2,
# runs the tests for a single server.
test-servers:
	$(ROUND) redis
	$(ROUND) valkey
	$(ROUND) redis-8
	$(ROUND) redis-6.2 --lib --test process
	$(ROUND) redis-6.2 --test it --test logs -- $(BEYOND_ONE_SERVER:%=--skip %::)
	$(ROUND) redis-6.2 --test it conformance::one::
	$(ROUND) redis-6.2 --test it conformance::unix_socket::

# Runs a short round on Valkey: the modules of SHORT, and tests with `basic` in their names.
test-valkey:
	$(ROUND) valkey --test it -- $(call ANY_OF,$(SHORT))
	$(ROUND) valkey --tests basic

# Starts the test kit in place of a server.
WITH_KIT = REDIS_SERVER_BIN="$$(cd "$${CARGO_TARGET_DIR:-target}" && pwd)/debug/kit-server"
# Each name in the list of tests that cannot run on the kit, with $(1) in front of it.
LISTED = $$(sed -n 's/^\([a-z_:0-9]*\) .*/$(1)\1/p' tests/not_on_the_kit.txt)
NOT_ON_THE_KIT = $(call LISTED,--skip )

# The test binaries that start servers, without the tests of the kit itself.
ON_THE_KIT = --test it --test logs --test process

# Modules that run on the test kit in `.ci/run`. Under a minute.
SHORT_ON_KIT = lock fencing fair exclusion local_handoff

# Builds the server of the test kit. It also names the packages that other commands select, and
# builds a test: cargo then selects the same features of the dependencies, and does not build them
# twice.
kit:
	$(CARGO) build --all-features -p leasehold -p leasehold-benches -p leasehold-sim -p leasehold-threads \
		-p leasehold-test-support --bin kit-server --test testing_alone

# Checks that each name in `tests/not_on_the_kit.txt` is a part of a test's name: a test may have
# been renamed.
kit-list:
	@tests=$$($(CARGO) test --all-features $(ON_THE_KIT) -- --list) || exit; status=0; \
	for name in $(call LISTED); do \
		echo "$$tests" | grep -qF -e "$$name" || { \
			echo "tests/not_on_the_kit.txt: no test is named $$name"; status=1; \
		}; \
	done; exit $$status

# Runs the tests that start servers on the test kit, except those in `tests/not_on_the_kit.txt`.
test-kit: kit kit-list
	$(WITH_KIT) $(CARGO) test --all-features --no-fail-fast $(ON_THE_KIT) -- $(NOT_ON_THE_KIT)

# Runs a short round on the test kit.
test-kit-short: kit kit-list
	$(WITH_KIT) $(CARGO) test --all-features --test it -- $(call ANY_OF,$(SHORT_ON_KIT)) $(NOT_ON_THE_KIT)

# Checks and tests the alerts and the quantiles of the dashboard, if promtool is installed.
alerts:
	@if command -v promtool >/dev/null; then \
		promtool check rules docs/prometheus/leasehold.yml && promtool test rules docs/prometheus/tests.yml; \
	else \
		echo "skipped: alerts: promtool is not installed (on Debian, the package prometheus has it)"; \
	fi

# The oldest supported Rust.
MSRV = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Checks the library and the program with the oldest supported Rust, if that toolchain is installed.
msrv:
	@toolchain=$$(rustup toolchain list 2>/dev/null | sed -n 's/^\($(MSRV)[.-][^ ]*\).*/\1/p' | head -n 1); \
	if [ -n "$$toolchain" ]; then \
		rustup run "$$toolchain" cargo check --locked --all-features --lib --bins; \
	else \
		echo "skipped: msrv: Rust $(MSRV) is not installed: rustup toolchain install $(MSRV) --profile minimal"; \
	fi

fmt:
	$(CARGO) fmt --all -- --check
	$(CARGO) fmt --manifest-path examples/sqlite/Cargo.toml -- --check

lint:
	$(CARGO) clippy --all-targets -p leasehold -p leasehold-benches -p leasehold-demo -- -D warnings
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	$(CARGO) clippy --lib --features serde -- -D warnings
	$(CARGO) clippy --all-features --test sim --test threads -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --all-features

# Checks that the examples compile from the package, which does not contain the packages in `tests`,
# and that cargo prints no warning there. `tar` sets new file times (`m`): with the old times in the
# package, cargo would see no change since the last check.
package:
	@set -e; target=$$(mkdir -p "$${CARGO_TARGET_DIR:-target}" && cd "$${CARGO_TARGET_DIR:-target}" && pwd); \
	rm -rf "$$target"/package/leasehold-*; \
	package="$(CARGO) package -p leasehold --quiet --no-verify --allow-dirty"; \
	$$package --offline 2>/dev/null || $$package; \
	tar -xzmf "$$target"/package/leasehold-*.crate -C "$$target/package"; \
	cd "$$target"/package/leasehold-*/; \
	output=$$($(CARGO) check --locked --examples --features testing --target-dir "$$target" 2>&1) || \
		{ echo "$$output"; exit 1; }; \
	echo "$$output"; \
	case $$output in *warning:*) exit 1 ;; esac

# Builds the examples in one call, then runs each.
examples: servers
	$(CARGO) build --all-features $(EXAMPLES:%=--example %)
	@set -e; for example in $(EXAMPLES); do \
		echo "example $$example"; \
		$(WITH_SERVER) $(CARGO) run --quiet --all-features --example $$example; \
	done

# Checks licences, sources and forbidden crates with cargo-deny, if it is installed. It is not
# installed here, because that takes minutes. The check for async runtimes works without it.
deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --all-features check bans licenses sources; \
	else \
		echo "skipped: deny: cargo-deny is not installed, so only runtimes are looked for: cargo install cargo-deny --locked"; \
	fi
	@if $(CARGO) tree --locked --all-features --edges all --prefix none | grep -E '^($(RUNTIMES)) '; then \
		echo "no async runtime may come into the dependency tree"; exit 1; \
	fi

bench: servers
	@set -e; for bench in $(BENCHES); do \
		$(WITH_SERVER) $(CARGO) bench --bench $$bench; \
	done
	$(CARGO) bench --features testing --bench testing

# Measures what docs/benchmarks.md shows first, and writes it there: leasehold, other libraries and
# the bare commands, in a separate package. PEERS=all runs every library with its defaults, too.
# QUICK=1 takes a minute, and writes to the target directory instead.
benchmarks: servers
	$(WITH_SERVER) $(CARGO) bench --locked --manifest-path benches/peers/Cargo.toml \
		--target-dir "$${CARGO_TARGET_DIR:-target}"

# Compares the semaphore and the read-write lock with those of other libraries.
peers: export PEERS = shared
peers: benchmarks

# Redraws the sequence diagrams, which need no measurement.
diagrams:
	$(CARGO) bench --bench diagrams

servers:
	@.ci/server >/dev/null

clean:
	$(CARGO) clean
	rm -rf .servers
