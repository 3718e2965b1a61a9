/* Runs the evil guest (evil/) on the real kvm engine with real devices, one process per attack.
 *
 *     evil_host GUEST.elf [attack...]
 *
 * An attack has failed when this process is intact afterwards: the guest found its machine in order
 * (or ended, where that is the point), its end was reported once, nothing stays open, memory is
 * bounded, the read-only disk is unchanged, and no sanitizer has reported anything. Build it with
 * ASan and UBSan, as tests/run does. Exit status 77 if there is no KVM.
 */
#include "engine/engine.h"
#include "engine/kvm/kvm.h"
#include "fuse/fuse.h"
#include "net/net.h"
#include "util/cleanup.h"
#include "util/sock.h"
#include "virtio/balloon.h"
#include "virtio/blk.h"
#include "virtio/fs.h"
#include "virtio/net.h"
#include "virtio/rng.h"
#include "virtio/vhost_user.h"
#include "virtio/vsock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    DISK = 1 << 20,
    MEMORY = 64 << 20,
    ECHO_PORT = 5000,
    PATIENCE_S = 240,  /* for one attack, where everything is interpreted */
    HOLD_MS = 1500,    /* how long a guest that never ends is watched before it is killed */
    RSS_MAX_MIB = 600, /* guest memory, and what the sanitizers need */
    SKIPPED = 77,
};

/* Sanitizers make system calls that the filter of a virtual CPU's thread does not allow, so it is
 * left out with them; a build without them tests the filter as well. */
#ifdef __SANITIZE_ADDRESS__
#define RUN kvm_run_unfiltered
#else
#define RUN engine_kvm.run
#endif

enum expected { SURVIVES, ENDS, KILLED };

static const struct attack {
    const char *name;
    enum expected expected;
} attacks[] = {
#define ATTACK(name, expected) {#name, expected},
#include "evil/attacks.def"
#undef ATTACK
};

struct host {
    const struct attack *attack;
    struct loop main, io;
    pthread_t io_thread;
    struct loop_src io_quit; /* an eventfd that ends its loop */
    struct loop_timer kill, patience;
    struct engine *engine;
    struct virtio_dev *dev[6];
    struct net *net;
    struct share *share;
    char said[8192]; /* the last of what the guest printed */
    size_t n_said;
    unsigned ends;
    bool killed, late;
    char how[256];
};

/* A share server, but on a thread, so that it runs under the same sanitizers. */
struct share {
    char dir[32];
    struct loop loop;
    struct loop_src sock; /* brings the connection; its end is ours */
    int engine_fd;        /* its other end */
    pthread_t thread;
    struct virtio_dev *dev;
    struct vhost_user *back_end;
};

static void on_share_socket(struct loop_src *src, uint32_t ready)
{
    struct share *s = CONTAINER_OF(src, struct share, sock);
    (void)ready;
    int fd = sock_recv_fd(src->fd);
    if (fd < 0 && fd != -EAGAIN)
        loop_stop(&s->loop);
    if (fd < 0)
        return;
    if (s->back_end || vhost_user_new_connected(&s->back_end, &s->loop, s->dev, fd, NULL, NULL) < 0)
        abort();
    vhost_user_take_eventfds(s->back_end);
}

static void *run_io(void *arg);

static struct share *start_share(void)
{
    struct share *s = calloc(1, sizeof(*s));
    struct fuse_options o = {.cache = FUSE_CACHE_AUTO, .files_max = 64, .fds_max = 64};
    struct fuse_server *server;
    int sock[2];
    if (!s)
        return NULL;
    (void)snprintf(s->dir, sizeof(s->dir), "/tmp/evil.XXXXXX");
    if (!mkdtemp(s->dir) || chdir("/proc/self/fd") < 0 || loop_init(&s->loop) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) < 0)
        return NULL;
    (void)umask(0);
    o.root_fd = open(s->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    s->engine_fd = sock[0];
    s->sock = (struct loop_src){.fd = sock[1], .fn = on_share_socket};
    if (o.root_fd < 0 || fuse_new(&server, &o) < 0 || virtio_fs_new(&s->dev, server, "evil") < 0 ||
        loop_add(&s->loop, &s->sock, EPOLLIN) < 0 ||
        pthread_create(&s->thread, NULL, run_io, &s->loop) != 0)
        return NULL;
    return s;
}

