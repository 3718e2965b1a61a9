#include "proto/proto.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_HDR_LEN = 6 }; /* u16 tag, u32 length */

size_t proto_limit(uint16_t type)
{
    return type == PROTO_EXEC || type == PROTO_CONFIG || type == PROTO_NET_SET ||
                   type == PROTO_SECRETS || type == PROTO_LIMIT || type == PROTO_CONTAINER
               ? PROTO_MSG_MAX
               : PROTO_DATA_MAX;
}

bool proto_header_read(const void *p, struct proto_header *h)
{
    struct proto_hdr wire;
    memcpy(&wire, p, sizeof(wire));
    *h = (struct proto_header){.len = le32toh(wire.len), .type = le16toh(wire.type)};
    return h->len <= proto_limit(h->type);
}

void proto_header_write(void *p, uint16_t type, size_t len)
{
    assert(len <= proto_limit(type));
    struct proto_hdr wire = {.len = htole32((uint32_t)len), .type = htole16(type)};
    memcpy(p, &wire, sizeof(wire));
}

int proto_peek(const struct buf *in, struct proto_frame *f)
{
    struct proto_header h;
    if (buf_len(in) < PROTO_HDR_LEN)
        return 0;
    if (!proto_header_read(buf_head(in), &h))
        return -EPROTO;
    if (buf_len(in) - PROTO_HDR_LEN < h.len)
        return 0;
    *f = (struct proto_frame){.type = h.type, .data = buf_head(in) + PROTO_HDR_LEN, .len = h.len};
    return 1;
}

void proto_consume(struct buf *in, const struct proto_frame *f)
{
    buf_consume(in, PROTO_HDR_LEN + f->len);
}

int proto_put(struct buf *out, uint16_t type, const void *p, size_t n)
{
    if (n > proto_limit(type))
        return -EMSGSIZE;
    uint8_t *to = buf_reserve(out, PROTO_HDR_LEN + n);
    if (!to)
        return -ENOSPC;
    proto_header_write(to, type, n);
    if (n)
        memcpy(to + PROTO_HDR_LEN, p, n);
    buf_commit(out, PROTO_HDR_LEN + n);
    return 0;
}

void proto_begin(struct proto_writer *w, struct buf *out, uint16_t type)
{
    *w = (struct proto_writer){.out = out, .start = buf_len(out), .type = type};
    w->err = proto_put(out, type, NULL, 0);
}

static void put_field_header(struct proto_writer *w, uint16_t tag, size_t n)
{
    uint8_t *to = w->err ? NULL : buf_reserve(w->out, FIELD_HDR_LEN + n);
    if (!to) {
        w->err = w->err ? w->err : -ENOSPC;
        return;
    }
    uint16_t t = htole16(tag);
    uint32_t l = htole32((uint32_t)n);
    memcpy(to, &t, sizeof(t));
    memcpy(to + sizeof(t), &l, sizeof(l));
    buf_commit(w->out, FIELD_HDR_LEN);
}

void proto_bytes(struct proto_writer *w, uint16_t tag, const void *p, size_t n)
{
    if (n > PROTO_MSG_MAX)
        w->err = -EMSGSIZE;
    put_field_header(w, tag, n);
    if (!w->err)
        w->err = buf_append(w->out, p, n);
}

void proto_str(struct proto_writer *w, uint16_t tag, const char *s)
{
    proto_bytes(w, tag, s, strlen(s));
}

void proto_u32(struct proto_writer *w, uint16_t tag, uint32_t v)
{
    v = htole32(v);
    proto_bytes(w, tag, &v, sizeof(v));
}

void proto_u64(struct proto_writer *w, uint16_t tag, uint64_t v)
{
    v = htole64(v);
    proto_bytes(w, tag, &v, sizeof(v));
}

size_t proto_nest(struct proto_writer *w, uint16_t tag)
{
    put_field_header(w, tag, 0);
    return buf_len(w->out);
}

void proto_nest_end(struct proto_writer *w, size_t mark)
{
    if (w->err)
        return;
    uint32_t l = htole32((uint32_t)(buf_len(w->out) - mark));
    memcpy(buf_head(w->out) + mark - sizeof(l), &l, sizeof(l));
}

