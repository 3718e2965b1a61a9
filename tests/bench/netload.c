/* Traffic for the network's bench: one static program, for guests and for namespaces alike.
 *
 *     netload serve ADDR                      prints its port, serves for ever
 *     netload send|recv ADDR PORT FLOWS MS    bulk data; prints bytes and seconds
 *     netload short ADDR PORT COUNT FLOWS     connect, ask, read the answer; prints count, seconds
 *     netload connect ADDR PORT COUNT         prints the median of a connect in microseconds, and
 *                                             that of one to a listener of its own
 *
 * ADDR may be "gateway": that of the default route. The first byte of a connection says what the
 * server does: 'S' reads all, 'Q' answers with the bytes that were read by all of those, 'R' and a
 * number of milliseconds sends for so long, 'X' answers with 100 bytes; on anything else it waits
 * for the end. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 256 << 10, FLOWS_MAX = 256, COUNT_MAX = 1 << 20, ANSWER = 100 };

static struct sockaddr_in peer = {.sin_family = AF_INET};
static unsigned count, flows, ms;
static atomic_uint_fast64_t sunk;
static uint64_t bytes[FLOWS_MAX];
static double micros[COUNT_MAX];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what)
{
    perror(what);
    _exit(1);
}

static void send_all(int fd, const void *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            die("send");
        p = (const char *)p + k;
        n -= (size_t)k;
    }
}

static void read_all(int fd, void *p, size_t n)
{
    if (recv(fd, p, n, MSG_WAITALL) != (ssize_t)n)
        die("recv");
}

static int dial(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0)
        die("connect");
    return fd;
}

/* --- the server ------------------------------------------------------------------------------ */

static void *serve_one(void *arg)
{
    static const char piece[PIECE];
    int fd = (int)(intptr_t)arg;
    char *in = malloc(PIECE), kind = 0;
    uint64_t n = 0;
    ssize_t k;
    if (!in || recv(fd, &kind, 1, 0) <= 0)
        kind = 0;
    if (kind == 'S') {
        while ((k = recv(fd, in, PIECE, 0)) > 0)
            atomic_fetch_add(&sunk, (uint64_t)k);
    } else if (kind == 'Q') {
        n = atomic_load(&sunk);
        (void)send(fd, &n, sizeof(n), MSG_NOSIGNAL);
    } else if (kind == 'R') {
        uint32_t for_ms = 0;
        (void)recv(fd, &for_ms, sizeof(for_ms), MSG_WAITALL);
        double end = now() + for_ms / 1e3;
        while (now() < end && send(fd, piece, PIECE, MSG_NOSIGNAL) > 0)
            ;
    } else if (kind == 'X') {
        (void)send(fd, piece, ANSWER, MSG_NOSIGNAL);
    }
    free(in);
    close(fd);
    return NULL;
}

static int listener(const char *addr, struct sockaddr_in *at)
{
    socklen_t n = sizeof(*at);
    *at = (struct sockaddr_in){.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, addr, &at->sin_addr) != 1 ||
        bind(fd, (struct sockaddr *)at, sizeof(*at)) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, (struct sockaddr *)at, &n) < 0)
        die("listen");
    return fd;
}

static void serve(int fd)
{
    pthread_attr_t attr;
    pthread_t t;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    for (;;) {
        int s = accept(fd, NULL, NULL);
        if (s >= 0 && pthread_create(&t, &attr, serve_one, (void *)(intptr_t)s) != 0)
            close(s);
    }
}

static void *serve_in_thread(void *arg)
{
    serve((int)(intptr_t)arg);
    return NULL;
}

/* --- the client ------------------------------------------------------------------------------ */

static void *sender(void *arg)
{
    static const char piece[PIECE];
    int fd = dial(&peer);
    double end = now() + ms / 1e3;
    (void)arg;
    send_all(fd, "S", 1);
    while (now() < end)
        send_all(fd, piece, PIECE);
    close(fd);
    return NULL;
}

