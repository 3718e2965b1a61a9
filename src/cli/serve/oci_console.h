/* The terminal of a container that runs in the foreground: the other end of a --console-socket,
 * when the caller gave none. Input typed here goes there, and its output is printed here. */
#pragma once

#include "util/err.h"

#include <stdbool.h>

struct oci_console {
    char path[64]; /* of the socket; "": there is none */
    int listener, master;
};
#define OCI_CONSOLE_NONE             \
    {                                \
        .listener = -1, .master = -1 \
    }
#define AUTO_CONSOLE CLEANUP(oci_console_close)

/* Whether that bundle's process has a terminal; errors in its configuration are reported later. */
bool oci_console_wanted(const char *bundle);
int oci_console_open(struct oci_console *c, struct err *e);
/* Takes the terminal that the container's process has sent. */
int oci_console_take(struct oci_console *c, struct err *e);
/* Serves it until that process has closed it. */
void oci_console_serve(struct oci_console *c);
void oci_console_close(struct oci_console *c);
