#include "spec/names.h"

#include "util/text.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

int spec_check_name(const char *name, struct err *e)
{
    if (!name || !*name)
        return err_set(e, EINVAL, "invalid config: sandbox name is required");
    size_t n = strlen(name);
    if (n > SPEC_NAME_MAX)
        return err_set(e, EINVAL,
                       "invalid config: sandbox name must be at most %d characters: got %zu",
                       SPEC_NAME_MAX, n);
    bool ok = ascii_alnum(name[0]);
    for (const char *p = name; ok && *p; p++)
        ok = ascii_alnum(*p) || strchr("._-", *p);
    if (!ok)
        return err_set(e, EINVAL,
                       "invalid config: sandbox name must start with an alphanumeric and contain "
                       "only alphanumeric, dots, hyphens, and underscores: %s",
                       name);
    return 0;
}

int volume_check_name(const char *name, struct err *e)
{
    struct err why = {0};
    if (strlen(name) <= VOLUME_NAME_MAX && spec_check_name(name, &why) == 0)
        return 0;
    return err_set(e, EINVAL,
                   "invalid config: volume name must start with an alphanumeric and contain only "
                   "alphanumeric, dots, hyphens, and underscores, at most %d: %.120s",
                   VOLUME_NAME_MAX, name);
}

bool variable_name(const char *s)
{
    if (!isalpha((unsigned char)*s) && *s != '_')
        return false;
    const char *end = s;
    while (isalnum((unsigned char)*end) || *end == '_')
        end++;
    return *end == '\0' && end - s <= SECRET_NAME_MAX;
}

int secret_check_name(const char *name, struct err *e)
{
    if (variable_name(name))
        return 0;
    return err_set(e, EINVAL,
                   "'%.64s' is no name for a secret: letters, digits and '_', no digit first, at "
                   "most %d",
                   name, SECRET_NAME_MAX);
}
