#include "image/oci/change.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "image/oci/json.h"
#include "image/oci/oci.h"
#include "util/cleanup.h"
#include "util/strlist.h"

/* A word of the line at *at, with its quotes and backslashes resolved; malloc'd. NULL at the end,
 * or if out of memory. */
static char *next_word(const char **at)
{
    const char *p = *at + strspn(*at, " \t");
    char *word = *p ? malloc(strlen(p) + 1) : NULL, quote = 0;
    size_t n = 0;
    if (!word)
        return NULL;
    for (; *p && (quote || !strchr(" \t", *p)); p++) {
        if (*p == quote) {
            quote = 0;
        } else if (!quote && strchr("\"'", *p)) {
            quote = *p;
        } else {
            p += *p == '\\' && quote != '\'' && p[1];
            word[n++] = *p;
        }
    }
    word[n] = '\0';
    *at = p;
    return word;
}

static int split(const char *text, struct strlist *ret, struct err *e)
{
    for (char *word; (word = next_word(&text));)
        if (strlist_take(ret, word) < 0)
            return err_oom(e);
    return ret->n ? 0 : err_set(e, EINVAL, "its value is missing");
}

/* The object or list below `key`, created if missing. */
static json_t *below(json_t *config, const char *key, json_t *fresh)
{
    json_t *old = json_object_get(config, key);
    if (old && json_typeof(old) == json_typeof(fresh)) {
        json_decref(fresh);
        return old;
    }
    return json_object_set_new(config, key, fresh) < 0 ? NULL : fresh;
}

/* ---- the instructions ---- */

static int set_text(json_t *config, const char *key, const char *text, struct err *e)
{
    if (!*text)
        return err_set(e, EINVAL, "its value is missing");
    return json_object_set_new(config, key, json_string(text)) < 0
               ? err_set(e, EINVAL, "it is not valid UTF-8")
               : 0;
}

static int set_command(json_t *config, const char *key, const char *text, struct err *e)
{
    json_t *list = *text == '['
                       ? oci_json_load_list(text, strlen(text), OCI_STRING_MAX, "command", e)
                       : json_pack("[s, s, s]", "/bin/sh", "-c", text);
    if (!list)
        return *text == '[' ? -EINVAL : err_set(e, EINVAL, "it is not valid UTF-8");
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) if (!json_is_string(v))
    {
        json_decref(list);
        return err_set(e, EINVAL, "it must be a list of strings");
    }
    return json_object_set_new(config, key, list) < 0 ? err_oom(e) : 0;
}

static int set_variable(json_t *config, const char *key, const char *name, const char *value,
                        struct err *e)
{
    AUTO_FREE char *both = NULL;
    json_t *list = below(config, key, json_array());
    size_t i, n = strlen(name);
    const json_t *v;
    if (asprintf(&both, "%s=%s", name, value) < 0) {
        both = NULL;
        return err_oom(e);
    }
    json_array_foreach(list, i, v)
    {
        const char *s = json_string_value(v);
        if (s && strncmp(s, both, n + 1) == 0)
            return json_array_set_new(list, i, json_string(both)) < 0 ? err_oom(e) : 0;
    }
    return json_array_append_new(list, json_string(both)) < 0
               ? err_set(e, EINVAL, "it is not valid UTF-8")
               : 0;
}

static int set_label(json_t *config, const char *key, const char *name, const char *value,
                     struct err *e)
{
    json_t *labels = below(config, key, json_object());
    return json_object_set_new(labels, name, json_string(value)) < 0
               ? err_set(e, EINVAL, "it is not valid UTF-8")
               : 0;
}

/* "K=V K=V", or "K V". */
static int set_pairs(json_t *config, const char *key, const char *text, struct err *e)
{
    bool env = strcmp(key, "Env") == 0;
    int (*set)(json_t *, const char *, const char *, const char *, struct err *) =
        env ? set_variable : set_label;
    AUTO_STRLIST struct strlist words = {0};
    int r = split(text, &words, e);
    if (r == 0 && !strchr(words.v[0], '=')) {
        const char *value = text + strcspn(text, " \t");
        return set(config, key, words.v[0], value + strspn(value, " \t"), e);
    }
    for (size_t i = 0; r == 0 && i < words.n; i++) {
        char *equals = strchr(words.v[i], '=');
        if (!equals || equals == words.v[i])
            return err_set(e, EINVAL, "'%.64s' is not KEY=VALUE", words.v[i]);
        *equals = '\0';
        r = set(config, key, words.v[i], equals + 1, e);
    }
    return r;
}

/* {"80/tcp": {}} */
static int add_keys(json_t *config, const char *key, const char *text, struct err *e)
{
    bool ports = strcmp(key, "ExposedPorts") == 0;
    AUTO_STRLIST struct strlist words = {0};
    AUTO_JSON json_t *list =
        *text == '[' ? oci_json_load_list(text, strlen(text), OCI_STRING_MAX, "list", e) : NULL;
    if (*text == '[' && !list)
        return -EINVAL;
    int r = list ? 0 : split(text, &words, e);
    json_t *set = below(config, key, json_object());
    size_t n = list ? json_array_size(list) : words.n;
    for (size_t i = 0; r == 0 && i < n; i++) {
        const char *word = list ? json_string_value(json_array_get(list, i)) : words.v[i];
        AUTO_FREE char *full = NULL;
        if (!word || asprintf(&full, "%s%s", word, ports && !strchr(word, '/') ? "/tcp" : "") < 0) {
            full = NULL;
            return err_set(e, EINVAL, "it must be a list of strings");
        }
        r = json_object_set_new(set, full, json_object()) < 0
                ? err_set(e, EINVAL, "it is not valid UTF-8")
                : 0;
    }
    return r;
}

static const struct {
    const char *word, *key;
    int (*apply)(json_t *config, const char *key, const char *text, struct err *e);
} instructions[] = {
    {"CMD", "Cmd", set_command},         {"ENTRYPOINT", "Entrypoint", set_command},
    {"ENV", "Env", set_pairs},           {"EXPOSE", "ExposedPorts", add_keys},
    {"LABEL", "Labels", set_pairs},      {"STOPSIGNAL", "StopSignal", set_text},
    {"USER", "User", set_text},          {"VOLUME", "Volumes", add_keys},
    {"WORKDIR", "WorkingDir", set_text},
};

int oci_change(json_t *config, const char *instruction, struct err *e)
{
    const char *line = instruction + strspn(instruction, " \t");
    size_t n = strcspn(line, " \t");
    const char *text = line + n + strspn(line + n, " \t");
    for (size_t i = 0; i < ARRAY_LEN(instructions); i++)
        if (strlen(instructions[i].word) == n && strncasecmp(instructions[i].word, line, n) == 0) {
            int r = instructions[i].apply(config, instructions[i].key, text, e);
            return r < 0 ? err_wrap(e, r, "'%.128s'", instruction) : 0;
        }
    return err_set(e, EINVAL,
                   "'%.128s': an instruction is CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, "
                   "USER, VOLUME or WORKDIR",
                   instruction);
}
