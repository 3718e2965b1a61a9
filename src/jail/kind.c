#include "jail/kind.h"

#include "util/cleanup.h"
#include "util/words.h"

#include <errno.h>
#include <stdlib.h>

static const char *const jail_names[] = {
    [JAIL_AUTO] = "auto",
    [JAIL_FULL] = "full",
    [JAIL_REDUCED] = "reduced",
};

const char *jail_kind_name(enum jail_kind k)
{
    return k >= 0 && (size_t)k < ARRAY_LEN(jail_names) ? jail_names[k] : "invalid";
}

enum jail_kind jail_kind_parse(const char *name)
{
    int i = WORD_FIND(jail_names, name);
    return i < 0 ? JAIL_INVALID : (enum jail_kind)i;
}

int jail_kind_resolve(enum jail_kind *k, struct err *e)
{
    const char *env = getenv("MSB_JAIL");
    if (*k != JAIL_AUTO || !env || !*env)
        return 0;
    enum jail_kind named = jail_kind_parse(env);
    if (named == JAIL_INVALID)
        return err_set(e, EINVAL, "invalid MSB_JAIL '%s': expected auto, full or reduced", env);
    *k = named;
    return 0;
}
