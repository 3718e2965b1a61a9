/* Where a workspace's bucket is, and how to access it: workspaces/NAME/s3.json. It never contains
 * keys. */
#pragma once

#include "util/cleanup.h"
#include "util/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { S3_BUCKET_MAX = 63, S3_KEY_MAX = 1024, S3_PREFIX_MAX = 255, S3_PATH_MAX = 768 };

/* The most that is taken from a bucket, by default. */
#define S3_MAX_DEFAULT (10ULL << 30)
/* With less, servers would give up. */
#define S3_BANDWIDTH_MIN (16ULL << 10)

enum s3_addressing { S3_AUTO, S3_PATH, S3_VIRTUAL };

struct s3_config {
    char *bucket;
    char *prefix;   /* "", or ends with a slash */
    char *endpoint; /* "https://HOST[:PORT]"; NULL = AWS */
    char *region;   /* NULL = what the environment says, or us-east-1 */
    char *
        credentials; /* "env", "profile[:NAME]", "none" or a secret's name; NULL = env or profile */
    char *ca_certs;  /* PEM file; NULL = the system's alone */
    enum s3_addressing addressing;
    uint64_t max;       /* bytes of all files */
    uint64_t bandwidth; /* bytes in a second, in both directions together; 0 = no limit */
    bool conditional;   /* the server honors If-Match and If-None-Match on writes */
};

void s3_config_free(struct s3_config *c); /* may be called twice */
#define AUTO_S3_CONFIG CLEANUP(s3_config_free)

/* Parses "s3://BUCKET[/PREFIX]" into the empty c. */
int s3_config_url(struct s3_config *c, const char *url, struct err *e);
/* Checks all fields; endpoint and region get their defaults from the environment. */
int s3_config_settle(struct s3_config *c, struct err *e);
/* "s3://bucket/prefix", malloc'd. */
char *s3_config_text(const struct s3_config *c);
/* The default name of a bucket's workspace: always the same; malloc'd. */
char *s3_config_name(const struct s3_config *c);

/* -ENOENT, without a message: the workspace is not in a bucket. */
int s3_config_load(int dirfd, struct s3_config *ret, struct err *e);
int s3_config_save(int dirfd, const struct s3_config *c, struct err *e);

/* Whether a path within a workspace is valid both as a key and as a file name: UTF-8, no control
 * characters, no empty, "." or ".." components, none over 255 bytes, 768 in total, and not below
 * .msb, which is reserved. */
bool s3_path_ok(const char *path);
