#include "spec/init.h"

#include "spec/read.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/text.h"

#include <stdio.h>

enum { INIT_PATH_MAX = 4095 };

void spec_init_free(struct guest_init *i)
{
    free(i->path);
    strlist_free(&i->args);
    strlist_free(&i->env);
    *i = (struct guest_init){0};
}

int spec_init_set_path(struct guest_init *i, const char *path, struct err *e)
{
    if (path[0] != '/' && strcmp(path, SPEC_INIT_AUTO) != 0)
        return err_set(e, EINVAL, "--init must be an absolute path or 'auto': got '%.64s'", path);
    char *copy = strdup(path);
    if (!copy)
        return err_oom(e);
    free(i->path);
    i->path = copy;
    return 0;
}

int spec_init_check(const struct guest_init *i, struct err *e)
{
    if (!i->path && (i->args.n || i->env.n))
        return err_set(e, EINVAL, "--init-arg and --init-env need --init");
    if (i->args.n > SPEC_INIT_WORDS_MAX || i->env.n > SPEC_INIT_WORDS_MAX)
        return err_set(e, E2BIG, "invalid config: an init has at most %d arguments and variables",
                       SPEC_INIT_WORDS_MAX);
    if (i->path && (strlen(i->path) > INIT_PATH_MAX || !utf8_valid(i->path)))
        return err_set(e, EINVAL, "invalid config: the path of the init is too long or not UTF-8");
    for (size_t k = 0; k < i->args.n; k++)
        if (!utf8_valid(i->args.v[k]))
            return err_set(e, EINVAL, "invalid config: an argument of the init is not UTF-8");
    for (size_t k = 0; k < i->env.n; k++)
        if (!utf8_valid(i->env.v[k]) || i->env.v[k][0] == '=' || !strchr(i->env.v[k], '='))
            return err_set(e, EINVAL, "invalid config: a variable of the init is not KEY=VALUE");
    return 0;
}

json_t *spec_init_to_json(const struct guest_init *i)
{
    if (!i->path)
        return json_null();
    json_t *env = json_array();
    for (size_t k = 0; k < i->env.n; k++) {
        size_t n = strcspn(i->env.v[k], "=");
        json_add(&env, json_pack("[s%, s]", i->env.v[k], n, i->env.v[k] + n + 1));
    }
    return json_pack("{s:o, s:s, s:o}", "args", json_list(i->args.v), "cmd", i->path, "env", env);
}

int spec_init_from_json(struct guest_init *i, const json_t *j, struct err *e)
{
    const json_t *o, *env;
    AUTO_FREE char *path = NULL;
    int r = read_object(j, "init", &o, e);
    if (r == 0)
        r = read_text(o, "cmd", &path, e);
    if (r == 0 && path)
        r = spec_init_set_path(i, path, e);
    if (r == 0)
        r = read_list(o, "args", &i->args, e);
    if (r == 0)
        r = read_array(o, "env", &env, e);
    for (size_t k = 0; r == 0 && k < json_array_size(env); k++) {
        const json_t *pair = json_array_get(env, k);
        const char *key = plain_text(json_array_get(pair, 0));
        const char *value = plain_text(json_array_get(pair, 1));
        char *kv;
        if (!key || !value || strchr(key, '='))
            return bad(e, "init");
        if (asprintf(&kv, "%s=%s", key, value) < 0 || strlist_take(&i->env, kv) < 0)
            r = err_oom(e);
    }
    return r < 0 ? r : spec_init_check(i, e);
}
