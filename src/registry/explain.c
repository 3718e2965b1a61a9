/* What a registry's refusal means, and what to do about it. */
#include "image/oci/reference.h"
#include "registry/registry_impl.h"
#include "util/json.h"
#include "util/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* {"errors": [{"code": ..., "message": ...}]} */
static void read_message(struct http_response *resp, char *out, size_t size)
{
    AUTO_BUF struct buf body = {.limit = ERROR_BODY_MAX};
    out[0] = '\0';
    if (http_body(resp, &body, NULL) < 0 || buf_len(&body) == 0)
        return;
    AUTO_JSON json_t *root = json_loadb((const char *)buf_head(&body), buf_len(&body), 0, NULL);
    json_t *first = json_array_get(json_object_get(root, "errors"), 0);
    const char *text = json_string_value(json_object_get(first, "message"));
    (void)snprintf(out, size, "%s%.200s", text && *text ? ": " : "", text ? text : "");
    utf8_defuse(out);
}

static void hint_login(const struct endpoint *ep, struct err *e)
{
    if (ep->has_credentials)
        err_hint(e,
                 "the credentials for %s may not be sufficient; log in as another user with `msb "
                 "registry login %s -u USER`",
                 ep->registry, ep->registry);
    else
        err_hint(e, "if it is private, log in with `msb registry login %s -u USER`", ep->registry);
}

static int rate_limited(const struct endpoint *ep, const struct http_response *resp,
                        const char *message, struct err *e)
{
    err_set(e, EAGAIN, "%s limits the rate of requests (HTTP 429)%s", ep->host, message);
    if (resp->retry_after[0])
        err_hint(e, "wait as it asks: Retry-After %s", resp->retry_after);
    if (!ep->has_credentials)
        err_hint(e,
                 "anonymous pulls have lower limits; log in with `msb registry login %s -u USER`",
                 ep->registry);
    else
        err_hint(e, "wait, use a mirror (registries.json), or log in with an account that has a "
                    "higher limit");
    return -EAGAIN;
}

int registry_explain(const struct registry *r, const struct endpoint *ep,
                     struct http_response *resp, const char *what, struct err *e)
{
    char message[256];
    long status = resp->status;
    read_message(resp, message, sizeof(message));
    switch (status) {
    case 401:
    case 403:
        err_set(e, EACCES, "%s denies access to %s%s", ep->host, r->name, message);
        err_hint(
            e, "check the spelling: registries give the same answer for images that do not exist");
        hint_login(ep, e);
        return -EACCES;
    case 404:
        err_set(e, ENOENT, "%s has no %s of %s%s", ep->host, what, r->name, message);
        err_hint(e, "check the spelling of the repository and the tag");
        if (strcmp(ep->registry, REFERENCE_HUB) != 0)
            hint_login(ep, e);
        return -ENOENT;
    case 429:
        return rate_limited(ep, resp, message, e);
    default:
        return err_set(e, registry_temporary(status) ? EAGAIN : EPROTO,
                       "%s answers with HTTP status %ld for %s of %s%s", ep->host, status, what,
                       r->name, message);
    }
}

int registry_explain_push(const struct registry *r, const struct endpoint *ep,
                          struct http_response *resp, const char *what, struct err *e)
{
    char message[256];
    long status = resp->status;
    if (status == 401 || status == 403) {
        read_message(resp, message, sizeof(message));
        err_set(e, EACCES, "%s does not let you write to %s%s", ep->host, r->name, message);
        hint_login(ep, e);
        return -EACCES;
    }
    if (registry_temporary(status))
        return registry_explain(r, ep, resp, what, e);
    read_message(resp, message, sizeof(message));
    return err_set(e, EPROTO, "%s refuses %s for %s (HTTP status %ld)%s", ep->host, what, r->name,
                   status, message);
}
