/* The kvm engine: a minimal virtual machine. Devices are behind virtio-mmio, virtual CPUs are
 * threads of this process, and there is nothing else: no firmware, no bus, no timer chip.
 *
 * Threads and what they may touch:
 *     vCPU      its own struct vcpu; registers of devices (under their lock); console and end,
 *               under vcpus.lock, announced by `wake`
 *     a loop    the devices that it serves
 *     main      everything else; it alone starts, kicks and joins threads, and calls the monitor
 *
 * How a guest ends. A kernel resets the machine with a triple fault (reboot=t): if it has released
 * its devices, that is an orderly reboot; otherwise it is a panic, whose message is on the console,
 * or a crash. A kernel without ACPI cannot switch the machine off: it releases its devices and
 * halts all CPUs with interrupts off. So once no device is in use any more, the CPUs are checked
 * periodically; this costs a running guest nothing. */
#include "engine/kvm/kvm.h"

#include "engine/kvm/arch.h"
#include "engine/kvm/probe.h"
#include "engine/kvm/vcpu.h"
#include "util/cleanup.h"
#include "util/sock.h"
#include "virtio/vhost_front.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* #syscalls:monitor read write close */

#define LOOK_MIN_NS 2000000ULL
#define LOOK_MAX_NS 1000000000ULL

struct engine {
    struct loop *loop;
    const struct engine_events *ev;
    void *ctx;
    struct vm vm;
    struct vcpus vcpus;
    struct mmio *device[ENGINE_DEVICES_MAX];
    struct virtio_dev
        *front[ENGINE_DEVICES_MAX]; /* for devices that other processes serve, or NULL */
    unsigned n_devices;
    int ack_fd; /* swallows acknowledgements of interrupts; never read */
    struct loop_src wake;
    struct loop_timer look;
    uint64_t look_ns; /* until the next check */
    bool ended;       /* the monitor has been told */
    atomic_uint live; /* devices in use */
    atomic_bool was_live;
};

/* --- the kernel's command line --------------------------------------------------------------- */

struct text {
    char *p;
    size_t n, size;
};

static void __attribute__((format(printf, 2, 3))) text_add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    size_t room = t->n < t->size ? t->size - t->n : 0;
    int k = vsnprintf(t->p + (room ? t->n : 0), room, fmt, ap);
    t->n += k > 0 ? (size_t)k : 0;
    va_end(ap);
}

int kvm_cmdline(char *to, size_t size, const struct engine_params *p)
{
    struct text t = {.p = to, .size = size};
    /* 3: critical messages and worse, of which a healthy boot has none. */
    text_add(&t, "loglevel=%d %s panic=-1 " ENGINE_LEAN, p->verbose ? 7 : 3, arch_cmdline());
    if (p->memory_bytes > ENGINE_TABLES_MEMORY)
        text_add(&t, " " ENGINE_TABLES);
    text_add(&t, " root=/dev/vda rootfstype=erofs ro init=%s", p->init);
    for (size_t i = 0; i < p->n_devices; i++)
        text_add(&t, " virtio_mmio.device=%dK@%#" PRIx64 ":%u", MMIO_PAGE / 1024,
                 arch_device_gpa((unsigned)i), arch_device_irq((unsigned)i));
    return t.n < size ? 0 : -E2BIG;
}

/* --- events --------------------------------------------------------------------------------- */

static void on_device_live(void *ctx, bool live)
{
    struct engine *en = ctx;
    if (live) {
        atomic_store(&en->was_live, true);
        (void)atomic_fetch_add(&en->live, 1);
        return;
    }
    unsigned were = atomic_fetch_sub(&en->live, 1);
    assert(were > 0);
    if (were == 1)
        (void)eventfd_write(en->wake.fd, 1);
}

static void on_device_broken(void *ctx, const char *reason)
{
    struct engine *en = ctx;
    en->ev->device_broken(en->ctx, reason);
}

static const struct mmio_events device_events = {
    .broken = on_device_broken,
    .live = on_device_live,
};

static bool released_devices(struct engine *en)
{
    return atomic_load(&en->was_live) && atomic_load(&en->live) == 0;
}

static void drain_console(struct engine *en)
{
    char chunk[4096];
    size_t n;
    while ((n = vcpus_console(&en->vcpus, chunk, sizeof(chunk))) > 0)
        en->ev->console(en->ctx, chunk, n);
}

