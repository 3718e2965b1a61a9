#include "launch/fetcher.h"

#include "launch/beside.h"
#include "policy/rulebook.h"
#include "s3/config.h"
#include "s3/sync.h"
#include "util/cleanup.h"
#include "util/later.h"
#include "util/loop.h"
#include "util/sock.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CLOSE_MS = 2000, /* without a change */
    CLOSE_MAX_MS = 15 * 1000,
    IDLE_MS = 30 * 1000,
    RETRY_MS = 30 * 1000, /* after a sync that failed */
    FSYNC_MS = 200,       /* between two syncs that the guest waits for */
};

/* --- the process ----------------------------------------------------------------------------- */

/* Nothing could be started to serve the requests: all of them fail. */
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
        int r = s3_workspace_fetch(s, w->name, sock, beside_log, &e);
        if (r < 0)
            beside_log(e.msg);
        if (r == -EIO) /* it died: ask again */
            (void)send(sock, &(struct later_answer){0}, sizeof(struct later_answer), MSG_NOSIGNAL);
        else if (r < 0)
            refuse_all(sock);
    }
}

static uint64_t quiet_ms(enum workspace_sync when)
{
    return when == WORKSPACE_SYNC_IDLE ? IDLE_MS : CLOSE_MS;
}

/* Changes in quick succession are synced together, but none waits forever. */
static bool is_due(enum workspace_sync when, uint64_t first, uint64_t last, uint64_t now,
                   int *wait_ms)
{
    uint64_t at = last + quiet_ms(when);
    if (when != WORKSPACE_SYNC_IDLE)
        at = MIN(at, first + CLOSE_MAX_MS);
    *wait_ms = at > now ? (int)(at - now) : 0;
    return at <= now;
}

static int sync_now(const struct store *s, const char *name)
{
    struct err e = {0};
    struct s3_sync how = {.here = S3_HERE_MARKS, .warn = beside_log};
    struct store here = *s;
    here.policy_file =
        NULL; /* that was for the command that started us, whose arguments are gone */
    int r = policy_hold_workspace(&here, name, &e);
    if (r == 0)
        r = s3_workspace_sync(s, name, &how, &(bool){false}, &e);
    if (r < 0)
        beside_log(e.msg);
    return r;
}

/* The guest waits. However often it does that, the bucket gets a break in between. */
static void sync_for_guest(const struct store *s, const char *name, int sock, uint32_t number)
{
    static uint64_t last;
    uint64_t now = now_ns() / 1000000, rest = MIN(last + FSYNC_MS, now + FSYNC_MS);
    if (last && rest > now)
        (void)usleep((useconds_t)(rest - now) * 1000);
    struct later_answer a = {.number = number, .error = sync_now(s, name) < 0 ? -EIO : 0};
    last = now_ns() / 1000000;
    (void)send(sock, &a, sizeof(a), MSG_NOSIGNAL);
}

static void __attribute__((noreturn))
syncer_main(const struct store *s, const struct spec_workspace *w, int sock)
{
    uint64_t first = 0, last = 0; /* when changes were reported; 0 = none are pending */
    for (;;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        char byte[64];
        int wait_ms = -1;
        if (last && is_due(w->sync, first, last, now_ns() / 1000000, &wait_ms)) {
            uint64_t began = now_ns() / 1000000;
            bool goes_on = began < last + quiet_ms(w->sync); /* later changes are not reported */
            bool failed = sync_now(s, w->name) < 0;
            first = last = failed ? now_ns() / 1000000 + RETRY_MS : goes_on ? began : 0;
            continue;
        }
        if (poll(&p, 1, wait_ms) <= 0)
            continue;
        ssize_t n = recv(sock, byte, sizeof(byte), MSG_DONTWAIT);
        uint32_t number;
        if (n == sizeof(number)) {
            memcpy(&number, byte, sizeof(number));
            sync_for_guest(s, w->name, sock, number);
        } else if (n > 0) {
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

int fetcher_start(const struct store *s, int dirfd, const struct sandbox_spec *spec, int *ret_fd,
                  struct err *e)
{
    static const struct beside role = {"fetcher", false, fetcher_main};
    *ret_fd = -1;
    return is_in_bucket(s, &spec->workspace) ? beside_start(&role, s, dirfd, spec, ret_fd, e) : 0;
}

int syncer_start(const struct store *s, int dirfd, const struct sandbox_spec *spec, int *ret_fd,
                 struct err *e)
{
    static const struct beside role = {"syncer", false, syncer_main};
    *ret_fd = -1;
    return spec->workspace.sync == WORKSPACE_SYNC_STOP
               ? 0
               : beside_start(&role, s, dirfd, spec, ret_fd, e);
}
