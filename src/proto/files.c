#include "proto/files.h"

#include <errno.h>
#include <string.h>
#include <time.h>

bool file_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= PROTO_NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static int get_text(const struct proto_field *x, char *to, size_t max)
{
    if (x->len > max || (x->len && memchr(x->data, 0, x->len)))
        return -EPROTO;
    if (x->len)
        memcpy(to, x->data, x->len);
    to[x->len] = '\0';
    return 0;
}

static int get_num(const struct proto_field *x, uint32_t *to)
{
    return proto_get_u32(x, to) ? 0 : -EPROTO;
}

static int get_num64(const struct proto_field *x, uint64_t *to)
{
    return proto_get_u64(x, to) ? 0 : -EPROTO;
}

static int get_time(const struct proto_field *x, int64_t *to)
{
    uint64_t v = 0;
    if (!proto_get_u64(x, &v))
        return -EPROTO;
    *to = (int64_t)v;
    return 0;
}

static int attr_field(struct file_attr *a, const struct proto_field *x)
{
    switch (x->tag) {
    case F_FILE_NAME:
        a->has |= FILE_HAS_NAME;
        return get_text(x, a->name, PROTO_NAME_MAX) < 0 || !file_name_ok(a->name) ? -EPROTO : 0;
    case F_FILE_MODE:
        a->has |= FILE_HAS_MODE;
        return get_num(x, &a->mode);
    case F_FILE_UID:
        a->has |= FILE_HAS_UID;
        return get_num(x, &a->uid);
    case F_FILE_GID:
        a->has |= FILE_HAS_GID;
        return get_num(x, &a->gid);
    case F_FILE_SIZE:
        a->has |= FILE_HAS_SIZE;
        return get_num64(x, &a->size) < 0 || a->size > INT64_MAX ? -EPROTO : 0;
    case F_FILE_MTIME:
        a->has |= FILE_HAS_MTIME;
        return get_time(x, &a->mtime_ns);
    case F_FILE_TARGET:
        a->has |= FILE_HAS_TARGET;
        return get_text(x, a->target, PROTO_PATH_MAX) < 0 || !*a->target ? -EPROTO : 0;
    case F_FILE_HARD:
        a->has |= FILE_HAS_HARD;
        return get_text(x, a->target, PROTO_PATH_MAX) < 0 || !*a->target ? -EPROTO : 0;
    case F_FILE_PATH:
        a->has |= FILE_HAS_PATH;
        return get_text(x, a->path, PROTO_PATH_MAX);
    default:
        return 0;
    }
}

/* Not the whole struct is cleared: most of it is text that is not used. */
int file_attr_parse(struct file_attr *a, const struct proto_frame *f)
{
    struct proto_reader r;
    struct proto_field x;
    int got, err = 0;
    a->has = a->mode = a->uid = a->gid = 0;
    a->size = 0;
    a->mtime_ns = 0;
    a->name[0] = a->target[0] = a->path[0] = '\0';
    proto_reader_init(&r, f->data, f->len);
    while (!err && (got = proto_next(&r, &x)) != 0)
        err = got < 0 ? got : attr_field(a, &x);
    return err;
}

void file_attr_put(struct proto_writer *w, const struct file_attr *a)
{
    if (a->has & FILE_HAS_NAME)
        proto_str(w, F_FILE_NAME, a->name);
    if (a->has & FILE_HAS_MODE)
        proto_u32(w, F_FILE_MODE, a->mode);
    if (a->has & FILE_HAS_SIZE)
        proto_u64(w, F_FILE_SIZE, a->size);
    if (a->has & FILE_HAS_MTIME)
        proto_u64(w, F_FILE_MTIME, (uint64_t)a->mtime_ns);
    if (a->has & FILE_HAS_UID)
        proto_u32(w, F_FILE_UID, a->uid);
    if (a->has & FILE_HAS_GID)
        proto_u32(w, F_FILE_GID, a->gid);
    if (a->has & FILE_HAS_TARGET)
        proto_str(w, F_FILE_TARGET, a->target);
    if (a->has & FILE_HAS_HARD)
        proto_str(w, F_FILE_HARD, a->target);
    if (a->has & FILE_HAS_PATH)
        proto_str(w, F_FILE_PATH, a->path);
}

