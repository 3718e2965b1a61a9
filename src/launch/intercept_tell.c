#include "launch/intercept_tell.h"

#include "client/net_request.h"
#include "client/request.h"
#include "intercept/config.h"
#include "intercept/link.h"
#include "launch/host_cas.h"
#include "launch/intercept.h"
#include "launch/mint.h"
#include "store/secret.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/process.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPLY_S = 10 }; /* for the interceptor, which may be busy */

/* What is told, and to whom. */
struct telling {
    const struct store *store;
    const struct spec_bound *bound;
    const struct spec_net *old; /* of a change */
    const char *fresh;
    const char *ca;  /* of a start: the CA that guests are told to trust; NULL: none yet */
    int link, dirfd; /* one of them is -1 */
    struct mint_source source[SUBST_SECRETS_MAX];
    size_t n_sources;
};

/* --- values ---------------------------------------------------------------------------------- */

/* It has to fit on one header line. */
static int check_value(const char *name, const char *value, struct err *e)
{
    const char *wrong = mint_check(value, strlen(value));
    if (!wrong)
        return 0;
    return err_hinted(e, err_set(e, EINVAL, "secret '%s' %s", name, wrong),
                      "store it again: printf %%s VALUE | msb secret set %s", name);
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
        err_copy(e, &why);
        return r;
    }
    r = err_set(e, ENOENT, "there is no secret '%s', and no environment variable of that name",
                name);
    err_hint(e, "store it: msb secret set %s", name);
    return r;
}

/* The interceptor has a value with that name, and continues to use it: only for the same hosts,
 * whatever it is told. */
static bool is_kept(const struct telling *t, const char *name)
{
    const char *was = t->old ? spec_bound_find(&t->old->bound, name) : NULL;
    const char *now = spec_bound_find(t->bound, name);
    return was && now && strcmp(was, now) == 0 && !(t->fresh && strcmp(t->fresh, name) == 0);
}

/* 1: a command mints it; records that. */
static int put_minted(struct config_writer *w, struct telling *t, const struct subst_secret *x)
{
    struct mint_source *to = &t->source[t->n_sources];
    char *command = NULL;
    uint32_t ttl_s = 0;
    if (secret_command(t->store, x->name, &command, &ttl_s, NULL) < 0 || !command ||
        t->n_sources == SUBST_SECRETS_MAX)
        return 0; /* if anything is wrong with it, it is found again */
    memcpy(to->name, x->name, sizeof(to->name));
    to->command = command;
    to->ttl_s = ttl_s;
    t->n_sources++;
    config_minted(w, x->name, x->holder, is_kept(t, x->name));
    return 1;
}

static int put_value(struct config_writer *w, struct telling *t, const struct subst_secret *x,
                     struct err *e)
{
    CLEANUP(strlist_wipe) struct strlist value = {0};
    if (put_minted(w, t, x))
        return 0;
    if (is_kept(t, x->name)) {
        config_keep(w, x->name, x->holder);
        return 0;
    }
    int r = find_value(t->store, x->name, &value, e);
    if (r < 0 || value.n == 0)
        return r;
    const char *v = value.v[0] + strlen(x->name) + 1;
    r = check_value(x->name, v, e);
    if (r == 0)
        config_secret(w, x->name, x->holder, v);
    return r;
}

static int put_secret(struct config_writer *w, struct telling *t, const char *text, struct err *e)
{
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    if (!x)
        return err_oom(e);
    int r = spec_bound_parse(text, x, e);
    if (r == 0)
        r = put_value(w, t, x, e);
    if (r < 0)
        return r;
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
    AUTO_FREE char *certs = NULL;
    const char *path = text, *eq = *text == '/' ? NULL : strchr(text, '=');
    if (eq) {
        AUTO_FREE char *name = strndup(text, (size_t)(eq - text));
        int r = name ? spec_host_parse(name, &host, e) : err_oom(e);
        if (r < 0)
            return r;
        path = eq + 1;
    }
    int r = host_cas_read_file(path, &certs, e);
    if (r == 0)
        config_roots(w, eq ? &host : NULL, certs);
    return r;
}

