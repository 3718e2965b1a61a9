#include "spec/bound.h"

#include "net/policy.h"
#include "spec/names.h"
#include "spec/read.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/text.h"

#include <stdio.h>
#include <sys/random.h>

enum { RANDOM_LEN = 40 };

#define FORMAT "NAME@HOST[/PATH][,HOST...][,OPTION...]"

/* Headers in which placeholders are not allowed: servers show them to others, or they decide where
 * a request goes. */
static const char *const never[] = {
    "host", "connection", "content-length", "transfer-encoding", "upgrade",
    "te",   "trailer",    "expect",         "keep-alive",        "http2-settings"};

static const char *const violation_names[] = {[VIOLATION_BLOCK] = "block",
                                              [VIOLATION_LOG] = "block-and-log",
                                              [VIOLATION_TERMINATE] = "block-and-terminate"};

const char *spec_violation_name(enum spec_violation v)
{
    return violation_names[v];
}

void spec_bound_free(struct spec_bound *b)
{
    strlist_free(&b->secrets);
    strlist_free(&b->intercept);
    strlist_free(&b->bypass);
    strlist_free(&b->cas);
    strlist_free(&b->no_verify);
    free(b->ca_cert);
    free(b->ca_key);
}

/* --- reading --------------------------------------------------------------------------------- */

int spec_host_parse(const char *text, struct subst_host *ret, struct err *e)
{
    struct subst_host h = {.suffix = strncmp(text, "*.", 2) == 0};
    char name[POLICY_NAME_MAX];
    const char *rest = text + (h.suffix ? 2 : 0);
    if (strcmp(text, "*") == 0)
        return err_hinted(e, err_set(e, EINVAL, "'*' means every host, and so protects nothing"),
                          "name the hosts, or a domain: *.example.com");
    if (!policy_name_normal(rest, name) || !strchr(name, '.'))
        return err_set(e, EINVAL, "'%.80s' is not a host name such as api.example.com", text);
    if (strspn(name, "0123456789.") == strlen(name))
        return err_set(e, EINVAL, "'%.80s' is an address; certificates are for host names", text);
    (void)snprintf(h.name, sizeof(h.name), "%s", name);
    *ret = h;
    return 0;
}

static int parse_host(struct subst_secret *x, const char *text, struct err *e)
{
    const char *slash = strchr(text, '/');
    char name[SUBST_HOST_MAX + 2];
    if (x->n_hosts == SUBST_HOSTS_MAX)
        return err_set(e, E2BIG, "a secret can be bound to at most %d hosts", SUBST_HOSTS_MAX);
    (void)snprintf(name, sizeof(name), "%.*s",
                   (int)(slash ? MIN(slash - text, SUBST_HOST_MAX) : SUBST_HOST_MAX), text);
    struct subst_host *h = &x->host[x->n_hosts];
    int r = spec_host_parse(name, h, e);
    if (r < 0)
        return r;
    if (slash && strlen(slash) >= SUBST_PATH_MAX)
        return err_set(e, E2BIG, "the path '%.40s...' is too long", slash);
    if (slash)
        (void)snprintf(h->path, sizeof(h->path), "%s", slash);
    x->n_hosts++;
    return 0;
}

static int add_place(struct subst_secret *x, const struct subst_place *p, struct err *e)
{
    if (x->n_places == SUBST_PLACES_MAX)
        return err_set(e, E2BIG, "a secret can name at most %d places", SUBST_PLACES_MAX);
    x->place[x->n_places++] = *p;
    return 0;
}

