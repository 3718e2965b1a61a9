#include "mcp/job.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { READ_SIZE = 64 * 1024, READS_MAX = 8 };

/* --- output ---------------------------------------------------------------------------------- */

static void capture_keep(struct capture *c, const void *p, size_t n)
{
    size_t room = c->kept.limit - buf_len(&c->kept);
    c->total += n;
    if (buf_append(&c->kept, p, MIN(n, room)) < 0)
        c->kept.limit = buf_len(&c->kept); /* out of memory: the rest is dropped */
}

static void close_capture(struct capture *c)
{
    loop_close(c->job->loop, &c->src);
}

/* Reads what is available, a limited amount per turn; true if there was something. */
static bool capture_drain(struct capture *c)
{
    static char block[READ_SIZE];
    uint64_t before = c->total;
    for (int i = 0; i < READS_MAX && c->src.fd >= 0; i++) {
        ssize_t n = read(c->src.fd, block, sizeof(block));
        if (n > 0)
            capture_keep(c, block, (size_t)n);
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            close_capture(c);
        if (n <= 0)
            break;
    }
    return c->total > before;
}

static void on_output(struct loop_src *src, uint32_t events)
{
    struct capture *c = CONTAINER_OF(src, struct capture, src);
    if (capture_drain(c) && c->job->output)
        c->job->output(c->job);
}

static int open_capture(struct capture *c, struct job *j, size_t max, int *child_end)
{
    int p[2];
    buf_init(&c->kept, max);
    c->job = j;
    c->src = (struct loop_src){.fd = -1, .fn = on_output};
    c->total = 0;
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    *child_end = p[1];
    c->src.fd = p[0];
    if (fcntl(p[0], F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    return loop_add(j->loop, &c->src, EPOLLIN);
}

/* --- the process ----------------------------------------------------------------------------- */

static void close_job(struct job *j)
{
    close_capture(&j->out);
    close_capture(&j->err);
    loop_close(j->loop, &j->exited);
}

static void on_exit_of(struct loop_src *src, uint32_t events)
{
    struct job *j = CONTAINER_OF(src, struct job, exited);
    int code = process_exit_code(process_wait(j->pid));
    while (capture_drain(&j->out) || capture_drain(&j->err)) /* what it left in its pipes */
        ;
    close_job(j);
    j->done(j, code);
}

void job_free(struct job *j)
{
    buf_free(&j->out.kept);
    buf_free(&j->err.kept);
}

static int input_file(const void *in, size_t n)
{
    if (!in)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int fd = memfd_create("input", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = write_all(fd, in, n);
    if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
        r = -errno;
    return r < 0 ? r : steal_fd(&fd);
}

static void run_child(int in, int out, int err, int (*fn)(void *), void *arg)
{
    process_default_signals();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Out of the way first: their numbers may be among 0, 1 and 2. */
    int from[3] = {in, out, err};
    for (int i = 0; i < 3; i++)
        from[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 3);
    for (int i = 0; i < 3; i++)
        if (from[i] < 0 || dup2(from[i], i) < 0)
            _exit(126);
    (void)process_close_others(3, NULL, 0);
    int code = fn(arg);
    (void)fflush(NULL);
    _exit(code);
}

int job_start(struct job *j, struct loop *l, int (*fn)(void *arg), void *arg, const void *in,
              size_t n, size_t out_max)
{
    AUTO_CLOSE int out = -1;
    AUTO_CLOSE int err = -1;
    AUTO_CLOSE int input = input_file(in, n);
    j->loop = l;
    j->exited = (struct loop_src){.fd = -1, .fn = on_exit_of};
    j->err = (struct capture){.src.fd = -1, .job = j};
    int r = input < 0 ? input : open_capture(&j->out, j, out_max, &out);
    if (r == 0)
        r = open_capture(&j->err, j, out_max, &err);
    if (r < 0) {
        close_job(j);
        return r;
    }
    (void)fflush(NULL);
    j->pid = fork();
    if (j->pid == 0)
        run_child(input, out, err, fn, arg);
    if (j->pid > 0)
        j->exited.fd = (int)syscall(SYS_pidfd_open, j->pid, 0);
    r = j->exited.fd < 0 ? -errno : loop_add(l, &j->exited, EPOLLIN);
    if (r < 0) {
        if (j->pid > 0) {
            (void)kill(j->pid, SIGKILL);
            (void)process_wait(j->pid);
        }
        close_job(j);
    }
    return r;
}

void job_kill(struct job *j)
{
    (void)kill(j->pid, SIGKILL);
    (void)process_wait(j->pid);
    close_job(j);
}
