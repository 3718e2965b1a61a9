#include "util/diag.h"

#include "util/loop.h"
#include "util/utf8.h"

#include <stdarg.h>
#include <stdio.h>

enum { DIAG_TEXT_MAX = 2048 };

static diag_fn sink;
static enum diag_level sink_most;

void diag_to(diag_fn fn, enum diag_level most)
{
    sink = fn;
    sink_most = most;
}

bool diag_tracing(void)
{
    return sink && sink_most >= DIAG_TRACE;
}

static void __attribute__((format(printf, 2, 0)))
put(enum diag_level level, const char *fmt, va_list ap)
{
    char text[DIAG_TEXT_MAX];
    if (!sink || level > sink_most)
        return;
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    utf8_defuse(text);
    sink(level, text);
}

void diag_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(DIAG_WARN, fmt, ap);
    va_end(ap);
}

void diag_debug(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(DIAG_DEBUG, fmt, ap);
    va_end(ap);
}

void diag_trace(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(DIAG_TRACE, fmt, ap);
    va_end(ap);
}

void diag_took(const char *what, uint64_t since_ns)
{
    diag_debug("%s took %.1f ms", what, (double)(now_ns() - since_ns) / 1e6);
}