/* The directory must still be empty: no attack sends CREATE. */
static bool end_share(struct share *s)
{
    int fd = s->sock.fd;
    (void)close(s->engine_fd);
    (void)pthread_join(s->thread, NULL);
    vhost_user_free(s->back_end);
    virtio_dev_free(s->dev);
    loop_del(&s->loop, &s->sock);
    (void)close(fd);
    loop_fini(&s->loop);
    bool empty = rmdir(s->dir) == 0;
    free(s);
    return empty;
}

static void *run_io(void *arg)
{
    (void)loop_run(arg);
    return NULL;
}

static void on_io_quit(struct loop_src *src, uint32_t ready)
{
    (void)ready;
    loop_stop(&CONTAINER_OF(src, struct host, io_quit)->io);
}

static int start_io(struct host *h)
{
    h->io_quit = (struct loop_src){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .fn = on_io_quit};
    if (h->io_quit.fd < 0 || loop_add(&h->io, &h->io_quit, EPOLLIN) < 0)
        return -1;
    return pthread_create(&h->io_thread, NULL, run_io, &h->io) == 0 ? 0 : -1;
}

static void end_io(struct host *h)
{
    int fd = h->io_quit.fd;
    (void)eventfd_write(fd, 1);
    (void)pthread_join(h->io_thread, NULL);
    loop_del(&h->io, &h->io_quit);
    (void)close(fd);
}

/* --- what the engine tells us ------------------------------------------------------------------
 */

static void on_ended(void *ctx, bool clean, const char *how)
{
    struct host *h = ctx;
    (void)clean;
    h->ends++;
    (void)snprintf(h->how, sizeof(h->how), "%s", how);
    loop_stop(&h->main);
}

static void on_console(void *ctx, const char *p, size_t n)
{
    struct host *h = ctx;
    size_t max = sizeof(h->said) - 1;
    if (n > max) {
        p += n - max;
        n = max;
    }
    if (h->n_said + n > max) {
        size_t drop = h->n_said + n - max;
        memmove(h->said, h->said + drop, h->n_said - drop);
        h->n_said -= drop;
    }
    memcpy(h->said + h->n_said, p, n);
    h->n_said += n;
    h->said[h->n_said] = '\0';
    if (h->attack->expected == KILLED && h->kill.at_ns == 0 && !h->killed)
        loop_timer_set(&h->main, &h->kill, HOLD_MS * 1000000ULL);
}

static void on_broken(void *ctx, const char *what)
{
    (void)ctx;
    (void)what;
}

static const struct engine_events events = {
    .ended = on_ended, .console = on_console, .device_broken = on_broken};

static void on_kill(struct loop_timer *t)
{
    struct host *h = CONTAINER_OF(t, struct host, kill);
    h->killed = true;
    engine_kvm.kill(h->engine);
}

static void on_patience(struct loop_timer *t)
{
    struct host *h = CONTAINER_OF(t, struct host, patience);
    h->late = true;
    engine_kvm.kill(h->engine);
}

/* --- devices -----------------------------------------------------------------------------------
 */

static size_t on_data(struct vsock_stream *s, void *ctx, const void *p, size_t n)
{
    (void)ctx;
    char copy[4096]; /* guest memory is read once */
    n = n < sizeof(copy) ? n : sizeof(copy);
    memcpy(copy, p, n);
    (void)vsock_send_buf(s, copy, n);
    return n;
}

static void on_peer_shutdown(struct vsock_stream *s, void *ctx)
{
    (void)ctx;
    vsock_close(s);
}

static const struct vsock_stream_ops echo = {.data = on_data, .peer_shutdown = on_peer_shutdown};

