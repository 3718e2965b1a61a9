/* What host processes use, with everything that they started: for metrics. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct usage_process {
    pid_t pid, parent;
    uint64_t ticks; /* CPU time, including that of ended children */
};

/* All visible processes at one moment; sorted. */
struct usage_table {
    struct usage_process *v;
    size_t n;
};
int usage_load(struct usage_table *t);
void usage_free(struct usage_table *t);

/* CPU time and memory of a process and its descendants. Shared memory is counted once (as far as
 * the host lets us see). */
void usage_of(const struct usage_table *t, pid_t root, uint64_t *cpu_ns, uint64_t *memory);
