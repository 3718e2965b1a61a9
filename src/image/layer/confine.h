/* A child process that reads hostile bytes: how it is held, and how it is heard.
 *
 * It is this process's copy. What holds it: a filter that leaves it the system calls of plain
 * computing (SECCOMP_CONVERTER; the list is beside convert.c), which can open nothing, reach nobody
 * and start nothing; no descriptors but those that it is given; limits on memory and file size; and
 * a parent whose death is its own. It says what came of it in one record on a pipe.
 */
#ifndef MSB_IMAGE_LAYER_CONFINE_H
#define MSB_IMAGE_LAYER_CONFINE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/err.h"

/* In the child, at once after fork: all but the filter, which seccomp_enter() closes when threads
 * are started. Files may grow to max_file bytes. */
int confine_process(const char *name, pid_t parent, const int *keep, size_t n, uint64_t max_file);

/* In the parent: reads the record (n bytes, at most PIPE_BUF), waits for the child and sets *pid to
 * -1. Fails when the child died without one. */
int confine_collect(pid_t *pid, int fd, void *record, size_t n, struct err *e);
/* Takes over an error that is part of a record, without trusting it to be text. */
int confine_error(struct err *from, struct err *e);

#endif
