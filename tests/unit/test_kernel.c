/* What the version of a host's kernel tells. */
#include "unit.h"
#include "util/cleanup.h"
#include "util/kernel.h"

#include <stdio.h>
#include <sys/utsname.h>

static const struct {
    const char *release;
    bool fair;
} releases[] = {
    {"4.18.0-553.el8_10.x86_64", false},
    {"5.15.0-164-generic", false},
    {"6.6.130", false},
    {"6.12.43+deb13-amd64", false},
    {"6.12.99", false},
    {"6.17.13", false},
    {"6.18.0", false},
    {"6.18-rc1", false},
    {"6.18.3", false},
    {"6.18.21-arch1-1", false},
    {"6.18.22-arch1-1", true},
    {"6.18.44-fc", true},
    {"6.18.100", true},
    {"6.19-rc4", false},
    {"6.19.0", false},
    {"6.19.11", false},
    {"6.19.12", true},
    {"6.20.0", true},
    {"7.0.0-rc7", true},
    {"7.0", true},
    {"7.2.13", true},
    {"10.0.1", true},
    {"7", false},
    {"", false},
    {"unknown", false},
};

static void test_who_yields_fairly(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(releases); i++)
        if (release_yields_fairly(releases[i].release) != releases[i].fair)
            fail_msg("%s", releases[i].release);
}

static void test_at_least(void **state)
{
    struct utsname u;
    int major, minor;
    assert_int_equal(uname(&u), 0);
    assert_int_equal(sscanf(u.release, "%d.%d", &major, &minor), 2);
    assert_true(kernel_is_at_least(major, minor, 0));
    assert_true(kernel_is_at_least(major - 1, minor + 1, 99));
    assert_false(kernel_is_at_least(major, minor + 1, 0));
    assert_false(kernel_is_at_least(major + 1, 0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_yields_fairly),
        cmocka_unit_test(test_at_least),
    };
    return cmocka_run_group_tests_name("kernel", tests, NULL, NULL);
}
