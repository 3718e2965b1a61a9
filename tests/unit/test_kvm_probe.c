/* The probe: its verdicts, and which of them it caches. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/kvm/probe.h"
#include "fake_kernel.h"
#include "fake_kvm.h"
#include "unit.h"
#include "util/cleanup.h"
#include "util/fs.h"

/* The probe runs in a child, where the fake's memory is a copy: it is counted by what it leaves. */
static char dir[] = "/tmp/msb-probe-XXXXXX", path[64], file[96];

static int done(unsigned cpu, unsigned step, struct kvm_run *run)
{
    run->exit_reason = KVM_EXIT_IO;
    run->io.port = 0xf4;
    return 0;
}

static int crawls(unsigned cpu, unsigned step, struct kvm_run *run)
{
    volatile unsigned spin = 0;
    for (;;) /* uses CPU time: it is slow, the host is not busy */
        spin++;
    return 0;
}

static int other_exit(unsigned cpu, unsigned step, struct kvm_run *run)
{
    run->exit_reason = KVM_EXIT_SHUTDOWN;
    return 0;
}

static void probe(fake_script script, unsigned fail_at, bool fresh, struct kvm_probe *p,
                  struct err *e)
{
    AUTO_CLOSE int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    *e = (struct err){0};
    fake_kvm_begin(script);
    fk.fail_at = fail_at;
    fk.fail_with = -ENODEV;
    kvm_probe(fd, fresh, p, e);
    fake_kvm_end();
}

static int setup(void **state)
{
    (void)unlink(file);
    (void)chmod(path, 0700);
    return 0;
}

static void test_native(void **state)
{
    struct kvm_probe p;
    struct err e;
    struct stat st;
    probe(done, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_NATIVE);
    assert_true(p.insns_per_s > 0);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* Cached: a change of the host goes unnoticed, except with `fresh`. */
    probe(other_exit, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_NATIVE);
    probe(other_exit, 0, true, &p, &e);
    assert_int_equal(p.verdict, KVM_NOT_RUN);
}

static void test_slow(void **state)
{
    struct kvm_probe p;
    struct err e;
    char speed[80];
    probe(crawls, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_SLOW);
    kvm_probe_speed(&p, speed, sizeof(speed));
    assert_non_null(strstr(speed, "below"));
    probe(done, 0, false, &p, &e); /* cached, too: it took a long time to find out */
    assert_int_equal(p.verdict, KVM_SLOW);
}

static void test_every_call_fails_once(void **state)
{
    struct kvm_probe p;
    struct err e;
    for (unsigned n = 1; n <= 9; n++) {
        probe(done, n, true, &p, &e);
        if (p.verdict == KVM_NATIVE) {
            assert_true(n > 6); /* more than there are */
            continue;
        }
        assert_int_equal(p.verdict, KVM_NOT_RUN);
        assert_int_equal(e.code, ENODEV);
        assert_non_null(strstr(e.msg, "a probe VM does not run"));
    }
}

static void put(const char *text, mode_t mode)
{
    AUTO_CLOSE int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write_all(fd, text, strlen(text)), 0);
    assert_int_equal(fchmod(fd, mode), 0);
}

/* The verdict would be "slow" if any of these were believed. */
static void test_memory_that_is_not_to_be_trusted(void **state)
{
    struct kvm_probe p;
    struct err e;
    char good[512], text[512];
    probe(done, 0, true, &p, &e);
    AUTO_FREE char *was = NULL;
    size_t n;
    AUTO_CLOSE int d = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(file_read_at(d, "kvm-probe", sizeof(good), &was, &n), 0);
    char *nl = strchr(was, '\n');
    assert_non_null(nl);
    *nl = '\0';
    (void)snprintf(good, sizeof(good), "%s\nslow 1000000\n", was);
    put(good, 0600);
    probe(done, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_SLOW); /* this one is believed */

    put(good, 0620); /* others may write it */
    probe(done, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_NATIVE);
    (void)snprintf(text, sizeof(text), "%s", good);
    text[10] = (char)(text[10] == '0' ? '1' : '0'); /* another boot */
    put(text, 0600);
    probe(done, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_NATIVE);
    static const char *const nonsense[] = {"", "\n", "slow 1\n", "1 2 3\nslow 1\n"};
    for (unsigned i = 0; i < ARRAY_LEN(nonsense); i++) {
        put(nonsense[i], 0600);
        probe(done, 0, false, &p, &e);
        assert_int_equal(p.verdict, KVM_NATIVE);
    }
    (void)snprintf(text, sizeof(text), "%s\nodd 1\n", was);
    put(text, 0600);
    probe(done, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_NATIVE);
    put(good, 0600);
    assert_int_equal(chmod(path, 0777), 0); /* writable by everybody */
    probe(done, 0, false, &p, &e);
    assert_int_equal(p.verdict, KVM_NATIVE);
}

static void test_device_that_is_not_there(void **state)
{
    int fd = -1;
    struct err e = {0};
    kvm_device_path("/nonexistent/kvm");
    assert_int_equal(kvm_device_open(&fd, &e), -ENOENT);
    assert_non_null(strstr(e.hint[0], "modprobe"));
    kvm_device_path(NULL);
}

static void test_device_that_is_not_ours(void **state)
{
    int fd = -1;
    struct err e = {0};
    if (geteuid() == 0 && seteuid(65534) < 0)
        skip();
    kvm_device_path("/etc/shadow");
    int r = kvm_device_open(&fd, &e);
    kvm_device_path(NULL);
    (void)!seteuid(0);
    if (r != -EACCES)
        skip();
    assert_non_null(strstr(e.msg, "may not open"));
    assert_true(strstr(e.hint[0], "usermod -aG") || strstr(e.hint[0], "setfacl -m"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_native, setup),
        cmocka_unit_test_setup(test_slow, setup),
        cmocka_unit_test_setup(test_every_call_fails_once, setup),
        cmocka_unit_test_setup(test_memory_that_is_not_to_be_trusted, setup),
        cmocka_unit_test(test_device_that_is_not_there),
        cmocka_unit_test(test_device_that_is_not_ours),
    };
    if (!mkdtemp(dir))
        return 1;
    (void)snprintf(path, sizeof(path), "%s/msb", dir);
    (void)snprintf(file, sizeof(file), "%s/kvm-probe", path);
    if (setenv("XDG_CACHE_HOME", dir, 1) < 0 || mkdir(path, 0700) < 0)
        return 1;
    int r = cmocka_run_group_tests_name("kvm-probe", tests, NULL, NULL);
    (void)remove_tree_at(AT_FDCWD, dir);
    return r;
}
