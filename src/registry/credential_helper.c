/* docker-credential-NAME: a program that keeps passwords. It reads the registry from standard input
 * and answers with JSON. It is the user's own program, but its output and its run time are bounded
 * all the same. */
#include "registry/credentials.h"

#include "image/oci/reference.h"
#include "util/json.h"
#include "util/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { ANSWER_MAX = 256 << 10, HELPER_MS = 60000, REAP_MS = 1000 };

extern char **environ;

/* The helper does not inherit the signals that this process ignores or blocks: a Ctrl-C ends it. */
static int reset_signals(posix_spawnattr_t *attr)
{
    sigset_t none, usual;
    (void)sigemptyset(&none);
    (void)sigemptyset(&usual);
    (void)sigaddset(&usual, SIGPIPE);
    if (posix_spawnattr_init(attr))
        return -ENOMEM;
    (void)posix_spawnattr_setsigmask(attr, &none);
    (void)posix_spawnattr_setsigdefault(attr, &usual);
    (void)posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return 0;
}

/* Both ends are sockets: writing to a helper that is gone must not raise SIGPIPE. */
static int start_helper(const char *program, int child_fd, pid_t *pid, struct err *e)
{
    posix_spawn_file_actions_t fa;
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "get", NULL};
    posix_spawnattr_t attr;
    if (posix_spawn_file_actions_init(&fa))
        return err_oom(e);
    if (reset_signals(&attr) < 0) {
        (void)posix_spawn_file_actions_destroy(&fa);
        return err_oom(e);
    }
    (void)posix_spawn_file_actions_adddup2(&fa, child_fd, STDIN_FILENO);
    (void)posix_spawn_file_actions_adddup2(&fa, child_fd, STDOUT_FILENO);
    (void)posix_spawn_file_actions_addopen(&fa, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int code = posix_spawnp(pid, program, &fa, &attr, argv, environ);
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&fa);
    if (code == 0)
        return 0;
    err_sys(e, code, "cannot run %s, named in Docker's config.json", program);
    if (code == ENOENT)
        err_hint(e, "install it, or run `msb registry login`");
    return code == ENOENT ? -ENOEXEC : -code; /* -ENOENT means that it does not know the registry */
}

static int read_answer(int fd, struct buf *b, const char *program, struct err *e)
{
    uint64_t end = now_ns() + (uint64_t)HELPER_MS * 1000000;
    for (;;) {
        if (now_ns() >= end || !wait_readable(fd, end))
            return err_set(e, ETIMEDOUT, "%s did not answer within %d s", program,
                           HELPER_MS / 1000);
        uint8_t *to = buf_reserve(b, 4096);
        if (!to)
            return err_set(e, EFBIG, "%s printed more than %d KiB", program, ANSWER_MAX >> 10);
        ssize_t n = read(fd, to, 4096);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* ECONNRESET: it did not read what we wrote; what it printed is here */
            return 0;
        buf_commit(b, (size_t)n);
    }
}

static int reap(pid_t pid)
{
    int status = 0;
    for (int i = 0; i < REAP_MS; i++) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR))
            return status;
        (void)poll(NULL, 0, 1);
    }
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

int credential_helper_parse(const char *text, size_t n, struct credentials *ret, struct err *e)
{
    AUTO_JSON json_t *root = json_loadb(text, n, 0, NULL);
    struct credentials c = {.username = credentials_member(root, "Username"),
                            .password = credentials_member(root, "Secret")};
    if (!c.username || !c.password) {
        credentials_free(&c);
        return err_set(e, EINVAL, "the answer lacks a Username or a Secret");
    }
    if (strcmp(c.username, "<token>") == 0) {
        c.identity_token = c.password;
        c.password = NULL;
        free(c.username);
        c.username = NULL;
    }
    *ret = c;
    return 0;
}

/* Not knowing a registry is not an error; all helpers report it with these words. */
static bool is_not_found(const struct buf *b)
{
    static const char words[] = "credentials not found";
    return buf_len(b) >= sizeof(words) - 1 &&
           memmem(buf_head(b), buf_len(b), words, sizeof(words) - 1) != NULL;
}

static int run_helper(const char *program, const char *server, struct buf *answer, int *status,
                      struct err *e)
{
    int sv[2];
    pid_t pid = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
        return err_sys(e, errno, "cannot create a socket pair");
    AUTO_CLOSE int ours = sv[0];
    AUTO_CLOSE int theirs = sv[1];
    int r = start_helper(program, theirs, &pid, e);
    if (r < 0)
        return r;
    close_fd(&theirs);
    (void)send(ours, server, strlen(server), MSG_NOSIGNAL);
    (void)shutdown(ours, SHUT_WR);
    r = read_answer(ours, answer, program, e);
    if (r < 0)
        (void)kill(pid, SIGKILL);
    *status = reap(pid);
    return r;
}

int credential_helper_get(const char *name, const char *registry, struct credentials *ret,
                          struct err *e)
{
    char program[128];
    (void)snprintf(program, sizeof(program), "docker-credential-%s", name);
    const char *server = strcmp(registry, REFERENCE_HUB) == 0 ? DOCKER_HUB_KEY : registry;
    AUTO_SECRET_BUF struct buf answer;
    buf_init(&answer, ANSWER_MAX);
    int status = 0;
    int r = run_helper(program, server, &answer, &status, e);
    if (r < 0)
        return r;
    const char *text = buf_len(&answer) ? (const char *)buf_head(&answer) : "";
    if (status != 0)
        return is_not_found(&answer) ? -ENOENT
                                     : err_set(e, EIO, "%s failed: %.*s", program,
                                               (int)MIN(buf_len(&answer), 200U), text);
    r = credential_helper_parse(text, buf_len(&answer), ret, e);
    return r < 0 ? err_wrap(e, r, "%s", program) : 0;
}