static int parse_place(struct subst_secret *x, const char *text, struct err *e)
{
    const char *colon = strchr(text, ':');
    struct subst_place p = {.where = strncmp(text, "query:", 6) == 0 ? SUBST_QUERY : SUBST_HEADER};
    if (strcmp(text, "body") == 0)
        return add_place(x, &(struct subst_place){.where = SUBST_BODY}, e);
    if (!colon || (p.where == SUBST_HEADER && strncmp(text, "header:", 7) != 0) ||
        !http_token(colon + 1, strlen(colon + 1)) || strlen(colon + 1) >= sizeof(p.name))
        return err_set(e, EINVAL, "'in=%.60s': expected in=header:NAME, in=query:NAME or in=body",
                       text);
    for (size_t i = 0; p.where == SUBST_HEADER && i < ARRAY_LEN(never); i++)
        if (strcasecmp(colon + 1, never[i]) == 0)
            return err_set(e, EINVAL, "in=header:%s: no secret can be in this header", colon + 1);
    (void)snprintf(p.name, sizeof(p.name), "%s", colon + 1);
    return add_place(x, &p, e);
}

/* Letters, digits, '-' and '_': no characters that a client would encode. */
static int parse_holder(struct subst_secret *x, const char *text, struct err *e)
{
    size_t n = strlen(text);
    bool plain = true;
    for (size_t i = 0; i < n; i++)
        plain = plain && (ascii_alnum(text[i]) || text[i] == '-' || text[i] == '_');
    if (x->holder[0])
        return err_set(e, EINVAL, "secret %s has two placeholders", x->name);
    if (!plain || n < SUBST_HOLDER_MIN || n > SUBST_HOLDER_MAX)
        return err_set(e, EINVAL,
                       "a placeholder has %d to %d letters, digits, '-' and '_': got '%.40s'",
                       SUBST_HOLDER_MIN, SUBST_HOLDER_MAX, text);
    memcpy(x->holder, text, n + 1);
    x->holder_len = n;
    return 0;
}

static int parse_method(const char *text, char method[16], struct err *e)
{
    if (strlen(text) >= 16 || strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != strlen(text) || !*text)
        return err_set(e, EINVAL, "'method=%.40s' is not a method such as POST", text);
    (void)snprintf(method, 16, "%s", text);
    return 0;
}

static const struct {
    const char *text;
    enum subst_where where;
} words[] = {{"scrub=response", SUBST_RESPONSE},
             {"allow-plaintext", SUBST_PLAINTEXT},
             {"sign=aws", SUBST_SIGN}};

bool spec_bound_says(const struct subst_secret *x, enum subst_where what)
{
    bool any = false;
    for (size_t i = 0; i < x->n_places; i++)
        any |= x->place[i].where == what;
    return any;
}

const char *spec_bound_variable(const struct subst_secret *x, size_t i)
{
    static const char *const aws[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"};
    if (i == 0)
        return x->name;
    return i <= ARRAY_LEN(aws) && spec_bound_says(x, SUBST_SIGN) ? aws[i - 1] : NULL;
}

static int parse_part(struct subst_secret *x, const char *part, char method[16], struct err *e)
{
    if (strncmp(part, "in=", 3) == 0)
        return parse_place(x, part + 3, e);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(part, words[i].text) == 0)
            return add_place(x, &(struct subst_place){.where = words[i].where}, e);
    if (strncmp(part, "placeholder=", 12) == 0)
        return parse_holder(x, part + 12, e);
    if (strncmp(part, "method=", 7) == 0)
        return parse_method(part + 7, method, e);
    if (strchr(part, '=') && !strchr(part, '/'))
        return err_hinted(e, err_set(e, EINVAL, "unknown option '%.60s' of a secret", part),
                          "options: method=, in=header:, in=query:, in=body, scrub=response, "
                          "allow-plaintext, sign=aws, placeholder=");
    return parse_host(x, part, e);
}

