/* Command lines as the tests write them. */
#pragma once

#include "cli/core/args.h"
#include "unit.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { WORDS_MAX = 64 };

/* Splits `line` at spaces, so that tests read like a shell's input; "''" is an empty word. */
struct line {
    char text[1024];
    char *argv[WORDS_MAX + 1];
    int argc;
    struct args a;
    struct err e;
    int ret;
};

static inline void parse(struct line *l, const struct cmd *c, const char *text)
{
    memset(l, 0, sizeof(*l));
    (void)snprintf(l->text, sizeof(l->text), "%s", text);
    char *rest = l->text, *word;
    while ((word = strsep(&rest, " ")) && l->argc < WORDS_MAX)
        if (*word)
            l->argv[l->argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    l->ret = args_parse(c, 0, l->argc, l->argv, &l->a, &l->e);
}

static inline void refused(const struct cmd *c, const char *text, int code, const char *msg)
{
    struct line l;
    parse(&l, c, text);
    if (l.ret != -code || strcmp(l.e.msg, msg) != 0)
        fail_msg("'%s': got %d '%s'", text, l.ret, l.e.msg);
    args_free(&l.a);
}
