/* The console of a guest kernel: its last line, and what it says when it panics. */
#include <stdint.h>
#include <string.h>

#include "monitor/console.h"
#include "unit.h"

static void note(struct console *c, const char *text)
{
    console_note(c, text, strlen(text));
}

static void test_last_line(void **state)
{
    struct console c = {0};
    note(&c, "first\nsec");
    note(&c, "ond\r\n");
    assert_string_equal(c.line, "second"); /* until another begins */
    note(&c, "\x1b[1mthird\xff");
    assert_string_equal(c.line, "?[1mthird?");
    assert_string_equal(c.panic, "");
}

static void test_long_line(void **state)
{
    struct console c = {0};
    for (int i = 0; i < 2 * CONSOLE_LINE_MAX; i++)
        note(&c, "x");
    assert_int_equal(c.len, CONSOLE_LINE_MAX - 1);
    assert_int_equal(strlen(c.line), CONSOLE_LINE_MAX - 1);
    note(&c, "\ny");
    assert_string_equal(c.line, "y");
}

static void test_panic(void **state)
{
    struct console c = {0};
    note(&c, "[ 1.0] Kernel panic - not syncing: no init");
    assert_string_equal(c.panic, ""); /* not before its line is complete */
    note(&c, "\nKernel panic - not syncing: again\n---[ end ]---\n");
    assert_string_equal(c.panic, "the guest kernel panicked: no init");
    assert_string_equal(c.line, "---[ end ]---");
}

static void test_starved(void **state)
{
    struct console c = {0};
    note(&c, "UML ran out of memory on the host");
    note(&c, " side! This can happen");
    assert_false(c.starved);
    note(&c, "\nnext\n");
    assert_true(c.starved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_line),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_panic),
        cmocka_unit_test(test_starved),
    };
    return cmocka_run_group_tests_name("console", tests, NULL, NULL);
}
