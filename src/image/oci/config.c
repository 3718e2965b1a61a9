/* Image configurations: what to run by default, and which layers they consist of. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/oci/json.h"
#include "image/oci/oci.h"
#include "util/cleanup.h"

enum { USER_MAX = 255, SIGNAL_MAX = 31, CREATED_MAX = 63 };

void oci_config_free(struct oci_config *c)
{
    image_config_free(&c->run);
    free(c->diff_ids);
    free(c->os);
    free(c->architecture);
    free(c->variant);
    free(c->created);
    *c = (struct oci_config){0};
}

/* ---- lists ---- */

/* Makes room for n strings in a list that is empty. */
static int grow(char ***list, size_t n, const char *key, struct err *e)
{
    if (n > OCI_LIST_MAX)
        return err_set(e, E2BIG, "'%s' has %zu entries; at most %d are supported", key, n,
                       OCI_LIST_MAX);
    char **v = calloc(n + 1, sizeof(char *));
    if (!v)
        return err_oom(e);
    free(*list);
    *list = v;
    return 0;
}

typedef bool (*keep_fn)(const char *s);

static int read_list(const json_t *o, const char *key, keep_fn keep, char ***ret, struct err *e)
{
    const json_t *a = oci_json_member(o, key), *v;
    size_t i, n = 0;
    if (!a)
        return 0;
    if (!json_is_array(a))
        return oci_json_bad(key, e);
    int r = grow(ret, json_array_size(a), key, e);
    if (r < 0)
        return r;
    json_array_foreach(a, i, v)
    {
        const char *s = json_string_value(v);
        if (!s || json_string_length(v) >= OCI_STRING_MAX)
            return oci_json_bad(key, e);
        if (keep && !keep(s))
            continue;
        if (!((*ret)[n++] = strdup(s)))
            return err_oom(e);
    }
    return 0;
}

/* The object under `key`, and room for a string for each member; *set is NULL without one. */
static int open_object(const json_t *o, const char *key, json_t **set, char ***ret, struct err *e)
{
    *set = (json_t *)oci_json_member(o, key);
    if (!*set)
        return 0;
    if (!json_is_object(*set))
        return oci_json_bad(key, e);
    return grow(ret, json_object_size(*set), key, e);
}

/* The keys of an object used as a set: {"80/tcp": {}}. */
static int read_keys(const json_t *o, const char *key, char ***ret, struct err *e)
{
    json_t *set, *v;
    const char *name;
    size_t n = 0;
    int r = open_object(o, key, &set, ret, e);
    if (r < 0)
        return r;
    json_object_foreach(set, name, v)
    {
        if (strlen(name) >= PATH_MAX)
            return oci_json_bad(key, e);
        if (!((*ret)[n++] = strdup(name)))
            return err_oom(e);
    }
    return 0;
}

/* A label whose key contains a '=' would be ambiguous in "KEY=VALUE", so it is left out. */
static int read_labels(const json_t *o, char ***ret, struct err *e)
{
    json_t *set, *v;
    const char *name;
    size_t n = 0;
    int r = open_object(o, "Labels", &set, ret, e);
    if (r < 0)
        return r;
    json_object_foreach(set, name, v)
    {
        const char *value = json_is_null(v) ? "" : json_string_value(v);
        if (!value)
            return oci_json_bad("Labels", e);
        if (!*name || strchr(name, '='))
            continue;
        if (asprintf(&(*ret)[n], "%s=%s", name, value) < 0) {
            (*ret)[n] = NULL;
            return err_oom(e);
        }
        n++;
    }
    return 0;
}

/* Variables without a name or a '=' are ignored. */
static bool is_variable(const char *s)
{
    return *s != '=' && strchr(s, '=');
}

/* ---- strings ---- */

/* Of printable characters; missing and empty are the same. */
static int read_word(const json_t *o, const char *key, size_t max, char **ret, struct err *e)
{
    const char *s = NULL;
    int r = oci_json_text(o, key, max, &s, e);
    if (r < 0 || !s || !*s)
        return r;
    for (const char *p = s; *p; p++)
        if (iscntrl((unsigned char)*p))
            return oci_json_bad(key, e);
    *ret = strdup(s);
    return *ret ? 0 : err_oom(e);
}

/* Docker treats a relative directory as one below the root. */
static int read_workdir(const json_t *o, char **ret, struct err *e)
{
    AUTO_FREE char *s = NULL;
    int r = read_word(o, "WorkingDir", PATH_MAX - 2, &s, e);
    if (r < 0 || !s)
        return r;
    if (*s == '/')
        *ret = steal_ptr(&s);
    else if (asprintf(ret, "/%s", s) < 0)
        *ret = NULL;
    return *ret ? 0 : err_oom(e);
}

