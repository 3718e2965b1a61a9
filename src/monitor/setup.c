#include "jail/jail.h"
#include "jail/reduced.h"
#include "jail/seccomp.h"
#include "monitor/blk_devices.h"
#include "monitor/internal.h"
#include "store/ports.h"
#include "util/cleanup.h"
#include "virtio/balloon.h"
#include "virtio/fs.h"
#include "virtio/net.h"
#include "virtio/rng.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

/* Limits of the monitor itself: its heap, and its files besides clients' connections and the
 * image's layers. */
enum { DATA_MAX = 512 * 1024 * 1024, FILES_MAX = 128 };

/* --- devices -------------------------------------------------------------------------------- */

/* Tools, image, writable layer, vsock, rng, balloon, network; and what is mounted. */
_Static_assert(7 + SPEC_SHARES_MAX <= ENGINE_DEVICES_MAX, "every device fits");

static void add_device(struct engine_params *ep, struct engine_device d)
{
    assert(ep->n_devices < ENGINE_DEVICES_MAX);
    ep->devices[ep->n_devices++] = d;
}

/* Files of the monitor besides those of the network. */
static uint64_t other_files(const struct monitor *m)
{
    return RELAY_CLIENTS_MAX + FILES_MAX + m->p->image.n +
           (m->p->connector_fd >= 0 ? VSOCK_PORTS_CONNS_MAX : 0);
}

static int add_network(struct engine_params *ep, struct monitor *m,
                       const struct monitor_handlers *h, struct err *e)
{
    const struct spec_net *n = &m->spec->net;
    if (n->off)
        return 0;
    unsigned most = net_max_connections(n, other_files(m));
    if (most < n->max_connections)
        exec_log_printf(&m->system_log,
                        "the host's limit on open files allows only %u concurrent connections, "
                        "not %u",
                        most, n->max_connections);
    m->net.ceiling = &m->ceiling;
    int r = net_control_setup(&m->net, n, &m->p->host, &m->p->ports, most, &m->loop, m->run_fd,
                              m->logs_fd, h->net_failed, m, e);
    m->net.violated = h->violated;
    if (r == 0 && m->p->intercept_fd >= 0 &&
        (r = net_thread_intercept(m->net.net, m->p->intercept_fd)) < 0)
        return err_sys(e, -r, "cannot watch the interceptor");
    if (r == 0)
        add_device(
            ep, (struct engine_device){net_thread_device(m->net.net), net_thread_loop(m->net.net)});
    return r;
}

/* On the I/O thread, which has no disks to wait for if the root is a share, and cannot create
 * sockets. */
static int add_tap(struct engine_params *ep, struct monitor *m, struct err *e)
{
    const struct net_tap *t = &m->p->tap;
    struct virtio_dev *card = NULL;
    if (t->fd < 0)
        return 0;
    int r = virtio_net_new(&card, t->mac, t->mtu);
    if (r == 0)
        r = tap_new(&m->tap, &m->io_loop, virtio_net_link(card), t->fd);
    if (r < 0)
        return err_sys(e, -r, "cannot create the sandbox's network card");
    add_device(ep, (struct engine_device){card, &m->io_loop});
    return 0;
}

static int add_devices(struct engine_params *ep, struct monitor *m,
                       const struct monitor_handlers *h, struct err *e)
{
    int r = blk_devices(ep, m->p, &m->io_loop, e);
    if (r < 0)
        return r;
    for (; m->n_disks < ep->n_devices; m->n_disks++)
        m->disks[m->n_disks] = ep->devices[m->n_disks].dev;
    struct virtio_dev *rng = NULL, *balloon = NULL;
    r = virtio_vsock_new(&m->vsock, PROTO_GUEST_CID);
    if (r == 0)
        r = virtio_rng_new(&rng);
    if (r == 0 && m->p->engine->owns_memory)
        r = virtio_balloon_new(&balloon);
    if (r < 0)
        return err_sys(e, -r, "cannot create devices");
    add_device(ep, (struct engine_device){m->vsock, &m->loop});
    add_device(ep, (struct engine_device){rng, &m->loop});
    if (balloon) /* returning memory takes the host a moment */
        add_device(ep, (struct engine_device){balloon, &m->io_loop});
    if ((r = add_network(ep, m, h, e)) < 0 || (r = add_tap(ep, m, e)) < 0)
        return r;
    for (size_t i = 0; i < m->p->n_shares; i++)
        add_device(ep, (struct engine_device){.loop = &m->loop,
                                              .kind = &virtio_fs_ops,
                                              .server_fd = m->p->share_fd[i]});
    return 0;
}

