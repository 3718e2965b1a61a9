#include "util/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/utf8.h"

/* Messages may quote bytes from a guest, an image or a registry: they are made safe to display
 * here, so that code that prints them need not care. */
static void __attribute__((format(printf, 3, 0)))
vset(struct err *e, int code, const char *fmt, va_list ap)
{
    e->code = code;
    e->hints = 0;
    (void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    utf8_defuse(e->msg);
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vset(e, code, fmt, ap);
        va_end(ap);
    }
    return -code;
}

int err_sys(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vset(e, code, fmt, ap);
        va_end(ap);
        size_t n = strlen(e->msg);
        (void)snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", strerror(code));
    }
    return -code;
}

int err_oom(struct err *e)
{
    return err_set(e, ENOMEM, "out of memory");
}

int err_wrap(struct err *e, int r, const char *fmt, ...)
{
    if (!e)
        return r;
    char old[ERR_MSG_MAX];
    memcpy(old, e->msg, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    (void)snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", old);
    utf8_defuse(e->msg);
    return r;
}

static void __attribute__((format(printf, 2, 0)))
add_hint(struct err *e, const char *fmt, va_list ap)
{
    if (!e || e->hints >= ERR_HINTS_MAX)
        return;
    (void)vsnprintf(e->hint[e->hints], sizeof(e->hint[0]), fmt, ap);
    utf8_defuse(e->hint[e->hints]);
    e->hints++;
}

void err_hint(struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_hint(e, fmt, ap);
    va_end(ap);
}

int err_hinted(struct err *e, int r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_hint(e, fmt, ap);
    va_end(ap);
    return r;
}

void err_clear(struct err *e)
{
    if (e) {
        e->code = 0;
        e->msg[0] = '\0';
        e->hints = 0;
    }
}

void err_copy(struct err *e, const struct err *from)
{
    if (e)
        *e = *from;
}
