/* Requests to an S3 server.
 *
 * A client may be used from several threads. Each request is signed, sent, and retried with a
 * growing, random pause if the connection breaks or the server is busy; a difference to the
 * server's clock is compensated for. The server is not trusted: sizes, names and documents are
 * checked against limits before they are used, and its texts are made safe to display.
 *
 * Keys are complete here; the workspace's prefix is up to the caller.
 */
#pragma once

#include "s3/config.h"
#include "s3/credentials.h"
#include "util/buf.h"
#include "util/strlist.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
    S3_ETAG_SIZE = 128,
    S3_LIST_MAX = 200 * 1000, /* objects below one prefix */
    S3_PAGES_MAX = 2000,      /* of one listing, however few objects they hold */
    S3_PARTS_MAX = 1000,      /* of one upload */
    S3_PART = 8 << 20,        /* of a multipart upload; smaller objects are sent in one piece */
};

struct s3_client;
int s3_client_new(struct s3_client **ret, const struct s3_config *c, const struct s3_credentials *k,
                  const atomic_bool *cancel, struct err *e);
void s3_client_free(struct s3_client *c);
/* Seconds since the epoch, by the server's clock where ours was found to be wrong. */
int64_t s3_client_now(const struct s3_client *c);

/* An object's headers. */
struct s3_object {
    char etag[S3_ETAG_SIZE];
    int64_t size;     /* -1: not given */
    int64_t mtime_ns; /* of our metadata; -1: none */
    int mode;         /* likewise, permissions alone; -1: none */
    bool link;        /* likewise: the content is a symbolic link's target */
    char id[65];      /* likewise: what it was uploaded as (struct s3_put); "" = others wrote it */
    char sha[65];     /* likewise: its content's sum; "" = not given */
};

/* Lists every object below the prefix, in no particular order. A result other than 0 ends it. more,
 * which may be NULL, is called once the server has sent a page that is not the last one. */
typedef int (*s3_list_fn)(void *ctx, const char *key, uint64_t size, const char *etag,
                          struct err *e);
typedef void (*s3_more_fn)(void *ctx);
int s3_list(struct s3_client *c, const char *prefix, s3_list_fn fn, s3_more_fn more, void *ctx,
            struct err *e);

/* Content goes to fn as it arrives; after a broken connection, the rest is requested. At most max
 * bytes (EFBIG). -ENOENT: there is no such object. -ESTALE: it is not the version with this etag
 * ("" = any). */
typedef int (*s3_data_fn)(void *ctx, const void *p, size_t n, struct err *e);
int s3_get(struct s3_client *c, const char *key, const char *etag, uint64_t max, s3_data_fn fn,
           void *ctx, struct s3_object *ret, struct err *e);
/* The same for n bytes at an offset; etag is not "". */
int s3_get_range(struct s3_client *c, const char *key, const char *etag, uint64_t from, uint64_t n,
                 s3_data_fn fn, void *ctx, struct err *e);
/* Into a buffer, up to its limit. */
int s3_get_all(struct s3_client *c, const char *key, struct buf *b, struct s3_object *ret,
               struct err *e);
/* -ENOENT without a message. */
int s3_head(struct s3_client *c, const char *key, struct s3_object *ret, struct err *e);
/* The same for an object that was listed with this ETag. -ESTALE: it has been replaced since. Some
 * servers (OpenStack Swift, for copies of multipart uploads) list an object with a different ETag
 * than its real one: ret->etag is the real one, which requests have to name. */
int s3_head_listed(struct s3_client *c, const char *key, const char *listed, struct s3_object *ret,
                   struct err *e);

/* When a write is allowed. */
enum s3_when { S3_ALWAYS, S3_IF_ABSENT, S3_IF_MATCH };
struct s3_put {
    const struct strlist *meta; /* "x-amz-meta-...:value"; NULL: none */
    enum s3_when when;
    const char *match; /* the etag */
    const char *sha;   /* the content's sum, if it is known already */
    const char *id;    /* what `meta` says it is, to recognize it by */
};
/* -EEXIST: not allowed, since it was written by another client. *etag: the new object's. */
int s3_put(struct s3_client *c, const char *key, const void *p, size_t n, const struct s3_put *how,
           char etag[S3_ETAG_SIZE], struct err *e);
/* Is called before each try of a request that servers do not make conditional. A result other than
 * 0 ends it, and becomes its result. */
struct s3_check {
    int (*fn)(void *ctx, struct err *e);
    void *ctx;
};
/* A copy on the server, with its metadata. */
int s3_copy(struct s3_client *c, const char *from, const char *to, const struct s3_check *check,
            char etag[S3_ETAG_SIZE], struct err *e);
/* A missing object is a success. check may be NULL. */
int s3_delete(struct s3_client *c, const char *key, const struct s3_check *check, struct err *e);

/* A multipart upload. Each part but the last has S3_PART bytes. After a failure, abort it. Parts
 * may be sent from several threads. */
struct s3_upload {
    char *key, *id;
    char (*etag)[S3_ETAG_SIZE]; /* of each part */
};
int s3_upload_begin(struct s3_client *c, const char *key, const struct strlist *meta,
                    struct s3_upload *ret, struct err *e);
int s3_upload_part(struct s3_client *c, struct s3_upload *u, unsigned number, const void *p,
                   size_t n, const char *sha, struct err *e); /* number: from 1; sha: in hex */
/* Resumes an earlier upload, and gets the ETags of the parts that the server has ("" for the
 * others). -ENOENT: it knows no such upload. */
int s3_upload_adopt(const char *key, const char *id, struct s3_upload *ret);
int s3_upload_list(struct s3_client *c, const struct s3_upload *u, char (*etag)[S3_ETAG_SIZE],
                   struct err *e);
/* -ESTALE: the server refuses to assemble the object from its parts. -EEXIST: as s3_put(). */
int s3_upload_end(struct s3_client *c, struct s3_upload *u, unsigned parts,
                  const struct s3_put *how, char etag[S3_ETAG_SIZE], struct err *e);
void s3_upload_abort(struct s3_client *c, struct s3_upload *u);
void s3_upload_free(struct s3_upload *u);
