#include "cli/options/log.h"

#include "logs/line.h"
#include "util/loop.h"
#include "util/parse.h"

#include <string.h>

int when_option(const struct args *a, const char *name, uint64_t *ret, struct err *e)
{
    const char *v = args_get(a, name);
    if (!v)
        return 0;
    if (time_parse_when(v, realtime_ns(), ret) < 0)
        return args_bad_value(a, name, v,
                              "expected a time such as 2026-01-02T03:04:05Z or '2026-01-02 "
                              "03:04:05', or an age such as 10m",
                              e);
    return 0;
}

int tail_option(const struct args *a, bool *has, uint64_t *n, struct err *e)
{
    const char *v = args_get(a, "tail");
    if (!v || strcmp(v, "all") == 0)
        return 0;
    *has = true;
    if (parse_u64(v, n) < 0)
        return args_bad_value(a, "tail", v, "expected a number of lines, or all", e);
    return 0;
}

bool json_lines_option(const struct args *a)
{
    return args_has(a, "json") || args_has(a, "format");
}
