/* What verbs that show logs have in common. */
#ifndef MSB_CLI_LOG_OPTS_H
#define MSB_CLI_LOG_OPTS_H

#include "cli/args.h"

#include <signal.h>
#include <stdint.h>

/* `msb logs | head`: not a success that it was not. */
enum { EXIT_BY_SIGPIPE = 128 + SIGPIPE };

#define TAIL_OPTION(what)                                                     \
    {                                                                         \
        .name = "tail", .value = "N", .help = "Show the last N " what " only" \
    }
#define SINCE_OPTION(what)                                                              \
    {                                                                                   \
        .name = "since", .value = "TIME", .help = "Show what " what " at TIME or later" \
    }

#define TIME_DETAILS_END                                                              \
    "TIME is RFC 3339 (2026-01-02T03:04:05Z), local time ('2026-01-02 03:04:05' or\n" \
    "2026-01-02), or how long ago (10m, 1h30m)."
#define TIME_DETAILS TIME_DETAILS_END "\n"

int when_option(const struct args *a, const char *name, uint64_t *ret, struct err *e);
int tail_option(const struct args *a, bool *has, uint64_t *n, struct err *e);
/* --json, or --format json. */
bool json_lines_option(const struct args *a);

#endif
