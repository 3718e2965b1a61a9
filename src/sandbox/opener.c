#include "sandbox/opener.h"

#include "launch/beside.h"
#include "sandbox/bucket.h"
#include "util/later.h"
#include "util/sock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* --- between the two ------------------------------------------------------------------------- */

enum { WARNING_MAX = 4096 };

enum word_kind { WORD_WARNING, WORD_GOES_ON, WORD_RESULT };

/* Only as many bytes as needed are sent: the caller reads after the boot, and everything must have
 * room until then. */
struct word {
    enum word_kind kind;
    int r; /* of a result */
    union {
        struct err e; /* of a result */
        char warning[WARNING_MAX + 1];
    };
};

/* --- the process ----------------------------------------------------------------------------- */

static struct {
    int sock;
    bool alone; /* the caller does not wait for the end */
} self;

static void say(const struct word *w)
{
    bool warning = w->kind == WORD_WARNING;
    const char *text = warning ? w->warning : w->e.msg;
    size_t n = warning ? strlen(w->warning) : w->kind == WORD_RESULT ? sizeof(w->e) : 0;
    if (self.alone && *text)
        beside_log(text);
    (void)send(self.sock, w, offsetof(struct word, warning) + n, MSG_NOSIGNAL);
}

static void warn(const char *text)
{
    struct word w = {.kind = WORD_WARNING};
    (void)snprintf(w.warning, sizeof(w.warning), "%s", text);
    say(&w);
}

static void goes_on(void *ctx)
{
    if (self.alone)
        return;
    say(&(struct word){.kind = WORD_GOES_ON});
    self.alone = true;
}

/* The gate arrives first. */
static int take_gate(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int fd = -1;
    char byte;
    ssize_t n;
    do
        (void)poll(&p, 1, -1);
    while ((n = sock_recv_with_fd(sock, &byte, 1, &fd)) == -EAGAIN);
    return n == 1 ? fd : -1;
}

static void opener_main(const struct store *s, const struct spec_workspace *w, int sock)
{
    AUTO_CLOSE int gate = take_gate(sock);
    if (gate < 0)
        return;
    self.sock = sock;
    struct s3_sync how = {.here = S3_HERE_MARKS, .warn = warn, .goes_on = goes_on, .until = gate};
    struct word result = {.kind = WORD_RESULT};
    result.r = bucket_enter(s, w->name, &how, &result.e);
    if (result.r != -ECANCELED) /* the sandbox is gone */
        say(&result);
    struct later_answer a = {.error = result.r < 0 ? -EIO : 0};
    (void)send(gate, &a, sizeof(a), MSG_NOSIGNAL);
}

/* --- in the launcher ------------------------------------------------------------------------- */

int opener_start(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                 struct opener *ret, struct err *e)
{
    static const struct beside role = {"opener", true, opener_main};
    AUTO_OPENER struct opener o = OPENER_NONE;
    AUTO_CLOSE int there = -1;
    if (!bucket_has(s, spec->workspace.name))
        return 0;
    int r = beside_start(&role, s, dirfd, spec, &o.sock, e);
    if (r == 0)
        r = packet_pair(&o.gate, &there, e);
    if (r < 0)
        return r;
    if (sock_send_with_fd(o.sock, "", 1, there) != 1)
        return err_sys(e, EPIPE, "cannot reach the process that syncs the workspace");
    *ret = o;
    o = OPENER_NONE;
    return 0;
}

void opener_launched(struct opener *o)
{
    close_fd(&o->gate);
}

int opener_wait(struct opener *o, warn_fn warn_caller, struct err *e)
{
    int how = 0;
    while (o->sock >= 0) {
        struct word w = {0};
        ssize_t n = recv(o->sock, &w, sizeof(w) - 1, how);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break; /* it continues without us */
        if (n < (ssize_t)offsetof(struct word, warning))
            return err_set(e, EIO, "the process that syncs the workspace died");
        if (w.kind == WORD_WARNING && warn_caller)
            warn_caller(w.warning);
        if (w.kind == WORD_GOES_ON)
            how = MSG_DONTWAIT;
        if (w.kind != WORD_RESULT)
            continue;
        if (w.r < 0)
            err_copy(e, &w.e);
        return w.r;
    }
    return 0;
}

void opener_free(struct opener *o)
{
    close_fd(&o->sock);
    close_fd(&o->gate);
}
