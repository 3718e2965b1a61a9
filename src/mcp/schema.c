#include "mcp/schema.h"

#include "util/utf8.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int __attribute__((format(printf, 3, 4)))
wrong(struct err *e, const char *key, const char *fmt, ...)
{
    char rule[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(rule, sizeof(rule), fmt, ap);
    va_end(ap);
    return err_set(e, EINVAL, "the argument '%s' %s", key, rule);
}

static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

/* A limit of the schema, or `otherwise`. */
static double limit(const json_t *schema, const char *name, double otherwise)
{
    const json_t *v = json_object_get(schema, name);
    return v ? json_number_value(v) : otherwise;
}

static int check_text(const json_t *schema, const char *key, const json_t *v, struct err *e)
{
    const json_t *choices = json_object_get(schema, "enum");
    size_t n = json_array_size(choices);
    if (!is_text(v))
        return wrong(e, key, "must be a string without NUL");
    if ((double)json_string_length(v) < limit(schema, "minLength", 0))
        return wrong(e, key, "is empty");
    for (size_t i = 0; i < n; i++)
        if (json_equal(v, json_array_get(choices, i)))
            return 0;
    assert(n == 0 || n == 2);
    return n == 0 ? 0
                  : wrong(e, key, "must be %s or %s", json_string_value(json_array_get(choices, 0)),
                          json_string_value(json_array_get(choices, 1)));
}

static int check_integer(const json_t *schema, const char *key, const json_t *v, struct err *e)
{
    double d = json_number_value(v), min = limit(schema, "minimum", 0);
    double max = limit(schema, "maximum", 0);
    if (!json_is_number(v) || d != floor(d) || d < min || d > max)
        return wrong(e, key, "must be a whole number from %.0f to %.0f", min, max);
    return 0;
}

static int check_number(const json_t *schema, const char *key, const json_t *v, struct err *e)
{
    double d = json_number_value(v), above = limit(schema, "exclusiveMinimum", 0);
    double max = limit(schema, "maximum", INFINITY);
    if (json_is_number(v) && d > above && d <= max)
        return 0;
    return isinf(max) ? wrong(e, key, "must be a number above %.0f", above)
                      : wrong(e, key, "must be a number above %.0f and at most %.0f", above, max);
}

static int check_list(const json_t *schema, const char *key, const json_t *v, struct err *e)
{
    double min = limit(schema, "minItems", 0), max = limit(schema, "maxItems", INFINITY);
    double n = (double)json_array_size(v);
    if (json_is_string(v) && strcmp(key, "command") == 0)
        return wrong(e, key, "must be a list of strings; pass a command line as 'shell'");
    if (!json_is_array(v) || n < min || n > max)
        return wrong(e, key, "must be a list of %.0f to %.0f strings", min, max);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!is_text(json_array_get(v, i)))
            return wrong(e, key, "must be a list of strings without NUL");
    return 0;
}

/* An environment, which is all that objects are used for. */
static int check_env(const char *key, json_t *v, struct err *e)
{
    const char *name;
    json_t *value;
    bool ok = json_is_object(v);
    json_object_foreach(v, name, value)
    {
        ok = ok && *name && !strchr(name, '=') && is_text(value);
    }
    return ok ? 0 : wrong(e, key, "must map names to strings without NUL");
}

static int check(const json_t *schema, const char *key, json_t *v, bool raw, struct err *e)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    assert(type);
    if (strcmp(type, "string") == 0 && raw)
        return json_is_string(v) ? 0 : wrong(e, key, "must be a string");
    if (strcmp(type, "string") == 0)
        return check_text(schema, key, v, e);
    if (strcmp(type, "integer") == 0)
        return check_integer(schema, key, v, e);
    if (strcmp(type, "number") == 0)
        return check_number(schema, key, v, e);
    if (strcmp(type, "boolean") == 0)
        return json_is_boolean(v) ? 0 : wrong(e, key, "must be true or false");
    return strcmp(type, "array") == 0 ? check_list(schema, key, v, e) : check_env(key, v, e);
}

/* A misspelled argument would otherwise be a limit that is not set. */
static int check_known(const json_t *schema, json_t *args, struct err *e)
{
    const json_t *properties = json_object_get(schema, "properties");
    const char *key;
    json_t *v;
    json_object_foreach(args, key, v)
    {
        if (json_object_get(properties, key))
            continue;
        char name[64];
        (void)snprintf(name, sizeof(name), "%.60s", key);
        utf8_defuse(name);
        return err_set(e, EINVAL, "unknown argument '%s'", name);
    }
    return 0;
}

int schema_apply(const json_t *schema, json_t *args, const char *raw, struct err *e)
{
    const json_t *required = json_object_get(schema, "required");
    const char *key;
    json_t *property;
    int known = check_known(schema, args, e);
    if (known < 0)
        return known;
    json_object_foreach(json_object_get(schema, "properties"), key, property)
    {
        json_t *v = json_object_get(args, key);
        if (json_is_null(v)) {
            (void)json_object_del(args, key);
            v = NULL;
        }
        json_t *otherwise = json_object_get(property, "default");
        int r = v ? check(property, key, v, raw && strcmp(raw, key) == 0, e) : 0;
        if (r < 0)
            return r;
        if (!v && otherwise && json_object_set(args, key, otherwise) < 0)
            return err_oom(e);
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        key = json_string_value(json_array_get(required, i));
        if (!json_object_get(args, key))
            return wrong(e, key, "is missing");
    }
    return 0;
}
