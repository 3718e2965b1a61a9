/* The parent's side of a conversion: it reads, hashes, feeds the child, and checks the result.
 *
 * The child is confined (confine.h), with its two pipes, the output and the spool as its only
 * descriptors. Its report is untrusted.
 *
 * Other threads may hold locks at the moment of the fork, so the child uses nothing that was not
 * prepared before (convert.h); memory allocation is safe, thanks to the C library.
 */
#include "image/layer/layer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/layer/confine.h"
#include "image/layer/convert.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"

enum {
    FEED_SIZE = 256 << 10,
    PIPE_SIZE = 1 << 20,
    /* After the child has given up, this much is still read to see whether the digest is also
     * wrong, which makes a better message. */
    DRAIN_MAX = 32 << 20,
    SHORT_HEX = 12,
};

/* The child's result; fits into a pipe, so that writing it never blocks. */
struct report {
    struct convert_made made;
    struct err e;
};
_Static_assert(sizeof(struct report) <= PIPE_BUF, "a report is written at once");

struct job {
    struct stream *in;
    const struct layer_want *want;
    struct layer_progress *progress;
    int out_fd;
    pid_t pid;
    int feed_fd;   /* to the child; -1 once it stopped listening */
    int report_fd; /* from the child */
    struct convert convert;
    struct hasher hash;
    uint64_t size;
    bool complete; /* the stream was read to its end */
    uint8_t *buf;
};

/* ---- the child ---- */

static int child_confine(const struct convert *c, int report_fd, pid_t parent)
{
    const int keep[] = {c->in_fd, c->w.fd, c->w.spool_fd, report_fd};
    /* Files are padded to blocks, and their inodes take a few bytes; nothing else is needed. */
    uint64_t padding = (uint64_t)c->max_entries * 4 * EROFS_BLOCK_SIZE;
    return confine_process("msb-convert", parent, keep, ARRAY_LEN(keep),
                           MIN(c->max_bytes, (uint64_t)INT64_MAX / 2) + padding);
}

static int close_filter(void)
{
    return seccomp_enter(SECCOMP_CONVERTER);
}

static _Noreturn void child_main(struct convert *c, int report_fd, pid_t parent)
{
    struct report rep = {.e = {0}};
    int r = child_confine(c, report_fd, parent);
    if (r == 0)
        r = convert_start(c, close_filter);
    if (r == 0)
        r = close_filter();
    if (r < 0)
        (void)err_sys(&rep.e, -r, "cannot confine the converter");
    else
        (void)convert_run(c, &rep.made, &rep.e);
    _exit(write_all(report_fd, &rep, sizeof(rep)) < 0);
}

/* ---- the parent ---- */

static const char *name_of(const struct job *j)
{
    return j->want->name ? j->want->name : "the archive";
}

static int job_start(struct job *j, int spool_dirfd, struct err *e)
{
    const struct layer_want *w = j->want;
    const struct convert_limits limits = {w->max_bytes, w->max_entries};
    int feed[2] = {-1, -1}, report[2] = {-1, -1};
    j->buf = malloc(FEED_SIZE);
    hasher_init(&j->hash);
    if (!j->buf)
        return err_oom(e);
    if (pipe2(feed, O_CLOEXEC) < 0 || pipe2(report, O_CLOEXEC) < 0) {
        int code = errno;
        close_fd(&feed[0]);
        close_fd(&feed[1]);
        return err_sys(e, code, "cannot convert it");
    }
    (void)fcntl(feed[1], F_SETPIPE_SZ, PIPE_SIZE); /* smaller is slower, not wrong */
    j->feed_fd = feed[1];
    j->report_fd = report[0];
    int r = convert_init(&j->convert, feed[0], j->out_fd, spool_dirfd, w->layer, &limits, e);
    if (r == 0) {
        pid_t parent = getpid();
        j->pid = fork();
        if (j->pid == 0)
            child_main(&j->convert, report[1], parent);
        if (j->pid < 0)
            r = err_sys(e, errno, "cannot start a converter");
        convert_free(&j->convert);
    }
    close_fd(&feed[0]);
    close_fd(&report[1]);
    return r;
}

static int feed_child(struct job *j, size_t n)
{
    int r = write_all(j->feed_fd, j->buf, n);
    if (r < 0)
        close_fd(&j->feed_fd); /* it has given up, and reports why */
    return r == -EPIPE ? 0 : r;
}

