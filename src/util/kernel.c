#include "util/kernel.h"

#include <stdio.h>
#include <sys/utsname.h>

struct version {
    int major, minor, patch;
};

static bool parse(const char *release, struct version *v)
{
    *v = (struct version){0};
    return sscanf(release, "%d.%d.%d", &v->major, &v->minor, &v->patch) >= 2;
}

static bool is_at_least(const struct version *v, int major, int minor, int patch)
{
    if (v->major != major)
        return v->major > major;
    if (v->minor != minor)
        return v->minor > minor;
    return v->patch >= patch;
}

bool kernel_is_at_least(int major, int minor, int patch)
{
    struct utsname u;
    struct version v;
    return uname(&u) == 0 && parse(u.release, &v) && is_at_least(&v, major, minor, patch);
}

bool release_yields_fairly(const char *release)
{
    struct version v;
    if (!parse(release, &v))
        return false;
    if (v.major == 6 && v.minor == 18)
        return v.patch >= 22;
    return is_at_least(&v, 6, 19, 12);
}

bool kernel_yields_fairly(void)
{
    struct utsname u;
    return uname(&u) == 0 && release_yields_fairly(u.release);
}
