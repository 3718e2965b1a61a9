#include "registry/endpoint.h"

#include "image/oci/reference.h"
#include "registry/address.h"
#include "registry/settings.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Docker Hub's registry is not where its name points. */
#define HUB_HOST "registry-1.docker.io"

/* "host:port" without the port, brackets kept. */
static unsigned kind_of_host(const char *host)
{
    char text[300];
    (void)snprintf(text, sizeof(text), "%s", host);
    char *colon = strrchr(text, ':');
    if (colon && !strchr(colon, ']'))
        *colon = '\0';
    return address_kind_text(text);
}

/* The options, or else the settings of this server. */
static int make_http(struct endpoint *ep, const struct registry_options *opt, bool plain_only,
                     struct err *e)
{
    struct registry_settings s;
    int r = settings_find(opt->home, ep->registry, &s, e);
    if (r < 0)
        return r;
    const char *ca = opt->ca_certs ? opt->ca_certs : s.ca_certs;
    /* Traffic to loopback stays on this machine. Given a CA, certificates are checked there too. */
    bool loopback = kind_of_host(ep->host) == ADDRESS_LOOPBACK && !ca;
    ep->http_allowed = opt->insecure || s.insecure || loopback || plain_only;
    struct http_options o = {
        .insecure = opt->insecure || s.insecure || loopback,
        .ca_certs = ca,
        .cancel = {opt->cancel[0], opt->cancel[1]},
    };
    atomic_init(&ep->plain, plain_only);
    r = http_new(&ep->http, &o, e);
    settings_free(&s);
    return r;
}

static int endpoint_make(struct endpoint **ret, const char *registry, const char *host,
                         const char *repository, bool plain_only,
                         const struct registry_options *opt, struct err *e)
{
    struct endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return err_oom(e);
    (void)pthread_mutex_init(&ep->lock, NULL);
    ep->registry = strdup(registry);
    ep->host = strdup(host);
    ep->repository = repository ? strdup(repository) : NULL;
    ep->home = opt->home ? strdup(opt->home) : NULL;
    int r = ep->registry && ep->host && !ep->repository == !repository && !ep->home == !opt->home
                ? make_http(ep, opt, plain_only, e)
                : err_oom(e);
    if (r < 0) {
        endpoint_free(ep);
        return r;
    }
    *ret = ep;
    return 0;
}

int endpoint_new(struct endpoint **ret, const char *registry, const char *repository,
                 const struct registry_options *opt, struct err *e)
{
    const char *host = strcmp(registry, REFERENCE_HUB) == 0 ? HUB_HOST : registry;
    return endpoint_make(ret, registry, host, repository, false, opt, e);
}

int endpoint_new_mirror(struct endpoint **ret, const char *mirror, const char *repository,
                        const struct registry_options *opt, struct err *e)
{
    bool plain = strncmp(mirror, "http://", 7) == 0;
    const char *scheme = strstr(mirror, "://");
    const char *at = scheme ? scheme + 3 : mirror;
    size_t host_len = strcspn(at, "/");
    const char *prefix = at + host_len + strspn(at + host_len, "/");
    size_t prefix_len = strlen(prefix);
    while (prefix_len > 0 && prefix[prefix_len - 1] == '/')
        prefix_len--;
    AUTO_FREE char *host = strndup(at, host_len);
    AUTO_FREE char *path = NULL;
    if (asprintf(&path, "%.*s%s%s", (int)prefix_len, prefix, prefix_len ? "/" : "", repository) < 0)
        path = NULL;
    if (!host || !path)
        return err_oom(e);
    /* --insecure and --ca-certs are about the registry; a mirror has its own settings. */
    struct registry_options o = *opt;
    o.insecure = false;
    o.ca_certs = NULL;
    int r = endpoint_make(ret, host, host, path, plain, &o, e);
    if (r == 0)
        (*ret)->mirror = true;
    return r;
}