/* Passes the stream on. Ends early when the child does. */
static int job_feed(struct job *j, struct err *e)
{
    const struct layer_want *w = j->want;
    uint64_t drained = 0;
    while (j->feed_fd >= 0 || (w->blob && drained < DRAIN_MAX)) {
        ssize_t n = stream_read(j->in, j->buf, FEED_SIZE, e);
        if (n < 0)
            return (int)n;
        if (n == 0) {
            j->complete = true;
            return 0;
        }
        j->size += (uint64_t)n;
        if (j->progress)
            atomic_store_explicit(&j->progress->read, j->size, memory_order_relaxed);
        if (w->blob_size && j->size > w->blob_size)
            return err_set(e, EBADMSG, "it is longer than the expected %llu bytes",
                           (unsigned long long)w->blob_size);
        hasher_update(&j->hash, j->buf, (size_t)n);
        if (j->feed_fd < 0)
            drained += (uint64_t)n;
        else if (feed_child(j, (size_t)n) < 0)
            return err_set(e, EIO, "cannot feed the converter");
    }
    return 0;
}

static int check_digest(const char *of, const struct digest *got, const struct digest *want,
                        struct err *e)
{
    char a[DIGEST_TEXT_SIZE], b[DIGEST_TEXT_SIZE];
    if (!want || digest_equal(got, want))
        return 0;
    digest_text(got, a);
    digest_text(want, b);
    return err_set(e, EBADMSG, "the digest of %s is %s, expected %s", of, a, b);
}

/* Checks that what was read is what was wanted. */
static int check_blob(struct job *j, struct layer_made *ret, struct err *e)
{
    const struct layer_want *w = j->want;
    if (!j->complete)
        return 0;
    ret->blob_size = j->size;
    ret->blob = hasher_finish(&j->hash);
    if (w->blob_size && j->size != w->blob_size)
        return err_set(e, EBADMSG, "it ends after %llu of %llu bytes", (unsigned long long)j->size,
                       (unsigned long long)w->blob_size);
    return check_digest("its content", &ret->blob, w->blob, e);
}

/* Waits for the child to be gone, and takes its report. */
static int job_collect(struct job *j, struct layer_made *ret, struct err *e)
{
    struct report rep;
    int r = confine_collect(&j->pid, j->report_fd, &rep, sizeof(rep), e);
    if (r < 0)
        return r;
    if (rep.e.code)
        return confine_error(&rep.e, e);
    struct stat st;
    if (fstat(j->out_fd, &st) < 0)
        return err_sys(e, errno, "cannot stat the image");
    if (!j->complete || st.st_size <= 0 || st.st_size % EROFS_BLOCK_SIZE ||
        (uint64_t)st.st_size != rep.made.erofs_size)
        return err_set(e, EIO, "the converter's result is invalid");
    ret->diff_id = rep.made.diff_id;
    ret->tar_size = rep.made.tar_size;
    ret->erofs_size = rep.made.erofs_size;
    ret->entries = rep.made.entries;
    return 0;
}

static int job_run(struct job *j, int spool_dirfd, struct layer_made *ret, struct err *e)
{
    int r = job_start(j, spool_dirfd, e);
    if (r < 0)
        return r;
    r = job_feed(j, e);
    close_fd(&j->feed_fd);
    if (r < 0)
        return r;
    struct err said = {0};
    int done = job_collect(j, ret, &said);
    r = check_blob(j, ret, e);
    if (r < 0)
        return r;
    if (done < 0) {
        err_copy(e, &said);
        return done;
    }
    return check_digest("the tar inside", &ret->diff_id, j->want->diff_id, e);
}

static void job_end(struct job *j)
{
    if (j->pid > 0) {
        (void)kill(j->pid, SIGKILL);
        (void)process_wait(j->pid);
    }
    close_fd(&j->feed_fd);
    close_fd(&j->report_fd);
    free(j->buf);
}

int layer_convert(struct stream *in, const struct layer_want *want, int out_fd, int spool_dirfd,
                  struct layer_progress *progress, struct layer_made *ret, struct err *e)
{
    struct job j = {.in = in,
                    .want = want,
                    .progress = progress,
                    .out_fd = out_fd,
                    .pid = -1,
                    .feed_fd = -1,
                    .report_fd = -1};
    struct layer_made made = {0};
    /* A child that ends early must not kill this process; SIGPIPE goes to this thread. */
    sigset_t pipe_set, old;
    (void)sigemptyset(&pipe_set);
    (void)sigaddset(&pipe_set, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_set, &old);
    int r = job_run(&j, spool_dirfd, &made, e);
    job_end(&j);
    if (!sigismember(&old, SIGPIPE))
        while (sigtimedwait(&pipe_set, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
            continue;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0) {
        (void)err_wrap(e, r, "%s", name_of(&j));
        return r;
    }
    *ret = made;
    return 0;
}
