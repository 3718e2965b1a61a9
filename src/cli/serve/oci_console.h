/* The terminal of a container that is run in the foreground: the other end of --console-socket, for
 * which its caller gave none. What is typed here goes there, what it prints is printed here. */
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

/* Whether the process of that bundle has a terminal; what is wrong with its configuration shows later. */
bool oci_console_wanted(const char *bundle);
int oci_console_open(struct oci_console *c, struct err *e);
/* Takes the terminal that the container's process has sent. */
int oci_console_take(struct oci_console *c, struct err *e);
/* Until that process has closed it. */
void oci_console_serve(struct oci_console *c);
void oci_console_close(struct oci_console *c);
