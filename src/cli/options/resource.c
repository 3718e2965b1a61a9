#include "cli/options/resource.h"

#include "spec/spec.h"
#include "util/parse.h"

#include <errno.h>
#include <string.h>

/* Zero is a separate error (spec_validate), unless it would mean "not given". */
static bool is_ceiling(const char *name)
{
    return strncmp(name, "max-", 4) == 0;
}

int cpus_option(const struct args *a, const char *name, double *ret, struct err *e)
{
    const char *v = args_get(a, name);
    uint64_t milli;
    if (!v)
        return 0;
    if (parse_milli(v, &milli) < 0 || milli > SPEC_CPUS_MAX * 1000ULL ||
        (is_ceiling(name) && milli == 0))
        return args_bad_value(a, name, v, "expected a number up to 255, such as 1, 2 or 0.5", e);
    *ret = (double)milli / 1000;
    return 1;
}

int memory_option(const struct args *a, const char *name, uint64_t *ret_mib, struct err *e)
{
    const char *v = args_get(a, name);
    uint64_t bytes;
    if (!v)
        return 0;
    int r = parse_size(v, MIB, &bytes);
    if (r == 0 && is_ceiling(name) && bytes == 0)
        r = -EINVAL;
    if (r < 0)
        return args_bad_value(a, name, v, r == -ERANGE ? "too large" : PARSE_SIZE_EXAMPLES, e);
    *ret_mib = bytes / MIB + (bytes % MIB != 0);
    return 1;
}
