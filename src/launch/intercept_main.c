/* msb-intercept: the process that intercepts TLS connections of one sandbox (launch/intercept.h).
 *
 * A separate program, because it has OpenSSL in it, which no other part of msb should have to load,
 * and because it should not contain any of its caller's memory. Invariants:
 *  1. The certificate authority's key is only ever in a child. Once this process sees bytes from a
 *     guest, the child is only told that it is time to issue a certificate. Then it ends.
 *  2. Once filtered, it can open, connect and start nothing; it gets connected sockets.
 *  3. Values of secrets are in one locked mapping, and in what is being sent.
 */
#include "intercept/ca.h"
#include "intercept/mint.h"
#include "jail/jail.h"
#include "jail/landlock.h"
#include "launch/helper.h"
#include "launch/host_cas.h"
#include "s3/resign.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* #syscalls:intercept recvmsg recvfrom sendmsg sendto setsockopt close read write shutdown
 * epoll_wait epoll_pwait epoll_ctl clock_gettime gettimeofday exit_group rt_sigreturn restart_syscall
 * brk mmap munmap mremap madvise mlock2 futex getrandom getpid */

enum { SOCK = 3, DATA_MAX = 1 << 30, FILES_OTHER = 16, CHANGE_S = 5, CALM_MS = 200 };

struct interceptor {
    struct loop loop;
    struct loop_src link, issuing; /* fd -1: nothing is being issued */
    struct conn_host conns;
    struct mint mint;
    unsigned most;                                /* connections */
    char *bundle;                                 /* the host's authorities, PEM */
    struct err no_tls;                            /* why connections cannot be intercepted */
    char name[SUBST_SECRETS_MAX][SUBST_NAME_MAX]; /* of secrets, for the next change or cut */
    size_t n_names;
};

static struct interceptor self;

/* --- certificates ---------------------------------------------------------------------------- */

static void load_openssl(void)
{
    (void)OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL);
}

static void __attribute__((noreturn)) issue(int dir, const struct config *c, int fd)
{
    static struct config_issued out;
    struct ca_issued got = {0};
    load_openssl();
    if (ca_issue(dir, c, &got, &out.e) == 0) {
        if (got.key_len <= sizeof(out.key) && got.cert_len <= sizeof(out.cert)) {
            memcpy(out.key, got.key, got.key_len);
            memcpy(out.cert, got.cert, got.cert_len);
            out.key_len = got.key_len;
            out.cert_len = got.cert_len;
        } else {
            (void)err_set(&out.e, E2BIG, "too many hosts for one certificate");
        }
    }
    ca_issued_free(&got);
    (void)send(fd, &out, sizeof(out), MSG_NOSIGNAL);
    _exit(0);
}

/* All this takes a third of a guest's boot time, and is not needed before the guest connects to a
 * host: it waits for that, or for a moment. */
static void __attribute__((noreturn)) issue_later(int dir, const struct config *c, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char go;
    (void)prctl(PR_SET_NAME, "msb-issue");
    for (size_t i = 0; i < c->subst.n; i++) /* it needs none, and its copy is not locked */
        if (c->subst.secret[i].value)
            explicit_bzero((char *)c->subst.secret[i].value, c->subst.secret[i].value_len);
    if (c->ca_cert && poll(&p, 1, CALM_MS) > 0 && recv(fd, &go, 1, 0) != 1)
        _exit(0); /* it is no longer wanted */
    issue(dir, c, fd);
}

static int start_issuing(const struct config *c, struct err *e)
{
    AUTO_CLOSE int dir = -1, there = -1;
    int r = ca_open(c, &dir, e); /* the child can no longer open it by then */
    if (r == 0)
        r = packet_pair(&self.issuing.fd, &there, e);
    if (r < 0)
        return r;
    (void)signal(SIGCHLD, SIG_IGN); /* nothing waits for it */
    pid_t child = fork();
    if (child == 0) {
        (void)close(self.issuing.fd);
        issue_later(dir, c, there);
    }
    return child < 0 ? err_sys(e, errno, "cannot start a process") : 0;
}

/* Waits for it to finish; the configuration then has a certificate. */
static int finish_issuing(struct err *e)
{
    static struct config_issued in;
    struct config *c = self.conns.config;
    if (packet_receive(self.issuing.fd, &in, sizeof(in)) != (ssize_t)sizeof(in))
        return err_set(e, ECHILD, "the process that issues certificates died");
    if (in.e.code) {
        err_copy(e, &in.e);
        return -in.e.code;
    }
    c->issuer_key = in.key;
    c->issuer_key_len = in.key_len;
    c->issuer_cert = in.cert;
    c->issuer_cert_len = in.cert_len;
    return 0;
}

static void forget_issuing(void)
{
    if (self.issuing.fd >= 0)
        loop_close(&self.loop, &self.issuing);
    self.issuing.fd = -1;
}