static int put_hosts(struct config_writer *w, const struct strlist *hosts,
                     void (*put)(struct config_writer *w, const struct subst_host *h),
                     struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < hosts->n; i++) {
        struct subst_host h;
        r = spec_host_parse(hosts->v[i], &h, e);
        if (r == 0)
            put(w, &h);
    }
    return r;
}

static int put_all(struct config_writer *w, struct telling *t, struct err *e)
{
    const struct spec_bound *b = t->bound;
    const char *bundle = getenv("SSL_CERT_FILE");
    AUTO_FREE char *ca = NULL;
    int r = asprintf(&ca, "%s/ca", t->store->home) < 0 ? err_oom(e) : 0;
    for (size_t i = 0; r == 0 && i < b->secrets.n; i++)
        r = put_secret(w, t, b->secrets.v[i], e);
    if (r == 0)
        r = put_hosts(w, &b->intercept, config_pattern, e);
    if (r == 0)
        r = put_hosts(w, &b->no_verify, config_no_verify, e);
    for (size_t i = 0; r == 0 && i < b->cas.n; i++)
        r = put_authority(w, b->cas.v[i], e);
    if (r < 0)
        return r;
    if (b->ca_cert && b->ca_key)
        config_own_ca(w, b->ca_cert, b->ca_key);
    else
        config_ca(w, ca, t->ca);
    if (bundle && *bundle)
        config_bundle(w, bundle);
    return 0;
}

/* --- a certificate for the hosts of a change ------------------------------------------------- */

static void __attribute__((noreturn)) issue(const char *path, int sock)
{
    char program[] = INTERCEPT_PROGRAM, what[] = "issue";
    char *argv[] = {program, what, NULL}, *env[] = {NULL};
    if (sock == 3 ? fcntl(sock, F_SETFD, 0) == 0 : dup2(sock, 3) == 3)
        (void)execve(path, argv, env);
    _exit(127);
}

static int put_issuer(struct config_writer *w, struct err *e)
{
    char path[PATH_MAX];
    AUTO_CLOSE int here = -1, there = -1;
    AUTO_FREE struct config_issued *got = calloc(1, sizeof(*got));
    if (!got)
        return err_oom(e);
    int r = intercept_program(path, e);
    if (r == 0)
        r = packet_pair(&here, &there, e);
    if (r < 0)
        return r;
    pid_t child = fork();
    if (child == 0)
        issue(path, there);
    close_fd(&there);
    ssize_t k = 0;
    if (child > 0 && config_send(w, here) == 0)
        k = packet_receive(here, got, sizeof(*got));
    close_fd(&here);
    if (child > 0)
        (void)process_wait(child);
    if (k != (ssize_t)sizeof(*got))
        return err_set(e, ECHILD, "the process that issues certificates died");
    if (got->e.code) {
        err_copy(e, &got->e);
        return -got->e.code;
    }
    config_issuer(w, got->key, got->key_len, got->cert, got->cert_len);
    explicit_bzero(got->key, sizeof(got->key));
    return 0;
}

/* --- telling --------------------------------------------------------------------------------- */

/* Gives the interceptor its end of the socket. */
static int hand(const struct telling *t, int fd, struct err *e)
{
    const struct link_flow f = {.kind = LINK_CHANGE};
    if (t->dirfd >= 0)
        return net_request_secrets(t->dirfd, fd, NULL, NULL, e);
    int r = link_send(t->link, &f, sizeof(f), fd, -1);
    return r == -EPIPE || r == -ECONNRESET ? 0 /* its report says why */
           : r < 0                         ? err_sys(e, -r, "cannot reach the interceptor")
                                           : 0;
}

