/* What the host's kernel supports, where only its version tells. */
#pragma once

#include <stdbool.h>

/* Whether it reports at least that version. */
bool kernel_is_at_least(int major, int minor, int patch);

/* Whether a task that yields often can still be preempted, with the kernel that calls itself
 * `release`: 6.18.22 or a later 6.18.y, 6.19.12 or a later 6.19.y, 7.0 or newer. From Linux 6.6 on,
 * such a task could keep running for seconds, since each yield moved its deadline further away.
 * That ended with 6.18.2 and 6.19, but a change that went into 6.12.y, 6.18.y and 6.19.y as well,
 * "sched/fair: Fix zero_vruntime tracking", let two tasks that yield to each other drift away from
 * the others again; a later one mended it. Kernels before 6.6, which have another scheduler, were
 * not tested. */
bool release_yields_fairly(const char *release);

/* The same about the kernel that runs. */
bool kernel_yields_fairly(void);