int proto_end(struct proto_writer *w)
{
    size_t len = buf_len(w->out) - w->start;
    if (!w->err) {
        if (len - PROTO_HDR_LEN <= proto_limit(w->type)) {
            proto_header_write(buf_head(w->out) + w->start, w->type, len - PROTO_HDR_LEN);
            return 0;
        }
        w->err = -EMSGSIZE;
    }
    w->out->tail -= len; /* no partial frame is left behind */
    return w->err;
}

void proto_reader_init(struct proto_reader *r, const void *p, size_t n)
{
    r->p = p;
    r->end = r->p + n;
}

int proto_next(struct proto_reader *r, struct proto_field *f)
{
    size_t left = (size_t)(r->end - r->p);
    if (left == 0)
        return 0;
    if (left < FIELD_HDR_LEN)
        return -EPROTO;
    uint16_t tag;
    uint32_t len;
    memcpy(&tag, r->p, sizeof(tag));
    memcpy(&len, r->p + sizeof(tag), sizeof(len));
    f->tag = le16toh(tag);
    f->len = le32toh(len);
    f->data = r->p + FIELD_HDR_LEN;
    if (f->len > left - FIELD_HDR_LEN)
        return -EPROTO;
    r->p = f->data + f->len;
    return 1;
}

bool proto_get_u32(const struct proto_field *f, uint32_t *v)
{
    if (f->len != sizeof(*v))
        return false;
    memcpy(v, f->data, sizeof(*v));
    *v = le32toh(*v);
    return true;
}

bool proto_get_u64(const struct proto_field *f, uint64_t *v)
{
    if (f->len != sizeof(*v))
        return false;
    memcpy(v, f->data, sizeof(*v));
    *v = le64toh(*v);
    return true;
}

char *proto_get_str(const struct proto_field *f)
{
    if (f->len && memchr(f->data, 0, f->len))
        return NULL;
    char *s = malloc(f->len + 1);
    if (!s)
        return NULL;
    if (f->len)
        memcpy(s, f->data, f->len);
    s[f->len] = '\0';
    return s;
}

bool proto_find(const struct proto_frame *frame, uint16_t tag, struct proto_field *f)
{
    struct proto_reader r;
    proto_reader_init(&r, frame->data, frame->len);
    while (proto_next(&r, f) == 1)
        if (f->tag == tag)
            return true;
    return false;
}

uint64_t proto_find_num(const struct proto_frame *frame, uint16_t tag, uint64_t otherwise)
{
    struct proto_field f;
    uint32_t v32;
    uint64_t v64;
    if (!proto_find(frame, tag, &f))
        return otherwise;
    if (proto_get_u32(&f, &v32))
        return v32;
    return proto_get_u64(&f, &v64) ? v64 : otherwise;
}

void proto_find_text(const struct proto_frame *frame, uint16_t tag, char *to, size_t size)
{
    struct proto_field f;
    size_t n = 0;
    if (proto_find(frame, tag, &f))
        for (; n < f.len && n + 1 < size; n++)
            to[n] = f.data[n] < 0x20 || f.data[n] == 0x7f ? '?' : (char)f.data[n];
    to[n] = '\0';
}

int proto_put_fail(struct buf *out, enum proto_fail kind, int code, const char *text)
{
    struct proto_writer w;
    proto_begin(&w, out, PROTO_FAIL);
    proto_u32(&w, F_KIND, kind);
    if (code)
        proto_u32(&w, F_ERRNO, (uint32_t)code);
    proto_str(&w, F_TEXT, text);
    return proto_end(&w);
}

int proto_put_hello(struct buf *out)
{
    struct proto_writer w;
    proto_begin(&w, out, PROTO_HELLO);
    proto_u32(&w, F_VERSION, PROTO_VERSION_MAJOR << 16 | PROTO_VERSION_MINOR);
    return proto_end(&w);
}

bool proto_is_hello(const struct proto_frame *f)
{
    return f->type == PROTO_HELLO && proto_find_num(f, F_VERSION, 0) >> 16 == PROTO_VERSION_MAJOR;
}
