#include "oci/console.h"

#include "util/cleanup.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Bytes pass through unchanged: the guest's terminal acts on them. */
static int make_raw(int fd)
{
    struct termios t;
    if (tcgetattr(fd, &t) < 0)
        return -errno;
    cfmakeraw(&t);
    return tcsetattr(fd, TCSANOW, &t) < 0 ? -errno : 0;
}

int console_take(const char *socket_path, unsigned rows, unsigned cols, struct err *e)
{
    const struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    char name[64];
    AUTO_CLOSE int sock = connect_at(socket_path);
    if (sock < 0)
        return err_sys(e, -sock, "cannot connect to --console-socket %s", socket_path);
    AUTO_CLOSE int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0 ||
        ptsname_r(master, name, sizeof(name)) != 0)
        return err_sys(e, errno, "cannot create a terminal");
    AUTO_CLOSE int slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0 || make_raw(slave) < 0 || (rows && cols && ioctl(slave, TIOCSWINSZ, &size) < 0))
        return err_sys(e, errno, "cannot set up the terminal %s", name);
    /* Sends the name, as runc does: some callers read it. */
    ssize_t n = sock_send_with_fd(sock, name, strlen(name), master);
    if (n < 0)
        return err_sys(e, (int)-n, "cannot send the terminal over %s", socket_path);
    if (ioctl(slave, TIOCSCTTY, 0) < 0)
        return err_sys(e, errno, "cannot control the terminal");
    for (int fd = 0; fd < 3; fd++)
        if (dup2(slave, fd) < 0)
            return err_sys(e, errno, "cannot use the terminal");
    return 0;
}
