/* Runs one of the user's programs for its output. The amount of output and the time are bounded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct command {
    char *const *argv; /* found on PATH */
    char **env;        /* NULL: that of the caller */
    const char *input; /* NULL: nothing */
    bool quiet;        /* its stderr is discarded */
    /* Runs in its own process group, which is killed at the end; otherwise, Ctrl-C ends it, and it
     * may prompt on the terminal. */
    bool apart;
    unsigned seconds;
};

/* Its status as from waitpid(), and the *n bytes that it printed; -ETIME: it exceeded its time
 * limit; -EFBIG: it printed more than fits; -errno: it cannot be run. */
int command_run(const struct command *c, char *to, size_t size, size_t *n);
/* The same for a line run by /bin/sh, with `apart`. */
int command_output(const char *line, char **env, unsigned seconds, char *to, size_t size,
                   size_t *n);
/* Describes such a result: "failed (exit code 1)"; NULL if it is 0. */
const char *command_failure(int result, unsigned seconds, char *out, size_t size);
