/* Options of the verbs that show logs. */
#pragma once

#include "cli/core/args.h"

#include <signal.h>
#include <stdint.h>

/* `msb logs | head`: not everything was printed, so this is not a success. */
enum { EXIT_BY_SIGPIPE = 128 + SIGPIPE };

/* clang-format off */
#define TAIL_OPTION(letter, what) {"tail", letter, "N", "Show only the last N " what}
#define SINCE_OPTION(what) {"since", 0, "TIME", "Show only " what " since TIME"}
#define JSON_LINES_OPTION {"json", 0, NULL, "Print JSON, one object per line"}
/* clang-format on */

#define TIME_DETAILS                                                                 \
    "TIME is RFC 3339 (2026-01-02T03:04:05Z), local time ('2026-01-02 03:04:05' or " \
    "2026-01-02), or how long ago (10m, 1h30m)."

int when_option(const struct args *a, const char *name, uint64_t *ret, struct err *e);
int tail_option(const struct args *a, bool *has, uint64_t *n, struct err *e);
/* --json, or --format json. */
bool json_lines_option(const struct args *a);
