/* Where groups are, by linux.cgroupsPath. */
#include "oci/group.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The path in each hierarchy, "" for an error. */
static void expect(const char *path, bool systemd, const char *want)
{
    const struct group_wish w = {.path = path, .systemd = systemd, .id = "id"};
    AUTO_JSON json_t *list = NULL;
    const json_t *dir;
    struct err e = {0};
    size_t i;
    int r = group_plan(&w, &list, &e);
    if (!*want) {
        assert_int_equal(r, -EINVAL);
        assert_non_null(strstr(e.msg, path));
        return;
    }
    if (r < 0)
        fail_msg("%s: %s", path, e.msg);
    json_array_foreach(list, i, dir)
    {
        const char *text = json_string_value(dir);
        size_t n = strlen(text), k = strlen(want);
        if (n < k || strcmp(text + n - k, want) != 0)
            fail_msg("%s is %s", path, text);
        assert_null(memmem(text, n - k, ".slice", 6));
    }
}

static void test_scopes(void **state)
{
    static const struct {
        const char *path, *want;
    } t[] = {
        {"system.slice:cri-containerd:abc", "/system.slice/cri-containerd-abc.scope"},
        {"machine.slice:libpod:abc", "/machine.slice/libpod-abc.scope"},
        {":libpod:abc", "/system.slice/libpod-abc.scope"},
        {"-.slice:p:abc", "/p-abc.scope"},
        {"kubepods-burstable-pod1_2.slice:crio:abc",
         "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/crio-abc.scope"},
        {"a-b.slice:p:a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"},
        {"a.slice::abc", "/a.slice/-abc.scope"},
        {"a.slice:p:b:c", "/a.slice/p-b:c.scope"},
        {"a:p:abc", ""},
        {".slice:p:abc", ""},
        {"a--b.slice:p:abc", ""},
        {"-a.slice:p:abc", ""},
        {"a-.slice:p:abc", ""},
        {"../a.slice:p:abc", ""},
        {"a/b.slice:p:abc", ""},
        {"a.slice:p:/../../abc", ""},
    };
    if (access("/sys/fs/cgroup", W_OK) < 0) /* below a directory of the user's own */
        skip();
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        expect(t[i].path, true, t[i].want);
        expect(t[i].path, false, t[i].want); /* what it looks like is enough */
    }
}

static void test_paths(void **state)
{
    expect("/a/b", false, "/a/b");
    expect("a/b", false, "/a/b");
    expect("a:b", false, "/a:b");
    expect("/a/b", true, "");
    expect("a.slice:b", true, "");
    expect("/a/../b", false, "");
}

static void test_too_long(void **state)
{
    char path[8192];
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    struct err e = {0};
    json_t *list = NULL;
    struct group_wish w = {.path = path, .id = "id"};
    assert_int_equal(group_plan(&w, &list, &e), -EINVAL);
    memcpy(path, "a.slice:p:", 10);
    w.systemd = true;
    assert_int_equal(group_plan(&w, &list, &e), -EINVAL);
    memcpy(path, "aaaaaaaaaa", 10);
    memcpy(path + 4000, ".slice:p:b", 11);
    assert_int_equal(group_plan(&w, &list, &e), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
