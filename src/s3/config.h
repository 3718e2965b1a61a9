/* Where a workspace's bucket is, and how to get at it: workspaces/NAME/s3.json. No key is ever
 * in it. */
#pragma once

#include "util/cleanup.h"
#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { S3_BUCKET_MAX = 63, S3_KEY_MAX = 1024, S3_PREFIX_MAX = 255, S3_PATH_MAX = 768 };

/* What may come out of a bucket, unless the user says otherwise. */
#define S3_MAX_DEFAULT (10ULL << 30)
/* Slower, and servers would give up. */
#define S3_BANDWIDTH_MIN (16ULL << 10)

enum s3_addressing { S3_AUTO, S3_PATH, S3_VIRTUAL };

struct s3_config {
    char *bucket;
    char *prefix;   /* "", or it ends with a slash */
    char *endpoint; /* "https://HOST[:PORT]"; NULL = AWS */
    char *region;   /* NULL = what the environment says, or us-east-1 */
    char *
        credentials; /* "env", "profile[:NAME]", "none" or a secret's name; NULL = env or profile */
    char *ca_certs;  /* PEM file; NULL = the system's alone */
    enum s3_addressing addressing;
    uint64_t max;       /* bytes of all files */
    uint64_t bandwidth; /* bytes in a second, in both directions together; 0 = no limit */
    bool conditional;   /* the server honors If-Match and If-None-Match with writes */
};

void s3_config_free(struct s3_config *c); /* harmless twice */
#define AUTO_S3_CONFIG CLEANUP(s3_config_free)

/* "s3://BUCKET[/PREFIX]" into the empty c. */
int s3_config_url(struct s3_config *c, const char *url, struct err *e);
/* What all the fields must be; endpoint and region get their defaults from the environment. */
int s3_config_settle(struct s3_config *c, struct err *e);
/* "s3://bucket/prefix", malloc'd. */
char *s3_config_text(const struct s3_config *c);
/* The name of the workspace that a bucket has if nobody gave it one: always the same; malloc'd. */
char *s3_config_name(const struct s3_config *c);

/* -ENOENT, without a message: the workspace is not in a bucket. */
int s3_config_load(int dirfd, struct s3_config *ret, struct err *e);
int s3_config_save(int dirfd, const struct s3_config *c, struct err *e);

/* A path within a workspace that can be a key and a file's name: UTF-8, no control characters,
 * no empty, "." or ".." components, none over 255 bytes, 768 in all, and not within .msb, which
 * is ours. */
bool s3_path_ok(const char *path);
