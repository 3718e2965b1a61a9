/* The environment of a command, and where its program is found.
 *
 * Nothing of the agent's own environment is passed on. Lowest to highest: PATH, HOSTNAME, TERM (on
 * a terminal only) and HOME as defaults; the sandbox's ENV; the command's ENV. Afterwards our
 * scripts are put in front of PATH and our tools at its end, wherever it came from.
 */
#pragma once

#include "agent/request.h"

#include <stdbool.h>
#include <stddef.h>

#define ENV_DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define ENV_TOOLS_DIR "/.msb/bin"
#define ENV_SCRIPTS_DIR "/.msb/scripts"
enum { ENV_TERM_MAX = 64 };

struct env_in {
    const char *home;     /* of the user; "/" if there is none */
    const char *hostname; /* NULL: leave HOSTNAME unset */
    bool tty;
    const char *term; /* the kind of terminal; NULL: not known */
    bool scripts;     /* there are scripts to find on PATH */
    bool plain;       /* there are no tools to find on PATH */
    const struct req_common *base, *extra;
};

struct env {
    char **vars;      /* NULL-terminated; entries point into this and into base and extra */
    const char *path; /* the value of PATH */
};

/* 0 or -ENOMEM. Entries without a name or without '=' are dropped. */
int env_build(struct env *e, const struct env_in *in);
void env_free(struct env *e);

/* Walks the places where execvp would look for `name`: `name` itself if it has a slash, else one
 * candidate for each directory on `path` (an empty one is the current directory). */
struct path_walk {
    const char *name, *rest;
    size_t name_len;
    bool started;
};
void path_walk_init(struct path_walk *w, const char *path, const char *name);
/* false: no more. Candidates that do not fit are skipped, as they name no file. */
bool path_walk_next(struct path_walk *w, char *to, size_t size);