int spec_bound_parse(const char *text, struct subst_secret *ret, struct err *e)
{
    const char *at = strchr(text, '@');
    char name[SUBST_NAME_MAX], method[16] = "";
    *ret = (struct subst_secret){0};
    if (!at || strlen(text) > SPEC_BOUND_TEXT_MAX || (size_t)(at - text) >= sizeof(name))
        return err_hinted(e, err_set(e, EINVAL, "'%.60s' does not have the form " FORMAT, text),
                          "the value is not part of it: msb secret set NAME, or a variable NAME");
    (void)snprintf(name, sizeof(name), "%.*s", (int)(at - text), text);
    int r = secret_check_name(name, e);
    memcpy(ret->name, name, sizeof(name));
    AUTO_FREE char *copy = strdup(at + 1);
    if (!copy)
        return err_oom(e);
    char *save = NULL;
    for (char *part = strtok_r(copy, ",", &save); r == 0 && part; part = strtok_r(NULL, ",", &save))
        r = parse_part(ret, part, method, e);
    if (r == 0 && ret->n_hosts == 0)
        r = err_set(e, EINVAL, "secret %s is bound to no host: " FORMAT, name);
    for (size_t i = 0; i < ret->n_hosts; i++)
        memcpy(ret->host[i].method, method, sizeof(method));
    return r;
}

/* --- setting --------------------------------------------------------------------------------- */

static int random_holder(char out[RANDOM_LEN + 5])
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t raw[RANDOM_LEN * 2];
    size_t n = 4;
    (void)snprintf(out, 5, "msb_");
    while (n < RANDOM_LEN + 4) {
        if (getrandom(raw, sizeof(raw), 0) != (ssize_t)sizeof(raw))
            return -EIO;
        for (size_t i = 0; i < sizeof(raw) && n < RANDOM_LEN + 4; i++)
            if (raw[i] < 248) /* 4 times 62: each is as likely */
                out[n++] = alphabet[raw[i] % 62];
    }
    out[n] = '\0';
    return 0;
}

static size_t find_secret(const struct spec_bound *b, const char *name)
{
    size_t n = strlen(name), i = 0;
    while (i < b->secrets.n &&
           !(strncmp(b->secrets.v[i], name, n) == 0 && b->secrets.v[i][n] == '@'))
        i++;
    return i;
}

/* Takes the text. */
static int store(struct spec_bound *b, size_t i, char *text, struct err *e)
{
    if (i == b->secrets.n)
        return strlist_take(&b->secrets, text) < 0 ? err_oom(e) : 0;
    free(b->secrets.v[i]);
    b->secrets.v[i] = text;
    return 0;
}

int spec_bound_add(struct spec_bound *b, const char *text, struct err *e)
{
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    AUTO_FREE char *joined = NULL;
    char *whole = NULL, holder[RANDOM_LEN + 5];
    if (!x)
        return err_oom(e);
    int r = spec_bound_parse(text, x, e);
    if (r < 0)
        return r;
    size_t i = find_secret(b, x->name);
    if (i == SUBST_SECRETS_MAX)
        return err_set(e, E2BIG, "at most %d secrets can be bound", SUBST_SECRETS_MAX);
    if (i < b->secrets.n) { /* more hosts for an existing one */
        if (asprintf(&joined, "%s,%s", b->secrets.v[i], strchr(text, '@') + 1) < 0)
            return err_oom(e);
        text = joined;
        if ((r = spec_bound_parse(text, x, e)) < 0)
            return r;
    }
    if (x->holder[0] == '\0' && random_holder(holder) < 0)
        return err_sys(e, errno, "no random numbers");
    if (asprintf(&whole, "%s%s%s", text,
                 x->holder[0] ? "" : ",placeholder=", x->holder[0] ? "" : holder) < 0)
        return err_oom(e);
    return store(b, i, whole, e);
}

const char *spec_bound_find(const struct spec_bound *b, const char *name)
{
    size_t i = find_secret(b, name);
    return i < b->secrets.n ? b->secrets.v[i] : NULL;
}

int spec_bound_remove(struct spec_bound *b, const char *name)
{
    size_t i = find_secret(b, name);
    if (i == b->secrets.n)
        return -ENOENT;
    free(b->secrets.v[i]);
    memmove(&b->secrets.v[i], &b->secrets.v[i + 1],
            (b->secrets.n - i) * sizeof(b->secrets.v[0])); /* with the NULL at the end */
    b->secrets.n--;
    return 0;
}

