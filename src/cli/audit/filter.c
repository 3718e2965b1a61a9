#include "cli/audit/filter.h"

#include "cli/options/log.h"
#include "util/json.h"
#include "util/parse.h"

#include <pwd.h>
#include <string.h>

static const struct opt filter_opts[] = {
    {"label", 0, "KEY[=VALUE]", "Show only sandboxes with all of these labels", OPT_REPEAT},
    {"user", 0, "USER", "Show only what this user did: a name or a number"},
    {"verb", 0, "VERB", "Show only records of this kind: create, exec, net", OPT_REPEAT},
    {"until", 0, "TIME", "Show only records before TIME"},
    {0},
};

const struct opt_group audit_filter_group = {"Filters", filter_opts};

static int user_option(const struct args *a, struct audit_filter *f, struct err *e)
{
    const char *v = args_get(a, "user");
    uint64_t n;
    if (!v)
        return 0;
    const struct passwd *p = getpwnam(v);
    if (!p && (parse_u64(v, &n) < 0 || n > UINT32_MAX))
        return args_bad_value(a, "user", v, "expected the name or the number of a user", e);
    f->has_uid = true;
    f->uid = p ? (json_int_t)p->pw_uid : (json_int_t)n;
    return 0;
}

int audit_filter_read(const struct args *a, struct audit_filter *f, struct err *e)
{
    *f = (struct audit_filter){.name = args_get(a, "name"), .known = json_object()};
    int r = when_option(a, "until", &f->until_ns, e);
    if (r == 0)
        r = user_option(a, f, e);
    if (r == 0 &&
        (args_list(a, "verb", &f->verbs) < 0 || args_list(a, "label", &f->labels) < 0 || !f->known))
        r = err_oom(e);
    return r;
}

void audit_filter_free(struct audit_filter *f)
{
    strlist_free(&f->verbs);
    strlist_free(&f->labels);
    json_decref(f->known);
    f->known = NULL;
}

int audit_filter_look(struct audit_filter *f, const struct store *s, struct err *e)
{
    struct sandbox *all = NULL;
    size_t n = 0;
    int r = f->labels.n ? store_list(s, &all, &n, e) : 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        (void)json_object_set_new(f->known, all[i].spec.name, json_list(all[i].spec.labels.v));
    sandbox_list_free(all, n);
    return r;
}

/* K matches any value. */
static bool has_label(const json_t *labels, const char *want)
{
    size_t i, n = strlen(want);
    json_t *v;
    json_array_foreach((json_t *)labels, i, v)
    {
        const char *text = json_string_value(v);
        if (text && strncmp(text, want, n) == 0 &&
            (text[n] == '\0' || (text[n] == '=' && !strchr(want, '='))))
            return true;
    }
    return false;
}

/* A new sandbox with an old name begins without labels. */
static void learn(struct audit_filter *f, const char *event, const char *sandbox, const json_t *j)
{
    json_t *labels = json_object_get(j, "labels");
    bool made = event && strcmp(event, "create") == 0 && !json_object_get(j, "error");
    if (sandbox && json_is_array(labels))
        (void)json_object_set(f->known, sandbox, labels);
    else if (sandbox && made)
        (void)json_object_del(f->known, sandbox);
}

bool audit_filter_passes(struct audit_filter *f, const char *event, const char *sandbox,
                         uint64_t t_ns, const json_t *j)
{
    if (f->labels.n && j)
        learn(f, event, sandbox, j);
    if (f->until_ns && t_ns >= f->until_ns)
        return false;
    if (f->name && (!sandbox || strcmp(f->name, sandbox) != 0))
        return false;
    if (f->has_uid && (!j || json_integer_value(json_object_get(j, "uid")) != f->uid))
        return false;
    const json_t *labels = sandbox ? json_object_get(f->known, sandbox) : NULL;
    for (size_t i = 0; i < f->labels.n; i++)
        if (!has_label(labels, f->labels.v[i]))
            return false;
    bool found = f->verbs.n == 0;
    for (size_t i = 0; i < f->verbs.n; i++)
        found = found || (event && strcmp(f->verbs.v[i], event) == 0);
    return found;
}
