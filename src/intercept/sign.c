#include "intercept/sign.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Signs with the body, whose hash is not in the head. */
static int sign_whole(const struct conn_host *c, struct http_head *head, const char *value,
                      const char *body, size_t have, struct buf *fields, const char **what)
{
    if (head->framing != HTTP_LENGTH || head->length > SIGN_BODY_MAX) {
        *what =
            "can only be signed with X-Amz-Content-Sha256, or with a Content-Length of up to 64 "
            "KiB";
        return -EINVAL;
    }
    if (have < head->length)
        return -ENODATA;
    http_head_drop(head, "expect"); /* it was told to continue, or already has */
    return c->sign(head, value, body, (size_t)head->length, fields, what);
}

int sign_head(const struct conn_host *c, const char *host, struct http_head *head, const char *body,
              size_t have, struct buf *fields, char why[SUBST_TEXT_MAX])
{
    const struct subst_secret *x = subst_signer(&c->config->subst, host, head);
    const char *what = "cannot be signed";
    if (!x)
        return 0;
    if (!x->value) {
        (void)snprintf(why, SUBST_TEXT_MAX, "%s", x->name);
        return -EAGAIN;
    }
    int r = c->sign(head, x->value, NULL, 0, fields, &what);
    if (r == -ENODATA)
        r = sign_whole(c, head, x->value, body, have, fields, &what);
    if (r == 0) {
        const char *authorization = (const char *)buf_head(fields);
        const char *token = authorization + strlen(authorization) + 1;
        http_head_drop(head, "authorization");
        http_head_drop(head, "x-amz-security-token");
        if (!http_head_add(head, "Authorization", authorization) ||
            (*token && !http_head_add(head, "X-Amz-Security-Token", token)))
            r = -EINVAL;
    }
    if (r < 0 && r != -ENODATA) {
        (void)snprintf(why, SUBST_TEXT_MAX, "the request %s", what);
        r = -EINVAL;
    }
    return r;
}
