# The front door. Everything real happens in meson, kernel/build and scripts/.
#
# `make run` and `make test` need nothing before them: they install what is missing.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
PYTHON  ?= /usr/bin/python3
STAGES  ?=

.DEFAULT_GOAL := all
.PHONY: all build programs configure kernel kernel-uml kernel-uml-smp kernel-kvm run test tested test-e2e test-kvm test-fresh test-compat test-k8s \
        unit lint fuzz soak bench bench-files bench-buckets bench-guest bench-versions bench-kvm install uninstall dist deb clean help bootstrap parity

all: build kernel ## build everything: msb, the guest's disks, the guest kernel

bootstrap: ## install missing Debian packages for the build
	@scripts/bootstrap build

configure: bootstrap
	@scripts/configure $(BUILD)

build: configure ## build msb, the agent and the guest's disks
	@echo "==> building msb"
	@ninja -C $(BUILD) product

# What tests and benchmarks run, as far as the tree is configured for it.
programs: all
	@ninja -C $(BUILD)

# Also the kvm engine's where `msb doctor` finds KVM usable, or if it has been built before.
kernel: kernel-uml kernel-uml-smp ## build the guest kernels this machine can use, or take them from the cache
	@if kernel/build --print-path kvm >/dev/null 2>&1 || tests/kvm/suite.py --build $(BUILD) --where | \
	    grep -qx here; then $(MAKE) --no-print-directory kernel-kvm; fi

kernel-uml: | bootstrap ## the guest kernel of the uml engine
	@mkdir -p $(BUILD)/assets
	@path=$$(kernel/build uml) && ln -sfn "$$path" $(BUILD)/assets/linux-uml

kernel-uml-smp: | bootstrap ## the guest kernel of the uml engine for sandboxes with several CPUs
	@mkdir -p $(BUILD)/assets
	@path=$$(kernel/build uml-smp) && ln -sfn "$$path" $(BUILD)/assets/linux-uml-smp

kernel-kvm: | bootstrap ## the guest kernel of the kvm engine, whether KVM works here or not
	@mkdir -p $(BUILD)/assets
	@path=$$(kernel/build kvm) && ln -sfn "$$path" $(BUILD)/assets/linux-kvm

# One kernel is enough for what is shown; the others take minutes more.
run: build kernel-uml ## build everything and show sandboxes at work
	@scripts/demo $(BUILD)/src/cli/msb
	@$(MAKE) --no-print-directory kernel

# Everything tests need, however the tree was configured before.
tested:
	@scripts/bootstrap build test
	@scripts/configure $(BUILD) -Dtests=enabled
	@$(MAKE) --no-print-directory programs

RUN = $(PYTHON) -B tests/run --build $(BUILD)

test: tested ## all tests: lint, unit, sanitizers, fuzzing, end-to-end, a fresh machine (STAGES= picks some)
	@$(RUN) $(STAGES)

unit: tested ## unit tests only
	@$(RUN) unit

test-e2e: tested ## end-to-end tests only
	@$(RUN) e2e

test-kvm: tested ## the kvm engine, nested in QEMU where KVM does not work
	@scripts/bootstrap kvm
	@$(MAKE) --no-print-directory kernel-kvm
	@tests/kvm/suite.py --build $(BUILD) --where | grep -q . || tests/kvm/testbed build
	@MSB_TEST_KVM=full $(RUN) kvm

test-fresh: tested ## make run, test, install, dist and deb on Debian machines with nothing installed
	@scripts/bootstrap package
	@MSB_TEST_FRESH=$(or $(MSB_TEST_FRESH),full) $(RUN) fresh

test-k8s: tested ## pods in a Kubernetes of its own, and the SDK there (as root; the first time, it is compiled)
	@scripts/bootstrap k8s
	@tests/k8s/build >/dev/null
	@$(RUN) k8s

test-compat: all ## programs and their test suites, natively and in a sandbox (as root; long)
	@scripts/bootstrap test
	@$(PYTHON) -B tests/compat/compat.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/compat.json

lint: tested ## clang-format, clang-tidy, cppcheck, shellcheck, mypy, pyflakes
	@$(RUN) lint

soak: all ## thousands of sandboxes and commands, one hostile neighbor: what leaks, what others notice
	@$(PYTHON) tests/soak/soak.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/soak.json

fuzz: ## every fuzz target for FUZZ_SECONDS (default 3)
	@scripts/bootstrap build test
	@$(RUN) fuzz

bench: programs ## compare msb, its pulls and its network with peers; writes build/bench.json
	@scripts/bootstrap bench
	@$(PYTHON) tests/bench/bench.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/bench.json

bench-files: programs ## compare shared directories with the guest's own disk, the host and virtiofsd
	@scripts/bootstrap bench
	@$(PYTHON) tests/bench/files.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/bench-files.json

bench-buckets: programs ## compare workspaces in a bucket with rclone mount and s3fs (as root)
	@scripts/bootstrap bench
	@$(PYTHON) tests/bench/buckets.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/bench-buckets.json

bench-guest: programs ## compare what programs cost in a sandbox with the host, gVisor and runc (as root)
	@scripts/bootstrap bench
	@$(PYTHON) tests/bench/guest.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/bench-guest.json

bench-versions: programs ## compare with another build of msb, in turns: OLD=path/to/its/build/src/cli/msb
	@test -x "$(OLD)" || { echo "make bench-versions: say OLD=, the msb in the build directory of another version" >&2; exit 2; }
	@$(PYTHON) tests/bench/versions.py --json $(BUILD)/bench-versions.json $(OLD) $(BUILD)/src/cli/msb

parity: programs ## compare the command line with microsandbox's own (npm); writes build/parity.md
	@$(PYTHON) tests/parity/parity.py $(BUILD)/src/cli/msb -o $(BUILD)/parity.md

bench-kvm: ## compare the kvm engine, nested, with microsandbox and QEMU; writes build/bench-kvm.json
	@scripts/bootstrap build test kvm
	@$(MAKE) --no-print-directory programs kernel-kvm
	@tests/kvm/testbed build
	@$(PYTHON) tests/kvm/bench.py --build $(BUILD) --json $(BUILD)/bench-kvm.json

# Under sudo the build still runs as the calling user, with that user's cache.
install: ## install into /usr/local (PREFIX=, DESTDIR=; DOCKER=1: as `docker`, too)
	@$(if $(SUDO_UID),sudo -H -u "#$(SUDO_UID)") $(MAKE) --no-print-directory all BUILD=$(BUILD)
	@DOCKER="$(DOCKER)" scripts/install $(BUILD) "$(DESTDIR)$(PREFIX)"

dist: | bootstrap ## a tarball to unpack anywhere, for every x86-64 Linux with glibc 2.28 or newer
	@scripts/package dist $(BUILD)

deb: | bootstrap ## Debian packages of msb and of its Python client, in build/packages
	@scripts/bootstrap package
	@scripts/package deb $(BUILD)

uninstall: ## remove what install installed
	@scripts/install --remove "$(DESTDIR)$(PREFIX)"

clean: ## remove build directories, but not the kernel cache
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-fuzz $(BUILD)-portable

help: ## this text
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
