#include "image/archive/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "image/erofs/out.h"
#include "image/layer/confine.h"
#include "image/layer/decode.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"
#include "util/fs.h"

enum { COPY_SIZE = 256 << 10 };

struct report {
    struct err e;
};
_Static_assert(sizeof(struct report) <= PIPE_BUF, "a report is written at once");

struct job {
    struct decoder decoder;
    struct erofs_out out; /* leaves out zeros, and does not fill the disk */
    uint64_t max;
    uint8_t *buf;
};

static int make_file(int dirfd)
{
    char name[64];
    int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    (void)snprintf(name, sizeof(name), "load.%d", (int)getpid());
    fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    (void)unlinkat(dirfd, name, 0);
    return fd;
}

static int copy(struct job *j, struct err *e)
{
    uint64_t at = 0;
    for (;;) {
        ssize_t n = decoder_read(&j->decoder, j->buf, COPY_SIZE, e);
        if (n < 0)
            return (int)n;
        if ((uint64_t)n > j->max - at)
            return err_set(e, EFBIG, "it expands to more than the limit of %llu MiB",
                           (unsigned long long)(j->max >> 20));
        int r = n ? erofs_out_write(&j->out, at, j->buf, (size_t)n) : erofs_out_flush(&j->out);
        if (r == 0 && n == 0 && ftruncate(j->out.fd, (off_t)at) < 0)
            r = -errno;
        if (r < 0)
            return err_sys(e, -r, "cannot write a temporary file");
        if (n == 0)
            return 0;
        at += (uint64_t)n;
    }
}

static _Noreturn void child_main(struct job *j, int report_fd, pid_t parent)
{
    struct report rep = {.e = {0}};
    const int keep[] = {j->decoder.fd, j->out.fd, report_fd};
    int r = confine_process("msb-unpack", parent, keep, ARRAY_LEN(keep), j->max);
    if (r == 0)
        r = seccomp_enter(SECCOMP_CONVERTER);
    if (r < 0)
        (void)err_sys(&rep.e, -r, "cannot confine the decompressor");
    else
        (void)copy(j, &rep.e);
    _exit(write_all(report_fd, &rep, sizeof(rep)) < 0);
}

static int run(struct job *j, struct err *e)
{
    int pipefd[2];
    if (pipe2(pipefd, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot read the archive");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        child_main(j, pipefd[1], parent);
    int code = errno;
    struct report rep = {.e = {0}};
    close_fd(&pipefd[1]);
    int r = pid < 0 ? err_sys(e, code, "cannot start a decompressor")
                    : confine_collect(&pid, pipefd[0], &rep, sizeof(rep), e);
    close_fd(&pipefd[0]);
    if (r == 0 && rep.e.code)
        r = confine_error(&rep.e, e);
    return r;
}

int spool_archive(int in_fd, int dirfd, uint64_t max, struct err *e)
{
    AUTO_CLOSE int fd = make_file(dirfd);
    if (fd < 0)
        return err_sys(e, -fd, "cannot create a temporary file");
    struct job j = {.max = max, .buf = malloc(COPY_SIZE)};
    decode_prepare();
    int r = decoder_init(&j.decoder, in_fd);
    erofs_out_init(&j.out, fd);
    r = r < 0 || !j.buf ? err_oom(e) : run(&j, e);
    decoder_free(&j.decoder);
    erofs_out_free(&j.out);
    free(j.buf);
    return r < 0 ? r : steal_fd(&fd);
}
