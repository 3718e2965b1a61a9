#include "util/assets.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int assets_dir(char *out, size_t size, struct err *e)
{
    const char *env = getenv("MSB_ASSETS");
    if (env && *env) {
        (void)snprintf(out, size, "%s", env);
        return 0;
    }
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n < 0)
        return err_sys(e, errno, "cannot determine where msb is installed");
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash)
        *slash = '\0';
    /* Installed: PREFIX/bin and PREFIX/lib/msb. Build tree: build/src/cli and build/assets. */
    static const char *const places[] = {"../lib/msb", "../../assets"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        char probe[4096 + 64];
        (void)snprintf(probe, sizeof(probe), "%s/%s/tools.erofs", exe, places[i]);
        if (access(probe, F_OK) == 0) {
            (void)snprintf(out, size, "%s/%s", exe, places[i]);
            return 0;
        }
    }
    err_set(e, ENOENT, "the kernel and tools that msb boots are not installed beside %s", exe);
    err_hint(e, "build and install them with: make install, or set MSB_ASSETS to their directory");
    return -ENOENT;
}
