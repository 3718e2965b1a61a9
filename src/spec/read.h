/* Reading parts of a spec from JSON: strict about types and ranges; a missing key leaves the
 * default. For the files that read a spec. */
#pragma once

#include "util/err.h"
#include "util/strlist.h"
#include "util/words.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A missing key and null are the same: the default is kept. */
static inline const json_t *member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static inline int bad(struct err *e, const char *key)
{
    return err_set(e, EINVAL, "spec: '%s' has the wrong type or is out of range", key);
}

static inline const char *plain_text(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

static inline int read_text(const json_t *o, const char *key, char **ret, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    const char *s = plain_text(v);
    if (!s)
        return bad(e, key);
    char *copy = strdup(s);
    if (!copy)
        return err_oom(e);
    free(*ret);
    *ret = copy;
    return 0;
}

static inline int read_u64(const json_t *o, const char *key, uint64_t *ret, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return bad(e, key);
    *ret = (uint64_t)json_integer_value(v);
    return 0;
}

/* A number that has an exact key and a documented, coarser one; the exact one takes precedence. */
static inline int read_scaled(const json_t *o, const char *exact, const char *coarse, uint64_t unit,
                              uint64_t *ret, struct err *e)
{
    if (member(o, exact))
        return read_u64(o, exact, ret, e);
    uint64_t v = *ret / unit;
    int r = read_u64(o, coarse, &v, e);
    if (r == 0 && v > INT64_MAX / unit)
        return bad(e, coarse);
    *ret = v * unit;
    return r;
}

static inline int read_bool(const json_t *o, const char *key, bool *ret, struct err *e)
{
    const json_t *v = member(o, key);
    if (v && !json_is_boolean(v))
        return bad(e, key);
    if (v)
        *ret = json_is_true(v);
    return 0;
}

/* One of `names` (n of them, gaps allowed); absent leaves *ret alone. */
static inline int read_choice(const json_t *o, const char *key, const char *const *names, size_t n,
                              size_t *ret, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    int i = word_find(names, n, plain_text(v));
    if (i < 0)
        return bad(e, key);
    *ret = (size_t)i;
    return 0;
}

/* A member that must be an object if present; if absent, NULL, which reads as an empty object. */
static inline int read_object(const json_t *o, const char *key, const json_t **ret, struct err *e)
{
    *ret = member(o, key);
    return *ret && !json_is_object(*ret) ? bad(e, key) : 0;
}

static inline int read_array(const json_t *o, const char *key, const json_t **ret, struct err *e)
{
    *ret = member(o, key);
    return *ret && !json_is_array(*ret) ? bad(e, key) : 0;
}

static inline int read_list(const json_t *o, const char *key, struct strlist *ret, struct err *e)
{
    const json_t *a;
    int r = read_array(o, key, &a, e);
    for (size_t i = 0; r == 0 && i < json_array_size(a); i++) {
        const char *s = plain_text(json_array_get(a, i));
        if (!s)
            return bad(e, key);
        if (strlist_add(ret, s) < 0)
            return err_oom(e);
    }
    return r;
}