static int on_accept(struct vsock_stream *s, void *ctx)
{
    (void)ctx;
    vsock_set_ops(s, &echo, NULL);
    return 0;
}

static void fill(uint8_t *disk)
{
    for (size_t i = 0; i < DISK; i++)
        disk[i] = (uint8_t)(i % 512 * 7);
}

static int make_disk(bool read_only)
{
    static uint8_t content[DISK];
    fill(content);
    int fd = memfd_create("disk", MFD_CLOEXEC);
    if (fd < 0 || write(fd, content, DISK) != DISK)
        return -1;
    if (!read_only)
        return fd;
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int ro = open(path, O_RDONLY | O_CLOEXEC);
    (void)close(fd);
    return ro;
}

static bool unchanged(int fd)
{
    static uint8_t want[DISK], have[DISK];
    fill(want);
    return pread(fd, have, DISK, 0) == DISK && memcmp(want, have, DISK) == 0;
}

static void on_verdict(void *ctx, const struct net_flow_id *id, struct net_verdict *v)
{
    (void)ctx;
    (void)id;
    v->action = NET_DENY; /* what comes of frames counts here, not where they go */
}

/* The card, with the stack behind it. */
static int make_network(struct host *h)
{
    static const struct net_hooks hooks = {.verdict = on_verdict};
    struct net_config c = {.guest_mac = {2, 0, 0, 0, 0, 15}, .gateway_mac = {2, 0, 0, 0, 0, 1}};
    if (addr_parse("10.0.2.15", &c.guest4) < 0 || addr_parse("10.0.2.2", &c.gateway4) < 0 ||
        addr_parse("fd00:2::15", &c.guest6) < 0 || addr_parse("fd00:2::2", &c.gateway6) < 0)
        return -1;
    if (virtio_net_new(&h->dev[5], c.guest_mac, NET_MTU) < 0)
        return -1;
    return net_new(&h->net, &h->io, virtio_net_link(h->dev[5]), &c, &hooks, NULL);
}

static int make_devices(struct host *h, struct engine_params *p, const int disk[2])
{
    for (unsigned i = 0; i < 2; i++) {
        struct blk_segment seg = {.fd = disk[i], .length = DISK};
        if (virtio_blk_new(&h->dev[i], &seg, 1, i == 1, "evil") < 0)
            return -1;
    }
    if (virtio_vsock_new(&h->dev[2], VSOCK_GUEST_CID) < 0 || virtio_rng_new(&h->dev[3]) < 0 ||
        virtio_balloon_new(&h->dev[4]) < 0 ||
        vsock_listen(h->dev[2], ECHO_PORT, on_accept, NULL) < 0 || make_network(h) < 0)
        return -1;
    for (unsigned i = 0; i < 6; i++)
        p->devices[p->n_devices++] =
            (struct engine_device){h->dev[i], i < 2 || i == 5 ? &h->io : &h->main};
    h->share = start_share();
    if (!h->share)
        return -1;
    p->devices[p->n_devices++] = (struct engine_device){
        .loop = &h->main, .kind = &virtio_fs_ops, .server_fd = h->share->engine_fd};
    return 0;
}

/* --- one attack ---------------------------------------------------------------------------------
 */

