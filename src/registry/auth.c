/* Answers to challenges: passwords and tokens. */
#include "registry/endpoint.h"
#include "util/json.h"
#include "util/loop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    TOKEN_ANSWER_MAX = 256 << 10,
    TOKEN_MAX = 64 << 10,
    TOKEN_LIFE_DEFAULT = 60, /* seconds, where the answer does not say */
    TOKEN_LIFE_MIN = 20,
    TOKEN_LIFE_MAX = 24 * 3600,
    TOKEN_SPARE = 5, /* a token is not used in its last seconds */
};

char *auth_current(struct endpoint *ep, unsigned *generation)
{
    (void)pthread_mutex_lock(&ep->lock);
    if (ep->authorization && ep->expires_ns && now_ns() >= ep->expires_ns) {
        secret_free(&ep->authorization); /* a request without it gets the challenge for the next */
        ep->generation++;
    }
    *generation = ep->generation;
    char *s = ep->authorization ? strdup(ep->authorization) : NULL;
    (void)pthread_mutex_unlock(&ep->lock);
    return s;
}

static void set_authorization(struct endpoint *ep, char *value, uint64_t seconds)
{
    secret_free(&ep->authorization);
    ep->authorization = value;
    ep->expires_ns = seconds ? now_ns() + seconds * 1000000000 : 0;
    ep->generation++;
}

/* Helpers are programs: they run once, and only when the registry requires credentials. */
static int look_for_credentials(struct endpoint *ep, struct err *e)
{
    if (ep->looked)
        return 0;
    int r = credentials_find(ep->home, ep->registry, &ep->credentials, e);
    if (r < 0 && r != -ENOENT)
        return err_wrap(e, r, "cannot get credentials for %s", ep->registry);
    ep->has_credentials = r == 0;
    ep->looked = true;
    return 0;
}

static int denied(const struct endpoint *ep, struct err *e)
{
    if (ep->has_credentials) {
        err_set(e, EACCES, "%s rejects the stored credentials", ep->host);
        err_hint(e, "log in again with `msb registry login %s -u USER`", ep->registry);
    } else {
        err_set(e, EACCES, "%s requires credentials", ep->host);
        err_hint(e, "log in with `msb registry login %s -u USER`", ep->registry);
    }
    return -EACCES;
}

/* --- tokens --------------------------------------------------------------------------------- */

/* Passwords are sent to the realm, so it must be as secure as the registry. */
static int check_realm(struct endpoint *ep, const char *realm, struct err *e)
{
    if (realm && strncasecmp(realm, "https://", 8) == 0)
        return 0;
    bool lax = atomic_load(&ep->plain) || ep->http_allowed;
    if (realm && strncasecmp(realm, "http://", 7) == 0 && lax)
        return 0;
    return err_set(e, EPERM, "%s names a token server that is not safe for credentials: %.200s",
                   ep->host, realm ? realm : "none");
}

static int add_param(struct buf *b, const char *name, const char *value)
{
    AUTO_FREE char *escaped = value ? http_escape(value) : NULL;
    if (!value)
        return 0;
    return escaped ? buf_printf(b, "%s%s=%s", buf_len(b) ? "&" : "", name, escaped) : -ENOMEM;
}

/* Asks for access to this repository, or for the scope that the registry named. For a push, that is
 * write access from the first request on: some registries refuse a read-only token, and then name
 * no scope. Several scopes are for a mount from another repository. */
static int add_scope(struct endpoint *ep, const struct challenge *c, struct buf *b)
{
    char scope[512];
    bool named = c->scope && (!ep->push || strchr(c->scope, ' '));
    if (named || !ep->repository)
        return add_param(b, "scope", c->scope);
    (void)snprintf(scope, sizeof(scope), "repository:%s:pull%s", ep->repository,
                   ep->push ? ",push" : "");
    return add_param(b, "scope", scope);
}

static int token_request(struct endpoint *ep, const struct challenge *c, struct buf *query,
                         char **basic)
{
    const struct credentials *who = ep->has_credentials ? &ep->credentials : NULL;
    int r = add_param(query, "service", c->service);
    if (r == 0)
        r = add_scope(ep, c, query);
    if (r == 0 && who && who->identity_token) {
        r = add_param(query, "grant_type", "refresh_token");
        if (r == 0)
            r = add_param(query, "client_id", "msb");
        if (r == 0)
            r = add_param(query, "refresh_token", who->identity_token);
    } else if (r == 0 && who) {
        r = add_param(query, "account", who->username);
        *basic = credentials_basic(who);
        if (!*basic)
            r = -ENOMEM;
    }
    return r == 0 ? buf_append(query, "", 1) : r;
}

