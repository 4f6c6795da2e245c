# Everything a contributor runs. `make` alone lists it.

.PHONY: help build run test test-repeat test-vm torture fsx applications gluster nfs replication fuzz kill-loop power-cuts bench lint deb test-deb

help:
	@echo 'make run      build, then real work on an emulated hybrid SSD, verified step by step (under two minutes)'
	@echo 'make test     unit, property and integration tests, through real mounts; NAMES="fs cli/posix" JOBS=2'
	@echo 'make test-repeat  every test program 20 times with all CPUs busy; COUNT=20 MINUTES=60 LIMIT_S=900 LOOPS=2 STOPS=1 NAMES="fs posix/semantics no_space"'
	@echo 'make test-vm  the same program on the drivers of NVDIMM, CXL and NVMe, with power cuts, in virtual machines'
	@echo 'make torture  crash states, schedules, faults, bytes and killed daemons in turns; MINUTES=20, goes on where it stopped'
	@echo 'make fsx      1,000,000 operations of the file system exerciser, both modes, two block sizes; OPERATIONS=1000000'
	@echo 'make applications  Debian programs unchanged on a mount, in both modes and by the direct door, each with a check of its result'
	@echo 'make gluster  GlusterFS, three replicas on bricks of TandemFS: bricks and nodes killed, healed, compared; rates beside ext4 and XFS; PARTS="verify rates"'
	@echo 'make nfs      NFS by Ganesha over a mount: servers killed, handles and acknowledged writes kept; rates; PARTS="verify rates"'
	@echo 'make replication  PostgreSQL and Redis with replicas on two mounts: fail-over; rates; PARTS="postgresql redis rates"'
	@echo 'make fuzz     every fuzz target under libFuzzer, SECONDS=60 each (nightly Rust and cargo-fuzz)'
	@echo 'make kill-loop   200 rounds of a daemon killed amid mount, work and unmount; ROUNDS=200 SEED=1 MODE=relaxed'
	@echo 'make power-cuts  20 power cuts of a virtual machine, half of them at an exact store, and 10 lost drive caches; CUTS=20 SEED=1'
	@echo 'make bench    measurements, each beside its limit'
	@echo 'make deb      Debian packages in target/deb, examined by lintian'
	@echo 'make test-deb the packages in a new Debian: installed, used, upgraded under a mount, purged; needs root, /dev/fuse and a mirror of Debian'
	@echo 'make lint     formatting, clippy, and what the compiler does not check: tags of rules, paths and links in documents, arrows between rooms'

build:
	@scripts/setup.sh build
	cargo build --release --locked -p tandemfs -p tandemfs-preload -p tandemfs-c

run:
	@scripts/setup.sh run
	cargo build --release --locked -p tandemfs -p tandemfs-witness
	@scripts/run.sh

test:
	@scripts/setup.sh test
	@scripts/test.py $(NAMES)

test-repeat:
	@scripts/setup.sh test
	@NAMES="$(NAMES)" MINUTES=$(or $(MINUTES),0) LIMIT_S=$(or $(LIMIT_S),900) LOOPS=$(LOOPS) STOPS=$(STOPS) scripts/test-repeat.sh $(or $(COUNT),20)

test-vm:
	@scripts/setup.sh vm
	cargo build --release --locked -p tandemfs -p tandemfs-witness
	@tests/vm/run-all.sh

torture:
	@scripts/setup.sh test
	@scripts/torture.sh $(or $(MINUTES),20)

fsx:
	@scripts/setup.sh run
	cargo build --release --locked -p tandemfs
	@scripts/fsx.sh $(or $(OPERATIONS),1000000)

applications:
	@scripts/setup.sh run applications
	cargo build --release --locked -p tandemfs -p tandemfs-preload
	@scripts/applications.sh $(NAMES)

gluster nfs replication:
	@scripts/setup.sh run $@
	cargo build --release --locked -p tandemfs
	@contrib/$@/$@.sh $(PARTS)

# One process, memory and time bounded; what it finds goes to fuzz/artifacts. TARGETS="image door" chooses.
SECONDS ?= 60
TARGETS ?= $(basename $(notdir $(wildcard fuzz/targets/*.rs)))
fuzz:
	@scripts/setup.sh fuzz
	cargo run --locked -p tandemfs-fuzz-targets --bin fuzz-corpus -- fuzz/corpus
	@for target in $(TARGETS); do \
	  cargo +nightly fuzz run --fuzz-dir fuzz $$target -- -max_total_time=$(SECONDS) -timeout=20 -rss_limit_mb=3072 -malloc_limit_mb=64 \
	    -max_len=1024 -print_final_stats=1 || exit 1; \
	done

kill-loop:
	@scripts/setup.sh run
	cargo build --release --locked -p tandemfs -p tandemfs-witness
	target/release/witness kill-loop --tandemfs target/release/tandemfs --mount-until-cut target/release/mount-until-cut \
		--rounds $(or $(ROUNDS),200) --seed $(or $(SEED),1) $(if $(MODE),--mode $(MODE)) --keep target/kill-loop

power-cuts:
	@scripts/setup.sh vm
	cargo build --release --locked -p tandemfs -p tandemfs-witness
	@CUTS=$(or $(CUTS),20) SEED=$(or $(SEED),1) REPLAYS=$(or $(REPLAYS),10) tests/vm/run-all.sh power_cuts_many drive_cache_many

bench:
	@scripts/setup.sh run
	cargo build --release --locked -p tandemfs
	cargo build --release --locked -p tandemfs-bench # by itself: its locks are others
	target/release/tandemfs-bench

lint:
	@scripts/setup.sh lint
	cargo fmt --all --check
	cargo run --quiet --locked -p xtask -- lint
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --locked -p tandemfs-schedules --features explore --all-targets -- -D warnings

deb:
	@scripts/setup.sh build deb
	cargo build --release --locked -p tandemfs -p tandemfs-preload -p tandemfs-c
	cargo build --release --locked -p tandemfs-bench # by itself: its locks are others
	@scripts/deb.sh

test-deb: deb
	@scripts/test-deb.sh
