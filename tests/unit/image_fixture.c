#include <stdint.h>

#include "image_fixture.h"
#include "unit.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char tmpdir[256];

const char *mk_tmpdir(void)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(tmpdir, sizeof(tmpdir), "%s/msb-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(tmpdir));
    return tmpdir;
}

static int rm_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)remove(path);
    return 0;
}

void rm_tmpdir(void)
{
    (void)nftw(tmpdir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *tmp_path(const char *name)
{
    static char buf[4][PATH_MAX];
    static int next;
    char *p = buf[next++ % 4];
    (void)snprintf(p, PATH_MAX, "%s/%s", tmpdir, name);
    return p;
}

void put_file(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), n);
    assert_int_equal(close(fd), 0);
}

int mk_memfile(void)
{
    int fd = memfd_create("image", 0);
    assert_true(fd >= 0);
    return fd;
}

void fsck_erofs(int fd)
{
    if (access("/usr/bin/fsck.erofs", X_OK) != 0)
        return;
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        (void)dup2(null, 1);
        (void)fcntl(fd, F_SETFD, 0);
        (void)execl("/usr/bin/fsck.erofs", "fsck.erofs", path, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

void fill_bytes(uint8_t *p, size_t n, uint32_t seed)
{
    uint32_t x = seed * 2654435761U + 12345;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525U + 1013904223U;
        p[i] = (uint8_t)(x >> 24);
    }
}
