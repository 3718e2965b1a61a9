#include "monitor/command_note.h"

#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <string.h>

enum { SIGNAL_BASE = 128 };

void command_take_words(struct background_command *c, const struct proto_frame *f)
{
    struct proto_reader r;
    struct proto_field field;
    proto_reader_init(&r, f->data, f->len);
    while (proto_next(&r, &field) == 1)
        if (field.tag == F_ARG)
            background_add_word(c->text, (const char *)field.data, field.len);
}

/* The payload of an EXIT: a claim by the guest. */
static void take_exit(struct background_command *c, const uint8_t *p, size_t n)
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

/* Takes bytes of a header from *p. 1: it is complete; 0: more are needed; -EPROTO: it is
 * invalid. */
static int take_header(struct scanner *s, const uint8_t **p, const uint8_t *end)
{
    size_t k = MIN((size_t)(end - *p), PROTO_HDR_LEN - s->have);
    memcpy(s->raw + s->have, *p, k);
    s->have += (unsigned)k;
    *p += k;
    if (s->have < PROTO_HDR_LEN)
        return 0;
    if (!proto_header_read(s->raw, &s->hdr))
        return -EPROTO;
    s->left = s->hdr.len;
    return 1;
}

static void on_header(struct command_note *c, uint16_t type)
{
    if (type == PROTO_STARTED && c->command.started_ns == 0)
        c->command.started_ns = realtime_ns();
    if (!c->exited && (type == PROTO_EXIT || type == PROTO_FAIL)) {
        c->exited = true;
        if (c->log)
            exec_log_flush(c->log); /* the output is in the log before the exit is seen */
    }
}

/* Handles n bytes of the current frame. */
static void on_payload(struct command_note *c, const uint8_t *p, size_t n)
{
    const struct scanner *s = &c->scan;
    bool out = s->hdr.type == PROTO_STDOUT, err = s->hdr.type == PROTO_STDERR;
    if (out || err) {
        if (c->log)
            exec_log_write(c->log, out ? c->stdout_as : LOG_STDERR, c->command.id, p, n);
        c->wrote += n;
    } else if (s->hdr.type == PROTO_EXIT && s->hdr.len <= COMMAND_EXIT_MAX) {
        memcpy(c->exit + (s->hdr.len - s->left), p, n);
        if (n == s->left)
            take_exit(&c->command, c->exit, s->hdr.len);
    }
}

bool command_is_over(const struct command_note *c)
{
    return c->scan.have == 0 && c->wrote > c->most;
}

ssize_t command_scan(struct command_note *c, const uint8_t *start, size_t n)
{
    struct scanner *s = &c->scan;
    const uint8_t *p = start, *end = start + n;
    while (p < end && !command_is_over(c)) {
        if (s->have < PROTO_HDR_LEN) {
            int r = take_header(s, &p, end);
            if (r <= 0)
                return r < 0 ? r : (ssize_t)n;
            on_header(c, s->hdr.type);
        }
        size_t k = MIN((size_t)(end - p), s->left);
        on_payload(c, p, k);
        p += k;
        s->left -= (uint32_t)k;
        if (s->left == 0)
            s->have = 0;
    }
    return p - start;
}