static void tell_end(struct engine *en)
{
    struct vcpus *c = &en->vcpus;
    if (en->ended)
        return;
    en->ended = true;
    loop_timer_off(en->loop, &en->look);
    drain_console(en); /* its last output matters most */
    bool clean = c->over && c->reset && released_devices(en);
    en->ev->ended(en->ctx, clean,
                  clean     ? "powered off"
                  : c->over ? c->how
                            : "the guest was killed");
}

static void on_look(struct loop_timer *t)
{
    struct engine *en = CONTAINER_OF(t, struct engine, look);
    struct vcpus *c = &en->vcpus;
    if (!released_devices(en) || atomic_load(&c->stop))
        return;
    if (vcpus_halted(c)) {
        (void)pthread_mutex_lock(&c->lock);
        c->over = c->reset = true;
        (void)pthread_mutex_unlock(&c->lock);
        vcpus_stop(c);
        return;
    }
    vcpus_look(c);
    en->look_ns = MIN(en->look_ns * 2, LOOK_MAX_NS);
    loop_timer_set(en->loop, t, en->look_ns);
}

/* Something happened on another thread: output, the release of a device, or the end. */
static void on_wake(struct loop_src *src, uint32_t events)
{
    struct engine *en = CONTAINER_OF(src, struct engine, wake);
    eventfd_t n;
    (void)eventfd_read(src->fd, &n);
    drain_console(en);
    if (atomic_load(&en->vcpus.stop)) {
        vcpus_stop(&en->vcpus);
        if (atomic_load(&en->vcpus.alive) == 0)
            tell_end(en);
    } else if (released_devices(en) && en->look.at_ns == 0) {
        en->look_ns = LOOK_MIN_NS;
        loop_timer_set(en->loop, &en->look, en->look_ns);
    }
}

/* --- ops ------------------------------------------------------------------------------------ */

static void kvm_free(struct engine *en)
{
    if (!en)
        return;
    vcpus_destroy(&en->vcpus);
    for (unsigned i = 0; i < en->n_devices; i++)
        mmio_free(en->device[i]);
    for (unsigned i = 0; i < ENGINE_DEVICES_MAX; i++)
        virtio_dev_free(en->front[i]);
    vm_destroy(&en->vm);
    loop_timer_off(en->loop, &en->look);
    loop_close(en->loop, &en->wake);
    close_fd(&en->ack_fd);
    free(en);
}

static void kvm_kill(struct engine *en)
{
    vcpus_stop(&en->vcpus);
    if (atomic_load(&en->vcpus.alive) == 0) /* it has just ended, or never ran */
        (void)eventfd_write(en->wake.fd, 1);
}

/* Connects to the process that serves the device. */
static int reach_server(struct engine *en, const struct engine_device *d, struct virtio_dev **ret)
{
    int sock[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sock) < 0)
        return -errno;
    AUTO_CLOSE int here = sock[0], there = sock[1];
    struct vhost_front_params p = {
        .kind = d->kind, .fd = here, .mem = &en->vm.mem, .mem_fd = en->vm.ram_fd};
    int r = sock_send_fd(d->server_fd, there);
    if (r == 0)
        r = vhost_front_new(ret, d->loop, &p);
    if (r == 0)
        (void)steal_fd(&here);
    return r;
}

/* Sets up one device: its registers, a kick for each queue, its interrupt. */
static int attach_device(struct engine *en, const struct engine_device *d, struct err *e)
{
    unsigned i = en->n_devices;
    assert(i < ENGINE_DEVICES_MAX);
    uint64_t gpa = arch_device_gpa(i);
    int r = d->dev ? 0 : reach_server(en, d, &en->front[i]);
    if (r < 0)
        return err_sys(e, -r, "cannot reach the process that serves device %u", i);
    struct virtio_dev *dev = d->dev ? d->dev : en->front[i];
    r = mmio_new(&en->device[i], d->loop, dev, &en->vm.mem, en->vm.pages + (size_t)i * MMIO_PAGE,
                 &device_events, en);
    if (r < 0)
        return err_sys(e, -r, "cannot serve device %u", i);
    en->n_devices++;
    for (unsigned q = 0; r == 0 && q < dev->ops->n_queues; q++)
        r = vm_add_ioeventfd(&en->vm, gpa + MMIO_NOTIFY, q, mmio_kick_fd(en->device[i], q), e);
    if (r == 0)
        r = vm_add_ioeventfd(&en->vm, gpa + MMIO_ACK, MMIO_ACK_USED, en->ack_fd, e);
    if (r == 0)
        r = vm_add_irqfd(&en->vm, mmio_irq_fd(en->device[i]), arch_device_irq(i), e);
    return r;
}

