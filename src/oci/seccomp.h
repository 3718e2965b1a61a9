/* linux.seccomp of config.json: which system calls a container's commands may make.
 *
 * The profile becomes a BPF program here, which the agent loads for each command (F_FILTER): it
 * protects the guest's kernel from programs that the container's author does not trust.
 *
 * System calls with the same answer and adjacent numbers are one segment; the program finds the
 * segment by binary search, so that a profile with hundreds of names costs a dozen instructions per
 * call.
 */
#pragma once

#include "util/err.h"

#include <jansson.h>
#include <stddef.h>

/* *ret becomes struct sock_filter[], *size bytes, to be freed; NULL: there is nothing to filter. */
int seccomp_compile(const json_t *seccomp, void **ret, size_t *size, struct err *e);
/* What it supports, for `features`. NULL: out of memory. */
json_t *seccomp_features(void);
