#include "cli/options/tls.h"

#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct opt tls_opts[] = {
    {"secret", 0, "NAME@HOST[,...]",
     "Give the guest a placeholder, replaced by secret NAME in requests to HOST",
     OPT_REPEAT | OPT_COMMON},
    {"on-secret-violation", 0, "ACTION",
     "What to do if a placeholder is in the wrong place; it is never sent, and always logged "
     "(default: block-and-log)",
     .choices = "block|block-and-log|block-and-terminate"},
    {"tls-intercept", 0, "HOST", "Intercept TLS connections to HOST, without a secret", OPT_REPEAT},
    {"tls-intercept-port", 0, "PORT",
     "Intercept TLS connections to these hosts and those of secrets on PORT, in addition to 443",
     OPT_REPEAT},
    {"tls-intercept-ca-cert", 0, "FILE",
     "Certificate authority for the guest to trust, instead of msb's own"},
    {"tls-intercept-ca-key", 0, "FILE", "Its private key; must be readable only by you"},
    {"no-block-quic", 0, NULL,
     "Allow QUIC to hosts of --tls-intercept, although it is not intercepted; not with a secret"},
    {"tls-bypass", 0, "HOST", "Never intercept TLS connections to HOST", OPT_REPEAT},
    {"tls-upstream-ca-cert", 0, "FILE",
     "Certificate authorities to verify servers with, in addition to the host's", OPT_REPEAT},
    {"tls-upstream-ca-cert-for", 0, "HOST=FILE", "The same, for some servers", OPT_REPEAT},
    {"tls-no-verify-upstream-for", 0, "HOST",
     "Do not verify the certificate of HOST; refused if a secret is bound to it", OPT_REPEAT},
    {0},
};
const struct opt_group tls_group = {"Secrets and TLS", tls_opts};

/* Kept as an absolute path: the sandbox may be started from elsewhere. */
static int authority(struct spec_bound *b, const char *text, bool scoped, struct err *e)
{
    const char *eq = scoped ? strchr(text, '=') : NULL;
    const char *path = eq ? eq + 1 : text;
    AUTO_FREE char *whole = NULL;
    struct subst_host h;
    if (scoped && !eq)
        return err_set(e, EINVAL, "--tls-upstream-ca-cert-for '%.60s': expected HOST=FILE", text);
    AUTO_FREE char *real = realpath(path, NULL);
    if (!real)
        return err_sys(e, errno, "cannot find %s", path);
    AUTO_FREE char *name = strndup(text, eq ? (size_t)(eq - text) : 0);
    if (!name || asprintf(&whole, "%s%s%s", name, eq ? "=" : "", real) < 0)
        return err_oom(e);
    int r = scoped ? spec_host_parse(name, &h, e) : 0;
    return r < 0 ? r : spec_bound_add_ca(b, whole, e);
}

static int port(struct spec_bound *b, const char *text, struct err *e)
{
    uint64_t n = 0;
    return parse_u64(text, &n) < 0
               ? err_set(e, EINVAL, "--tls-intercept-port '%.60s' is not a number", text)
               : spec_bound_add_port(b, n, e);
}

static int file(char **to, const char *path, struct err *e)
{
    free(*to);
    *to = realpath(path, NULL);
    return *to ? 0 : err_sys(e, errno, "cannot find %s", path);
}

static int option(struct spec_bound *b, const struct arg_opt *o, struct err *e)
{
    const char *name = o->opt->name;
    if (strcmp(name, "secret") == 0)
        return spec_bound_add(b, o->value, e);
    if (strcmp(name, "tls-intercept") == 0)
        return spec_bound_add_host(&b->intercept, "--tls-intercept", o->value, e);
    if (strcmp(name, "tls-intercept-port") == 0)
        return port(b, o->value, e);
    if (strcmp(name, "tls-intercept-ca-cert") == 0)
        return file(&b->ca_cert, o->value, e);
    if (strcmp(name, "tls-intercept-ca-key") == 0)
        return file(&b->ca_key, o->value, e);
    if (strcmp(name, "tls-no-verify-upstream-for") == 0)
        return spec_bound_add_host(&b->no_verify, "--tls-no-verify-upstream-for", o->value, e);
    if (strcmp(name, "tls-bypass") == 0)
        return spec_bound_add_host(&b->bypass, "--tls-bypass", o->value, e);
    if (strncmp(name, "tls-upstream-ca-cert", 20) == 0)
        return authority(b, o->value, strcmp(name, "tls-upstream-ca-cert-for") == 0, e);
    return 0;
}

static void action(const struct args *a, struct spec_bound *b)
{
    const char *v = args_get(a, "on-secret-violation");
    for (int i = VIOLATION_BLOCK; v && i <= VIOLATION_TERMINATE; i++)
        if (strcmp(v, spec_violation_name((enum spec_violation)i)) == 0)
            b->on_violation = (enum spec_violation)i;
}

/* The guest would get the value that the other option keeps from it. */
static int check_twice(const struct sandbox_spec *s, struct err *e)
{
    for (size_t i = 0; i < s->secrets.n; i++)
        for (size_t k = 0; k < s->net.bound.secrets.n; k++) {
            size_t n = strlen(s->secrets.v[i]);
            const char *text = s->net.bound.secrets.v[k];
            if (strncmp(text, s->secrets.v[i], n) == 0 && text[n] == '@')
                return err_set(e, EINVAL,
                               "secret %s cannot be both: --secret-env gives its value to "
                               "the guest, and --secret withholds it",
                               s->secrets.v[i]);
        }
    return 0;
}

int tls_options(const struct args *a, struct sandbox_spec *s, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < a->n_opts; i++)
        r = option(&s->net.bound, &a->opts[i], e);
    action(a, &s->net.bound);
    s->net.bound.quic |= args_has(a, "no-block-quic");
    return r < 0 ? r : check_twice(s, e);
}
