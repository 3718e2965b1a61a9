/* Sizes, durations, words, tables: what people type and read. */
#include "unit.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/text.h"
#include "util/words.h"

#include <errno.h>
#include <string.h>

static void sizes(void **state)
{
    static const struct {
        const char *text;
        int ret;
        uint64_t bytes;
    } cases[] = {
        {"512", 0, 512 * MIB},
        {"0", 0, 0},
        {"512M", 0, 512 * MIB},
        {"512m", 0, 512 * MIB},
        {"512MB", 0, 512 * MIB},
        {"512MiB", 0, 512 * MIB},
        {"100K", 0, 100 * KIB},
        {"1G", 0, GIB},
        {"1gb", 0, GIB},
        {"0.5G", 0, 512 * MIB},
        {"1.5GiB", 0, GIB + 512 * MIB},
        {"0.1K", 0, 102},
        {"2T", 0, 2 * TIB},
        {"16777215T", 0, 16777215 * TIB},
        {"16777216T", -ERANGE, 0},
        {"18446744073709551615", -ERANGE, 0},
        {"99999999999999999999999", -ERANGE, 0},
        {"", -EINVAL, 0},
        {"G", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 G", -EINVAL, 0},
        {"1.", -EINVAL, 0},
        {".5G", -EINVAL, 0},
        {"1,5G", -EINVAL, 0},
        {"1x", -EINVAL, 0},
        {"1GG", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 0;
        int r = parse_size(cases[i].text, MIB, &v);
        if (r != cases[i].ret || (r == 0 && v != cases[i].bytes))
            fail_msg("'%s': got %d and %llu", cases[i].text, r, (unsigned long long)v);
    }
}

static void durations(void **state)
{
    static const struct {
        const char *text;
        int ret;
        uint64_t ms;
    } cases[] = {
        {"30", 0, 30000},
        {"0", 0, 0},
        {"0s", 0, 0},
        {"30s", 0, 30000},
        {"500ms", 0, 500},
        {"1.5s", 0, 1500},
        {"1.5", 0, 1500},
        {"5m", 0, 300000},
        {"1h", 0, 3600000},
        {"2d", 0, 172800000},
        {"1h30m", 0, 5400000},
        {"1h30m5.25s", 0, 5405250},
        {"0.0001s", 0, 1}, /* never nothing */
        {"", -EINVAL, 0},
        {"s", -EINVAL, 0},
        {"5x", -EINVAL, 0},
        {"1h30", -EINVAL, 0}, /* 30 what? */
        {"30 s", -EINVAL, 0},
        {"-5s", -EINVAL, 0},
        {"1hm", -EINVAL, 0},
        {"5S", -EINVAL, 0},
        {"99999999999999999999s", -ERANGE, 0},
        {"9223372036854775807d", -ERANGE, 0},
        {"9223372036854775807", -ERANGE, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t v = 0;
        int r = parse_duration_ms(cases[i].text, &v);
        if (r != cases[i].ret || (r == 0 && v != cases[i].ms))
            fail_msg("'%s': got %d and %llu", cases[i].text, r, (unsigned long long)v);
    }
}

static void durations_print_as_they_parse(void **state)
{
    static const uint64_t values[] = {0,     1,     500,     1000,    1500,     30000,  61000,
                                      90000, 60000, 3600000, 5400000, 86400000, 1234567};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        char text[64];
        uint64_t back = 1;
        format_duration(values[i], text, sizeof(text));
        assert_int_equal(parse_duration_ms(text, &back), 0);
        assert_int_equal(back, values[i]);
    }
    char text[64];
    format_duration(30000, text, sizeof(text));
    assert_string_equal(text, "30s");
    format_duration(5400000, text, sizeof(text));
    assert_string_equal(text, "1h30m");
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {10 * KIB, "10 KiB"},
                 {1000 * KIB, "1.0 MiB"},
                 {1536 * KIB, "1.5 MiB"},
                 {999 * MIB, "999 MiB"},
                 {12 * GIB, "12 GiB"},
                 {UINT64_MAX, "16777216 TiB"}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        format_bytes(sizes[i].bytes, text, sizeof(text));
        assert_string_equal(text, sizes[i].text);
    }
    format_mib(512, text, sizeof(text));
    assert_string_equal(text, "512 MiB");
    format_mib(1024, text, sizeof(text));
    assert_string_equal(text, "1 GiB");
    format_mib(1536, text, sizeof(text));
    assert_string_equal(text, "1.5 GiB");
}

static void counts(void **state)
{
    uint64_t v;
    assert_int_equal(parse_u64("18446744073709551615", &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(parse_u64("18446744073709551616", &v), -ERANGE);
    assert_int_equal(parse_u64("1.0", &v), -EINVAL);
    assert_int_equal(parse_u64("", &v), -EINVAL);
    assert_int_equal(parse_milli("0.5", &v), 0);
    assert_int_equal(v, 500);
    assert_int_equal(parse_milli("255", &v), 0);
    assert_int_equal(v, 255000);
    assert_int_equal(parse_milli("0.0001", &v), -EINVAL);
    assert_int_equal(parse_milli("1,5", &v), -EINVAL);
    assert_int_equal(parse_milli("nan", &v), -EINVAL);
    assert_int_equal(parse_milli("inf", &v), -EINVAL);
}

static void distances(void **state)
{
    assert_int_equal(edit_distance("", ""), 0);
    assert_int_equal(edit_distance("abc", "abc"), 0);
    assert_int_equal(edit_distance("", "abc"), 3);
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    assert_int_equal(edit_distance("lsit", "list"), 1);
    assert_int_equal(edit_distance("quiett", "quiet"), 1);
    char long_word[200];
    memset(long_word, 'a', sizeof(long_word) - 1);
    long_word[sizeof(long_word) - 1] = '\0';
    assert_int_equal(edit_distance(long_word, "a"), TEXT_FAR);
    assert_int_equal(word_unlikeness("vol", "volume"), 1);
    assert_int_equal(word_unlikeness("volum", "volume"), 1);
    assert_int_equal(word_unlikeness("xy", "rm"), TEXT_FAR);
    assert_int_equal(word_unlikeness("frobnicate", "list"), TEXT_FAR);
}

static void utf8(void **state)
{
    assert_true(utf8_valid(""));
    assert_true(utf8_valid("grüße ✓ 𝄞"));
    assert_false(utf8_valid("\xff"));
    assert_false(utf8_valid("\xc3"));
    assert_false(utf8_valid("\xc0\x80"));
    assert_int_equal(utf8_width("grüße"), 5);
}

static void tables(void **state)
{
    static const char *const headers[] = {"NAME", "IMAGE"};
    struct table t;
    struct buf out = {.limit = 1 << 16};
    table_init(&t, 2, headers);
    t.max[1] = 8;
    table_add(&t, "grüße");
    table_add(&t, "short");
    table_add(&t, "a\x1b[31m");
    table_add(&t, "much too long");
    assert_int_equal(table_print(&t, &out, NULL), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((char *)buf_head(&out), "NAME      IMAGE\n"
                                                "grüße     short\n"
                                                "a?[31m    much ...\n");
    table_free(&t);
    buf_free(&out);
}

static void times(void **state)
{
    char text[TIME_TEXT_MAX];
    time_rfc3339(1767323045678901234ULL, text);
    assert_string_equal(text, "2026-01-02T03:04:05.678901234Z");
    time_rfc3339(0, text);
    assert_string_equal(text, "1970-01-01T00:00:00.000000000Z");
}

static void words(void **state)
{
    static const char *const list[] = {[0] = "a", [2] = "long"};
    assert_true(word_among("a|long|c", "a") && word_among("a|long|c", "long"));
    assert_true(word_among("a|long|c", "c") && word_among("one", "one"));
    assert_false(word_among("a|long|c", "a|long") || word_among("a|long|c", "lon"));
    assert_false(word_among("a|long|c", "longer") || word_among("a|long|c", "|"));
    assert_false(word_among("a|long|c", "") || word_among("a|long|c", NULL));
    assert_int_equal(WORD_FIND(list, "a"), 0);
    assert_int_equal(WORD_FIND(list, "long"), 2);
    assert_int_equal(WORD_FIND(list, "lon"), -EINVAL);
    assert_int_equal(WORD_FIND(list, NULL), -EINVAL);
}

static void arrays(void **state)
{
    int *v = NULL;
    size_t cap = 0;
    for (size_t n = 0; n < 100; n++) {
        assert_int_equal(ARRAY_GROW(v, n, cap, 3), 0);
        assert_true(cap > n);
        v[n] = (int)n;
    }
    assert_int_equal(cap, 192);
    assert_int_equal(ARRAY_RESIZE(v, 100), 0);
    assert_int_equal(v[99], 99);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),     cmocka_unit_test(arrays),
        cmocka_unit_test(sizes),     cmocka_unit_test(durations),
        cmocka_unit_test(counts),    cmocka_unit_test(durations_print_as_they_parse),
        cmocka_unit_test(distances), cmocka_unit_test(utf8),
        cmocka_unit_test(tables),    cmocka_unit_test(times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
