#include "launch/intercept.h"

#include "jail/jail.h"
#include "launch/helper.h"
#include "launch/intercept_tell.h"
#include "util/assets.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CA_MAX = 64 * 1024 };

/* --- the process ----------------------------------------------------------------------------- */

struct start {
    char path[PATH_MAX];
    bool reduced;
    unsigned most;
};

static void execute(int sock, void *arg)
{
    const struct start *s = arg;
    struct err e = {0};
    char most[16];
    (void)snprintf(most, sizeof(most), "%u", s->most);
    char program[] = INTERCEPT_PROGRAM, full[] = "full", less[] = "reduced";
    char *argv[] = {program, s->reduced ? less : full, most, NULL};
    char *env[] = {NULL};
    /* It makes its own jail, once it has loaded what it needs. */
    if (!s->reduced && (jail_pass_cap(CAP_SYS_ADMIN, &e) < 0 || jail_pass_cap(CAP_SETPCAP, &e) < 0))
        helper_fail(sock, &e);
    (void)fcntl(sock, F_SETFD, 0);
    (void)execve(s->path, argv, env);
    err_sys(&e, errno, "cannot start %s", s->path);
    helper_fail(sock, &e);
}

int intercept_program(char ret[PATH_MAX], struct err *e)
{
    char dir[PATH_MAX], path[PATH_MAX + 32];
    int r = assets_dir(dir, sizeof(dir), e);
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof(path), "%s/" INTERCEPT_PROGRAM, dir);
    if (realpath(path, ret))
        return 0;
    r = err_sys(e, errno, "cannot find %s, which --secret needs", path);
    err_hint(e, "it is installed with msb: run `make install` again, or set MSB_ASSETS");
    return r;
}

int intercept_start(const struct store *s, const struct spec_net *n, bool reduced, int *ret_fd,
                    pid_t *ret_stage, struct err *e)
{
    struct start start = {.reduced = reduced, .most = n->max_connections};
    int fd = -1;
    int r = intercept_program(start.path, e);
    if (r == 0)
        r = helper_start(execute, &start, -1, reduced, &fd, ret_stage, e);
    if (r < 0)
        return r;
    r = intercept_tell(s, &n->bound, fd, e);
    if (r < 0) {
        close_fd(&fd); /* it ends, too */
        while (waitpid(*ret_stage, NULL, 0) < 0 && errno == EINTR)
            ;
        return r;
    }
    *ret_fd = fd;
    return 0;
}

int intercept_wait(const struct store *s, int fd, pid_t stage, bool *refused, char **ret_ca,
                   struct err *e)
{
    AUTO_FREE char *path = NULL;
    size_t n;
    int r = helper_wait(fd, stage, "looks into TLS connections", refused, e);
    if (r < 0)
        return r;
    if (asprintf(&path, "%s/ca/ca.crt", s->home) < 0)
        return err_oom(e);
    r = file_read_at(AT_FDCWD, path, CA_MAX, ret_ca, &n);
    return r < 0 ? err_sys(e, -r, "cannot read %s", path) : 0;
}
