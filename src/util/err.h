/* Errors with context.
 *
 * Inside a module functions return 0 or -errno. At module boundaries they take a `struct err *`
 * (may be NULL) and fill it in with a sentence for the user: what failed, on which thing, and,
 * where we know it, a hint for what to do next. The struct is plain storage: no allocation, so that
 * running out of memory can be reported, too.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

/* The error code for what the host's policy refuses (src/policy), used for nothing else. */
#define ERR_POLICY EKEYREVOKED

enum { ERR_MSG_MAX = 1024, ERR_HINTS_MAX = 3 };

struct err {
    int code;              /* positive errno value; 0 = no error */
    char msg[ERR_MSG_MAX]; /* one line, no trailing newline or full stop */
    char hint[ERR_HINTS_MAX][ERR_MSG_MAX / 2];
    int hints;
};

/* Each sets *e and returns -code, so `return err_set(e, EINVAL, "...")` works. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Like err_set, with ": strerror(code)" appended. */
int err_sys(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "out of memory"; -ENOMEM. */
int err_oom(struct err *e);
/* Puts "context: " before the message that is set. Returns r, the result that came with it. */
int err_wrap(struct err *e, int r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Adds a hint line (at most ERR_HINTS_MAX; further ones are dropped). */
void err_hint(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, for `return err_hinted(e, err_set(e, EINVAL, "..."), "...")`: returns r. */
int err_hinted(struct err *e, int r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void err_clear(struct err *e);
/* For a function that has several and reports one. */
void err_copy(struct err *e, const struct err *from);

/* Receives a line for the user about something that is not an error. */
typedef void (*warn_fn)(const char *text);
