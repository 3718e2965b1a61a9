#include "registry/registry_impl.h"

#include "image/oci/oci.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define ACCEPT_MANIFEST                                           \
    "application/vnd.oci.image.index.v1+json, "                   \
    "application/vnd.oci.image.manifest.v1+json, "                \
    "application/vnd.docker.distribution.manifest.list.v2+json, " \
    "application/vnd.docker.distribution.manifest.v2+json"

/* --- opening -------------------------------------------------------------------------------- */

static int add_mirrors(struct registry *r, const struct reference *ref,
                       const struct registry_options *opt, struct err *e)
{
    struct registry_settings s;
    int code = settings_find(opt->home, ref->registry, &s, e);
    if (code < 0)
        return code;
    for (size_t i = 0; code == 0 && i < s.mirrors.n; i++) {
        code = endpoint_new_mirror(&r->ep[r->n], s.mirrors.v[i], ref->repository, opt, e);
        r->n += code == 0;
    }
    settings_free(&s);
    return code;
}

static int check_ca(const char *path, struct err *e)
{
    if (!path || access(path, R_OK) == 0)
        return 0;
    return err_sys(e, errno, "cannot read certificates from %s", path);
}

int registry_open(struct registry **ret, const struct reference *ref,
                  const struct registry_options *opt, struct err *e)
{
    int code = check_ca(opt->ca_certs, e);
    if (code < 0)
        return code;
    struct registry *r = calloc(1, sizeof(*r));
    if (!r)
        return err_oom(e);
    r->notice = opt->notice;
    r->ctx = opt->ctx;
    if (asprintf(&r->name, "%s/%s", ref->registry, ref->repository) < 0) {
        r->name = NULL;
        code = err_oom(e);
    }
    if (code == 0)
        code = add_mirrors(r, ref, opt, e);
    if (code == 0) {
        code = endpoint_new(&r->ep[r->n], ref->registry, ref->repository, opt, e);
        r->n += code == 0;
    }
    if (code < 0) {
        registry_free(r);
        return code;
    }
    *ret = r;
    return 0;
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        endpoint_free(r->ep[i]);
    free(r->name);
    free(r);
}

/* --- requests ------------------------------------------------------------------------------- */

static void notice(const struct registry *r, const char *text)
{
    if (r->notice)
        r->notice(r->ctx, text);
}

void registry_mirror_failed(const struct registry *r, struct endpoint *ep, bool for_good,
                            const struct err *e)
{
    char text[ERR_MSG_MAX + 64];
    (void)snprintf(text, sizeof(text), "mirror %s: %s", ep->host, e->msg);
    notice(r, text);
    if (for_good)
        atomic_store(&ep->useless, true);
}

size_t registry_first(const struct registry *r, size_t i)
{
    while (i + 1 < r->n && atomic_load(&r->ep[i]->useless))
        i++;
    return i;
}

static uint64_t backoff_ms(unsigned tries)
{
    uint64_t ms = (uint64_t)BACKOFF_MS << MIN(tries, 6U);
    uint32_t random;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = 0;
    return ms + random % ms;
}

/* A server that has answered before may come back; one that never has is assumed absent. */
static bool transient(const struct endpoint *ep, int code)
{
    switch (-code) {
    case EAGAIN:
    case ECONNRESET:
    case ETIMEDOUT:
        return true;
    case ECONNREFUSED:
    case EHOSTUNREACH:
        return atomic_load(&ep->alive);
    default:
        return false;
    }
}

int registry_again(struct registry *r, struct endpoint *ep, int code, unsigned *tries,
                   uint64_t wait_ms, struct err *e)
{
    unsigned max = ep->mirror ? 1 : TRIES_MAX;
    if (!transient(ep, code) || ++*tries >= max || wait_ms > RETRY_AFTER_MAX_S * 1000ULL)
        return code;
    if (wait_ms == 0)
        wait_ms = backoff_ms(*tries - 1);
    char text[ERR_MSG_MAX + 64];
    (void)snprintf(text, sizeof(text), "retrying in %.1f s: %s", (double)wait_ms / 1000,
                   e ? e->msg : "");
    notice(r, text);
    return http_pause(ep->http, wait_ms, e);
}

bool registry_temporary(long status)
{
    return status == 408 || status == 429 ||
           (status >= 500 && status < 600 && status != 501 && status != 505);
}

/* Seconds; dates are rare and get the usual pauses. 0 still gets a short pause. */
static uint64_t retry_after_ms(const struct http_response *resp)
{
    uint64_t s;
    if (parse_u64(resp->retry_after, &s) < 0)
        return 0;
    return s > 1000000 ? UINT64_MAX : MAX(s * 1000, 100);
}

int registry_get(struct registry *r, struct endpoint *ep, const char *path, const char *accept,
                 uint64_t from, unsigned *tries, struct http_response **ret, struct err *e)
{
    const struct endpoint_call q = {.path = path, .accept = accept, .from = from};
    return registry_call(r, ep, &q, path, tries, ret, e);
}