/* Characters that a header can carry; a newline would let the server add headers. */
static bool token_valid(const char *s)
{
    size_t n = 0;
    for (; s[n]; n++)
        if ((unsigned char)s[n] <= 0x20 || (unsigned char)s[n] >= 0x7f)
            return false;
    return n > 0 && n <= TOKEN_MAX;
}

static int read_token(struct endpoint *ep, const struct buf *body, struct err *e)
{
    AUTO_JSON json_t *root =
        json_loadb(buf_len(body) ? (const char *)buf_head(body) : "", buf_len(body), 0, NULL);
    const char *token = json_string_value(json_object_get(root, "token"));
    if (!token)
        token = json_string_value(json_object_get(root, "access_token"));
    json_int_t life = json_integer_value(json_object_get(root, "expires_in"));
    char *value = NULL;
    if (token && token_valid(token) && asprintf(&value, "Bearer %s", token) < 0)
        value = NULL;
    if (!value)
        return err_set(e, EPROTO, "the token server of %s sent no token", ep->host);
    if (life <= 0)
        life = TOKEN_LIFE_DEFAULT;
    life = MAX(TOKEN_LIFE_MIN, MIN(life, TOKEN_LIFE_MAX));
    set_authorization(ep, value, (uint64_t)life - TOKEN_SPARE);
    return 0;
}

static int token_answer(struct endpoint *ep, struct http_response *resp, struct err *e)
{
    AUTO_SECRET_BUF struct buf body;
    buf_init(&body, TOKEN_ANSWER_MAX);
    long status = resp->status;
    int r = http_body(resp, &body, e);
    if (r == -EFBIG)
        return err_set(e, EFBIG, "the token server of %s sent more than %d KiB", ep->host,
                       TOKEN_ANSWER_MAX >> 10);
    if (r < 0)
        return r;
    if (status == 401 || status == 403 || status == 400)
        return denied(ep, e);
    if (status != 200)
        return err_set(e, status == 429 || status >= 500 ? EAGAIN : EPROTO,
                       "the token server of %s answers with HTTP status %ld", ep->host, status);
    return read_token(ep, &body, e);
}

static int fetch_token(struct endpoint *ep, const struct challenge *c, struct err *e)
{
    AUTO_SECRET char *basic = NULL;
    AUTO_FREE char *url = NULL;
    int r = check_realm(ep, c->realm, e);
    if (r < 0)
        return r;
    AUTO_SECRET_BUF struct buf query;
    buf_init(&query, 3 * TOKEN_MAX + 4096);
    if (token_request(ep, c, &query, &basic) < 0)
        return err_oom(e);
    const char *form = (const char *)buf_head(&query);
    bool post = ep->has_credentials && ep->credentials.identity_token;
    if (!post && asprintf(&url, "%s%s%s", c->realm, strchr(c->realm, '?') ? "&" : "?", form) < 0) {
        url = NULL;
        return err_oom(e);
    }
    struct http_request q = {.url = post ? c->realm : url,
                             .authorization = basic,
                             .form = post ? form : NULL,
                             .foreign = true};
    struct http_response *resp;
    r = http_open(ep->http, &q, &resp, e);
    if (r < 0)
        return err_wrap(e, r, "cannot get a token for %s", ep->host);
    r = token_answer(ep, resp, e);
    http_close(resp);
    return r;
}

/* --- challenges ----------------------------------------------------------------------------- */

static int use_basic(struct endpoint *ep, struct err *e)
{
    bool had = ep->authorization != NULL;
    if (!ep->has_credentials || !ep->credentials.username || had)
        return denied(ep, e);
    char *value = credentials_basic(&ep->credentials);
    if (!value)
        return err_oom(e);
    set_authorization(ep, value, 0);
    return 0;
}

static int answer_locked(struct endpoint *ep, const char *challenges, struct err *e)
{
    struct challenge c;
    int r = challenge_parse(challenges ? challenges : "", &c);
    if (r < 0)
        return err_set(e, EPROTO, "cannot parse the authentication challenge of %s", ep->host);
    if (c.scheme == CHALLENGE_NONE)
        r = err_set(e, EPROTO, "%s requires an unsupported kind of authentication", ep->host);
    else
        r = look_for_credentials(ep, e);
    if (r == 0)
        r = c.scheme == CHALLENGE_BEARER ? fetch_token(ep, &c, e) : use_basic(ep, e);
    challenge_free(&c);
    return r;
}

int auth_answer(struct endpoint *ep, const char *challenges, unsigned generation, struct err *e)
{
    (void)pthread_mutex_lock(&ep->lock);
    /* Another thread may have answered the same challenge meanwhile. */
    int r = ep->generation != generation ? 0 : answer_locked(ep, challenges, e);
    (void)pthread_mutex_unlock(&ep->lock);
    return r;
}
