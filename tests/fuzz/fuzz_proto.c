/* Frames and fields from a hostile peer: the stream is cut into frames, every frame is read as a
 * list of fields, and as each message that has a parser of its own. */
#include "agent/env.h"
#include "agent/request.h"
#include "proto/proto.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const uint8_t *p, size_t n, int depth)
{
    struct proto_reader r;
    struct proto_field x;
    uint32_t v32;
    uint64_t v64;
    proto_reader_init(&r, p, n);
    while (proto_next(&r, &x) == 1) {
        if (x.data < p || x.len > n || x.data + x.len > p + n)
            abort();
        (void)proto_get_u32(&x, &v32);
        (void)proto_get_u64(&x, &v64);
        char *s = proto_get_str(&x);
        if (s && strlen(s) != x.len)
            abort();
        free(s);
        if (depth < 3)
            walk(x.data, x.len, depth + 1);
    }
}

static void parse(const struct proto_frame *f)
{
    struct exec_req q;
    struct config c;
    struct env e;
    char text[32];
    proto_find_text(f, F_TEXT, text, sizeof(text));
    (void)proto_find_num(f, F_COOKIE, 0);
    if (exec_req_parse(&q, f) == 0) {
        struct env_in in = {.home = "/", .scripts = true, .base = &q.c, .extra = &q.c};
        if ((q.argc == 0 && !q.port) || q.argv[q.argc] || env_build(&e, &in) < 0)
            abort();
        env_free(&e);
        exec_req_free(&q);
    }
    if (config_parse(&c, f) == 0) {
        for (size_t i = 0; i < c.nscripts; i++)
            if (strchr(c.scripts[i].name, '/'))
                abort();
        config_free(&c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf b = {.limit = PROTO_HDR_LEN + PROTO_MSG_MAX};
    struct proto_frame f;
    if (buf_append(&b, data, size) < 0)
        return 0;
    while (proto_peek(&b, &f) == 1) {
        walk(f.data, f.len, 0);
        parse(&f);
        proto_consume(&b, &f);
    }
    buf_free(&b);
    return 0;
}
