/* An init system from the image that runs as PID 1 of the guest's commands: systemd, s6, busybox.
 * The agent starts it once the sandbox is set up, before the first command; commands run in its PID
 * namespace. The sandbox stops when it ends. */
#pragma once

#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>

enum { SPEC_INIT_WORDS_MAX = 256 }; /* arguments, and variables */

#define SPEC_INIT_AUTO "auto"

struct guest_init {
    char *path;          /* absolute, or SPEC_INIT_AUTO: the guest looks for one; NULL = none */
    struct strlist args; /* after its name */
    struct strlist env;  /* K=V, on top of the sandbox's */
};

void spec_init_free(struct guest_init *i);
/* Checks and copies. */
int spec_init_set_path(struct guest_init *i, const char *path, struct err *e);
int spec_init_check(const struct guest_init *i, struct err *e);

json_t *spec_init_to_json(const struct guest_init *i); /* null without one */
int spec_init_from_json(struct guest_init *i, const json_t *j, struct err *e);
