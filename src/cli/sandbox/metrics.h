/* Samples of sandboxes' resource usage, and how they are shown. */
#pragma once

#include "cli/core/args.h"
#include "spec/spec.h"
#include "util/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct sample {
    char name[SPEC_NAME_MAX + 1];
    const char *state; /* running, stalled (its monitor does not answer), exited */
    double cpus;
    uint64_t at_ns; /* CLOCK_REALTIME */
    uint64_t up_ns; /* 0: not running */
    uint64_t cpu_ns, memory, memory_limit, disk_allocated;
    uint64_t read, written, received, sent; /* bytes */
    uint64_t execs;
    /* per second, since the sample before */
    double cpu_percent, read_rate, write_rate, receive_rate, send_rate;
};

struct metrics {
    struct sample *v;
    size_t n;
    bool by_cpu; /* to be sorted when the rates are known */
};

/* Loads those that the arguments ask for, sorted. */
int metrics_load(const struct args *a, struct metrics *ret, struct err *e);
/* Computes rates since an earlier sample. */
void metrics_compare(struct metrics *now, const struct metrics *before);
void metrics_free(struct metrics *m);

void metrics_table(const struct metrics *m, struct buf *out);
json_t *metrics_json(const struct metrics *m, bool one); /* an array; or, for one, an object */
void metrics_lines(const struct metrics *m, struct buf *out);
void metrics_prometheus(const struct metrics *m, struct buf *out);