void file_attr_of(struct file_attr *a, const struct stat *st)
{
    a->has = FILE_HAS_MODE | FILE_HAS_SIZE | FILE_HAS_MTIME | FILE_HAS_UID | FILE_HAS_GID;
    a->mode = st->st_mode;
    a->size = st->st_size > 0 ? (uint64_t)st->st_size : 0;
    a->uid = st->st_uid;
    a->gid = st->st_gid;
    if (__builtin_mul_overflow((int64_t)st->st_mtim.tv_sec, 1000000000, &a->mtime_ns) ||
        __builtin_add_overflow(a->mtime_ns, st->st_mtim.tv_nsec, &a->mtime_ns))
        a->mtime_ns = 0; /* out of what nanoseconds can say: the years 1677 to 2262 */
}

static int req_number(struct file_req *q, const struct proto_field *x)
{
    switch (x->tag) {
    case F_FILE_OP:
        return get_num(x, &q->op);
    case F_FILE_FLAGS:
        return get_num(x, &q->flags);
    case F_FILE_MODE:
        q->has |= FILE_HAS_MODE;
        return get_num(x, &q->mode);
    case F_FILE_UID:
        q->has |= FILE_HAS_UID;
        return get_num(x, &q->uid);
    case F_FILE_GID:
        q->has |= FILE_HAS_GID;
        return get_num(x, &q->gid);
    case F_FILE_SIZE:
        q->has |= FILE_HAS_SIZE;
        return get_num64(x, &q->size);
    case F_FILE_OFFSET:
        q->has |= FILE_HAS_OFFSET;
        return get_num64(x, &q->offset);
    case F_FILE_LENGTH:
        q->has |= FILE_HAS_LENGTH;
        return get_num64(x, &q->length);
    case F_FILE_LIMIT:
        q->has |= FILE_HAS_LIMIT;
        return get_num64(x, &q->limit);
    case F_FILE_MTIME:
        q->has |= FILE_HAS_MTIME;
        return get_time(x, &q->mtime_ns);
    case F_FILE_ATIME:
        q->has |= FILE_HAS_ATIME;
        return get_time(x, &q->atime_ns);
    default:
        return 0;
    }
}

static int req_field(struct file_req *q, const struct proto_field *x)
{
    if (x->tag == F_FILE_PATH) {
        q->has |= FILE_HAS_PATH;
        return get_text(x, q->path, PROTO_PATH_MAX);
    }
    if (x->tag == F_FILE_TO) {
        q->has |= FILE_HAS_TO;
        return get_text(x, q->to, PROTO_PATH_MAX);
    }
    return req_number(q, x);
}

int file_req_parse(struct file_req *q, const struct proto_frame *f)
{
    struct proto_reader r;
    struct proto_field x;
    int got, err = 0;
    memset(q, 0, __builtin_offsetof(struct file_req, path));
    q->path[0] = q->to[0] = '\0';
    proto_reader_init(&r, f->data, f->len);
    while (!err && (got = proto_next(&r, &x)) != 0)
        err = got < 0 ? got : req_field(q, &x);
    if (!err && (q->offset > INT64_MAX || q->size > INT64_MAX))
        err = -EPROTO;
    return err;
}

int file_req_put(struct buf *out, const struct file_req *q)
{
    struct proto_writer w;
    proto_begin(&w, out, PROTO_FILE_OP);
    proto_u32(&w, F_FILE_OP, q->op);
    if (q->flags)
        proto_u32(&w, F_FILE_FLAGS, q->flags);
    proto_str(&w, F_FILE_PATH, q->path);
    if (q->has & FILE_HAS_TO)
        proto_str(&w, F_FILE_TO, q->to);
    if (q->has & FILE_HAS_MODE)
        proto_u32(&w, F_FILE_MODE, q->mode);
    if (q->has & FILE_HAS_UID)
        proto_u32(&w, F_FILE_UID, q->uid);
    if (q->has & FILE_HAS_GID)
        proto_u32(&w, F_FILE_GID, q->gid);
    if (q->has & FILE_HAS_SIZE)
        proto_u64(&w, F_FILE_SIZE, q->size);
    if (q->has & FILE_HAS_OFFSET)
        proto_u64(&w, F_FILE_OFFSET, q->offset);
    if (q->has & FILE_HAS_LENGTH)
        proto_u64(&w, F_FILE_LENGTH, q->length);
    if (q->has & FILE_HAS_LIMIT)
        proto_u64(&w, F_FILE_LIMIT, q->limit);
    if (q->has & FILE_HAS_MTIME)
        proto_u64(&w, F_FILE_MTIME, (uint64_t)q->mtime_ns);
    if (q->has & FILE_HAS_ATIME)
        proto_u64(&w, F_FILE_ATIME, (uint64_t)q->atime_ns);
    return proto_end(&w);
}