static unsigned open_files(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static bool complain(const struct host *h, const char *what)
{
    (void)fprintf(stderr, "%s: %s (end: %s)\n%s\n", h->attack->name, what, h->how,
                  h->n_said > 2000 ? h->said + h->n_said - 2000 : h->said);
    return false;
}

static bool judge(const struct host *h)
{
    if (h->late)
        return complain(h, "out of time");
    if (h->ends != 1)
        return complain(h, "the end was not reported once");
    if (strstr(h->said, "FAILED"))
        return complain(h, "the guest found fault");
    if (h->attack->expected == SURVIVES && !strstr(h->said, "evil: survived"))
        return complain(h, "the guest did not survive");
    if ((h->attack->expected == KILLED) != h->killed)
        return complain(h, "ended by itself");
    return true;
}

/* Starts the engine, waits for the guest's end, cleans up. */
static int live_and_die(struct host *h, struct engine_params *p, const int disk[2])
{
    struct err e = {0};
    int r = 1;
    if (loop_init(&h->main) < 0 || loop_init(&h->io) < 0 || make_devices(h, p, disk) < 0) {
        perror("devices");
        return r;
    }
    loop_timer_set(&h->main, &h->patience, PATIENCE_S * 1000000000ULL);
    if (engine_kvm.start(&h->engine, p, &h->main, &events, h, &e) < 0) {
        (void)fprintf(stderr, "engine: %s\n", e.msg);
    } else if (start_io(h) == 0) {
        r = RUN(h->engine, &e) < 0;
        if (r)
            (void)fprintf(stderr, "engine: %s\n", e.msg);
        else
            (void)loop_run(&h->main);
        end_io(h);
    }
    engine_kvm.free(h->engine);
    net_free(h->net);
    for (unsigned i = 0; i < sizeof(h->dev) / sizeof(h->dev[0]); i++)
        virtio_dev_free(h->dev[i]);
    if (!end_share(h->share)) {
        (void)fprintf(stderr, "the share was written to\n");
        r = 1;
    }
    loop_fini(&h->main);
    loop_fini(&h->io);
    return r;
}

/* Returns the exit status of the attack's process. */
static int run_attack(const struct attack *a, const char *guest)
{
    AUTO_FREE struct host *h = calloc(1, sizeof(*h));
    struct err e = {0};
    char init[64];
    (void)snprintf(init, sizeof(init), "/%s", a->name);
    int disk[2] = {make_disk(false), make_disk(true)};
    struct engine_params p = {.memory_bytes = MEMORY,
                              .n_cpus = 2,
                              .device_fd = -1,
                              .kernel_fd = open(guest, O_RDONLY | O_CLOEXEC),
                              .null_fd = open("/dev/null", O_RDWR | O_CLOEXEC),
                              .cpuinfo = "",
                              .init = init,
                              .cpu = -1,
                              .verbose = true,
                              .jail_dir = "/"};
    if (!h || disk[0] < 0 || disk[1] < 0 || p.kernel_fd < 0 || p.null_fd < 0) {
        perror(guest);
        return 1;
    }
    if (engine_kvm.open(&p.device_fd, &e) < 0) {
        (void)fprintf(stderr, "%s\n", e.msg);
        return SKIPPED;
    }
    h->attack = a;
    h->kill.fn = on_kill;
    h->patience.fn = on_patience;
    unsigned files = open_files();
    bool good = live_and_die(h, &p, disk) == 0 && judge(h);
    if (open_files() != files)
        good = complain(h, "files are left open");
    if (!unchanged(disk[1]))
        good = complain(h, "the read-only disk was written");
    return good ? 0 : 1;
}

static bool wanted(const char *name, char *const *names)
{
    if (!*names)
        return true;
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: evil_host GUEST.elf [attack...]\n");
        return 2;
    }
    unsigned passed = 0, failed = 0;
    for (size_t i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++) {
        if (!wanted(attacks[i].name, argv + 2))
            continue;
        uint64_t start = now_ns();
        int status;
        struct rusage use;
        pid_t pid = fork();
        if (pid == 0)
            exit(run_attack(&attacks[i], argv[1]));
        if (pid < 0 || wait4(pid, &status, 0, &use) != pid) {
            perror("fork");
            return 1;
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
            printf("1 skipped: there is no KVM here\n");
            return SKIPPED;
        }
        bool small = use.ru_maxrss <= RSS_MAX_MIB * 1024L;
        bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0 && small;
        passed += ok;
        failed += !ok;
        printf("%s %s (%.1f s, %ld MiB%s)\n", ok ? "ok  " : "FAIL", attacks[i].name,
               (double)(now_ns() - start) / 1e9, use.ru_maxrss / 1024, small ? "" : ", too much");
        if (WIFSIGNALED(status))
            printf("     killed by signal %d\n", WTERMSIG(status));
        (void)fflush(stdout);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
