/* The agent's session server on a unix socket, for tests on the host.
 *
 *   agent_serve SOCKET [CONFIG]
 *
 * CONFIG is a file with the payload of a CONFIG message. It ends when its standard input
 * does: the server blocks all signals, and leak checkers report only on an orderly exit.
 */
#include "agent/files.h"
#include "agent/server.h"
#include "agent/session.h"
#include "util/cleanup.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct server server;
static bool stop;

static void on_stdin(struct loop_src *src, uint32_t events)
{
    (void)events;
    loop_del(&server.loop, src);
    stop = true;
}

static int listen_on(const char *path)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (fd < 0 || strlen(path) >= sizeof(a.sun_path))
        return -1;
    strcpy(a.sun_path, path);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 1024) < 0)
        return -1;
    return fd;
}

int main(int argc, char **argv)
{
    struct config cfg = {0};
    size_t len = 0;
    AUTO_FREE char *text = argc > 2 ? file_read_text(argv[2], 1 << 20, &len) : NULL;
    struct proto_frame f = {.type = PROTO_CONFIG, .data = (uint8_t *)text, .len = len};
    int fd = argc > 1 ? listen_on(argv[1]) : -1;
    if (fd < 0 || (text && config_parse(&cfg, &f) < 0))
        return 1;
    for (int sig = 1; sig < 32; sig++) /* as PID 1 has them */
        (void)signal(sig, SIG_DFL);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct loop_src in = {.fd = fcntl(0, F_DUPFD_CLOEXEC, 3), .fn = on_stdin};
    if (server_init(&server, &cfg) < 0 || server_listen(&server, fd) < 0 ||
        loop_add(&server.loop, &in, EPOLLIN) < 0)
        return 1;
    puts("listening");
    (void)fflush(stdout);
    while (!stop)
        if (server_turn(&server, -1) < 0)
            return 1;
    /* What the tests have ended themselves may take a moment. */
    for (int i = 0; i < 100 && (server.nsessions || server.ndrains); i++)
        (void)server_turn(&server, 10);
    printf("sessions %zu drains %zu\n", server.nsessions, server.ndrains);
    config_free(&cfg);
    return 0;
}