int spec_bound_add_host(struct strlist *to, const char *what, const char *text, struct err *e)
{
    struct subst_host h;
    struct err why = {0};
    if (spec_host_parse(text, &h, &why) < 0)
        return err_set(e, why.code, "%s: %s", what, why.msg);
    if (to->n == SPEC_TLS_HOSTS_MAX)
        return err_set(e, E2BIG, "%s can be given at most %d times", what, SPEC_TLS_HOSTS_MAX);
    return strlist_add(to, text) < 0 ? err_oom(e) : 0;
}

int spec_bound_add_ca(struct spec_bound *b, const char *text, struct err *e)
{
    if (b->cas.n == SPEC_TLS_CAS_MAX)
        return err_set(e, E2BIG, "at most %d files with certificate authorities", SPEC_TLS_CAS_MAX);
    return strlist_add(&b->cas, text) < 0 ? err_oom(e) : 0;
}

/* The gateway handles DNS itself, and http:// is up to allow-plaintext. */
int spec_bound_add_port(struct spec_bound *b, uint64_t port, struct err *e)
{
    if (port == 0 || port > UINT16_MAX || port == 53 || port == 80)
        return err_set(e, EINVAL,
                       "--tls-intercept-port %llu: expected 1 to 65535, and neither 53 nor 80",
                       (unsigned long long)port);
    for (size_t i = 0; i < b->n_ports; i++)
        if (b->port[i] == port)
            return 0;
    if (port == 443)
        return 0; /* always */
    if (b->n_ports == SPEC_TLS_PORTS_MAX)
        return err_set(e, E2BIG, "--tls-intercept-port can be given at most %d times",
                       SPEC_TLS_PORTS_MAX);
    b->port[b->n_ports++] = (uint16_t)port;
    return 0;
}

/* Whether some name matches both. */
static bool overlap(const struct subst_host *a, const struct subst_host *b)
{
    return subst_host_matches(a, b->name) || subst_host_matches(b, a->name);
}

/* Refuses options for hosts to which a secret is bound. */
static int check_apart(const struct strlist *hosts, const char *option, const char *why,
                       const struct subst_secret *x, struct err *e)
{
    for (size_t i = 0; i < hosts->n; i++) {
        struct subst_host h;
        int r = spec_host_parse(hosts->v[i], &h, e);
        for (size_t k = 0; r == 0 && k < x->n_hosts; k++)
            if (overlap(&h, &x->host[k]))
                r = err_set(e, EINVAL, "%s %s: secret %s is bound to %s%s%s", option, hosts->v[i],
                            x->name, x->host[k].suffix ? "*." : "", x->host[k].name, why);
        if (r < 0)
            return r;
    }
    return 0;
}

static int check_secret(const struct spec_bound *b, const struct subst_secret *x, struct err *e)
{
    int r = check_apart(&b->bypass, "--tls-bypass", "", x, e);
    if (r == 0)
        r = check_apart(&b->no_verify, "--tls-no-verify-upstream-for",
                        ", and an impostor of that host would get the value", x, e);
    if (r == 0 && b->quic)
        r = err_set(e, EINVAL,
                    "--no-block-quic: secret %s is bound to %s%s, and QUIC to it cannot be "
                    "intercepted",
                    x->name, x->host[0].suffix ? "*." : "", x->host[0].name);
    return r;
}

/* The key is checked where certificates are issued (intercept/ca.h). */
static int check_authority(const struct spec_bound *b, struct err *e)
{
    if (!b->ca_cert != !b->ca_key)
        return err_set(e, EINVAL,
                       "--tls-intercept-ca-cert and --tls-intercept-ca-key belong "
                       "together: give both or neither");
    if (b->ca_cert && (*b->ca_cert != '/' || *b->ca_key != '/'))
        return err_set(e, EINVAL, "\"intercept_ca\" needs absolute paths");
    return 0;
}

int spec_bound_validate(const struct spec_bound *b, bool no_network, struct err *e)
{
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    if (!x)
        return err_oom(e);
    if (no_network && spec_bound_any(b)) {
        (void)err_set(e, EINVAL, "%s: the sandbox has no network",
                      b->secrets.n ? "--secret" : "--tls-intercept");
        err_hint(e,
                 "leave out --no-net, or use --secret-env to give the value to the guest itself");
        return -EINVAL;
    }
    int r = check_authority(b, e);
    for (size_t i = 0; r == 0 && i < b->secrets.n; i++) {
        r = spec_bound_parse(b->secrets.v[i], x, e);
        if (r == 0)
            r = check_secret(b, x, e);
    }
    return r;
}

