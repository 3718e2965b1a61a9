/* Re-signs requests that a guest has signed with a placeholder (sign=aws), with the key that the
 * placeholder stands for. */
#pragma once

#include "intercept/conn.h"

enum { SIGN_BODY_MAX = 64 * 1024 }; /* of a body whose hash the client did not send */

/* Replaces the signature, if there is one to replace: `fields` holds the text of what was added to
 * `head`, and is secret. -EAGAIN: the value of the secret that `why` names is not known yet;
 * -ENODATA: more than the `have` bytes of the body are needed first; -EINVAL: `why` has a sentence
 * about it. */
int sign_head(const struct conn_host *c, const char *host, struct http_head *head, const char *body,
              size_t have, struct buf *fields, char why[SUBST_TEXT_MAX]);