/* Reads the outcome. Waits for an interceptor that is starting as long as it lives. */
static int read_reply(const struct telling *t, int sock, struct err *e)
{
    const struct timeval most = {.tv_sec = t->dirfd < 0 ? 0 : REPLY_S};
    struct config_reply reply;
    (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    if (packet_receive(sock, &reply, sizeof(reply)) != (ssize_t)sizeof(reply))
        return t->dirfd < 0
                   ? err_set(e, ECHILD,
                             "the process that intercepts TLS connections died during start-up")
                   : err_set(e, ETIMEDOUT, "the interceptor does not answer");
    reply.text[sizeof(reply.text) - 1] = '\0';
    return reply.code ? err_set(e, reply.code > 0 ? reply.code : EIO, "%s", reply.text) : 0;
}

/* *ret: the socket, on which the interceptor answers. */
static int tell(struct telling *t, int *ret, struct err *e)
{
    CLEANUP(config_end) struct config_writer w = {0};
    AUTO_CLOSE int here = -1, there = -1;
    if (config_begin(&w, CONFIG_MAX) < 0)
        return err_oom(e);
    int r = put_all(&w, t, e);
    if (r == 0 && t->dirfd >= 0)
        r = put_issuer(&w, e);
    if (r == 0)
        r = packet_pair(&here, &there, e);
    if (r == 0)
        r = hand(t, there, e);
    close_fd(&there);
    if (r < 0)
        return r;
    r = config_send(&w, here);
    if (r < 0 && !(t->dirfd < 0 && (r == -EPIPE || r == -ECONNRESET)))
        return err_sys(e, -r, "cannot tell the interceptor about its secrets");
    *ret = steal_fd(&here);
    return 0;
}

/* --- the process that does it ---------------------------------------------------------------- */

static void say(int fd, const struct err *e)
{
    if (write(fd, e, sizeof(*e)) != (ssize_t)sizeof(*e) || e->code)
        _exit(1);
}

static void __attribute__((noreturn)) teller_main(struct telling *t, int fd)
{
    struct err e = {0};
    int sock = -1;
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)tell(t, &sock, &e);
    say(fd, &e);
    (void)read_reply(t, sock, &e);
    if (!e.code && t->n_sources > 0 && fork() == 0)
        mint_serve(sock, t->source, t->n_sources);
    say(fd, &e);
    _exit(0);
}

/* In a child that ends, so that values are never in the launcher's memory, nor in that of the
 * monitor, its fork. */
static int teller_fork(struct telling *t, struct teller *ret, struct err *e)
{
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) < 0)
        return err_sys(e, errno, "cannot create a pipe");
    pid_t child = fork();
    if (child == 0)
        teller_main(t, pair[1]);
    int r = child < 0 ? err_sys(e, errno, "cannot start a process") : 0;
    (void)close(pair[1]);
    if (r < 0)
        (void)close(pair[0]);
    else
        *ret = (struct teller){.pid = child, .fd = pair[0]};
    return r;
}

int teller_start(const struct store *s, const struct spec_bound *b, const char *ca, int link,
                 struct teller *ret, struct err *e)
{
    struct telling t = {.store = s, .bound = b, .ca = ca, .link = link, .dirfd = -1};
    return teller_fork(&t, ret, e);
}

int teller_wait(struct teller *t, struct err *e)
{
    struct err got = {0};
    ssize_t k = read_up_to(t->fd, &got, sizeof(got));
    if (k == (ssize_t)sizeof(got) && !got.code)
        return 0;
    teller_end(t);
    if (k != (ssize_t)sizeof(got))
        return err_set(e, ECHILD, "the process that looks up secrets died");
    err_copy(e, &got);
    return -got.code;
}

void teller_end(struct teller *t)
{
    if (t->fd < 0)
        return;
    close_fd(&t->fd);
    (void)process_wait(t->pid);
}

int intercept_change(const struct store *s, int dirfd, const struct spec_net *old,
                     const struct spec_net *now, const char *fresh, struct err *e)
{
    struct telling t = {
        .store = s, .bound = &now->bound, .old = old, .fresh = fresh, .link = -1, .dirfd = dirfd};
    struct teller teller = {.fd = -1};
    struct err ignored = {0};
    int r = net_request_secrets(dirfd, -1, now, old, e);
    if (r < 0)
        return r;
    r = teller_fork(&t, &teller, e);
    if (r == 0 && (r = teller_wait(&teller, e)) == 0)
        r = teller_wait(&teller, e);
    teller_end(&teller);
    if (r < 0)
        (void)net_request_secrets(dirfd, -1, old, now, &ignored);
    (void)request_ping(dirfd); /* once the agent answers, it has the variables */
    return r;
}
