/* Requests to an S3 server.
 *
 * A client may be used from several threads. Each request is signed, sent, and tried again with a
 * growing, random pause when the connection breaks or the server is busy; a clock that differs from
 * the server's is corrected. What the server says is hostile: sizes, names and documents are
 * checked against limits before they are used, and its texts are made safe to display.
 *
 * Keys here are whole keys; the workspace's prefix is the caller's business.
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

/* What the headers of an object say. */
struct s3_object {
    char etag[S3_ETAG_SIZE];
    int64_t size;     /* -1: not said */
    int64_t mtime_ns; /* of our metadata; -1: none */
    int mode;         /* likewise, permissions alone; -1: none */
    bool link;        /* likewise: the content is a symbolic link's target */
    bool has_sha;     /* likewise */
    char sha[65];     /* hex */
};

/* Every object below the prefix, in no order that counts. A result other than 0 ends it. more, which
 * may be NULL, is called once the server has sent a page that is not the last one. */
typedef int (*s3_list_fn)(void *ctx, const char *key, uint64_t size, const char *etag,
                          struct err *e);
typedef void (*s3_more_fn)(void *ctx);
int s3_list(struct s3_client *c, const char *prefix, s3_list_fn fn, s3_more_fn more, void *ctx,
            struct err *e);

/* Content goes to fn as it arrives; after a break the rest is asked for. At most max bytes (EFBIG).
 * -ENOENT: there is no such object. -ESTALE: it is not the version with this etag ("" = any). */
typedef int (*s3_data_fn)(void *ctx, const void *p, size_t n, struct err *e);
int s3_get(struct s3_client *c, const char *key, const char *etag, uint64_t max, s3_data_fn fn,
           void *ctx, struct s3_object *ret, struct err *e);
/* The same for n bytes from there; etag is not "". */
int s3_get_range(struct s3_client *c, const char *key, const char *etag, uint64_t from, uint64_t n,
                 s3_data_fn fn, void *ctx, struct err *e);
/* Into a buffer, up to its limit. */
int s3_get_all(struct s3_client *c, const char *key, struct buf *b, struct s3_object *ret,
               struct err *e);
/* -ENOENT without a message. */
int s3_head(struct s3_client *c, const char *key, struct s3_object *ret, struct err *e);
/* The same for an object that was listed with this ETag. -ESTALE: it was replaced since. Some servers
 * (OpenStack Swift, for copies of what was uploaded in parts) know an object by another ETag than the one that
 * they list: ret->etag is the former, which requests have to name. */
int s3_head_listed(struct s3_client *c, const char *key, const char *listed, struct s3_object *ret,
                   struct err *e);

/* When a write is allowed. */
enum s3_when { S3_ALWAYS, S3_IF_ABSENT, S3_IF_MATCH };
struct s3_put {
    const struct strlist *meta; /* "x-amz-meta-...:value"; NULL: none */
    enum s3_when when;
    const char *match; /* the etag */
    const char *sha;   /* the content's sum, if it is known already */
};
/* -EEXIST: not allowed, somebody else has written it. *etag: of the new object. */
int s3_put(struct s3_client *c, const char *key, const void *p, size_t n, const struct s3_put *how,
           char etag[S3_ETAG_SIZE], struct err *e);
/* A copy on the server, with its metadata. */
int s3_copy(struct s3_client *c, const char *from, const char *to, char etag[S3_ETAG_SIZE],
            struct err *e);
/* Missing is success. */
int s3_delete(struct s3_client *c, const char *key, struct err *e);

/* An object in parts. Each part but the last has S3_PART bytes. After a failure: abort. Parts may be sent
 * from several threads. */
struct s3_upload {
    char *key, *id;
    char (*etag)[S3_ETAG_SIZE]; /* of each part */
};
int s3_upload_begin(struct s3_client *c, const char *key, const struct strlist *meta,
                    struct s3_upload *ret, struct err *e);
int s3_upload_part(struct s3_client *c, struct s3_upload *u, unsigned number, const void *p,
                   size_t n, const char *sha, struct err *e); /* from 1; with the sum, in hex */
/* One that was begun before; and the ETags of the parts that the server has, "" of the others. -ENOENT: it
 * knows no such upload. */
int s3_upload_adopt(const char *key, const char *id, struct s3_upload *ret);
int s3_upload_list(struct s3_client *c, const struct s3_upload *u, char (*etag)[S3_ETAG_SIZE],
                   struct err *e);
/* -ESTALE: the server will not make an object of what it has. */
int s3_upload_end(struct s3_client *c, struct s3_upload *u, unsigned parts, char etag[S3_ETAG_SIZE],
                  struct err *e);
void s3_upload_abort(struct s3_client *c, struct s3_upload *u);
void s3_upload_free(struct s3_upload *u);