/* What senders' bytes have arrived at the server. */
static uint64_t arrived(void)
{
    uint64_t n;
    int fd = dial(&peer);
    send_all(fd, "Q", 1);
    read_all(fd, &n, sizeof(n));
    close(fd);
    return n;
}

static void *receiver(void *arg)
{
    char ask[5] = {'R'}, *in = malloc(PIECE);
    int fd = dial(&peer);
    ssize_t k;
    memcpy(ask + 1, &ms, 4);
    send_all(fd, ask, sizeof(ask));
    while ((k = recv(fd, in, PIECE, 0)) > 0)
        *(uint64_t *)arg += (uint64_t)k;
    close(fd);
    free(in);
    return NULL;
}

static void *asker(void *arg)
{
    char in[ANSWER];
    for (unsigned i = 0; i < count / flows; i++) {
        int fd = dial(&peer);
        send_all(fd, "X", 1);
        read_all(fd, in, sizeof(in));
        close(fd);
        ++*(uint64_t *)arg;
    }
    return NULL;
}

static void run(void *(*fn)(void *))
{
    pthread_t t[FLOWS_MAX];
    uint64_t total = fn == sender ? -arrived() : 0;
    double start = now();
    for (unsigned i = 0; i < flows; i++)
        if (pthread_create(&t[i], NULL, fn, &bytes[i]) != 0)
            die("pthread_create");
    for (unsigned i = 0; i < flows; i++) {
        pthread_join(t[i], NULL);
        total += bytes[i];
    }
    double took = now() - start;
    if (fn == sender)
        total += arrived();
    printf("%llu %.6f\n", (unsigned long long)total, took);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_connect(const struct sockaddr_in *to)
{
    for (unsigned i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        double start = now();
        if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0)
            die("connect");
        micros[i] = (now() - start) * 1e6;
        close(fd);
    }
    qsort(micros, count, sizeof(micros[0]), by_value);
    return micros[count / 2];
}

static void latency(void)
{
    struct sockaddr_in own;
    pthread_t t;
    int fd = listener("127.0.0.1", &own);
    if (pthread_create(&t, NULL, serve_in_thread, (void *)(intptr_t)fd) != 0)
        die("pthread_create");
    double there = median_connect(&peer);
    printf("%.1f %.1f\n", there, median_connect(&own));
}

static int gateway(struct in_addr *ret)
{
    char line[256];
    unsigned dst, via;
    FILE *f = fopen("/proc/net/route", "r");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "%*s %x %x", &dst, &via) == 2 && dst == 0 && via != 0) {
            ret->s_addr = via;
            fclose(f);
            return 1;
        }
    return 0;
}

static unsigned number(int argc, char **argv, int i)
{
    return argc > i ? (unsigned)strtoul(argv[i], NULL, 10) : 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at;
    if (argc == 3 && strcmp(argv[1], "serve") == 0) {
        int fd = listener(argv[2], &at);
        printf("%d\n", ntohs(at.sin_port));
        fflush(stdout);
        serve(fd);
    }
    if (argc < 5 ||
        !(strcmp(argv[2], "gateway") == 0 ? gateway(&peer.sin_addr)
                                          : inet_pton(AF_INET, argv[2], &peer.sin_addr)))
        die("netload: bad arguments");
    peer.sin_port = htons((uint16_t)number(argc, argv, 3));
    flows = count = number(argc, argv, 4);
    ms = number(argc, argv, 5);
    if (count > COUNT_MAX)
        count = COUNT_MAX;
    if (strcmp(argv[1], "short") == 0)
        flows = number(argc, argv, 5);
    if (flows == 0 || (flows > FLOWS_MAX && strcmp(argv[1], "connect") != 0))
        die("netload: so many flows are too many");
    if (strcmp(argv[1], "send") == 0)
        run(sender);
    else if (strcmp(argv[1], "recv") == 0)
        run(receiver);
    else if (strcmp(argv[1], "short") == 0)
        run(asker);
    else if (strcmp(argv[1], "connect") == 0)
        latency();
    return 0;
}