/* Sets up what connections need. Only once: what fails now would also fail later. */
static void set_up(void)
{
    struct err *e = &self.no_tls;
    if (self.conns.tls || e->code)
        return;
    int r = 0;
    if (!self.conns.config->issuer_cert) {
        (void)send(self.issuing.fd, "", 1, MSG_NOSIGNAL); /* now */
        r = finish_issuing(e);
    }
    forget_issuing();
    load_openssl();
    if (r == 0)
        (void)tls_ctx_new(&self.conns.tls, self.conns.config, self.bundle, e);
}

static void on_issuing(struct loop_src *src, uint32_t events)
{
    set_up();
}

/* --- the loop -------------------------------------------------------------------------------- */

/* If the monitor does not keep up, a line is lost; the request was still refused. */
static void on_report(struct conn_host *h, const struct link_report *r)
{
    (void)link_send(SOCK, r, sizeof(*r), -1, -1);
}

/* Without an authority, it can only report that. */
static void refuse_flow(const struct link_flow *f)
{
    struct link_report r = {.kind = LINK_REFUSED, .id = f->id};
    (void)snprintf(r.host, sizeof(r.host), "%s", f->host);
    (void)snprintf(r.text, sizeof(r.text), "%.250s", self.no_tls.msg);
    on_report(&self.conns, &r);
}

static void take_flow(struct link_flow *f, int fds[2])
{
    f->host[sizeof(f->host) - 1] = '\0';
    set_up();
    if (!self.conns.tls)
        refuse_flow(f);
    if (!self.conns.tls || fds[0] < 0 || fds[1] < 0 || self.conns.n >= self.most ||
        !config_concerns(self.conns.config, f->host)) {
        close_fd(&fds[0]);
        close_fd(&fds[1]);
        return;
    }
    (void)conn_new(&self.conns, f, fds[0], fds[1]);
}

/* Requests under way already have their values; later ones get the new values. */
static int put_in_force(struct config *c, struct err *e)
{
    struct tls *t = NULL;
    const char *name = config_stranger(c, self.name, self.n_names);
    if (name)
        return err_set(e, EPERM, "the sandbox was not asked for a secret '%.100s'", name);
    if (!c->issuer_key || !c->issuer_cert)
        return err_set(e, EINVAL, "the change contains no certificate");
    int r = config_inherit(c, self.conns.config, &name);
    if (r < 0)
        return err_sys(e, -r, "the interceptor cannot keep the value of secret '%s'", name);
    load_openssl();
    r = tls_ctx_new(&t, c, self.bundle, e);
    if (r < 0)
        return r;
    forget_issuing();
    tls_ctx_free(self.conns.tls);
    config_free(self.conns.config);
    self.conns.tls = t;
    self.conns.config = c;
    return 0;
}

static void answer(int fd, const struct err *e)
{
    struct config_reply reply = {.code = e->code};
    (void)snprintf(reply.text, sizeof(reply.text), "%.255s", e->msg);
    (void)send(fd, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void take_change(int fd)
{
    struct timeval most = {.tv_sec = CHANGE_S}; /* connections wait meanwhile */
    struct config *c = NULL;
    struct err e = {0};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    int r = config_recv(fd, &c);
    if (r < 0)
        (void)err_sys(&e, -r, "the change cannot be read");
    else
        r = put_in_force(c, &e);
    if (r < 0)
        config_free(c);
    answer(fd, &e);
    if (r < 0)
        close_fd(&fd);
    else
        (void)mint_set(&self.mint, fd);
}

static void take_name(const struct link_flow *f)
{
    size_t n = strnlen(f->host, sizeof(f->host));
    if (n < SUBST_NAME_MAX && self.n_names < SUBST_SECRETS_MAX) {
        memcpy(self.name[self.n_names], f->host, n);
        self.name[self.n_names++][n] = '\0';
    }
}

static int on_want(struct conn_host *h, const char *secret, const char **why)
{
    return mint_want(&self.mint, secret, why);
}

static void on_link(struct loop_src *src, uint32_t events)
{
    struct link_flow f;
    int fds[2];
    int r = link_recv(src->fd, &f, sizeof(f), fds);
    if (r == -EPIPE)
        _exit(0); /* the monitor is gone, and so is its guest */
    if (r == 1 && f.kind == LINK_FLOW) {
        take_flow(&f, fds);
        return;
    }
    if (r == 1 && f.kind == LINK_NAME)
        take_name(&f);
    if (r == 1 && f.kind == LINK_CHANGE && fds[0] >= 0) {
        take_change(fds[0]);
        fds[0] = -1;
    }
    if (r == 1 && f.kind == LINK_CUT)
        config_cut(self.conns.config, self.name, self.n_names);
    if (r == 1 && f.kind != LINK_NAME)
        self.n_names = 0;
    close_fd(&fds[0]);
    close_fd(&fds[1]);
}

/* --- life ------------------------------------------------------------------------------------ */

static int confine(bool reduced, struct err *e)
{
    const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_NOFILE, 2 * (uint64_t)self.most + FILES_OTHER},
#if !defined(__SANITIZE_ADDRESS__)
        {RLIMIT_DATA, DATA_MAX},
#endif
    };
    int r = 0;
    if (reduced) {
        r = landlock_enter(NULL, 0);
        r = r == -EOPNOTSUPP || r == 0 ? 0 : err_sys(e, -r, "cannot restrict a helper's files");
    } else {
        r = helper_enter_nowhere(e);
    }
    if (r == 0)
        r = jail_set_limits(limits, ARRAY_LEN(limits), e);
    if (r == 0)
        r = jail_drop_caps(e);
    return r < 0 ? r : helper_seal(SECCOMP_INTERCEPT, e);
}

