/* Diagnostics: warnings that have no callback, and the output of --debug and --trace.
 *
 * They go to one sink, which the program sets; without one they are dropped. The sink may be called
 * from any thread. Nothing secret belongs here: no environment, no file contents, no passwords.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum diag_level {
    DIAG_WARN,
    DIAG_DEBUG, /* decisions, and how long steps took */
    DIAG_TRACE, /* single steps: requests, frames, files opened */
};

typedef void (*diag_fn)(enum diag_level level, const char *text);

/* Sends messages up to `most` to fn. */
void diag_to(diag_fn fn, enum diag_level most);

void diag_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void diag_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void diag_trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Whether diag_trace() has a reader, for callers whose message takes work to prepare. */
bool diag_tracing(void);
/* "WHAT took 1.2 ms", as debug; since_ns is from now_ns(). */
void diag_took(const char *what, uint64_t since_ns);
