/* What a new process should not inherit from the one that forked it. */
#ifndef MSB_UTIL_PROCESS_H
#define MSB_UTIL_PROCESS_H

#include <stddef.h>

/* Closes every descriptor from `from` on that is not in `keep`, which need not be sorted and may
 * hold -1. */
int process_close_others(unsigned from, const int *keep, size_t n);

/* Resets every signal to its default action and unblocks all of them. */
void process_default_signals(void);

/* Removes every environment variable whose name does not begin with `prefix` and overwrites it in
 * memory: a process that outlives its caller should not hold the caller's keys and tokens. */
void process_forget_environment(const char *prefix);

#endif
