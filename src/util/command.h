/* A command of the user's own, for what it prints. */
#ifndef MSB_UTIL_COMMAND_H
#define MSB_UTIL_COMMAND_H

#include <stddef.h>

/* Runs it in /bin/sh, in a process group of its own, which is killed in the end; env NULL: the environment of
 * the caller. Its status as of waitpid(), with the n bytes that it printed; -ETIME: it takes longer than so many
 * seconds; -EFBIG: it printed more than fits; -errno: it cannot be run. */
int command_output(const char *command, char **env, unsigned seconds, char *to, size_t size,
                   size_t *n);
/* In words, for such a result: "failed (exit code 1)"; NULL if it is 0. */
const char *command_failure(int result, unsigned seconds, char *out, size_t size);

#endif