static int start_engine(struct monitor *m, const struct monitor_handlers *h, struct err *e)
{
    struct engine_params ep = {
        .memory_bytes = m->spec->memory_mib << 20,
        .n_cpus = m->p->n_cpus,
        .device_fd = m->p->device_fd,
        .kernel_fd = m->p->kernel_fd,
        .null_fd = m->p->null_fd,
        .cpuinfo = m->p->cpuinfo,
        .init = "/init",
        .cpu = m->p->cpu,
        .spread = m->p->spread,
        .verbose = monitor_verbose(m),
        .jail_dir = m->p->reduced ? "jail" : "/jail",
        .reduced = m->p->reduced,
        .own_user = m->p->own_user,
    };
    int r = add_devices(&ep, m, h, e);
    if (r < 0)
        return r;
    r = control_init(&m->control, m->vsock, m->spec, &m->p->host,
                     m->p->upper_fd >= 0 ? "/dev/vdc" : NULL, h->control, m);
    if (r < 0)
        return err_sys(e, -r, "cannot listen for the agent");
    m->control.host_cas = m->p->host_cas;
    m->control.tap = m->tap ? &m->p->tap : NULL;
    if (m->p->connector_fd >= 0 &&
        (r = vsock_ports_init(&m->vsock_ports, &m->loop, m->vsock, &m->spec->vsocks,
                              m->p->connector_fd, h->connector_lost, m)) < 0)
        return err_sys(e, -r, "cannot listen for the guest's connections to host sockets");
    return m->p->engine->start(&m->engine, &ep, &m->loop, h->engine, m, e);
}

/* --- files, signals, helpers ----------------------------------------------------------------- */

static int open_run_directory(struct monitor *m, struct err *e)
{
    m->run_fd = open(m->p->reduced ? "." : "/run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    m->logs_fd = m->run_fd < 0 ? -1 : openat(m->run_fd, "logs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->logs_fd < 0)
        return err_sys(e, errno, "cannot open the sandbox's directory");
    (void)snprintf(m->state.engine, sizeof(m->state.engine), "%s", m->p->engine->name);
    (void)snprintf(m->state.jail, sizeof(m->state.jail), "%s", m->p->reduced ? "reduced" : "full");
    if (!m->p->creating) /* during a creation, no process waits for it */
        (void)monitor_save_state(m, STATUS_STARTING);
    int r = ports_save(m->run_fd, m->p->ports.port, m->p->ports.n);
    if (r < 0)
        return err_sys(e, -r, "cannot record the published ports");
    r = exec_log_open(&m->log, m->logs_fd, "exec.log");
    if (r == 0)
        r = exec_log_open(&m->system_log, m->logs_fd, "system.log");
    return r < 0 ? err_sys(e, -r, "cannot open the sandbox's logs") : 0;
}

static int watch_signals(struct monitor *m, const struct monitor_handlers *h, struct err *e)
{
    struct sigaction stray = {.sa_sigaction = h->stray_call, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGSYS, &stray, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a disk that may not grow is an error for the guest */
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    m->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int r = m->signals.fd < 0 ? -errno : loop_add(&m->loop, &m->signals, EPOLLIN);
    return r < 0 ? err_sys(e, -r, "cannot watch signals") : 0;
}

/* They only report readiness, to the launcher; here, only their end matters. */
static int watch_shares(struct monitor *m, const struct monitor_handlers *h, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < m->p->n_shares; i++) {
        m->share[i] = (struct loop_src){.fd = m->p->share_fd[i], .fn = h->share_lost};
        r = loop_add(&m->loop, &m->share[i], EPOLLRDHUP);
    }
    return r < 0 ? err_sys(e, -r, "cannot watch its mounts") : 0;
}

/* Its messages are for the network's thread; here, only its end matters. */
static int watch_interceptor(struct monitor *m, const struct monitor_handlers *h, struct err *e)
{
    m->interceptor = (struct loop_src){.fd = m->p->intercept_fd, .fn = h->intercept_lost};
    int r = m->p->intercept_fd < 0 ? 0 : loop_add(&m->loop, &m->interceptor, EPOLLRDHUP);
    return r < 0 ? err_sys(e, -r, "cannot watch the interceptor") : 0;
}

/* --- the jail -------------------------------------------------------------------------------- */

