/* AWS Signature Version 4: the Authorization header of a request.
 *
 * Everything here depends only on its arguments, including the time, so that AWS's published
 * vectors can be checked (tests/unit/test_s3.c).
 */
#pragma once

#include "util/buf.h"
#include "util/err.h"
#include "util/strlist.h"

#include <stdbool.h>
#include <stdint.h>

#define SIGV4_EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum { SIGV4_TIME_SIZE = 17, SIGV4_SIGNED_MAX = 64 };

struct sigv4_key {
    const char *id, *secret;
    const char *region, *service;
};

struct sigv4_request {
    const char *method;
    const char *path;             /* encoded: sigv4_escape(), slashes kept */
    const struct strlist *query;  /* "name=value", both encoded; in any order */
    const struct strlist *header; /* "name:value", names in lower case, host among them */
    const char *payload_sha256;   /* hex, or the other value of x-amz-content-sha256 */
    char time[SIGV4_TIME_SIZE];   /* sigv4_time() */
};

/* "20130524T000000Z". */
void sigv4_time(int64_t unix_seconds, char out[SIGV4_TIME_SIZE]);
/* Percent-encodes all but letters, digits and -._~ (and slashes, if those are kept). */
int sigv4_escape(struct buf *out, const char *text, bool keep_slashes);
/* The query as it is signed and sent: sorted. */
int sigv4_query(struct buf *out, const struct strlist *query);
/* Appends the value of the Authorization header. -EINVAL: too many headers. */
int sigv4_sign(struct buf *out, const struct sigv4_key *key, const struct sigv4_request *q);
