#include "monitor/command_note.h"

#include "util/cleanup.h"
#include "util/utf8.h"

#include <stdio.h>

enum { SIGNAL_BASE = 128 };

void command_take_words(struct background_command *c, const struct proto_frame *f)
{
    struct proto_reader r;
    struct proto_field field;
    size_t n = 0;
    proto_reader_init(&r, f->data, f->len);
    while (proto_next(&r, &field) == 1 && n < BACKGROUND_TEXT_MAX)
        if (field.tag == F_ARG)
            n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, "%s%.*s", n ? " " : "",
                                  (int)MIN(field.len, (size_t)BACKGROUND_TEXT_MAX),
                                  (const char *)field.data);
    utf8_defuse(c->text);
}

void command_take_exit(struct background_command *c, const uint8_t *p, size_t n)
{
    struct proto_frame f = {.type = PROTO_EXIT, .data = p, .len = n};
    uint64_t code = proto_find_num(&f, F_CODE, UINT64_MAX);
    uint64_t sig = proto_find_num(&f, F_SIGNAL, UINT64_MAX);
    if (code <= 255)
        c->exit_code = (int)code;
    else if (sig < SIGNAL_BASE)
        c->exit_code = SIGNAL_BASE + (int)sig;
}

int scanner_begin_again(const struct scanner *s, struct buf *out)
{
    uint8_t hdr[PROTO_HDR_LEN];
    if (s->have < PROTO_HDR_LEN)
        return buf_append(out, s->raw, s->have);
    bool output = s->hdr.type == PROTO_STDOUT || s->hdr.type == PROTO_STDERR;
    proto_header_write(hdr, output ? s->hdr.type : UINT16_MAX, s->left);
    return buf_append(out, hdr, sizeof(hdr));
}
