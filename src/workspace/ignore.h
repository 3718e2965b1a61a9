/* .msbignore: which files of a workspace are left alone, with the syntax and rules of gitignore(5).
 * Only the one at the top of the workspace counts. A guest may have written it: rules, their
 * lengths and the time that matching takes are bounded.
 */
#pragma once

#include "util/cleanup.h"
#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IGNORE_FILE ".msbignore"

enum { IGNORE_SIZE_MAX = 64 << 10, IGNORE_RULES_MAX = 1000, IGNORE_RULE_MAX = 255 };

struct ignore_rule {
    const char *pattern;
    bool keep;     /* "!": not ignored after all */
    bool dir_only; /* "build/" */
    bool base;     /* no slash inside: it matches a name at any depth */
};

struct ignore {
    char *text;
    struct ignore_rule *v;
    size_t n;
    uint64_t steps; /* of matching, so far */
};

void ignore_free(struct ignore *g); /* may be called twice */
#define AUTO_IGNORE CLEANUP(ignore_free)

/* Rules that are too long, or too many: -E2BIG. */
int ignore_parse(const char *text, size_t n, struct ignore *ret);
/* Loads the rules of the workspace at dirfd; without the file nothing is ignored. */
int ignore_load(int dirfd, struct ignore *ret, struct err *e);

/* Whether the path, or a directory above it, is ignored. Once matching has taken too long, nothing
 * is. */
bool ignore_covers(struct ignore *g, const char *path, bool is_dir);
/* -E2BIG: matching has taken too long. */
int ignore_check(const struct ignore *g, struct err *e);
