/* Confines a child process that reads hostile bytes, and collects its result.
 *
 * The child is a fork of this process. It has a filter that allows only the system calls of plain
 * computing (SECCOMP_CONVERTER; the list is in convert.c), so it can open, connect to and start
 * nothing; no descriptors except those it is given; and limits on memory and file size. It dies
 * with its parent, and reports its result in one record on a pipe.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/err.h"

/* In the child, right after fork: applies everything except the filter, which seccomp_enter()
 * installs once threads are started. Files may grow to max_file bytes. */
int confine_process(const char *name, pid_t parent, const int *keep, size_t n, uint64_t max_file);

/* In the parent: reads the record (n bytes, at most PIPE_BUF), waits for the child and sets *pid to
 * -1. Fails if the child died without one. */
int confine_collect(pid_t *pid, int fd, void *record, size_t n, struct err *e);
/* Copies an error from a record, without trusting it to be text. */
int confine_error(struct err *from, struct err *e);
