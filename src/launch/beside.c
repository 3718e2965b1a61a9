#include "launch/beside.h"

#include "logs/format.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/process.h"
#include "util/sock.h"
#include "util/strlist.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int sandbox_dir = -1; /* a warning has no context */

/* --- the log --------------------------------------------------------------------------------- */

/* The directory belongs to the monitor, which may have been compromised by its guest. */
static int open_log(void)
{
    struct stat st;
    AUTO_CLOSE int run = dir_open_at(sandbox_dir, "run");
    AUTO_CLOSE int logs = run < 0 ? -1 : dir_open_at(run, "logs");
    AUTO_CLOSE int fd =
        openat(logs, LOG_SYSTEM_NAME, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
        return -ENOENT;
    return st.st_size < LOG_FILE_MAX ? steal_fd(&fd) : -EFBIG;
}

void beside_log(const char *text)
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
                  json_sprintf("workspace: %s", text)); /* from the server; already made safe */
    AUTO_FREE char *line = j ? json_dumps(j, JSON_COMPACT) : NULL;
    AUTO_FREE char *whole = NULL;
    AUTO_CLOSE int fd = open_log();
    if (fd >= 0 && line && asprintf(&whole, "%s\n", line) > 0)
        (void)write_all(fd, whole, strlen(whole));
}

/* --- the process ----------------------------------------------------------------------------- */

/* What is kept of the environment is where other processes cannot see it. */
static void forget_caller(const struct beside *b, const char *name)
{
    static const char *const keep[] = {
        "AWS_",       "HOME=",     "PATH=",        "http_proxy=", "https_proxy=",
        "all_proxy=", "no_proxy=", "HTTPS_PROXY=", "ALL_PROXY=",  "NO_PROXY="};
    AUTO_STRLIST struct strlist kept = {0};
    for (char **v = environ; v && *v; v++) {
        bool wanted = b->deputy;
        for (size_t i = 0; !wanted && i < ARRAY_LEN(keep); i++)
            wanted = strncmp(*v, keep[i], strlen(keep[i])) == 0;
        if (wanted)
            (void)strlist_add(&kept, *v);
    }
    process_forget_caller(b->title, name);
    for (size_t i = 0; i < kept.n; i++) {
        char *value = strchr(kept.v[i], '=');
        if (!value)
            continue;
        *value = '\0';
        (void)setenv(kept.v[i], value + 1, 1);
    }
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static void __attribute__((noreturn)) become(const struct beside *b, const struct store *s,
                                             int dirfd, const struct spec_workspace *w, int sock)
{
    pid_t pid = fork(); /* detached: it outlives the launcher */
    if (pid != 0)
        _exit(pid < 0);
    sandbox_dir = dirfd;
    const int keep[] = {sock, dirfd, s->home_fd, s->sandboxes_fd, s->locks_fd};
    (void)setsid();
    process_default_signals();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)process_close_stdio();
    (void)process_close_others(3, keep, ARRAY_LEN(keep));
    if (!b->deputy)
        (void)!chdir("/");
    forget_caller(b, w->name);
    b->run(s, w, sock);
    _exit(1);
}

/* --- in the launcher ------------------------------------------------------------------------- */

int beside_start(const struct beside *b, const struct store *s, int dirfd,
                 const struct sandbox_spec *spec, int *ret_fd, struct err *e)
{
    AUTO_CLOSE int here = -1, there = -1;
    int r = packet_pair(&here, &there, e);
    if (r < 0)
        return r;
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, errno, "cannot start a process");
    if (pid == 0)
        become(b, s, dirfd, &spec->workspace, there);
    (void)process_wait(pid);
    *ret_fd = steal_fd(&here);
    return 0;
}
