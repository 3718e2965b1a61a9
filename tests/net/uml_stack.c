/* The network stack and the network card under a real guest kernel: user-mode Linux, without the
 * rest of a sandbox.
 *
 *     uml_stack KERNEL ROOT.erofs DIR [KERNEL-ARGUMENT...]
 *
 * runs /init of ROOT with eth0 on the stack (addresses as for tap_stack; nothing is configured in
 * the guest) until the guest ends. Its console is standard output; sockets and the guest's memory
 * are in DIR. At the end the CPU seconds of this process and counters go to DIR/stats.json.
 */
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jail/seccomp.h"
#include "net/net.h"
#include "util/cleanup.h"
#include "util/sock.h"
#include "virtio/blk.h"
#include "virtio/net.h"
#include "virtio/vhost_user.h"

enum { DEVICES = 2, ARGS_MAX = 64 };

/* The disk is served by the main thread, the network by one of its own, behind its filter. */
static struct loop loop[DEVICES];
static struct net_config cfg;

static void die(const char *what)
{
    perror(what);
    exit(99);
}

static void on_gone(void *ctx, const char *reason)
{
    (void)reason;
    loop_stop(ctx);
}

static void on_broken(void *ctx, const char *reason)
{
    (void)ctx;
    (void)fprintf(stderr, "broken: %s\n", reason);
}

static const struct vhost_user_events events = {.gone = on_gone, .broken = on_broken};

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    (void)ctx;
    (void)id;
    v->action = NET_ALLOW;
    if (addr_equal(&v->to.addr, &cfg.gateway4))
        (void)addr_parse("127.0.0.1", &v->to.addr);
    else if (addr_equal(&v->to.addr, &cfg.gateway6))
        (void)addr_parse("::1", &v->to.addr);
}

static const struct net_hooks hooks = {.verdict = on_verdict};

static void *net_thread(void *arg)
{
    int r = 0;
#ifndef __SANITIZE_ADDRESS__ /* whose run-time library makes calls of its own */
    r = seccomp_enter(SECCOMP_NET);
#endif
    return (void *)(intptr_t)(r < 0 ? r : loop_run(arg));
}

static void set_config(void)
{
    (void)addr_parse("10.0.2.15", &cfg.guest4);
    (void)addr_parse("10.0.2.2", &cfg.gateway4);
    (void)addr_parse("fd00:2::15", &cfg.guest6);
    (void)addr_parse("fd00:2::2", &cfg.gateway6);
    memcpy(cfg.guest_mac, "\x02\0\0\0\0\x0f", 6);
    memcpy(cfg.gateway_mac, "\x02\0\0\0\0\x01", 6);
}

static void run_kernel(char **argv, const char *dir)
{
    char text[8][256], *args[ARGS_MAX], tmp[256];
    unsigned n = 0;
    (void)snprintf(tmp, sizeof(tmp), "TMPDIR=%s", dir);
    (void)snprintf(text[0], sizeof(text[0]), "uml_dir=%s", dir);
    (void)snprintf(text[1], sizeof(text[1]), "virtio_uml.device=%s/0:%u", dir, 2U);
    (void)snprintf(text[2], sizeof(text[2]), "virtio_uml.device=%s/1:%u", dir, 1U);
    static const char *const fixed[] = {
        "linux",    "mem=256M",      "seccomp=on",       "quiet", "lpj=10000000", "noreboot",
        "panic=-1", "root=/dev/vda", "rootfstype=erofs", "ro",    "init=/init"};
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        args[n++] = (char *)(uintptr_t)fixed[i];
    for (unsigned i = 0; i < 3; i++)
        args[n++] = text[i];
    for (unsigned i = 4; argv[i] && n < ARGS_MAX - 1; i++)
        args[n++] = argv[i];
    args[n] = NULL;
    char *env[] = {tmp, NULL};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0)
        die("/dev/null");
    (void)execve(argv[1], args, env);
    die(argv[1]);
}

static void write_stats(const struct net *net, const struct virtio_dev *dev, const char *dir)
{
    char path[256];
    struct rusage u;
    const struct virtio_net_stats *d = virtio_net_stats(dev);
    (void)getrusage(RUSAGE_SELF, &u);
    (void)snprintf(path, sizeof(path), "%s/stats.json", dir);
    FILE *f = fopen(path, "w");
    if (!f)
        die(path);
    (void)fprintf(
        f,
        "{\"cpu\": %.3f, \"tcp_opened\": %llu, \"resent\": %llu, \"out_of_order\": %llu, "
        "\"rx_frames\": %llu, \"rx_bytes\": %llu, \"tx_frames\": %llu, "
        "\"tx_bytes\": %llu, \"rx_large\": %llu, \"tx_large\": %llu, \"bad\": %llu, \"starved\": "
        "%llu}\n",
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
            (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6,
        (unsigned long long)net_stats(net)->tcp_opened, (unsigned long long)net_stats(net)->resent,
        (unsigned long long)net_stats(net)->out_of_order, (unsigned long long)d->rx_frames,
        (unsigned long long)d->rx_bytes, (unsigned long long)d->tx_frames,
        (unsigned long long)d->tx_bytes, (unsigned long long)d->rx_large,
        (unsigned long long)d->tx_large, (unsigned long long)(d->bad_header + d->bad_size),
        (unsigned long long)d->starved);
    (void)fclose(f);
}

int main(int argc, char **argv)
{
    struct virtio_dev *dev[DEVICES];
    struct vhost_user *vu[DEVICES];
    struct net *net;
    struct stat st;
    if (argc < 4)
        return 2;
    set_config();
    (void)mallopt(M_ARENA_MAX, 1); /* as in the monitor: a second heap needs mprotect */
    int disk = open(argv[2], O_RDONLY | O_CLOEXEC);
    if (disk < 0 || fstat(disk, &st) < 0)
        die(argv[2]);
    struct blk_segment seg = {.fd = disk, .length = (uint64_t)st.st_size};
    if (loop_init(&loop[0]) < 0 || loop_init(&loop[1]) < 0 ||
        virtio_blk_new(&dev[0], &seg, 1, true, "root") < 0 ||
        virtio_net_new(&dev[1], cfg.guest_mac, NET_MTU) < 0 ||
        net_new(&net, &loop[1], virtio_net_link(dev[1]), &cfg, &hooks, NULL) < 0)
        die("devices");
    for (unsigned i = 0; i < DEVICES; i++) {
        char path[256];
        (void)snprintf(path, sizeof(path), "%s/%u", argv[3], i);
        (void)unlink(path);
        int fd = listen_at(path, 1);
        if (fd < 0 || vhost_user_new(&vu[i], &loop[i], dev[i], fd, &events, &loop[i]) < 0)
            die(path);
    }
    pid_t child = fork();
    if (child == 0)
        run_kernel(argv, argv[3]);
    pthread_t thread;
    void *result;
    int status;
    if (pthread_create(&thread, NULL, net_thread, &loop[1]) != 0)
        die("thread");
    (void)loop_run(&loop[0]);
    (void)pthread_join(thread, &result);
    (void)waitpid(child, &status, 0);
    write_stats(net, dev[1], argv[3]);
    for (unsigned i = 0; i < DEVICES; i++)
        vhost_user_free(vu[i]);
    net_free(net);
    for (unsigned i = 0; i < DEVICES; i++)
        virtio_dev_free(dev[i]);
    return result ? 1 : 0;
}
