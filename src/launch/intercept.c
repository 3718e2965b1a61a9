#include "launch/intercept.h"

#include "intercept/config.h"
#include "jail/jail.h"
#include "launch/helper.h"
#include "launch/host_cas.h"
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CA_FILE "ca/ca.crt"
#define CA_KEY_FILE "ca/ca.key"

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
    /* It sets up its own jail, once it has loaded what it needs. */
    if (!s->reduced && (jail_pass_cap(CAP_SYS_ADMIN, &e) < 0 || jail_pass_cap(CAP_SETPCAP, &e) < 0))
        helper_fail(sock, &e);
    (void)fcntl(sock, F_SETFD, 0);
    (void)execve(s->path, argv, env);
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
    return err_hinted(e, err_sys(e, errno, "cannot find %s, which --secret needs", path),
                      "it is installed with msb: run `make install` again, or set MSB_ASSETS");
}

/* --- its authority --------------------------------------------------------------------------- */

static int read_ca(const struct store *s, char **ret, struct err *e)
{
    size_t n;
    int r = file_read_at(s->home_fd, CA_FILE, CA_MAX, ret, &n);
    return r < 0 ? err_sys(e, -r, "cannot read %s/" CA_FILE, s->home) : 0;
}

/* Without the key, which may be in the same file. */
static int read_own(const char *path, char **ret, struct err *e)
{
    size_t n;
    char *pem = NULL;
    int r = file_read_at(AT_FDCWD, path, CA_MAX, &pem, &n);
    if (r < 0)
        return err_sys(e, -r, "cannot read the certificate in %s", path);
    *ret = host_cas_extract(pem);
    explicit_bzero(pem, n);
    free(pem);
    return *ret ? 0 : err_oom(e);
}

/* The authority, if there is one that is not due for replacement. */
static char *settled_ca(const struct store *s)
{
    struct stat key, cert;
    char *ca = NULL;
    if (fstatat(s->home_fd, CA_KEY_FILE, &key, AT_SYMLINK_NOFOLLOW) == 0 &&
        fstatat(s->home_fd, CA_FILE, &cert, AT_SYMLINK_NOFOLLOW) == 0 &&
        time(NULL) - cert.st_mtime < CONFIG_CA_STAYS_DAYS * 86400L)
        (void)read_ca(s, &ca, NULL);
    return ca;
}

/* --- life ------------------------------------------------------------------------------------ */

int intercept_start(const struct store *s, const struct spec_net *n, bool reduced, int *ret_fd,
                    struct intercept *ret, struct err *e)
{
    struct start start = {.reduced = reduced, .most = n->max_connections};
    struct intercept i = {.teller = {.fd = -1}};
    const struct helper_place place = {.dir_fd = -1, .reduced = reduced, .at_once = true};
    AUTO_CLOSE int fd = -1;
    int r = intercept_program(start.path, e);
    if (r == 0)
        r = helper_start(execute, &start, &place, &fd, &i.stage, e);
    if (r < 0)
        return r;
    i.own = n->bound.ca_cert; /* checked at each start: the issuing process is waited for */
    i.ca = i.own ? NULL : settled_ca(s);
    r = teller_start(s, &n->bound, i.ca, fd, &i.teller, e);
    if (r < 0) {
        close_fd(&fd); /* makes it end, too */
        intercept_free(&i);
        return r;
    }
    *ret_fd = steal_fd(&fd);
    *ret = i;
    return 0;
}

int intercept_placed(struct intercept *i, bool *refused, struct err *e)
{
    pid_t stage = i->stage;
    i->stage = 0;
    return stage ? helper_reap(stage, "intercepts TLS connections", refused, e) : 0;
}

int intercept_told(struct intercept *i, const struct store *s, bool *refused, struct err *e)
{
    int r = teller_wait(&i->teller, e);
    if (r < 0 || i->ca)
        return r;
    r = intercept_placed(i, refused, e);
    if (r == 0)
        r = intercept_ready(i, e); /* an authority has to be created or checked first */
    if (r < 0)
        return r;
    return i->own ? read_own(i->own, &i->ca, e) : read_ca(s, &i->ca, e);
}

int intercept_ready(struct intercept *i, struct err *e)
{
    int r = i->teller.fd < 0 ? 0 : teller_wait(&i->teller, e);
    teller_end(&i->teller);
    return r;
}

void intercept_free(struct intercept *i)
{
    bool ignored = false;
    (void)intercept_placed(i, &ignored, NULL);
    teller_end(&i->teller);
    free(i->ca);
    i->ca = NULL;
}
