/* Re-signs requests that a guest has signed with a placeholder key: the same parts are signed, with
 * the key from a secret (intercept/conn.h, sign). Pure functions: no I/O.
 */
#pragma once

#include "intercept/http1.h"
#include "util/buf.h"

/* value: the credentials (s3_secret_parse). Appends to `out` the value of Authorization and that of
 * X-Amz-Security-Token ("": none), with a zero after each. -ENODATA: the signature covers the body,
 * but that is NULL; -EINVAL with *why, which completes the sentence "the request ..."; -ENOMEM. */
int resign(const struct http_head *h, const char *value, const void *body, size_t n,
           struct buf *out, const char **why);
