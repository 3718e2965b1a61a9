/* What the host's kernel can do, as far as only its version tells. */
#pragma once

#include <stdbool.h>

/* Whether it has at least that version, by its own account. */
bool kernel_is_at_least(int major, int minor, int patch);

/* Whether a task that yields often can still be preempted: from Linux 6.6 to 6.18.1 it could run on
 * for seconds, since each yield moved its deadline further away. Older kernels, which have another
 * scheduler, were not tried. */
bool kernel_yields_fairly(void);