static int read_stop_signal(const json_t *o, char **ret, struct err *e)
{
    int r = read_word(o, "StopSignal", SIGNAL_MAX, ret, e);
    for (const char *p = *ret; r == 0 && p && *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '+' && *p != '-')
            return oci_json_bad("StopSignal", e);
    return r;
}

/* An invalid time is no reason to refuse the image. */
static int read_created(const json_t *j, char **ret, struct err *e)
{
    const char *s = json_string_value(json_object_get(j, "created"));
    if (!s || !*s || strlen(s) > CREATED_MAX || s[strspn(s, "0123456789-+:.TZtz")])
        return 0;
    return (*ret = strdup(s)) ? 0 : err_oom(e);
}

static int read_platform(const json_t *j, struct oci_config *c, struct err *e)
{
    struct oci_platform p = {0};
    char text[OCI_PLATFORM_TEXT];
    int r = read_word(j, "os", 32, &c->os, e);
    if (r == 0)
        r = read_word(j, "architecture", 32, &c->architecture, e);
    if (r == 0)
        r = read_word(j, "variant", 32, &c->variant, e);
    if (r < 0 || !c->os || !c->architecture)
        return r;
    /* In canonical spelling. */
    oci_platform_text(&(struct oci_platform){c->os, c->architecture, c->variant}, text);
    r = oci_platform_parse(text, &p, e);
    if (r < 0)
        return r;
    free(c->os);
    free(c->architecture);
    free(c->variant);
    c->os = p.os;
    c->architecture = p.architecture;
    c->variant = p.variant;
    return 0;
}

/* ---- the document ---- */

static int read_run(const json_t *j, struct image_config *run, struct err *e)
{
    const json_t *o = oci_json_member(j, "config");
    if (!o)
        return 0;
    if (!json_is_object(o))
        return oci_json_bad("config", e);
    int r = read_list(o, "Env", is_variable, &run->env, e);
    if (r == 0)
        r = read_list(o, "Entrypoint", NULL, &run->entrypoint, e);
    if (r == 0)
        r = read_list(o, "Cmd", NULL, &run->cmd, e);
    if (r == 0)
        r = read_labels(o, &run->labels, e);
    if (r == 0)
        r = read_keys(o, "ExposedPorts", &run->exposed_ports, e);
    if (r == 0)
        r = read_keys(o, "Volumes", &run->volumes, e);
    if (r == 0)
        r = read_workdir(o, &run->workdir, e);
    if (r == 0)
        r = read_word(o, "User", USER_MAX, &run->user, e);
    return r < 0 ? r : read_stop_signal(o, &run->stop_signal, e);
}

static int read_diff_ids(const json_t *j, struct oci_config *c, struct err *e)
{
    const json_t *rootfs = oci_json_member(j, "rootfs");
    const json_t *a = oci_json_member(rootfs, "diff_ids"), *v;
    const char *type = NULL;
    size_t i, n = json_array_size(a);
    int r = oci_json_text(rootfs, "type", 32, &type, e);
    if (r < 0)
        return r;
    if (!json_is_array(a) || (type && strcmp(type, "layers") != 0))
        return err_set(e, EBADMSG, "it does not list the layers' diff_ids");
    if (n > OCI_LAYERS_MAX)
        return err_set(e, E2BIG, "it has %zu layers; at most %d are supported", n, OCI_LAYERS_MAX);
    if (!(c->diff_ids = calloc(n + 1, sizeof(*c->diff_ids))))
        return err_oom(e);
    json_array_foreach(a, i, v)
    {
        const char *s = json_string_value(v);
        if (!s)
            return oci_json_bad("diff_ids", e);
        if ((r = digest_parse(s, &c->diff_ids[i], e)) < 0)
            return r;
        c->n_diff_ids++;
    }
    return 0;
}

int oci_config_parse(const void *doc, size_t n, struct oci_config *ret, struct err *e)
{
    e = e ? e : &(struct err){0};
    AUTO_JSON json_t *j = oci_json_load(doc, n, OCI_CONFIG_MAX, "image's configuration", e);
    if (!j)
        return -e->code;
    struct oci_config c = {0};
    int r = image_config_init(&c.run) < 0 ? err_oom(e) : read_diff_ids(j, &c, e);
    if (r == 0)
        r = read_run(j, &c.run, e);
    if (r == 0)
        r = read_platform(j, &c, e);
    if (r == 0)
        r = read_created(j, &c.created, e);
    if (r < 0) {
        oci_config_free(&c);
        if (r == -ENOMEM)
            return r;
        return err_wrap(e, r, "the image's configuration");
    }
    *ret = c;
    return 0;
}