void endpoint_free(struct endpoint *ep)
{
    if (!ep)
        return;
    http_free(ep->http);
    secret_free(&ep->authorization);
    credentials_free(&ep->credentials);
    (void)pthread_mutex_destroy(&ep->lock);
    free(ep->registry);
    free(ep->host);
    free(ep->repository);
    free(ep->home);
    free(ep);
}

/* The server does not support TLS (or only a proxy for plain HTTP knows the name). A server that
 * has answered over TLS is never downgraded later. */
static bool fall_back(struct endpoint *ep, int code)
{
    bool no_tls = code == -EPROTO || code == -ECONNREFUSED || code == -EHOSTUNREACH ||
                  code == -ECONNRESET || code == -ETIMEDOUT;
    if (!ep->http_allowed || !no_tls || atomic_load(&ep->plain) || atomic_load(&ep->alive))
        return false;
    atomic_store(&ep->plain, true);
    return true;
}

/* malloc'd; *foreign: it is on another server. */
static char *url_of(const struct endpoint *ep, const struct endpoint_call *q, bool *foreign,
                    struct err *e)
{
    AUTO_FREE char *own = NULL;
    bool plain = atomic_load(&ep->plain);
    *foreign = false;
    if (asprintf(&own, "%s://%s/v2/%s%s%s", plain ? "http" : "https", ep->host,
                 q->path ? ep->repository : "", q->path ? "/" : "", q->path ? q->path : "") < 0) {
        own = NULL;
        (void)err_oom(e);
        return NULL;
    }
    if (!q->url)
        return steal_ptr(&own);
    *foreign = !http_same_origin(q->url, own);
    if (strncasecmp(q->url, "https://", 8) != 0 && !plain && !ep->http_allowed) {
        (void)err_set(e, EPERM, "refused to follow %s from https to plain http", ep->host);
        return NULL;
    }
    char *copy = strdup(q->url);
    if (!copy)
        (void)err_oom(e);
    return copy;
}

static int call_once(struct endpoint *ep, const struct endpoint_call *call,
                     const char *authorization, struct http_response **ret, struct err *e)
{
    for (;;) {
        struct err first = {0};
        bool foreign;
        AUTO_FREE char *url = url_of(ep, call, &foreign, &first);
        struct http_request q = {.url = url,
                                 .method = call->method,
                                 .accept = call->accept,
                                 .content_type = call->content_type,
                                 .authorization = foreign ? NULL : authorization,
                                 .from = call->from,
                                 .send = call->send,
                                 .foreign = foreign};
        int r = url ? http_open(ep->http, &q, ret, &first) : -first.code;
        if (r == 0) {
            assert(*ret);
            atomic_store(&ep->alive, true);
            (*ret)->foreign = (*ret)->foreign || foreign;
        }
        if (r < 0 && url && !call->url && fall_back(ep, r))
            continue;
        if (r < 0)
            err_copy(e, &first);
        return r;
    }
}

int endpoint_call(struct endpoint *ep, const struct endpoint_call *q, struct http_response **ret,
                  struct err *e)
{
    for (int round = 0;; round++) {
        unsigned generation;
        AUTO_SECRET char *authorization = auth_current(ep, &generation);
        struct http_response *resp = NULL;
        int r = call_once(ep, q, authorization, &resp, e);
        if (r < 0)
            return r;
        assert(resp);
        /* Another server's challenge would name who gets our password. */
        if (resp->status != 401 || resp->foreign || round == 1) {
            *ret = resp;
            return 0;
        }
        AUTO_FREE char *challenges = steal_ptr(&resp->challenges);
        http_close(resp);
        r = auth_answer(ep, challenges, generation, e);
        if (r < 0)
            return r;
    }
}

int endpoint_get(struct endpoint *ep, const char *path, const char *accept, uint64_t from,
                 struct http_response **ret, struct err *e)
{
    const struct endpoint_call q = {.path = path, .accept = accept, .from = from};
    return endpoint_call(ep, &q, ret, e);
}
