#include "util/strlist.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int strlist_take(struct strlist *l, char *s)
{
    if (!s)
        return -ENOMEM;
    char **v = reallocarray(l->v, l->n + 2, sizeof(*v));
    if (!v) {
        free(s);
        return -ENOMEM;
    }
    l->v = v;
    l->v[l->n++] = s;
    l->v[l->n] = NULL;
    return 0;
}

int strlist_add(struct strlist *l, const char *s)
{
    return strlist_take(l, strdup(s));
}

int strlist_printf(struct strlist *l, const char *fmt, ...)
{
    char *s;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return n < 0 ? -ENOMEM : strlist_take(l, s);
}

bool strlist_has(const struct strlist *l, const char *s)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->v[i], s) == 0)
            return true;
    return false;
}

bool strlist_same(const struct strlist *a, const struct strlist *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = strcmp(a->v[i], b->v[i]) == 0;
    return same;
}

int strlist_copy(struct strlist *to, const struct strlist *from)
{
    for (size_t i = 0; i < from->n; i++)
        if (strlist_add(to, from->v[i]) < 0)
            return -ENOMEM;
    return 0;
}

void strlist_free(struct strlist *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct strlist){0};
}

void strlist_wipe(struct strlist *l)
{
    for (size_t i = 0; i < l->n; i++)
        explicit_bzero(l->v[i], strlen(l->v[i]));
    strlist_free(l);
}

static size_t key_len(const char *kv)
{
    return strcspn(kv, "=");
}

static char **find_env(const struct strlist *l, const char *key, size_t n)
{
    for (size_t i = 0; i < l->n; i++)
        if (key_len(l->v[i]) == n && strncmp(l->v[i], key, n) == 0)
            return &l->v[i];
    return NULL;
}

int strlist_set_env(struct strlist *l, const char *kv)
{
    char **at = find_env(l, kv, key_len(kv));
    if (!at)
        return strlist_add(l, kv);
    char *s = strdup(kv);
    if (!s)
        return -ENOMEM;
    free(*at);
    *at = s;
    return 0;
}

const char *strlist_get_env(const struct strlist *l, const char *key)
{
    size_t n = strlen(key);
    char **at = find_env(l, key, n);
    return at && (*at)[n] == '=' ? *at + n + 1 : NULL;
}
