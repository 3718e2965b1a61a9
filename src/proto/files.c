#include "proto/files.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

bool file_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= PROTO_NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

enum field_kind { TEXT, U32, U64 };

/* How a field is stored in one of the two structs, which both begin with `has`. */
struct field_spec {
    uint16_t tag;
    uint16_t has; /* enum file_has; 0: not recorded */
    uint16_t at;  /* offset in the struct */
    uint16_t max; /* of a TEXT */
    enum field_kind kind;
};

static bool get_text(const struct proto_field *x, char *to, size_t max)
{
    if (x->len > max || (x->len && memchr(x->data, 0, x->len)))
        return false;
    if (x->len)
        memcpy(to, x->data, x->len);
    to[x->len] = '\0';
    return true;
}

static bool get_value(void *to, const struct field_spec *s, const struct proto_field *x)
{
    void *at = (char *)to + s->at;
    switch (s->kind) {
    case TEXT:
        return get_text(x, at, s->max);
    case U32:
        return proto_get_u32(x, at);
    default:
        return proto_get_u64(x, at);
    }
}

/* Unknown fields are of a later minor version, and ignored. */
static int get_fields(void *to, const struct field_spec *spec, size_t n,
                      const struct proto_frame *f)
{
    uint32_t *has = to;
    struct proto_reader r;
    struct proto_field x;
    int got;
    proto_reader_init(&r, f->data, f->len);
    while ((got = proto_next(&r, &x)) == 1)
        for (size_t i = 0; i < n; i++)
            if (spec[i].tag == x.tag) {
                *has |= spec[i].has;
                if (!get_value(to, &spec[i], &x))
                    return -EPROTO;
                break;
            }
    return got;
}

static void put_fields(struct proto_writer *w, const void *from, uint32_t has,
                       const struct field_spec *spec, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const void *at = (const char *)from + spec[i].at;
        if (!(has & spec[i].has))
            continue;
        if (spec[i].kind == TEXT)
            proto_str(w, spec[i].tag, at);
        else if (spec[i].kind == U32)
            proto_u32(w, spec[i].tag, *(const uint32_t *)at);
        else
            proto_u64(w, spec[i].tag, *(const uint64_t *)at);
    }
}

#define FIELD(type, tag, member, kind)                                \
    {                                                                 \
        F_FILE_##tag, FILE_HAS_##tag, offsetof(type, member), 0, kind \
    }
#define TEXT_FIELD(type, tag, member, max)                              \
    {                                                                   \
        F_FILE_##tag, FILE_HAS_##tag, offsetof(type, member), max, TEXT \
    }

/* --- attributes --- */

_Static_assert(offsetof(struct file_attr, has) == 0, "see struct field_spec");

static const struct field_spec attr_fields[] = {
    TEXT_FIELD(struct file_attr, NAME, name, PROTO_NAME_MAX),
    FIELD(struct file_attr, MODE, mode, U32),
    FIELD(struct file_attr, SIZE, size, U64),
    FIELD(struct file_attr, MTIME, mtime_ns, U64),
    FIELD(struct file_attr, UID, uid, U32),
    FIELD(struct file_attr, GID, gid, U32),
    TEXT_FIELD(struct file_attr, TARGET, target, PROTO_PATH_MAX),
    TEXT_FIELD(struct file_attr, HARD, target, PROTO_PATH_MAX),
    TEXT_FIELD(struct file_attr, PATH, path, PROTO_PATH_MAX),
};

/* The struct is not cleared as a whole: most of it is text that is not used. */
int file_attr_parse(struct file_attr *a, const struct proto_frame *f)
{
    a->has = a->mode = a->uid = a->gid = 0;
    a->size = 0;
    a->mtime_ns = 0;
    a->name[0] = a->target[0] = a->path[0] = '\0';
    int r = get_fields(a, attr_fields, ARRAY_LEN(attr_fields), f);
    if (r < 0 || a->size > INT64_MAX || (a->has & FILE_HAS_NAME && !file_name_ok(a->name)) ||
        (a->has & (FILE_HAS_TARGET | FILE_HAS_HARD) && !*a->target))
        return -EPROTO;
    return 0;
}

void file_attr_put(struct proto_writer *w, const struct file_attr *a)
{
    put_fields(w, a, a->has, attr_fields, ARRAY_LEN(attr_fields));
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
        a->mtime_ns = 0; /* outside the years 1677 to 2262, which nanoseconds can express */
}

struct timespec file_timespec(int64_t ns)
{
    int64_t sec = ns / 1000000000, rest = ns % 1000000000;
    if (rest < 0) {
        sec--;
        rest += 1000000000;
    }
    return (struct timespec){.tv_sec = sec, .tv_nsec = (long)rest};
}

/* --- requests --- */

_Static_assert(offsetof(struct file_req, has) == 0, "see struct field_spec");

static const struct field_spec req_fields[] = {
    {F_FILE_OP, 0, offsetof(struct file_req, op), 0, U32},
    {F_FILE_FLAGS, 0, offsetof(struct file_req, flags), 0, U32},
    TEXT_FIELD(struct file_req, PATH, path, PROTO_PATH_MAX),
    TEXT_FIELD(struct file_req, TO, to, PROTO_PATH_MAX),
    FIELD(struct file_req, MODE, mode, U32),
    FIELD(struct file_req, UID, uid, U32),
    FIELD(struct file_req, GID, gid, U32),
    FIELD(struct file_req, SIZE, size, U64),
    FIELD(struct file_req, OFFSET, offset, U64),
    FIELD(struct file_req, LENGTH, length, U64),
    FIELD(struct file_req, LIMIT, limit, U64),
    FIELD(struct file_req, MTIME, mtime_ns, U64),
    FIELD(struct file_req, ATIME, atime_ns, U64),
};

int file_req_parse(struct file_req *q, const struct proto_frame *f)
{
    memset(q, 0, offsetof(struct file_req, path));
    q->path[0] = q->to[0] = '\0';
    int r = get_fields(q, req_fields, ARRAY_LEN(req_fields), f);
    return r < 0 || q->offset > INT64_MAX || q->size > INT64_MAX ? -EPROTO : 0;
}

int file_req_put(struct buf *out, const struct file_req *q)
{
    struct proto_writer w;
    proto_begin(&w, out, PROTO_FILE_OP);
    proto_u32(&w, F_FILE_OP, q->op);
    if (q->flags)
        proto_u32(&w, F_FILE_FLAGS, q->flags);
    put_fields(&w, q, q->has | FILE_HAS_PATH, req_fields, ARRAY_LEN(req_fields));
    return proto_end(&w);
}
