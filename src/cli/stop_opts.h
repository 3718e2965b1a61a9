/* How long a sandbox may take to stop: options of `stop` and `restart`. */
#ifndef MSB_CLI_STOP_OPTS_H
#define MSB_CLI_STOP_OPTS_H

#include "cli/args.h"

#include <stdint.h>

#define STOP_OPTS                                                                                 \
    {.name = "force", .letter = 'f', .help = "Kill it at once; what it had not written is lost"}, \
    {                                                                                             \
        .name = "timeout", .letter = 't', .value = "TIME",                                        \
        .help = "How long it may take before it is killed (default: 10s; 0 kills it at once)"     \
    }

int stop_options(const struct args *a, uint64_t *grace_ms, bool *force, struct err *e);

#endif
