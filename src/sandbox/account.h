/* What a sandbox has used since it started: for the audit log, taken by who stops or removes it.
 *
 * The bytes, and everything about a run that ended by itself, come from the monitor, which may have
 * been taken over: numbers are checked to be possible, and marked "from": "sandbox". The CPU time of
 * one that still runs is measured on the host; where that does not know ended processes (the uml
 * engine without a cgroup), it is at least what the guest says.
 */
#pragma once

#include "store/store.h"

#include <jansson.h>

/* {"labels": [...], "usage": {...}}; without "usage" when it never ran. Before the monitor is ended.
 * Runs are told apart by "run", their start: what is recorded twice counts once. */
json_t *account_take(struct sandbox *sb); /* fills in state.used */
