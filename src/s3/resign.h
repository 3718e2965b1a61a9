/* Signs requests again that a guest has signed with a key that is none: what it signed stays what is signed,
 * with the key of a secret (intercept/conn.h, sign). Pure functions: no I/O.
 */
#pragma once

#include "intercept/http1.h"
#include "util/buf.h"

/* value: the credentials (s3_secret_parse). Appends to `out` the value of Authorization and that of
 * X-Amz-Security-Token ("": none), with a zero after each. -ENODATA: it takes the body, which is NULL;
 * -EINVAL with *why, a sentence's end: "the request ..."; -ENOMEM. */
int resign(const struct http_head *h, const char *value, const void *body, size_t n,
           struct buf *out, const char **why);
