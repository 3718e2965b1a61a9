/* What a client is told about a request that was not sent: a status, and a sentence for people. */
#pragma once

#include "intercept/subst.h"

struct refusal {
    char text[SUBST_TEXT_MAX];           /* for a header */
    char body[2 * SUBST_TEXT_MAX + 512]; /* JSON */
};

void refusal_make(struct refusal *r, const char *host, const char *error, const char *text);
