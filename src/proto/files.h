/* Attributes and requests in messages about files. Shared by both ends, since a GET from one
 * sandbox is a PUT into another.
 *
 * Parsing checks every length and number and copies, so that nothing points into a stream's buffer
 * afterwards. A name that passes is a single path component: used with a directory's descriptor, it
 * cannot lead out of it.
 */
#pragma once

#include "proto/proto.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

enum file_has {
    FILE_HAS_NAME = 1,
    FILE_HAS_MODE = 2,
    FILE_HAS_SIZE = 4,
    FILE_HAS_MTIME = 8,
    FILE_HAS_UID = 16,
    FILE_HAS_GID = 32,
    FILE_HAS_TARGET = 64,
    FILE_HAS_PATH = 128,
    FILE_HAS_ATIME = 256,
    FILE_HAS_TO = 512,
    FILE_HAS_OFFSET = 1024,
    FILE_HAS_LENGTH = 2048,
    FILE_HAS_LIMIT = 4096,
    FILE_HAS_HARD = 8192, /* in file_attr.target */
};

struct file_attr {
    uint32_t has; /* enum file_has bits */
    uint32_t mode, uid, gid;
    uint64_t size;
    int64_t mtime_ns;
    char name[PROTO_NAME_MAX + 1];
    char target[PROTO_PATH_MAX + 1]; /* never empty if present */
    char path[PROTO_PATH_MAX + 1];
};

/* The fields of FILE_ENTRY, and of a FILE_OK with attributes. -EPROTO: a field has the wrong size,
 * contains a NUL, or is not a valid name. */
int file_attr_parse(struct file_attr *a, const struct proto_frame *f);
/* Puts the fields in a->has. */
void file_attr_put(struct proto_writer *w, const struct file_attr *a);
/* Copies mode, size, mtime, uid and gid from st. */
void file_attr_of(struct file_attr *a, const struct stat *st);

/* A time in F_FILE_MTIME or F_FILE_ATIME; before 1970 it is negative. */
struct timespec file_timespec(int64_t ns);

/* One component: not empty, no '/', not "." or "..", not too long. */
bool file_name_ok(const char *name);

struct file_req {
    uint32_t has; /* enum file_has bits */
    uint32_t op;  /* enum proto_file_op; 0 = none given */
    uint32_t flags;
    uint32_t mode, uid, gid;
    uint64_t size, offset, length, limit;
    int64_t mtime_ns, atime_ns;
    char path[PROTO_PATH_MAX + 1];
    char to[PROTO_PATH_MAX + 1];
};

int file_req_parse(struct file_req *q, const struct proto_frame *f);
/* The whole FILE_OP frame; 0, -ENOSPC. */
int file_req_put(struct buf *out, const struct file_req *q);