/* A host without any is fine if all servers' authorities were named. */
static int read_bundle(struct err *e)
{
    struct err why = {0};
    int r = host_cas_read(&self.bundle, &why);
    if (r < 0 && (r != -ENOENT || self.conns.config->n_roots == 0)) {
        err_copy(e, &why);
        return r;
    }
    if (r < 0)
        self.bundle = strdup("");
    return self.bundle ? 0 : err_oom(e);
}

/* The first message is a change, too. */
static int first_config(struct config **ret, int *mint_fd)
{
    struct pollfd p = {.fd = SOCK, .events = POLLIN};
    struct link_flow f;
    int fds[2], r;
    while (poll(&p, 1, -1) < 0 && errno == EINTR)
        ;
    r = link_recv(SOCK, &f, sizeof(f), fds);
    AUTO_CLOSE int fd = fds[0];
    close_fd(&fds[1]);
    if (r != 1 || f.kind != LINK_CHANGE || fd < 0)
        return r < 0 ? r : -EPROTO;
    r = config_recv(fd, ret);
    if (r == 0)
        *mint_fd = steal_fd(&fd);
    return r;
}

static int compare(const void *a, const void *b)
{
    return *(const char *)a - *(const char *)b;
}

/* The C library looks up the time zone when a time is first used, and the size of memory when
 * something not small is first sorted. OpenSSL does both once files can no longer be opened. */
static void warm_up(void)
{
    static char text[4096];
    tzset();
    qsort(text, sizeof(text), 1, compare);
}

static int prepare(struct config *c, bool reduced, struct err *e)
{
    self.conns.config = c;
    warm_up();
    if (c->bundle)
        (void)setenv("SSL_CERT_FILE", c->bundle, 1);
    int r = read_bundle(e);
    if (r == 0)
        r = start_issuing(c, e);
    if (r == 0 && !c->ca_cert)
        r = finish_issuing(e);
    if (r == 0 &&
        ((r = loop_init(&self.loop)) < 0 || (r = loop_add(&self.loop, &self.link, EPOLLIN)) < 0 ||
         (r = loop_add(&self.loop, &self.issuing, EPOLLIN)) < 0))
        r = err_sys(e, -r, "cannot create an event loop");
    return r < 0 ? r : confine(reduced, e);
}

/* For a change: a configuration's certificate comes from a process that sees no guest. */
static int issue_only(void)
{
    static struct config_issued out;
    struct config *c = NULL;
    int dir = -1;
    if (config_recv(SOCK, &c) < 0)
        return 1;
    if (ca_open(c, &dir, &out.e) == 0)
        issue(dir, c, SOCK);
    (void)send(SOCK, &out, sizeof(out), MSG_NOSIGNAL);
    return 1;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct config *c = NULL;
    uint64_t most = 0;
    int teller = -1;
    bool once = argc == 2 && strcmp(argv[1], "issue") == 0;
    if (!once && (argc != 3 || parse_u64(argv[2], &most) < 0 || most == 0 || most > 65535)) {
        (void)fprintf(stderr, "msb-intercept is started by msb, for a sandbox with --secret\n");
        return 2;
    }
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "msb-intercept");
    (void)signal(SIGPIPE, SIG_IGN);
    (void)fcntl(SOCK, F_SETFD, FD_CLOEXEC);
    if (once)
        return issue_only();
    self.most = (unsigned)most;
    self.link = (struct loop_src){.fd = SOCK, .fn = on_link};
    self.issuing = (struct loop_src){.fd = -1, .fn = on_issuing};
    self.conns = (struct conn_host){
        .loop = &self.loop, .report = on_report, .want = on_want, .sign = resign};
    node_init(&self.conns.all);
    mint_init(&self.mint, &self.conns);
    if (first_config(&c, &teller) < 0)
        return 1;
    int r = prepare(c, strcmp(argv[1], "reduced") == 0, &e);
    answer(teller, &e);
    if (r == 0 && mint_set(&self.mint, teller) == 0)
        (void)loop_run(&self.loop);
    return 1;
}