int registry_call(struct registry *r, struct endpoint *ep, const struct endpoint_call *q,
                  const char *what, unsigned *tries, struct http_response **ret, struct err *e)
{
    struct err own = {0};
    e = e ? e : &own;
    for (;;) {
        struct http_response *resp = NULL;
        uint64_t wait_ms = 0;
        int code = endpoint_call(ep, q, &resp, e);
        if (code == 0 && !registry_temporary(resp->status)) {
            *ret = resp;
            return 0;
        }
        if (code == 0) {
            wait_ms = retry_after_ms(resp);
            code = registry_explain(r, ep, resp, what, e);
            http_close(resp);
            if (code != -EAGAIN)
                return code;
        }
        code = registry_again(r, ep, code, tries, wait_ms, e);
        if (code < 0)
            return code;
    }
}

/* --- manifests ------------------------------------------------------------------------------ */

static int too_large(const struct endpoint *ep, const char *which, struct err *e)
{
    return err_set(e, EFBIG, "the manifest %s at %s is larger than %d MiB", which, ep->host,
                   OCI_DOCUMENT_MAX >> 20);
}

/* The body must match what was asked for and what the server says it sent. */
static int check_digest(const struct endpoint *ep, const char *which,
                        const struct http_response *resp, const struct buf *body,
                        struct digest *ret, struct err *e)
{
    *ret = digest_of(buf_head(body), buf_len(body));
    char text[DIGEST_TEXT_SIZE];
    digest_text(ret, text);
    struct digest want;
    if (strchr(which, ':') && (digest_parse(which, &want, e) < 0 || !digest_equal(ret, &want)))
        return err_set(e, EBADMSG, "%s sent a different manifest than %s: its digest is %s",
                       ep->host, which, text);
    if (digest_parse(resp->docker_digest, &want, NULL) == 0 && !digest_equal(ret, &want))
        return err_set(e, EBADMSG, "the manifest from %s is damaged: %s announced, %s received",
                       ep->host, resp->docker_digest, text);
    return 0;
}

static int read_manifest(struct registry *r, struct endpoint *ep, const char *which,
                         struct http_response *resp, struct buf *body, struct digest *digest,
                         struct err *e)
{
    char what[160];
    (void)snprintf(what, sizeof(what), "%s %.130s", strchr(which, ':') ? "manifest" : "tag", which);
    if (resp->status != 200)
        return registry_explain(r, ep, resp, what, e);
    if (resp->length > OCI_DOCUMENT_MAX)
        return too_large(ep, which, e);
    int code = http_body(resp, body, e);
    if (code == -EFBIG)
        return too_large(ep, which, e);
    return code < 0 ? code : check_digest(ep, which, resp, body, digest, e);
}

static int manifest_from(struct registry *r, struct endpoint *ep, const char *which,
                         struct buf *body, struct digest *digest, struct err *e)
{
    char path[DIGEST_TEXT_SIZE + REFERENCE_TAG_MAX + 16];
    (void)snprintf(path, sizeof(path), "manifests/%s", which);
    for (unsigned tries = 0;;) {
        struct http_response *resp = NULL;
        int code = registry_get(r, ep, path, ACCEPT_MANIFEST, 0, &tries, &resp, e);
        if (code < 0)
            return code;
        assert(resp);
        buf_reset(body);
        code = read_manifest(r, ep, which, resp, body, digest, e);
        http_close(resp);
        if (code == 0)
            return 0;
        code = registry_again(r, ep, code, &tries, 0, e);
        if (code < 0)
            return code;
    }
}

int registry_manifest(struct registry *r, const char *which, struct buf *body,
                      struct digest *digest, struct err *e)
{
    struct err own = {0};
    e = e ? e : &own;
    body->limit = OCI_DOCUMENT_MAX;
    for (size_t i = registry_first(r, 0); i < r->n; i = registry_first(r, i + 1)) {
        err_clear(e);
        int code = manifest_from(r, r->ep[i], which, body, digest, e);
        if (code == 0 || code == -EINTR || i + 1 == r->n)
            return code;
        registry_mirror_failed(r, r->ep[i], true, e);
    }
    return -EIO; /* there is always one endpoint */
}

/* --- logging in ----------------------------------------------------------------------------- */

int registry_check_login(const char *registry, const char *username, const char *password,
                         const struct registry_options *opt, struct err *e)
{
    struct endpoint *ep;
    struct http_response *resp = NULL;
    int r = check_ca(opt->ca_certs, e);
    if (r < 0)
        return r;
    r = endpoint_new(&ep, registry, NULL, opt, e);
    if (r < 0)
        return r;
    ep->looked = true;
    ep->has_credentials = true;
    ep->credentials.username = strdup(username);
    ep->credentials.password = strdup(password);
    r = ep->credentials.username && ep->credentials.password
            ? endpoint_get(ep, NULL, NULL, 0, &resp, e)
            : err_oom(e);
    if (r == -EACCES || (r == 0 && resp && (resp->status == 401 || resp->status == 403))) {
        r = err_set(e, EACCES, "%s rejects this user name and password", registry);
    } else if (r == 0 && resp && resp->status != 200) {
        err_set(e, EPROTO, "%s is not a registry: /v2/ answers with HTTP status %ld", ep->host,
                resp->status);
        err_hint(e, "give the host and port of a registry, such as ghcr.io");
        r = -EPROTO;
    }
    http_close(resp);
    endpoint_free(ep);
    return r;
}