static int make_machine(struct engine *en, const struct engine_params *p, struct err *e)
{
    char cmdline[KVM_CMDLINE_MAX];
    uint64_t entry = 0;
    int r = kvm_cmdline(cmdline, sizeof(cmdline), p);
    if (r < 0)
        return err_set(e, E2BIG, "the kernel's command line is too long");
    struct vm_params vp = {.memory_bytes = p->memory_bytes, .n_devices = (unsigned)p->n_devices};
    for (size_t i = 0; i < p->n_devices; i++)
        vp.shared = vp.shared || !p->devices[i].dev;
    r = vm_create(&en->vm, p->device_fd, &vp, e);
    for (size_t i = 0; r == 0 && i < p->n_devices; i++)
        r = attach_device(en, &p->devices[i], e);
    if (r == 0)
        r = arch_load(&en->vm, p->kernel_fd, cmdline, p->n_cpus, &entry, e);
    if (r == 0)
        r = vcpus_create(&en->vcpus, &en->vm, p->n_cpus, entry, e);
    if (r < 0)
        return r;
    en->vcpus.devices = en->device;
    en->vcpus.n_devices = en->n_devices;
    en->vcpus.wake_fd = en->wake.fd;
    return 0;
}

static int kvm_start(struct engine **ret, const struct engine_params *p, struct loop *l,
                     const struct engine_events *ev, void *ctx, struct err *e)
{
    if (p->n_cpus < 1 || p->n_cpus > ARCH_CPUS_MAX)
        return err_set(e, EINVAL, "the kvm engine runs 1 to %d CPUs", ARCH_CPUS_MAX);
    struct engine *en = calloc(1, sizeof(*en));
    if (!en)
        return err_oom(e);
    *en = (struct engine){.loop = l, .ev = ev, .ctx = ctx, .look.fn = on_look};
    en->vm.fd = en->vm.ram_fd = -1;
    en->ack_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    en->wake = (struct loop_src){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .fn = on_wake};
    int r = en->ack_fd < 0 || en->wake.fd < 0 ? -errno : loop_add(l, &en->wake, EPOLLIN);
    if (r < 0)
        err_sys(e, -r, "cannot watch the guest");
    else
        r = make_machine(en, p, e);
    if (r < 0) {
        kvm_free(en);
        return r;
    }
    *ret = en;
    return 0;
}

static int kvm_run(struct engine *en, struct err *e)
{
    return vcpus_run(&en->vcpus, true, e);
}

int kvm_run_unfiltered(struct engine *en, struct err *e)
{
    return vcpus_run(&en->vcpus, false, e);
}

static void kvm_describe(struct engine *en, char *to, size_t size)
{
    uint64_t exits[EXIT_KINDS] = {0}, strange = 0, ignored = 0;
    for (unsigned i = 0; i < en->vcpus.n; i++) {
        for (unsigned k = 0; k < EXIT_KINDS; k++)
            exits[k] += atomic_load(&en->vcpus.cpu[i].exits[k]);
        strange += atomic_load(&en->vcpus.cpu[i].strange);
    }
    for (unsigned i = 0; i < en->n_devices; i++) {
        struct mmio_stats s;
        mmio_stats(en->device[i], &s);
        ignored += s.ignored;
    }
    (void)snprintf(to, size,
                   "exits to user space: %" PRIu64 " (%" PRIu64 " port, %" PRIu64
                   " register write, %" PRIu64 " read, %" PRIu64 " signal, %" PRIu64
                   " other); %" PRIu64 " to nothing, %" PRIu64 " writes ignored",
                   exits[EXIT_PORT] + exits[EXIT_MMIO_WRITE] + exits[EXIT_MMIO_READ] +
                       exits[EXIT_SIGNAL] + exits[EXIT_OTHER],
                   exits[EXIT_PORT], exits[EXIT_MMIO_WRITE], exits[EXIT_MMIO_READ],
                   exits[EXIT_SIGNAL], exits[EXIT_OTHER], strange, ignored);
}

const struct engine_ops engine_kvm = {
    .name = "kvm",
    .kernel_file = "linux-kvm",
    .max_cpus = ARCH_CPUS_MAX,
    .max_cpus_reduced = ARCH_CPUS_MAX,
    .owns_memory = true,
    .huge_pages = true,
    .open = kvm_device_open,
    .start = kvm_start,
    .run = kvm_run,
    .kill = kvm_kill,
    .free = kvm_free,
    .going_down = released_devices,
    .describe = kvm_describe,
};
