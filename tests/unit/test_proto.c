/* The protocol's frames and fields: round trips, limits, and what malformed bytes do. */
#include "proto/proto.h"
#include "unit.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

static void test_frame_round_trip(void **state)
{
    struct buf b = {.limit = 1024};
    struct proto_frame f;
    struct proto_header h;
    assert_int_equal(proto_put(&b, PROTO_STDOUT, "hello", 5), 0);
    assert_memory_equal(buf_head(&b), "\5\0\0\0\25\0\0\0hello", 13);
    assert_true(proto_header_read(buf_head(&b), &h));
    assert_int_equal(h.type, PROTO_STDOUT);
    assert_int_equal(h.len, 5);
    assert_int_equal(proto_put(&b, PROTO_READY, NULL, 0), 0);
    assert_int_equal(proto_peek(&b, &f), 1);
    assert_int_equal(f.type, PROTO_STDOUT);
    assert_int_equal(f.len, 5);
    assert_memory_equal(f.data, "hello", 5);
    proto_consume(&b, &f);
    assert_int_equal(proto_peek(&b, &f), 1);
    assert_int_equal(f.type, PROTO_READY);
    assert_int_equal(f.len, 0);
    proto_consume(&b, &f);
    assert_int_equal(proto_peek(&b, &f), 0);
    buf_free(&b);
}

static void test_frame_in_pieces(void **state)
{
    struct buf whole, part;
    struct proto_frame f;
    buf_init(&whole, 1024);
    buf_init(&part, 1024);
    assert_int_equal(proto_put(&whole, PROTO_STDERR, "abc", 3), 0);
    size_t n = buf_len(&whole);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(proto_peek(&part, &f), 0);
        assert_int_equal(buf_append(&part, buf_head(&whole) + i, 1), 0);
    }
    assert_int_equal(proto_peek(&part, &f), 1);
    assert_int_equal(f.len, 3);
    buf_free(&whole);
    buf_free(&part);
}

static void put_header(struct buf *b, uint32_t len, uint16_t type)
{
    struct proto_hdr h = {.len = len, .type = type};
    assert_int_equal(buf_append(b, &h, sizeof(h)), 0);
}

static void test_length_limits(void **state)
{
    struct {
        uint16_t type;
        uint32_t len;
        int want;
    } t[] = {
        {PROTO_STDIN, PROTO_DATA_MAX, 0},  {PROTO_STDIN, PROTO_DATA_MAX + 1, -EPROTO},
        {PROTO_EXEC, PROTO_MSG_MAX, 0},    {PROTO_EXEC, PROTO_MSG_MAX + 1, -EPROTO},
        {PROTO_CONFIG, PROTO_MSG_MAX, 0},  {PROTO_HELLO, PROTO_MSG_MAX, -EPROTO},
        {PROTO_EXIT, UINT32_MAX, -EPROTO}, {0, PROTO_DATA_MAX + 1, -EPROTO},
        {UINT16_MAX, UINT32_MAX, -EPROTO},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct buf b = {.limit = 64};
        struct proto_frame f;
        struct proto_header h;
        put_header(&b, t[i].len, t[i].type);
        assert_int_equal(proto_header_read(buf_head(&b), &h), t[i].want == 0);
        assert_int_equal(h.len, t[i].len);
        assert_int_equal(proto_peek(&b, &f), t[i].want);
        buf_free(&b);
    }
}

static void test_put_refuses_what_peek_would(void **state)
{
    static uint8_t big[PROTO_DATA_MAX + 1];
    struct buf b;
    buf_init(&b, 2 * sizeof(big));
    assert_int_equal(proto_put(&b, PROTO_STDOUT, big, sizeof(big)), -EMSGSIZE);
    assert_int_equal(buf_len(&b), 0);
    assert_int_equal(proto_put(&b, PROTO_STDOUT, big, sizeof(big) - 1), 0);
    buf_free(&b);
}

