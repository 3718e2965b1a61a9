/* What the host's kernel supports, where only its version tells. */
#pragma once

#include <stdbool.h>

/* Whether it reports at least that version. */
bool kernel_is_at_least(int major, int minor, int patch);

/* Whether a task that yields often can still be preempted: from Linux 6.6 to 6.18.1, it could keep
 * running for seconds, since each yield moved its deadline further away. Older kernels, which have
 * another scheduler, were not tested. */
bool kernel_yields_fairly(void);
