/* In a guest: connects to a vsock port of the host, sends its input, prints what comes back.
 *
 *     vsock_client PORT [N [CID]]     N connections at once, which are held; input and output are those
 *                                     of the last one that was made; CID 1 is the guest itself, and
 *                                     the end of the input is not passed on
 *
 * Prints the error's name, and ends with 1, when it cannot connect. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct vm_address { /* of <linux/vm_sockets.h> */
    unsigned short family, reserved;
    unsigned port, cid;
    unsigned char zero[4];
};

static int dial(unsigned port, unsigned cid)
{
    struct vm_address a = {.family = AF_VSOCK, .port = port, .cid = cid};
    int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        printf("%s\n", strerrorname_np(errno));
        exit(1);
    }
    return fd;
}

static long move(int from, int to, int halves)
{
    static char buf[65536];
    long n = read(from, buf, sizeof(buf));
    for (long at = 0; n > 0 && at < n;) {
        long k = write(to, buf + at, (size_t)(n - at));
        if (k < 0)
            exit(2);
        at += k;
    }
    if (n < 0)
        exit(3);
    if (n == 0 && to == 1)
        exit(0);
    if (n == 0 && halves)
        shutdown(to, SHUT_WR);
    return n;
}

int main(int argc, char **argv)
{
    int fd = -1;
    for (int n = argc > 2 ? atoi(argv[2]) : 1; n > 0; n--)
        fd = dial((unsigned)strtoul(argv[1], NULL, 10), argc > 3 ? atoi(argv[3]) : 2);
    struct pollfd p[] = {{.fd = 0, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    for (;;) {
        poll(p, 2, -1);
        if (p[1].revents)
            move(fd, 1, 0);
        if (p[0].revents && !move(0, fd, argc <= 3))
            p[0].fd = -1;
    }
}
