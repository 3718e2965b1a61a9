/* Access to a sandbox's files, for clients outside of it: copies, commits. */
#pragma once

#include "client/files.h"
#include "sandbox/lifecycle.h"

struct sandbox_files {
    struct files files;
    bool started; /* by this call: sandbox_files_close() waits until it has stopped */
};

/* As root, from /: the permissions of the image's user do not apply. A stopped sandbox is started,
 * as for exec; one that is stopping is restarted. */
int sandbox_files_open(const struct store *s, const char *name, warn_fn warn,
                       struct sandbox_files *ret, struct err *e);
/* The same for reading the writable layer; `look` sees the spec first. */
int sandbox_layer_open(const struct store *s, const char *name, const struct attach_look *look,
                       warn_fn warn, struct sandbox_files *ret, struct err *e);
int sandbox_files_close(const struct store *s, const char *name, warn_fn warn,
                        struct sandbox_files *f, struct err *e);
