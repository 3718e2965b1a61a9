/* What msb says to the person: errors, warnings, success lines, a spinner for long work.
 *
 * All of it goes to stderr; stdout carries data alone. --quiet silences success lines, progress
 * and advice, never an error.
 */
#ifndef MSB_CLI_UI_H
#define MSB_CLI_UI_H

#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <stdbool.h>

enum verbosity { UI_DEFAULT, UI_ERROR, UI_WARN, UI_INFO, UI_DEBUG, UI_TRACE };

void ui_set_quiet(bool quiet);
bool ui_quiet(void);
void ui_set_verbosity(enum verbosity v);
enum verbosity ui_verbosity(void);

/* "error: message" and its hints. */
void ui_error(const struct err *e);
/* Prints it and returns the exit code: EXIT_FAILED, EXIT_USAGE. */
int ui_fail(const struct err *e);
int ui_usage(const struct err *e);
/* "warn: text", unless --quiet. Fits warn_fn. */
void ui_warn(const char *text);
void ui_note(const char *text);                     /* a line as it is, unless --quiet */
void ui_success(const char *did, const char *what); /* "   ✓ Stopped      NAME" */
void ui_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));  /* with --info */
void ui_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* with --debug */

/* A line that turns while long work is under way, on a terminal only, and only once the work has
 * taken long enough to be noticed. A process of its own draws it: nothing in this one changes. */
struct spinner {
    int pid; /* 0 = none */
};
void spinner_start(struct spinner *s, const char *doing, const char *what);
void spinner_stop(struct spinner *s);

/* Data on stdout: text, or JSON with sorted keys. Returns the exit code. */
int ui_print(const struct buf *b);
int ui_print_line(const char *text);
int ui_print_json(json_t *j); /* takes the reference; NULL = out of memory */

#endif
