/* The check that decides: a sandbox is started as a user would, with a host directory and a
 * network. */
#include "cli/host/doctor.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGS_MAX = 20, OUTPUT_MAX = 4096, PATIENCE_MS = 60 * 1000 };

#define SHARE_WORD "a host directory"
#define NET_WORD "the network"

struct trial {
    char name[32], dir[64];
    int listen_fd;
    pid_t server;
    char output[OUTPUT_MAX]; /* of the last command, including errors */
};

/* --- this program, as a child ---------------------------------------------------------------- */

static void __attribute__((noreturn)) run_self(int out, const char *const argv[])
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)dup2(null_fd, STDIN_FILENO);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(out, STDERR_FILENO);
    (void)setenv("MSB_AUDIT", "off", 1);
    (void)setenv("NO_COLOR", "1", 1);
    (void)execv("/proc/self/exe", (char *const *)argv);
    _exit(127);
}

/* Reads what it prints until it ends, or has taken too long. */
static void read_output(struct trial *t, int fd, pid_t pid)
{
    size_t n = 0;
    uint64_t end = now_ns() + (uint64_t)PATIENCE_MS * 1000000;
    for (;;) {
        bool ready = now_ns() < end && wait_readable(fd, end);
        char chunk[512];
        ssize_t k = ready ? read(fd, chunk, sizeof(chunk)) : 0;
        if (!ready)
            (void)kill(pid, SIGKILL);
        if (k <= 0)
            break;
        size_t some = MIN((size_t)k, sizeof(t->output) - 1 - n);
        memcpy(t->output + n, chunk, some);
        n += some;
    }
    t->output[n] = '\0';
}

/* Its exit status, or -errno. */
static int self(struct trial *t, const char *const argv[])
{
    int out[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return -errno;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        run_self(out[1], argv);
    (void)close(out[1]);
    AUTO_CLOSE int from = out[0];
    if (pid < 0)
        return -errno;
    read_output(t, from, pid);
    return process_exit_code(process_wait(pid));
}

/* --- what the guest is to find --------------------------------------------------------------- */

static int listen_on_loopback(struct trial *t, unsigned *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    t->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (t->listen_fd < 0 || bind(t->listen_fd, (struct sockaddr *)&a, len) < 0 ||
        listen(t->listen_fd, 4) < 0 || getsockname(t->listen_fd, (struct sockaddr *)&a, &len) < 0)
        return -errno;
    *port = ntohs(a.sin_port);
    t->server = fork();
    if (t->server == 0) {
        int fd = accept(t->listen_fd, NULL, NULL);
        (void)!write(fd, NET_WORD "\n", sizeof(NET_WORD));
        _exit(0);
    }
    return t->server < 0 ? -errno : 0;
}

static int prepare_trial(struct trial *t, const struct store *s, unsigned *port)
{
    (void)snprintf(t->name, sizeof(t->name), "doctor-%d", (int)getpid());
    (void)snprintf(t->dir, sizeof(t->dir), "%s.share", t->name);
    if (mkdirat(s->home_fd, t->dir, 0700) < 0)
        return -errno;
    AUTO_CLOSE int dir = dir_open_at(s->home_fd, t->dir);
    int r = dir < 0
                ? dir
                : file_replace_at(dir, "word", SHARE_WORD "\n", sizeof(SHARE_WORD), 0600, false);
    return r < 0 ? r : listen_on_loopback(t, port);
}

static void end_trial(struct trial *t, const struct store *s)
{
    const char *const remove[] = {"msb", "remove", "-q", "-f", t->name, NULL};
    (void)self(t, remove);
    if (t->server > 0) {
        (void)kill(t->server, SIGKILL);
        (void)process_wait(t->server);
    }
    close_fd(&t->listen_fd);
    (void)remove_tree_at(s->home_fd, t->dir);
}

/* --- the verdict ----------------------------------------------------------------------------- */

/* "error: what", and the first hint, of what a command printed. */
static void quote(struct doctor *d, const char *what, char *output)
{
    char *error = strstr(output, "error: "), *hint = strstr(output, "→ ");
    if (hint)
        hint += strlen("→ ");
    error = error ? error + strlen("error: ") : output;
    struct check *c =
        doctor_add(d, "Sandbox", MARK_FAIL, "%s: %.*s", what, (int)strcspn(error, "\n"), error);
    if (hint)
        doctor_remedy(c, "%.*s", (int)strcspn(hint, "\n"), hint);
}

static void judge(struct doctor *d, struct trial *t, unsigned port, uint64_t t0)
{
    char share[4096 + 128], script[256];
    (void)snprintf(share, sizeof(share), "%s/%s:/doctor:ro", d->store.home, t->dir);
    const char *const create[] = {"msb",         "create", "-n",     t->name,      "-m",
                                  "128M",        "-v",     share,    "--net-rule", "allow@host",
                                  "--root-disk", "tmpfs",  "--pull", "never",      NULL};
    if (self(t, create) != 0) {
        quote(d, "cannot be started", t->output);
        return;
    }
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    if (sandbox_open(&d->store, t->name, &sb, NULL) < 0)
        sb.state = (struct sandbox_state){0};
    (void)snprintf(script, sizeof(script), "cat /doctor/word; nc host.microsandbox.internal %u",
                   port);
    const char *const exec[] = {"msb", "exec", "-q", t->name, "--", "sh", "-c", script, NULL};
    int code = self(t, exec);
    const char *engine = sb.state.engine, *jail = sb.state.jail;
    if (code != 0 && !strstr(t->output, SHARE_WORD))
        quote(d, "runs, but a host directory in it does not work", t->output);
    else if (!strstr(t->output, NET_WORD))
        quote(d, "runs, but its network does not work", t->output);
    else
        doctor_add(d, "Sandbox", MARK_OK,
                   "one was started in %u ms (%s, %s jail); a host directory and the network work "
                   "in it",
                   (unsigned)((now_ns() - t0) / 1000000), engine, jail);
}

void doctor_boot(struct doctor *d)
{
    struct trial t = {.listen_fd = -1};
    unsigned port = 0;
    for (size_t i = 0; i < d->n; i++) /* missing things have been reported already */
        if (d->checks[i].mark == MARK_FAIL)
            return;
    if (!d->have_store)
        return;
    uint64_t t0 = now_ns();
    int r = prepare_trial(&t, &d->store, &port);
    if (r < 0)
        doctor_add(d, "Sandbox", MARK_FAIL, "cannot be tested: %s", strerror(-r));
    else
        judge(d, &t, port, t0);
    end_trial(&t, &d->store);
}
