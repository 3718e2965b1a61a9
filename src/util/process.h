/* What a new process should not inherit from the one that forked it, and how it ended. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Closes every descriptor from `from` on that is not in `keep`, which need not be sorted and may
 * hold -1. */
int process_close_others(unsigned from, const int *keep, size_t n);

/* Resets every signal to its default action and unblocks all of them. */
void process_default_signals(void);

/* Redirects standard input, output and error to /dev/null; or leaves them unchanged: -errno. */
int process_close_stdio(void);

/* Waits for a child. Returns its status as from waitpid(), or -errno. */
int process_wait(pid_t pid);
/* The exit code that a shell shows for such a status: 128 and the signal, if one killed it; 255 if it
 * is not known. */
int process_exit_code(int status);

/* /proc/PID/cmdline and /proc/PID/environ show the memory in which a process received its arguments
 * and environment, and a fork shows the same. Anyone on the host can read the first, and both may
 * hold keys and tokens.
 *
 * own: at the start of main: copies the arguments and remembers where they were, for the others.
 *      The copies are never freed; if memory runs out, the original is returned.
 * hide: overwrites the visible copy of argument i, from byte `from` on.
 * forget_caller: in a process that outlives its caller: removes the environment except for a few
 *      of msb's own variables, and shows only `title` after the program's name, as far as there
 *      is room, and `name`. */
char **process_own_arguments(int argc, char **argv);
void process_hide_argument(int i, size_t from);
void process_forget_caller(const char *title, const char *name);

/* CPU time of a process and of its ended children, in clock ticks, and its parent. -ESRCH. */
int process_usage(pid_t pid, uint64_t *ticks, pid_t *parent);
