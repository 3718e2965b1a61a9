/* What a sandbox has used since it started, for the audit log: recorded by whoever stops or removes
 * it.
 *
 * The bytes, and everything about a run that ended by itself, come from the monitor, which may have
 * been taken over: numbers are checked for plausibility, and marked "from": "sandbox". The CPU time
 * of a running sandbox is measured on the host; where that misses ended processes (the uml engine
 * without a cgroup), it is at least what the guest reports.
 */
#pragma once

#include "store/store.h"

#include <jansson.h>

/* {"labels": [...], "usage": {...}}; without "usage" if it never ran. Call it before ending the
 * monitor. "run", the start time, identifies a run, so one that is recorded twice counts once. */
json_t *account_take(struct sandbox *sb); /* fills in state.used */
