/* How to stop a sandbox: options of `stop` and `restart`. */
#ifndef MSB_CLI_STOP_OPTS_H
#define MSB_CLI_STOP_OPTS_H

#include "cli/args.h"

#include <stdint.h>

#define STOP_OPTS                                                                        \
    {.name = "force", .letter = 'f', .help = "Kill it at once; unwritten data is lost"}, \
    {                                                                                    \
        .name = "timeout", .letter = 't', .value = "TIME",                               \
        .help = "Time to stop before it is killed (default: 10s)"                        \
    }

int stop_options(const struct args *a, uint64_t *grace_ms, bool *force, struct err *e);

#endif