static void *io_main(void *arg)
{
    struct monitor *m = arg;
    m->io_filter_error = seccomp_enter(SECCOMP_MONITOR);
    (void)sem_post(&m->io_ready);
    if (m->io_filter_error == 0)
        (void)loop_run(&m->io_loop);
    return NULL;
}

static int start_io_thread(struct monitor *m, struct err *e)
{
    (void)sem_init(&m->io_ready, 0, 0);
    int r = pthread_create(&m->io_thread, NULL, io_main, m);
    if (r != 0)
        return err_sys(e, r, "cannot start the I/O thread");
    while (sem_wait(&m->io_ready) < 0)
        ;
    r = m->io_filter_error;
    return r < 0 ? err_sys(e, -r, "cannot install the system call filter of the I/O thread") : 0;
}

/* When a descriptor table shared by two threads has to grow, the host's kernel waits until no CPU
 * can still be using the old one: 10 ms or more, in the middle of a boot. So it gets its full size
 * while there is one thread. */
static void reserve_files(int any_fd)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur > INT_MAX)
        return;
    int fd = fcntl(any_fd, F_DUPFD_CLOEXEC, (int)l.rlim_cur - 1);
    close_fd(&fd);
}

static int close_jail(struct monitor *m, struct err *e)
{
    /* Limits what a compromised monitor could use up. Guest memory is mapped shared, so it does not
     * count as data. */
    const struct jail_limit limits[] = {
        {RLIMIT_CORE, 0},
        {RLIMIT_MEMLOCK, 0},
        {RLIMIT_DATA, DATA_MAX},
        {RLIMIT_NOFILE, other_files(m) + net_thread_files(&m->spec->net)},
    };
    int r = jail_set_limits(limits, ARRAY_LEN(limits), e);
    if (r < 0 || (r = jail_drop_caps(e)) < 0)
        return r;
    reserve_files(m->p->null_fd);
    if ((r = start_io_thread(m, e)) < 0)
        return r;
    if (m->net.net && (r = net_thread_start(m->net.net, e)) < 0)
        return r;
    /* The guest runs from here on, but nothing from it is read before this thread has installed its
     * filter, too. */
    if (m->p->engine->run && (r = m->p->engine->run(m->engine, e)) < 0)
        return r;
    r = seccomp_enter(monitor_has_pod(m) ? SECCOMP_MONITOR_POD : SECCOMP_MONITOR);
    return r < 0 ? err_sys(e, -r, "cannot install the system call filter") : 0;
}

/* Before the engine starts: what it starts may only be signaled by confined processes. */
static int enter_reduced(const struct monitor *m, struct err *e)
{
    /* Where files can be opened, the C library looks for the time zone, with calls of its own, when
     * a time is printed; once is enough. */
    tzset();
    if (mkdir("jail", 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "cannot create the kernel's directory");
    return reduced_enter(m->p->kernel_fd, e);
}

int monitor_setup(struct monitor *m, const struct monitor_handlers *h, struct err *e)
{
    int r = monitor_lock_take(m->p->lock_fd);
    if (r < 0)
        return err_sys(e, -r, "another monitor runs this sandbox");
    r = m->p->reduced ? enter_reduced(m, e) : jail_enter_root(e);
    if (r < 0 || (r = open_run_directory(m, e)) < 0)
        return r;
    if ((r = loop_init(&m->loop)) < 0 || (r = loop_init(&m->io_loop)) < 0)
        return err_sys(e, -r, "cannot create an event loop");
    if (m->p->limits && (r = ceiling_add(&m->ceiling, m->p->limits, e)) < 0)
        return r;
    if ((r = watch_signals(m, h, e)) < 0 || (r = start_engine(m, h, e)) < 0)
        return r;
    if (m->p->device_fd >= 0)
        (void)close(m->p->device_fd); /* no further machine can be made with it */
    if (m->p->creating)
        (void)monitor_save_state(m, STATUS_CREATING);
    relay_init(&m->relay, &m->loop, m->vsock, &m->log, m->p->listen_fd, m->spec->memory_mib,
               h->relay, m);
    if (m->spec->output_max)
        m->relay.output_max = m->spec->output_max;
    if ((r = loop_add(&m->loop, &m->report, EPOLLIN)) < 0)
        return err_sys(e, -r, "cannot watch the launcher");
    if ((r = watch_shares(m, h, e)) < 0 || (r = watch_interceptor(m, h, e)) < 0)
        return r;
    loop_timer_set(&m->loop, &m->boot_timer, MS(BOOT_TIMEOUT_MS));
    return close_jail(m, e);
}
