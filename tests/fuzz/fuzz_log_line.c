/* Lines of a log file, and what is made of their bytes: nothing in them may crash the reader, get
 * past the defuser to a terminal, or break --json.
 *
 * The input is read as a line where it is one; the bytes of the entry, or else of the input, then
 * go through the defuser. */
#include "fuzz_require.h"
#include "logs/line.h"
#include "logs/net_record.h"
#include "logs/print.h"
#include "logs/records.h"

#include <string.h>

/* Text, newlines, tabs, and ESC only as the beginning of a color. */
static void check_safe(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        REQUIRE(p[i] >= 0x20 || p[i] == '\n' || p[i] == '\t' || p[i] == 0x1b);
        REQUIRE(p[i] != 0x7f);
        REQUIRE(!(p[i] == 0xc2 && i + 1 < n && p[i + 1] < 0xa0)); /* C1 */
        if (p[i] != 0x1b)
            continue;
        REQUIRE(i + 1 < n && p[i + 1] == '[');
        for (i += 2; i < n && p[i] != 'm'; i++)
            REQUIRE((p[i] >= '0' && p[i] <= '9') || p[i] == ';' || p[i] == ':');
        REQUIRE(i < n);
    }
}

static void check_defused(const uint8_t *p, size_t n)
{
    struct defuser whole = {0}, pieces = {0};
    struct buf a, b;
    buf_init(&a, 16 * n + 64);
    buf_init(&b, 16 * n + 64);
    REQUIRE(defuse(&whole, &a, p, n) == 0 && defuse_end(&whole, &a) == 0);
    for (size_t i = 0; i < n; i++)
        REQUIRE(defuse(&pieces, &b, p + i, 1) == 0);
    REQUIRE(defuse_end(&pieces, &b) == 0);
    REQUIRE(buf_len(&a) == buf_len(&b));
    if (buf_len(&a)) {
        REQUIRE(memcmp(buf_head(&a), buf_head(&b), buf_len(&a)) == 0);
        check_safe(buf_head(&a), buf_len(&a));
    }
    buf_free(&a);
    buf_free(&b);
}

/* What --json prints is itself a line with the same bytes. */
static void check_json(const struct log_entry *e, bool ascii)
{
    struct log_entry again;
    char *text = log_entry_json(e, ascii);
    REQUIRE(text);
    if (strlen(text) <= LOG_LINE_MAX) { /* escapes may have made it longer */
        REQUIRE(log_line_parse(text, strlen(text), &again) == 0);
        REQUIRE(again.len == e->len && memcmp(again.data, e->data, e->len) == 0);
        REQUIRE(again.t_ns == e->t_ns && again.s == e->s && again.id == e->id);
        log_entry_free(&again);
    }
    for (size_t i = 0; ascii && text[i]; i++)
        REQUIRE(text[i] >= 0x20);
    free(text);
}

/* A record of net.log: a line of text without a control character but its newline, and JSON that
 * reads back as the same record. */
static void check_record(const struct log_entry *e)
{
    struct net_record r, again;
    struct log_entry line;
    if (net_record_read(e, &r) < 0)
        return;
    struct buf out = {.limit = 1 << 16};
    REQUIRE(net_record_text(&r, &out) == 0);
    check_safe(buf_head(&out), buf_len(&out));
    REQUIRE(memchr(buf_head(&out), '\n', buf_len(&out)) == buf_head(&out) + buf_len(&out) - 1);
    REQUIRE(!memchr(buf_head(&out), 0x1b, buf_len(&out)));
    buf_reset(&out);
    REQUIRE(record_json(net_record_json(&r), true, &out) == 0);
    REQUIRE(log_record_parse((const char *)buf_head(&out), buf_len(&out) - 1, &line) == 0);
    REQUIRE(net_record_read(&line, &again) == 0);
    REQUIRE(r.kind == again.kind && r.verdict == again.verdict && r.port == again.port);
    REQUIRE(strcmp(r.name, again.name) == 0 && strcmp(r.why, again.why) == 0);
    REQUIRE(r.count == again.count && r.has_flow == again.has_flow);
    log_entry_free(&line);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct log_entry e;
    if (log_record_parse((const char *)data, size, &e) == 0) {
        check_record(&e);
        log_entry_free(&e);
    }
    if (log_line_parse((const char *)data, size, &e) == 0) {
        REQUIRE(strlen(e.t) < LOG_TIME_LEN && e.s <= LOG_SYSTEM);
        check_defused(e.data, e.len);
        check_json(&e, true);
        check_json(&e, false);
        log_entry_free(&e);
    } else {
        check_defused(data, size);
    }
    char when[64];
    size_t n = size < sizeof(when) ? size : sizeof(when) - 1;
    uint64_t ns;
    if (n)
        memcpy(when, data, n);
    when[n] = '\0';
    (void)time_parse_when(when, 1000000000000ULL, &ns);
    return 0;
}