/* --- JSON ------------------------------------------------------------------------------------ */

json_t *spec_bound_secrets_json(const struct spec_bound *b)
{
    return json_pack("{s:s, s:o}", "on_violation", violation_names[b->on_violation], "secrets",
                     json_list(b->secrets.v));
}

json_t *spec_bound_ports_json(const struct spec_bound *b)
{
    json_t *list = json_pack("[i]", 443);
    for (size_t i = 0; i < b->n_ports; i++)
        json_add(&list, json_integer(b->port[i]));
    return list;
}

static int read_ports(struct spec_bound *b, const json_t *tls, struct err *e)
{
    const json_t *one, *list = json_object_get(tls, "intercepted_ports");
    size_t i;
    int r = list && !json_is_array(list) ? err_set(e, EINVAL, "\"intercepted_ports\" is not a list")
                                         : 0;
    json_array_foreach(list, i, one) if (r == 0) r =
        json_is_integer(one) && json_integer_value(one) > 0
            ? spec_bound_add_port(b, (uint64_t)json_integer_value(one), e)
            : err_set(e, EINVAL, "\"intercepted_ports\" contains something that is not a port");
    return r;
}

json_t *spec_bound_no_verify_json(const struct spec_bound *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < b->no_verify.n; i++)
        json_add(&list, json_pack("{s:s, s:b}", "pattern", b->no_verify.v[i], "verify", 0));
    return list;
}

static int read_no_verify(struct spec_bound *b, const json_t *tls, struct err *e)
{
    const json_t *list;
    int r = read_array(tls, "scoped_verify_upstream", &list, e);
    for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *host = plain_text(json_object_get(one, "pattern"));
        bool verify = true;
        r = host ? read_bool(one, "verify", &verify, e) : bad(e, "scoped_verify_upstream");
        if (r == 0 && !verify)
            r = spec_bound_add_host(&b->no_verify, "--tls-no-verify-upstream-for", host, e);
    }
    return r;
}

static int read_interception(struct spec_bound *b, const json_t *tls, struct err *e)
{
    const json_t *ca = NULL;
    bool blocked = !b->quic;
    int r = read_ports(b, tls, e);
    if (r == 0)
        r = read_no_verify(b, tls, e);
    if (r == 0)
        r = read_bool(tls, "block_quic_on_intercept", &blocked, e);
    b->quic = !blocked;
    if (r == 0)
        r = read_object(tls, "intercept_ca", &ca, e);
    if (r == 0)
        r = read_text(ca, "cert_path", &b->ca_cert, e);
    return r < 0 ? r : read_text(ca, "key_path", &b->ca_key, e);
}

/* "secrets" and "tls" of "network". */
int spec_bound_from_json(struct spec_bound *b, const json_t *network, struct err *e)
{
    const json_t *o;
    AUTO_STRLIST struct strlist list = {0};
    size_t action = b->on_violation;
    int r = read_object(network, "secrets", &o, e);
    if (r == 0)
        r = read_choice(o, "on_violation", violation_names, ARRAY_LEN(violation_names), &action, e);
    b->on_violation = (enum spec_violation)action;
    if (r == 0)
        r = read_list(o, "secrets", &list, e);
    for (size_t i = 0; r == 0 && i < list.n; i++)
        r = spec_bound_add(b, list.v[i], e);
    if (r == 0)
        r = read_object(network, "tls", &o, e);
    if (r == 0)
        r = read_list(o, "intercept", &b->intercept, e);
    if (r == 0)
        r = read_list(o, "bypass", &b->bypass, e);
    if (r == 0)
        r = read_interception(b, o, e);
    return r < 0 ? r : read_list(o, "upstream_ca_cert", &b->cas, e);
}
