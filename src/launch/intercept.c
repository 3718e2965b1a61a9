#include "launch/intercept.h"

#include "intercept/config.h"
#include "jail/jail.h"
#include "launch/helper.h"
#include "launch/host_cas.h"
#include "store/secret.h"
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
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "msb-intercept"

enum { CA_MAX = 64 * 1024 };

/* --- values ---------------------------------------------------------------------------------- */

/* A header has one line. */
static int check_value(const char *name, const char *value, struct err *e)
{
    if (!*value)
        return err_set(e, EINVAL, "secret '%s' is empty", name);
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) {
            (void)err_set(
                e, EINVAL,
                "secret '%s' has a line break or control character in it, which no header "
                "can have",
                name);
            err_hint(e, "store it again: printf %%s VALUE | msb secret set %s", name);
            return -EINVAL;
        }
    return 0;
}

/* As NAME=value, in a list to be wiped: a stored secret, or else the caller's variable. */
static int find_value(const struct store *s, const char *name, struct strlist *ret, struct err *e)
{
    AUTO_STRLIST struct strlist names = {0};
    struct err why = {0};
    char *kv = NULL;
    if (strlist_add(&names, name) < 0)
        return err_oom(e);
    int r = secret_check_known(s, &names, &why);
    if (r == 0)
        return secret_resolve(s, &names, ret, e);
    const char *value = r == -ENOENT ? getenv(name) : NULL;
    if (value)
        return asprintf(&kv, "%s=%s", name, value) < 0 || strlist_take(ret, kv) < 0 ? err_oom(e)
                                                                                    : 0;
    if (r != -ENOENT) {
        *e = why;
        return r;
    }
    r = err_set(e, ENOENT, "there is no secret '%s', and no environment variable of that name",
                name);
    err_hint(e, "store it: msb secret set %s", name);
    return r;
}

static int put_secret(struct config_writer *w, const struct store *s, const char *text,
                      struct err *e)
{
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    CLEANUP(strlist_wipe) struct strlist value = {0};
    if (!x)
        return err_oom(e);
    int r = spec_bound_parse(text, x, e);
    if (r == 0)
        r = find_value(s, x->name, &value, e);
    if (r < 0 || value.n == 0)
        return r;
    const char *v = value.v[0] + strlen(x->name) + 1;
    if ((r = check_value(x->name, v, e)) < 0)
        return r;
    config_secret(w, x->name, x->holder, v);
    for (size_t i = 0; i < x->n_hosts; i++)
        config_host(w, &x->host[i]);
    for (size_t i = 0; i < x->n_places; i++)
        config_place(w, &x->place[i]);
    return 0;
}

/* FILE, or HOST=FILE. */
static int put_authority(struct config_writer *w, const char *text, struct err *e)
{
    struct subst_host host = {0};
    AUTO_FREE char *pem = NULL;
    size_t n;
    const char *path = text, *eq = *text == '/' ? NULL : strchr(text, '=');
    if (eq) {
        AUTO_FREE char *name = strndup(text, (size_t)(eq - text));
        int r = name ? spec_host_parse(name, &host, e) : err_oom(e);
        if (r < 0)
            return r;
        path = eq + 1;
    }
    int r = file_read_at(AT_FDCWD, path, HOST_CAS_MAX, &pem, &n);
    if (r < 0)
        return err_sys(e, -r, "cannot read the certificate authorities in %s", path);
    AUTO_FREE char *certs = host_cas_extract(pem);
    if (!certs)
        return err_oom(e);
    if (!*certs)
        return err_set(e, EINVAL, "no certificates in %s", path);
    config_roots(w, eq ? &host : NULL, certs);
    return 0;
}

static int put_all(struct config_writer *w, const struct store *s, const struct spec_bound *b,
                   struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < b->secrets.n; i++)
        r = put_secret(w, s, b->secrets.v[i], e);
    for (size_t i = 0; r == 0 && i < b->intercept.n; i++) {
        struct subst_host h;
        r = spec_host_parse(b->intercept.v[i], &h, e);
        if (r == 0)
            config_pattern(w, &h);
    }
    for (size_t i = 0; r == 0 && i < b->cas.n; i++)
        r = put_authority(w, b->cas.v[i], e);
    return r;
}

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
    char program[] = PROGRAM, full[] = "full", less[] = "reduced";
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

static int find_program(struct start *s, struct err *e)
{
    char dir[PATH_MAX], path[PATH_MAX + 32];
    int r = assets_dir(dir, sizeof(dir), e);
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof(path), "%s/" PROGRAM, dir);
    if (realpath(path, s->path))
        return 0;
    r = err_sys(e, errno, "cannot find %s, which --secret needs", path);
    err_hint(e, "it is installed with msb: run `make install` again, or set MSB_ASSETS");
    return r;
}

/* In a child that ends: values are in no memory that the launcher has, and so in none that the
 * monitor, its fork, inherits. */
static int tell(const struct store *s, const struct spec_bound *b, int fd, struct err *e)
{
    CLEANUP(config_end) struct config_writer w = {0};
    AUTO_FREE char *ca = NULL;
    const char *bundle = getenv("SSL_CERT_FILE");
    if (config_begin(&w, CONFIG_MAX) < 0 || asprintf(&ca, "%s/ca", s->home) < 0)
        return err_oom(e);
    int r = put_all(&w, s, b, e);
    if (r < 0)
        return r;
    config_ca_dir(&w, ca);
    if (bundle && *bundle)
        config_bundle(&w, bundle);
    r = config_send(&w, fd);
    if (r == -EPIPE || r == -ECONNRESET) /* it says why in its report */
        return 0;
    return r < 0 ? err_sys(e, -r, "cannot tell the interceptor about its secrets") : 0;
}

static int tell_from_child(const struct store *s, const struct spec_bound *b, int fd, struct err *e)
{
    struct err got = {0};
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot create a pipe");
    pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        (void)tell(s, b, fd, &got);
        _exit(write(pair[1], &got, sizeof(got)) == (ssize_t)sizeof(got) ? 0 : 1);
    }
    int r = child < 0 ? err_sys(e, errno, "cannot start a process") : 0;
    (void)close(pair[1]);
    ssize_t k = 0;
    do
        k = r == 0 ? read(pair[0], &got, sizeof(got)) : 0;
    while (k < 0 && errno == EINTR);
    (void)close(pair[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (r == 0 && k != (ssize_t)sizeof(got))
        return err_set(e, ECHILD, "the process that looks up secrets died");
    if (r == 0 && got.code) {
        *e = got;
        return -got.code;
    }
    return r;
}

int intercept_start(const struct store *s, const struct spec_net *n, bool reduced, int *ret_fd,
                    pid_t *ret_stage, struct err *e)
{
    struct start start = {.reduced = reduced, .most = n->max_connections};
    int fd = -1;
    int r = find_program(&start, e);
    if (r == 0)
        r = helper_start(execute, &start, -1, reduced, &fd, ret_stage, e);
    if (r < 0)
        return r;
    r = tell_from_child(s, &n->bound, fd, e);
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