static void test_fields_round_trip(void **state)
{
    struct buf b = {.limit = 4096};
    struct proto_writer w;
    struct proto_frame f;
    struct proto_reader r, nested;
    struct proto_field x;
    uint32_t v32;
    uint64_t v64;
    proto_begin(&w, &b, PROTO_EXEC);
    proto_str(&w, F_ARG, "ls");
    proto_str(&w, F_ARG, "");
    proto_u32(&w, F_TTY, 1);
    proto_u64(&w, F_TIMEOUT_MS, UINT64_MAX);
    size_t mark = proto_nest(&w, F_RLIMIT);
    proto_u32(&w, F_RESOURCE, 7);
    proto_nest_end(&w, mark);
    proto_bytes(&w, F_BODY, "a\0b", 3);
    assert_int_equal(proto_end(&w), 0);

    assert_int_equal(proto_peek(&b, &f), 1);
    proto_reader_init(&r, f.data, f.len);
    assert_int_equal(proto_next(&r, &x), 1);
    AUTO_FREE char *arg = proto_get_str(&x);
    assert_string_equal(arg, "ls");
    assert_int_equal(proto_next(&r, &x), 1);
    AUTO_FREE char *empty = proto_get_str(&x);
    assert_string_equal(empty, "");
    assert_int_equal(proto_next(&r, &x), 1);
    assert_true(proto_get_u32(&x, &v32) && v32 == 1);
    assert_false(proto_get_u64(&x, &v64));
    assert_int_equal(proto_next(&r, &x), 1);
    assert_true(proto_get_u64(&x, &v64) && v64 == UINT64_MAX);
    assert_int_equal(proto_next(&r, &x), 1);
    assert_int_equal(x.tag, F_RLIMIT);
    proto_reader_init(&nested, x.data, x.len);
    assert_int_equal(proto_next(&nested, &x), 1);
    assert_true(proto_get_u32(&x, &v32) && v32 == 7);
    assert_int_equal(proto_next(&nested, &x), 0);
    assert_int_equal(proto_next(&r, &x), 1);
    assert_int_equal(x.len, 3);
    assert_null(proto_get_str(&x)); /* a NUL inside */
    assert_int_equal(proto_next(&r, &x), 0);
    buf_free(&b);
}

/* A frame that does not fit leaves nothing behind, wherever it ran out of room. */
static void test_no_half_frames(void **state)
{
    for (size_t limit = 0; limit < 80; limit++) {
        struct buf b;
        struct proto_writer w;
        buf_init(&b, limit);
        proto_begin(&w, &b, PROTO_FAIL);
        proto_u32(&w, F_KIND, 1);
        size_t mark = proto_nest(&w, F_MOUNT);
        proto_str(&w, F_PATH, "/a/path/of/some/length");
        proto_nest_end(&w, mark);
        proto_u64(&w, F_BYTES, 2);
        int r = proto_end(&w);
        assert_int_equal(buf_len(&b), r == 0 ? 8 + 10 + 6 + 6 + 22 + 14 : 0);
        buf_free(&b);
    }
}

static void test_truncated_fields(void **state)
{
    const uint8_t bytes[] = {F_ARG, 0, 4, 0, 0, 0, 'a', 'b', 'c', 'd'};
    const uint8_t huge[] = {F_ARG, 0, 0xff, 0xff, 0xff, 0xff, 'a'};
    struct proto_reader r;
    struct proto_field x;
    for (size_t n = 1; n < sizeof(bytes); n++) {
        proto_reader_init(&r, bytes, n);
        assert_int_equal(proto_next(&r, &x), -EPROTO);
    }
    proto_reader_init(&r, huge, sizeof(huge));
    assert_int_equal(proto_next(&r, &x), -EPROTO);
    proto_reader_init(&r, bytes, sizeof(bytes));
    assert_int_equal(proto_next(&r, &x), 1);
}

static void test_finders(void **state)
{
    struct buf b = {.limit = 1024};
    struct proto_writer w;
    struct proto_frame f;
    char text[6];
    proto_begin(&w, &b, PROTO_FAIL);
    proto_u32(&w, F_KIND, 3);
    proto_u64(&w, F_COOKIE, 1ULL << 40);
    proto_str(&w, F_TEXT, "a\033[1mbcdef");
    proto_str(&w, F_ERRNO, "odd");
    assert_int_equal(proto_end(&w), 0);
    assert_int_equal(proto_peek(&b, &f), 1);
    assert_int_equal(proto_find_num(&f, F_KIND, 0), 3);
    assert_int_equal(proto_find_num(&f, F_COOKIE, 0), 1ULL << 40);
    assert_int_equal(proto_find_num(&f, F_CODE, 77), 77);
    assert_int_equal(proto_find_num(&f, F_ERRNO, 78), 78);
    proto_find_text(&f, F_TEXT, text, sizeof(text));
    assert_string_equal(text, "a?[1m");
    proto_find_text(&f, F_NAME, text, sizeof(text));
    assert_string_equal(text, "");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_round_trip),
        cmocka_unit_test(test_frame_in_pieces),
        cmocka_unit_test(test_length_limits),
        cmocka_unit_test(test_put_refuses_what_peek_would),
        cmocka_unit_test(test_fields_round_trip),
        cmocka_unit_test(test_no_half_frames),
        cmocka_unit_test(test_truncated_fields),
        cmocka_unit_test(test_finders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
