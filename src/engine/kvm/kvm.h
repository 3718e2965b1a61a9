/* The parts of the kvm engine that only tests use; see engine.h for the rest. */
#pragma once

#include "engine/engine.h"

enum { KVM_CMDLINE_MAX = 2048 };

/* The kernel's command line. -E2BIG if it does not fit. */
int kvm_cmdline(char *to, size_t size, const struct engine_params *p);

/* Like engine_kvm.run, without a filter on the threads. */
int kvm_run_unfiltered(struct engine *en, struct err *e);
