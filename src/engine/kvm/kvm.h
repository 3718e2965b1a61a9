/* What tests use of the kvm engine beyond engine.h. */
#pragma once

#include "engine/engine.h"

enum { KVM_CMDLINE_MAX = 2048 };

/* The kernel's command line. -E2BIG when it does not fit. */
int kvm_cmdline(char *to, size_t size, const struct engine_params *p);

/* As engine_kvm.run, without a filter on the threads. */
int kvm_run_unfiltered(struct engine *en, struct err *e);
