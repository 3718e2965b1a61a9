/* A small part of YAML as a tree whose nodes know where they are: maps, lists and texts.
 *
 * For files in which a mistake must not go unnoticed: anything that two readers could understand
 * differently is refused. No anchors, aliases, tags or directives; one document; no duplicate keys;
 * keys are texts. Nothing is a number or a boolean by itself: the caller interprets texts as what
 * it expects there. Errors begin with FILE:LINE:COLUMN.
 */
#pragma once

#include "util/cleanup.h"
#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    YAML_FILE_MAX = 512 * 1024,
    YAML_NODES_MAX = 32768,
    YAML_KEYS_MAX = 256, /* of one map */
    YAML_DEPTH_MAX = 16,
};

enum yaml_kind { YAML_TEXT, YAML_LIST, YAML_MAP };

struct yaml {
    enum yaml_kind kind;
    unsigned line, column; /* of the value; from 1 */
    bool plain;            /* a text without quotes */
    char *key;             /* of a map's member; else NULL */
    char *text;            /* never NULL in a text */
    struct yaml *item;     /* of a list or a map */
    size_t n;
};

/* name: the file's name in errors. An empty file is an empty map. */
int yaml_tree_parse(const char *name, const char *text, size_t n, struct yaml *ret, struct err *e);
/* Its two parsers: the first handles most files, and leaves anything unusual or wrong to the second
 * (-EAGAIN). For tests. */
int yaml_plain_parse(const char *text, size_t n, struct yaml *ret);
int yaml_full_parse(const char *name, const char *text, size_t n, struct yaml *ret, struct err *e);
void yaml_tree_free(struct yaml *y); /* may be called twice, or on zeros */
#define AUTO_YAML CLEANUP(yaml_tree_free)

/* Appends a zeroed item, which is part of the tree from the start and so always freed with it.
 * NULL: out of memory. */
struct yaml *yaml_add(struct yaml *to);
/* A member of a map, or NULL. */
const struct yaml *yaml_get(const struct yaml *map, const char *key);

/* "FILE:LINE:COLUMN: message"; -EINVAL. */
int yaml_fail(const char *name, const struct yaml *at, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Fails unless it is of that kind; `what` is its name in the message. */
int yaml_expect(const char *name, const struct yaml *y, enum yaml_kind kind, const char *what,
                struct err *e);
/* true or false, without quotes; nothing else is a boolean. */
int yaml_flag(const char *name, const struct yaml *y, bool *ret, struct err *e);
/* Fails because of a key that is not in `known` (ends with NULL); suggests the most similar one. */
int yaml_unknown_key(const char *name, const struct yaml *y, const char *const *known,
                     struct err *e);
