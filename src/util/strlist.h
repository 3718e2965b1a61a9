/* A growable list of owned strings. */
#pragma once

#include "util/cleanup.h"

#include <stdbool.h>
#include <stddef.h>

struct strlist {
    char **v; /* NULL-terminated, so it can serve as argv */
    size_t n;
};

int strlist_add(struct strlist *l, const char *s); /* copies; -ENOMEM */
int strlist_take(struct strlist *l, char *s);      /* takes ownership, frees on failure */
int strlist_printf(struct strlist *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool strlist_has(const struct strlist *l, const char *s);
bool strlist_same(const struct strlist *a, const struct strlist *b); /* in the same order */
int strlist_copy(struct strlist *to, const struct strlist *from);
void strlist_free(struct strlist *l); /* may be called twice, or on zeros */
#define AUTO_STRLIST CLEANUP(strlist_free)
void strlist_wipe(struct strlist *l); /* the same, and overwrites secrets first */
/* In a list of "K=V": replaces the entry with the same K, or appends. */
int strlist_set_env(struct strlist *l, const char *kv);
/* The V of "K=V" for this K; NULL if absent. */
const char *strlist_get_env(const struct strlist *l, const char *key);
