/* UTF-8: every character there is, and what only looks like one. */
#include "unit.h"
#include "util/cleanup.h"
#include "util/utf8.h"

#include <stdbool.h>
#include <string.h>

static size_t encode(uint32_t cp, uint8_t *to)
{
    if (cp < 0x80) {
        to[0] = (uint8_t)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6)
        to[i] = (uint8_t)(0x80 | (cp & 0x3f));
    to[0] = (uint8_t)((0xf00 >> n) | cp);
    return n;
}

static void test_every_character(void **state)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        uint8_t text[4];
        uint32_t got = 0;
        size_t n = encode(cp, text);
        bool surrogate = cp >= 0xd800 && cp <= 0xdfff;
        assert_int_equal(utf8_char(text, n, &got), surrogate ? -1 : (int)n);
        if (surrogate)
            continue;
        assert_int_equal(got, cp);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_char(text, cut, &got), 0);
            assert_int_equal(utf8_unfinished(text, cut), cut);
        }
        assert_int_equal(utf8_unfinished(text, n), 0);
    }
}

static void test_impostors(void **state)
{
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3x",
                                      "\xe2\x82x",
                                      "\xf0\x9d\x84x"};
    uint32_t cp;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(utf8_char((const uint8_t *)bad[i], strlen(bad[i]), &cp), -1);
    assert_int_equal(utf8_unfinished((const uint8_t *)"a\x80\x80\x80\x80", 5), 0);
    assert_int_equal(utf8_unfinished((const uint8_t *)"\xc0", 1), 0);
    assert_int_equal(utf8_unfinished((const uint8_t *)"", 0), 0);
}

static void test_defuse(void **state)
{
    char text[] = "caf\xc3\xa9 \x1b[2J\x7f\r\n\xc2\x9b"
                  "1\xe2\x80\xae\xff \xe2\x82";
    utf8_defuse(text);
    assert_string_equal(text, "caf\xc3\xa9 ?[2J????1?? ??");
    char lines[] = "a\tb\r\n\xc2\x85\xe2\x81\xa6\v\n";
    utf8_defuse_lines(lines);
    assert_string_equal(lines, "a\tb?\n???\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_impostors),
        cmocka_unit_test(test_defuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
