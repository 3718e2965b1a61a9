#include "util/kernel.h"

#include "util/cleanup.h"

#include <stdio.h>
#include <sys/utsname.h>

bool kernel_is_at_least(int major, int minor, int patch)
{
    struct utsname u;
    const int wants[] = {major, minor, patch};
    int has[] = {0, 0, 0};
    if (uname(&u) < 0 || sscanf(u.release, "%d.%d.%d", &has[0], &has[1], &has[2]) < 2)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(has); i++)
        if (has[i] != wants[i])
            return has[i] > wants[i];
    return true;
}

bool kernel_yields_fairly(void)
{
    return kernel_is_at_least(6, 18, 3);
}
