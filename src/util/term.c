#include "util/term.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool term_colors(int fd)
{
    if (!isatty(fd))
        return false;
    const char *no = getenv("NO_COLOR");
    if (no && *no)
        return false;
    const char *term = getenv("TERM");
    return !term || strcmp(term, "dumb") != 0;
}

unsigned term_columns(int fd, unsigned otherwise)
{
    struct winsize ws;
    if (ioctl(fd, TIOCGWINSZ, &ws) < 0 || ws.ws_col == 0)
        return otherwise;
    return ws.ws_col;
}
