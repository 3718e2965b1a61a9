#include "launch/fetcher.h"

#include "logs/format.h"
#include "s3/config.h"
#include "s3/sync.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/later.h"
#include "util/loop.h"
#include "util/process.h"
#include "util/sock.h"
#include "util/strlist.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CLOSE_MS = 2000, /* without a change */
    CLOSE_MAX_MS = 15 * 1000,
    IDLE_MS = 30 * 1000,
    RETRY_MS = 30 * 1000, /* after a sync that failed */
};

static int log_dir = -1; /* the sandbox's; a warning has no context */

/* --- the log --------------------------------------------------------------------------------- */

/* The directory is the monitor's, which its guest may have taken over. */
static int open_log(void)
{
    struct stat st;
    AUTO_CLOSE int fd =
        openat(log_dir, LOG_SYSTEM_NAME, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
        return -ENOENT;
    return st.st_size < LOG_FILE_MAX ? steal_fd(&fd) : -EFBIG;
}

static void log_line(const char *text)
{
    uint64_t now = realtime_ns();
    time_t s = (time_t)(now / 1000000000);
    struct tm tm = {0};
    char when[32], stamp[64];
    (void)gmtime_r(&s, &tm);
    (void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(stamp, sizeof(stamp), "%s.%09lluZ", when,
                   (unsigned long long)(now % 1000000000));
    AUTO_JSON json_t *j =
        json_pack("{s:s, s:s, s:o}", "t", stamp, "s", "system", "d",
                  json_sprintf("workspace: %s", text)); /* of the server's: made safe before */
    AUTO_FREE char *line = j ? json_dumps(j, JSON_COMPACT) : NULL;
    AUTO_FREE char *whole = NULL;
    AUTO_CLOSE int fd = open_log();
    if (fd >= 0 && line && asprintf(&whole, "%s\n", line) > 0)
        (void)write_all(fd, whole, strlen(whole));
}

/* --- the process ----------------------------------------------------------------------------- */

/* Nobody could be found to serve what has been asked: all of it fails. */
static void refuse_all(int sock)
{
    struct later_request q;
    int fd;
    while (sock_recv_with_fd(sock, &q, sizeof(q), &fd) == (ssize_t)sizeof(q))
        if (fd >= 0)
            (void)close(fd);
    (void)send(sock, &(struct later_answer){.error = -EIO}, sizeof(struct later_answer),
               MSG_NOSIGNAL);
}

static void __attribute__((noreturn))
fetcher_main(const struct store *s, const struct spec_workspace *w, int sock)
{
    for (;;) {
        struct err e = {0};
        struct pollfd p = {.fd = sock, .events = POLLIN};
        char byte;
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            _exit(1);
        if (!p.revents)
            continue;
        if (recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            _exit(0); /* the share server is gone */
        int r = s3_workspace_fetch(s, w->name, sock, log_line, &e);
        if (r < 0)
            log_line(e.msg);
        if (r == -EIO) /* it died: ask again */
            (void)send(sock, &(struct later_answer){0}, sizeof(struct later_answer), MSG_NOSIGNAL);
        else if (r < 0)
            refuse_all(sock);
    }
}

/* Changes that come one after another go together, but none waits for ever. */
static bool is_due(enum workspace_sync when, uint64_t first, uint64_t last, uint64_t now,
                   int *wait_ms)
{
    uint64_t quiet = when == WORKSPACE_SYNC_IDLE ? IDLE_MS : CLOSE_MS, at = last + quiet;
    if (when == WORKSPACE_SYNC_CLOSE)
        at = MIN(at, first + CLOSE_MAX_MS);
    *wait_ms = at > now ? (int)(at - now) : 0;
    return at <= now;
}

static int sync_now(const struct store *s, const char *name)
{
    struct err e = {0};
    struct s3_sync how = {.here = S3_HERE_MARKS, .warn = log_line};
    int r = s3_workspace_sync(s, name, &how, &(bool){false}, &e);
    if (r < 0)
        log_line(e.msg);
    return r;
}

static void __attribute__((noreturn))
syncer_main(const struct store *s, const struct spec_workspace *w, int sock)
{
    uint64_t first = 0, last = 0; /* when changes were told of; 0 = none are due */
    for (;;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        char byte[64];
        int wait_ms = -1;
        if (last && is_due(w->sync, first, last, now_ns() / 1000000, &wait_ms)) {
            bool failed = sync_now(s, w->name) < 0;
            first = last = failed ? now_ns() / 1000000 + RETRY_MS : 0;
            continue;
        }
        if (poll(&p, 1, wait_ms) <= 0)
            continue;
        ssize_t n = recv(sock, byte, sizeof(byte), MSG_DONTWAIT);
        if (n > 0) {
            last = MAX(last, now_ns() / 1000000);
            first = first ? first : last;
        } else if (n == 0 || errno != EAGAIN) {
            if (last)
                (void)sync_now(s, w->name);
            _exit(0);
        }
    }
}

/* --- in the launcher ------------------------------------------------------------------------- */

static bool is_in_bucket(const struct store *s, const struct spec_workspace *w)
{
    AUTO_S3_CONFIG struct s3_config c = {0};
    if (!w->name || w->mode != WORKSPACE_FUSE)
        return false;
    AUTO_CLOSE int dir = workspace_dir_open(s, w->name, NULL);
    return dir >= 0 && s3_config_load(dir, &c, NULL) == 0;
}

/* Only what finds the keys and the way to the server is kept, and not where other processes see it. */
static void forget_caller(const char *title, const char *name)
{
    static const char *const keep[] = {
        "AWS_",       "HOME=",     "PATH=",        "http_proxy=", "https_proxy=",
        "all_proxy=", "no_proxy=", "HTTPS_PROXY=", "ALL_PROXY=",  "NO_PROXY="};
    AUTO_STRLIST struct strlist kept = {0};
    for (char **v = environ; v && *v; v++)
        for (size_t i = 0; i < ARRAY_LEN(keep); i++)
            if (strncmp(*v, keep[i], strlen(keep[i])) == 0)
                (void)strlist_add(&kept, *v);
    process_forget_caller(title, name);
    for (size_t i = 0; i < kept.n; i++) {
        char *value = strchr(kept.v[i], '=');
        *value = '\0';
        (void)setenv(kept.v[i], value + 1, 1);
    }
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

struct role {
    const char *title;
    void (*run)(const struct store *s, const struct spec_workspace *w, int sock);
};

static void __attribute__((noreturn)) become(const struct role *role, const struct store *s,
                                             int dirfd, const struct spec_workspace *w, int sock)
{
    pid_t pid = fork(); /* nobody's child: it outlives the launcher */
    if (pid != 0)
        _exit(pid < 0);
    AUTO_CLOSE int run = dir_open_at(dirfd, "run");
    log_dir = run < 0 ? -1 : dir_open_at(run, "logs");
    const int keep[] = {sock, log_dir, s->home_fd, s->sandboxes_fd, s->locks_fd};
    (void)setsid();
    process_default_signals();
    (void)signal(SIGPIPE, SIG_IGN);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null_fd >= 0 && fd < 3; fd++)
        (void)dup2(null_fd, fd);
    (void)process_close_others(3, keep, ARRAY_LEN(keep));
    (void)!chdir("/");
    forget_caller(role->title, w->name);
    role->run(s, w, sock);
    _exit(1);
}

static int start(const struct role *role, const struct store *s, int dirfd,
                 const struct sandbox_spec *spec, int *ret_fd, struct err *e)
{
    int sock[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) < 0)
        return err_sys(e, errno, "cannot create a socket pair");
    AUTO_CLOSE int here = sock[0], there = sock[1];
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, errno, "cannot start a process");
    if (pid == 0)
        become(role, s, dirfd, &spec->workspace, there);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *ret_fd = steal_fd(&here);
    return 0;
}

int fetcher_start(const struct store *s, int dirfd, const struct sandbox_spec *spec, int *ret_fd,
                  struct err *e)
{
    static const struct role role = {"fetcher", fetcher_main};
    *ret_fd = -1;
    return is_in_bucket(s, &spec->workspace) ? start(&role, s, dirfd, spec, ret_fd, e) : 0;
}

int syncer_start(const struct store *s, int dirfd, const struct sandbox_spec *spec, int *ret_fd,
                 struct err *e)
{
    static const struct role role = {"syncer", syncer_main};
    *ret_fd = -1;
    return spec->workspace.sync == WORKSPACE_SYNC_STOP ? 0
                                                       : start(&role, s, dirfd, spec, ret_fd, e);
}
