#include "image/oci/json.h"

#include <errno.h>
#include <stdbool.h>

#include "util/cleanup.h"

/* Counts brackets and commas outside of strings, before the parser allocates memory for each. */
static int check_shape(const char *p, size_t n, const char *what, struct err *e)
{
    size_t depth = 0, values = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (text) {
            if (c == '\\')
                i++;
            else if (c == '"')
                text = false;
            continue;
        }
        if (c == '"')
            text = true;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && depth)
            depth--;
        values += c == '{' || c == '[' || c == ',';
        if (depth > OCI_JSON_DEPTH)
            return err_set(e, EBADMSG, "the %s is nested more than %d levels deep", what,
                           OCI_JSON_DEPTH);
        if (values > OCI_JSON_VALUES)
            return err_set(e, EBADMSG, "the %s has more than %d values", what, OCI_JSON_VALUES);
    }
    return 0;
}

static json_t *load(const void *doc, size_t n, size_t max, json_type type, const char *what,
                    struct err *e)
{
    if (n > max) {
        (void)err_set(e, EFBIG, "the %s is larger than %zu MiB", what, max >> 20);
        return NULL;
    }
    if (check_shape(doc, n, what, e) < 0)
        return NULL;
    json_error_t why;
    AUTO_JSON json_t *j = json_loadb(doc, n, JSON_REJECT_DUPLICATES, &why);
    if (j && json_typeof(j) == type)
        return steal_ptr(&j);
    if (j)
        (void)err_set(e, EBADMSG, "the %s is not a JSON %s", what,
                      type == JSON_OBJECT ? "object" : "array");
    else
        (void)err_set(e, EBADMSG, "the %s is not valid JSON: %s at line %d", what, why.text,
                      why.line);
    return NULL;
}

json_t *oci_json_load(const void *doc, size_t n, size_t max, const char *what, struct err *e)
{
    return load(doc, n, max, JSON_OBJECT, what, e);
}

json_t *oci_json_load_list(const void *doc, size_t n, size_t max, const char *what, struct err *e)
{
    return load(doc, n, max, JSON_ARRAY, what, e);
}

const json_t *oci_json_member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

int oci_json_bad(const char *key, struct err *e)
{
    return err_set(e, EBADMSG, "'%s' has the wrong type or is out of range", key);
}

int oci_json_text(const json_t *o, const char *key, size_t max, const char **ret, struct err *e)
{
    const json_t *v = oci_json_member(o, key);
    if (!v)
        return 0;
    /* The loader lets no NUL through, so the length is what strlen says. */
    if (!json_is_string(v) || json_string_length(v) > max)
        return oci_json_bad(key, e);
    *ret = json_string_value(v);
    return 0;
}

json_t *digest_json(const struct digest *d)
{
    char text[DIGEST_TEXT_SIZE];
    digest_text(d, text);
    return json_string(text);
}
