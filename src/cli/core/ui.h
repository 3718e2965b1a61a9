/* Messages for the user: errors, warnings, success lines, a spinner for long work.
 *
 * All of them go to stderr; stdout carries data only. Each level shows what the previous one shows,
 * and more; UI_INFO is the default. --quiet silences warnings, success lines and progress, but
 * never errors, and does not affect --debug and --trace.
 */
#pragma once

#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <stdbool.h>

enum verbosity {
    UI_DEFAULT,
    UI_ERROR, /* errors */
    UI_WARN,  /* warnings */
    UI_INFO,  /* what was done, notes, progress */
    UI_DEBUG, /* diag_debug() */
    UI_TRACE, /* diag_trace() */
};

void ui_set_quiet(void);
bool ui_quiet(void);
/* The most verbose level that was set applies. From the first call on, diag.h prints here. */
void ui_set_verbosity(enum verbosity v);
/* Back to the defaults. */
void ui_reset(void);
/* Whether messages of this level are shown. */
bool ui_shows(enum verbosity v);

/* "error: message" and its hints. */
void ui_error(const struct err *e);
/* Whether this process has printed an error. */
bool ui_failed(void);
/* Prints it and returns the exit code: EXIT_FAILED, EXIT_POLICY if the policy refuses, or
 * EXIT_TIMED_OUT for ETIME; EXIT_USAGE. */
int ui_fail(const struct err *e);
int ui_usage(const struct err *e);
/* "warn: text", at UI_WARN. Fits warn_fn. */
void ui_warn(const char *text);
/* At UI_INFO: a plain line; "   ✓ Stopped      NAME". */
void ui_note(const char *text);
void ui_success(const char *did, const char *what);

/* An animated line during long work, on a terminal only, and only once the work has taken long
 * enough to be noticed. A separate process draws it, so that this one is not disturbed. */
struct spinner {
    int pid; /* 0 = none */
};
void spinner_start(struct spinner *s, const char *doing, const char *what);
void spinner_stop(struct spinner *s);

/* Data on stdout: text, or JSON with sorted keys. Each returns the exit code. */
int ui_print(const struct buf *b);
int ui_print_line(const char *text);
int ui_print_json(json_t *j); /* takes the reference; NULL = out of memory */
