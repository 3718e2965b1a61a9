#include "cli/serve/oci_console.h"

#include "client/terminal.h"
#include "oci/process.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { NAME_BYTES = 256, PIECE = 4096, END_OF_INPUT = 4 };

static volatile sig_atomic_t resized;

static void on_resize(int sig)
{
    resized = 1;
}

bool oci_console_wanted(const char *bundle)
{
    struct err ignored = {0};
    AUTO_CLOSE int dir = open(bundle, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_JSON json_t *j = dir < 0 ? NULL : oci_config_read(dir, &ignored);
    return json_is_true(json_object_get(json_object_get(j, "process"), "terminal"));
}

/* In a directory that no other user may enter. */
int oci_console_open(struct oci_console *c, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/msb-console-XXXXXX";
    if (!mkdtemp(dir))
        return err_sys(e, errno, "cannot create a directory in /tmp");
    (void)snprintf(c->path, sizeof(c->path), "%s/sock", dir);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", c->path);
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(c->listener, 1) < 0)
        return err_sys(e, errno, "cannot listen for the container's terminal");
    return 0;
}

static void fit(const struct oci_console *c)
{
    struct winsize size;
    resized = 0;
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0)
        (void)ioctl(c->master, TIOCSWINSZ, &size);
}

int oci_console_take(struct oci_console *c, struct err *e)
{
    char name[NAME_BYTES];
    AUTO_CLOSE int conn = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
    ssize_t n = conn < 0 ? -errno : sock_recv_with_fd(conn, name, sizeof(name), &c->master);
    if (n < 0 || c->master < 0)
        return err_set(e, EPROTO, "the container did not send a terminal");
    fit(c);
    return 0;
}

/* What was typed but not passed on yet: neither direction waits for the other. */
struct typed {
    char text[PIECE];
    size_t at, len;
    bool ended;
};

/* The end, as a terminal signals it. */
static void read_typed(struct typed *t)
{
    ssize_t n = read(STDIN_FILENO, t->text, sizeof(t->text));
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    t->ended = n <= 0;
    t->text[0] = n <= 0 ? END_OF_INPUT : t->text[0];
    t->at = 0;
    t->len = n <= 0 ? 1 : (size_t)n;
}

static void send_typed(struct typed *t, int master)
{
    ssize_t n = write(master, t->text + t->at, t->len);
    n = n > 0 ? n : 0;
    t->at += (size_t)n;
    t->len -= (size_t)n;
}

/* False: it has ended. */
static bool print_piece(int master)
{
    char piece[PIECE];
    ssize_t n = read(master, piece, sizeof(piece));
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    return n > 0 && write_all(STDOUT_FILENO, piece, (size_t)n) == 0;
}

void oci_console_serve(struct oci_console *c)
{
    struct typed t = {0};
    bool more = fcntl(c->master, F_SETFL, O_RDWR | O_NONBLOCK) == 0;
    bool raw = isatty(STDIN_FILENO) && terminal_raw(STDIN_FILENO) == 0;
    const struct sigaction a = {.sa_handler = on_resize};
    (void)sigaction(SIGWINCH, &a, NULL);
    while (more) {
        struct pollfd p[] = {
            {.fd = c->master, .events = (short)(t.len ? POLLIN | POLLOUT : POLLIN)},
            {.fd = t.len || t.ended ? -1 : STDIN_FILENO, .events = POLLIN},
        };
        if (resized)
            fit(c);
        if (poll(p, ARRAY_LEN(p), -1) < 0) {
            more = errno == EINTR;
            continue;
        }
        if (p[1].revents)
            read_typed(&t);
        if (p[0].revents & POLLOUT)
            send_typed(&t, c->master);
        if (p[0].revents & ~POLLOUT)
            more = print_piece(c->master);
    }
    if (raw)
        terminal_restore();
    close_fd(&c->master); /* if nothing reads its output, the container gets a hang-up, and does not
                           * wait */
}

void oci_console_close(struct oci_console *c)
{
    close_fd(&c->listener);
    close_fd(&c->master);
    if (!*c->path)
        return;
    (void)unlink(c->path);
    *strrchr(c->path, '/') = '\0';
    (void)rmdir(c->path);
    c->path[0] = '\0';
}
