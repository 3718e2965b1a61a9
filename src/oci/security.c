/* Restrictions on a container's programs, enforced by the guest's kernel. They apply to all of
 * them: commands run by `exec` can have fewer rights than the container's own (process.h), but not
 * more. */
#include "oci/config.h"

#include "oci/seccomp.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int read_sysctls(struct spec_security *s, json_t *all, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach(all, key, v)
    {
        AUTO_FREE char *arg = NULL;
        if (!json_is_string(v))
            return err_set(e, EINVAL, "linux.sysctl: %.64s is not a string", key);
        if (asprintf(&arg, "%s=%s", key, json_string_value(v)) < 0)
            return err_oom(e);
        int r = spec_add_sysctl(s, arg, e);
        if (r < 0)
            return err_wrap(e, r, "linux.sysctl");
    }
    return 0;
}

static int read_paths(struct strlist *to, const json_t *list, const char *what, struct err *e)
{
    int r = oci_read_strings(list, what, to, e);
    if (r == 0 && to->n > SPEC_COVERED_MAX)
        return err_set(e, E2BIG, "%s: at most %d paths", what, SPEC_COVERED_MAX);
    for (size_t i = 0; r == 0 && i < to->n; i++)
        if (to->v[i][0] != '/')
            r = err_set(e, EINVAL, "%s: not a list of absolute paths", what);
    return r;
}

int container_config_read_security(struct container_config *c, struct err *e)
{
    struct spec_security *s = &c->spec.security;
    const json_t *l = json_object_get(c->j, "linux");
    const json_t *pids = json_object_get(json_object_get(l, "resources"), "pids");
    double limit = json_number_value(json_object_get(pids, "limit"));
    s->no_new_privs = c->process.req.no_new_privs;
    s->caps &= ~c->process.req.caps_dropped;
    if (limit > 0 && limit < SPEC_PIDS_MAX)
        s->pids = (uint32_t)limit + 1; /* PID 1 is ours */
    int r = read_sysctls(s, json_object_get(l, "sysctl"), e);
    if (r == 0)
        r = read_paths(&c->spec.masked, json_object_get(l, "maskedPaths"), "linux.maskedPaths", e);
    if (r == 0)
        r = read_paths(&c->spec.fixed, json_object_get(l, "readonlyPaths"), "linux.readonlyPaths",
                       e);
    if (r == 0)
        r = seccomp_compile(json_object_get(l, "seccomp"), &c->filter, &c->process.req.filter_size,
                            e);
    c->process.req.filter = c->filter;
    return r;
}
