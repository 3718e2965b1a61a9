# The front door. Everything real happens in meson, kernel/build and scripts/.
#
# `make run` and `make test` need nothing before them: they install what is missing.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
PYTHON  ?= /usr/bin/python3
STAGES  ?=

.DEFAULT_GOAL := all
.PHONY: all build configure kernel kernel-uml kernel-kvm run test tested test-e2e test-kvm test-fresh unit lint \
        fuzz bench bench-files bench-kvm install uninstall clean help bootstrap

all: build kernel ## build everything: msb, the guest's disks, the guest's kernel

bootstrap: ## install the Debian packages that the build needs, if any are missing
	@scripts/bootstrap build

configure: bootstrap
	@scripts/configure $(BUILD)

build: configure ## build msb, the agent and the guest's disks
	@echo "==> building msb"
	@ninja -C $(BUILD)

# The kvm engine's too where the probe of `msb doctor` says that it is of use, or if it is there anyway.
kernel: kernel-uml ## build (or find in the cache) the guest kernel for this machine's engine
	@if kernel/build --print-path kvm >/dev/null 2>&1 || tests/kvm/suite.py --build $(BUILD) --where | \
	    grep -qx here; then $(MAKE) --no-print-directory kernel-kvm; fi

kernel-uml: | bootstrap ## that of the uml engine
	@mkdir -p $(BUILD)/assets
	@path=$$(kernel/build uml) && ln -sfn "$$path" $(BUILD)/assets/linux-uml

kernel-kvm: | bootstrap ## that of the kvm engine, of use here or not
	@mkdir -p $(BUILD)/assets
	@path=$$(kernel/build kvm) && ln -sfn "$$path" $(BUILD)/assets/linux-kvm

run: all ## show sandboxes at work
	@scripts/demo $(BUILD)/src/cli/msb

# All that tests need, whatever the tree was configured for before and in whatever order.
tested:
	@scripts/bootstrap build test
	@scripts/configure $(BUILD) -Dtests=enabled
	@$(MAKE) --no-print-directory all

RUN = $(PYTHON) -B tests/run --build $(BUILD)

test: tested ## everything: lint, unit tests, sanitizers, fuzzing, end-to-end tests, a fresh machine (STAGES=)
	@$(RUN) $(STAGES)

unit: tested ## unit tests alone
	@$(RUN) unit

test-e2e: tested ## end-to-end tests alone
	@$(RUN) e2e

test-kvm: tested ## the kvm engine, nested where there is no KVM; makes the testbed if it is missing
	@scripts/bootstrap kvm
	@$(MAKE) --no-print-directory kernel-kvm
	@tests/kvm/suite.py --build $(BUILD) --where | grep -q . || tests/kvm/testbed build
	@$(RUN) kvm

test-fresh: tested ## make run, test and install on machines with nothing installed (root directories)
	@MSB_TEST_FRESH=full $(RUN) fresh

lint: tested ## clang-format, clang-tidy, cppcheck, shellcheck, mypy, pyflakes
	@$(RUN) lint

fuzz: ## every fuzz target for FUZZ_SECONDS (default 10)
	@scripts/bootstrap build test
	@$(RUN) fuzz

bench: all ## measure msb, its pulls and its network beside others in one run; writes build/bench.json
	@scripts/bootstrap bench
	@$(PYTHON) tests/bench/bench.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/bench.json

bench-files: all ## measure files through a share, beside the guest's own disk and the host
	@scripts/bootstrap bench
	@$(PYTHON) tests/bench/files.py --msb $(BUILD)/src/cli/msb --json $(BUILD)/bench-files.json

bench-kvm: ## measure the kvm engine, nested, beside microsandbox and QEMU; writes build/bench-kvm.json
	@scripts/bootstrap build test kvm
	@$(MAKE) --no-print-directory build kernel-kvm
	@tests/kvm/testbed build
	@$(PYTHON) tests/kvm/bench.py --build $(BUILD) --json $(BUILD)/bench-kvm.json

# With sudo, what is to be installed is still built by, and in the cache of, whoever called it.
install: ## install below /usr/local (PREFIX=, DESTDIR=)
	@$(if $(SUDO_UID),sudo -H -u "#$(SUDO_UID)") $(MAKE) --no-print-directory all BUILD=$(BUILD)
	@scripts/install $(BUILD) "$(DESTDIR)$(PREFIX)"

uninstall: ## remove what install put there
	@scripts/install --remove "$(DESTDIR)$(PREFIX)"

clean: ## remove build directories; the kernel cache stays
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-fuzz

help: ## this text
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
