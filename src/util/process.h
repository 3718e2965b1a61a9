/* What a new process should not have from the one that forked it. */
#ifndef MSB_UTIL_PROCESS_H
#define MSB_UTIL_PROCESS_H

#include <stddef.h>

/* Closes every descriptor from `from` on that is not in `keep`, which need not be sorted and may
 * hold -1. */
int process_close_others(unsigned from, const int *keep, size_t n);

/* Every signal does what it does by default, and none is blocked. */
void process_default_signals(void);

/* Overwrites every environment variable whose name does not begin with `prefix`, in memory, too:
 * what a caller has in its environment (keys, tokens) is not for a process that lives on. */
void process_forget_environment(const char *prefix);

#endif
