/* One request with its retries; used by client.c. */
#pragma once

#include "s3/client.h"

enum { S3_XML_MAX = 8 << 20 };

struct s3_call {
    const char *method;
    const char *key;       /* NULL = the bucket itself */
    struct strlist query;  /* "name=value", encoded */
    struct strlist header; /* "name:value", signed */
    const void *body;
    size_t body_len;
    const char *body_sha; /* its hash in hex if known, or NULL */

    /* Where the content of a successful GET goes; NULL: into `reply`. */
    s3_data_fn fn;
    void *ctx;
    uint64_t max;
    uint64_t from;     /* where to resume after a broken connection, in the same version */
    uint64_t to;       /* the end of the wanted part; 0 = all */
    const char *match; /* the only acceptable version; "" or NULL = any */
    const struct s3_check *check; /* or NULL */

    /* The answer. */
    long status;
    struct s3_object object;
    struct buf reply; /* S3_XML_MAX at most */
    char date[64], region[64];
    char code[64], message[256]; /* of an error document */
    uint64_t retry_after_ms;
    bool ours; /* fn failed after taking part of the data: no retry */
};

void s3_call_init(struct s3_call *q, const char *method, const char *key);
void s3_call_free(struct s3_call *q);
#define AUTO_S3_CALL CLEANUP(s3_call_free)

/* Add to the lists; a query's value gets encoded. */
int s3_call_query(struct s3_call *q, const char *name, const char *value);
int s3_call_header(struct s3_call *q, const char *name, const char *value);

/* Replaces a text taken from an answer; malloc'd. */
int s3_call_text(char **field, const char *text);
/* Copies an ETag, without quotes and anything that cannot be in a header. */
void s3_call_etag(char out[S3_ETAG_SIZE], const char *text);

/* The header that names what to copy; malloc'd. */
char *s3_copy_source(const struct s3_client *c, const char *key);

/* Returns 0 for statuses 200 to 299, and for 404, 409, 412 and 416, which the caller examines; all
 * others become errors. Positive: what the check returned. `what` is for messages. */
int s3_call_run(struct s3_client *c, struct s3_call *q, const char *what, struct err *e);
/* "cannot WHAT: SERVER says ..." */
int s3_call_explain(const struct s3_client *c, const struct s3_call *q, const char *what,
                    struct err *e);
