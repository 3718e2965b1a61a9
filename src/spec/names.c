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

static int check_thing(const char *what, const char *name, struct err *e)
{
    if (strlen(name) <= VOLUME_NAME_MAX && spec_check_name(name, NULL) == 0)
        return 0;
    return err_set(e, EINVAL,
                   "invalid config: %s name must start with an alphanumeric and contain only "
                   "alphanumeric, dots, hyphens, and underscores, at most %d: %.120s",
                   what, VOLUME_NAME_MAX, name);
}

int volume_check_name(const char *name, struct err *e)
{
    return check_thing("volume", name, e);
}

int placement_check_name(const char *name, struct err *e)
{
    return check_thing("placement profile", name, e);
}

int workspace_check_name(const char *name, struct err *e)
{
    return check_thing("workspace", name, e);
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
                   "invalid secret name '%.64s': it must consist of letters, digits and '_', not "
                   "begin with a digit, and have at most %d characters",
                   name, SECRET_NAME_MAX);
}
