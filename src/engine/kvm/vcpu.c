#include "engine/kvm/vcpu.h"

#include "engine/kvm/sys.h"
#include "jail/seccomp.h"
#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* #syscalls:vcpu write futex rt_sigreturn rt_sigprocmask exit madvise restart_syscall */
/* For ending the process, should that happen on such a thread. */
/* #syscalls:vcpu exit_group */
/* #syscalls:monitor tgkill getpid gettid rt_sigprocmask munmap futex */

enum { KICK_SIGNAL = SIGUSR1, STACK_SIZE = 128 * 1024, PORT_BYTES_MAX = 512 };

/* Only its arrival matters: it interrupts KVM_RUN. */
static void on_kick_signal(int sig)
{
}

static void wake_main(struct vcpus *c)
{
    (void)eventfd_write(c->wake_fd, 1);
}

/* --- on a vCPU's thread --------------------------------------------------------------------- */

static void count(_Atomic uint64_t *to)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* The first thread to notice that the guest has ended records how. */
static void __attribute__((format(printf, 3, 4)))
guest_over(struct vcpus *c, bool reset, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)pthread_mutex_lock(&c->lock);
    if (!c->over) {
        c->over = true;
        c->reset = reset;
        (void)vsnprintf(c->how, sizeof(c->how), fmt, ap);
    }
    (void)pthread_mutex_unlock(&c->lock);
    va_end(ap);
    atomic_store(&c->stop, true); /* the main loop kicks the others */
    wake_main(c);
}

static void console_put(struct vcpus *c, const char *p, size_t n)
{
    (void)pthread_mutex_lock(&c->lock);
    assert(c->console_len <= CONSOLE_RING);
    bool tell = c->console_len > CONSOLE_RING / 2; /* otherwise line by line */
    for (size_t i = 0; i < n; i++) {
        tell = tell || p[i] == '\n';
        c->console[(c->console_start + c->console_len) % CONSOLE_RING] = p[i];
        if (c->console_len < CONSOLE_RING)
            c->console_len++;
        else
            c->console_start = (c->console_start + 1) % CONSOLE_RING;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (tell)
        wake_main(c);
}

static void on_port(struct vcpu *v)
{
    char text[PORT_BYTES_MAX];
    size_t n = sizeof(text);
    count(&v->exits[EXIT_PORT]);
    if (!arch_port_access(v->run, text, &n))
        count(&v->strange);
    if (n > 0)
        console_put(v->all, text, n);
}

static void on_mmio(struct vcpu *v)
{
    struct vcpus *c = v->all;
    struct kvm_run *run = v->run;
    uint64_t off = run->mmio.phys_addr - arch_device_gpa(0);
    unsigned len = MIN(run->mmio.len, (uint32_t)sizeof(run->mmio.data));
    struct mmio *m = off / MMIO_PAGE < c->n_devices ? c->devices[off / MMIO_PAGE] : NULL;
    count(&v->exits[run->mmio.is_write ? EXIT_MMIO_WRITE : EXIT_MMIO_READ]);
    if (!m) {
        count(&v->strange);
        memset(run->mmio.data, 0xff, sizeof(run->mmio.data));
    } else if (run->mmio.is_write) {
        mmio_write(m, off % MMIO_PAGE, run->mmio.data, len);
    } else {
        mmio_read(m, off % MMIO_PAGE, run->mmio.data, len);
    }
}

static void on_strange_exit(struct vcpu *v)
{
    struct vcpus *c = v->all;
    struct kvm_run *run = v->run;
    count(&v->exits[EXIT_OTHER]);
    switch (run->exit_reason) {
    case KVM_EXIT_SHUTDOWN:
        guest_over(c, true, "the guest kernel died of a triple fault (CPU %u)", v->id);
        break;
    case KVM_EXIT_SYSTEM_EVENT:
        guest_over(c, run->system_event.type != KVM_SYSTEM_EVENT_CRASH,
                   "the guest ended with system event %u", run->system_event.type);
        break;
    case KVM_EXIT_FAIL_ENTRY:
        guest_over(c, false, "the host's CPU refuses to run the guest (reason %#llx)",
                   (unsigned long long)run->fail_entry.hardware_entry_failure_reason);
        break;
    case KVM_EXIT_INTERNAL_ERROR:
        guest_over(c, false, "KVM gave up on the guest: internal error %u%s",
                   run->internal.suberror,
                   run->internal.suberror == KVM_INTERNAL_ERROR_EMULATION
                       ? " (an instruction that it cannot emulate)"
                       : "");
        break;
    case KVM_EXIT_HLT:
        break; /* does not happen with an in-kernel interrupt controller */
    default:
        guest_over(c, false, "KVM stopped the guest for a reason unknown to msb (%u)",
                   run->exit_reason);
        break;
    }
}

static void on_signal(struct vcpu *v)
{
    count(&v->exits[EXIT_SIGNAL]);
    /* Before anything is read: if it is then set again, there is something new. */
    __atomic_store_n(&v->run->immediate_exit, 0, __ATOMIC_SEQ_CST);
    if (atomic_exchange(&v->looking, false))
        atomic_store(&v->halted, arch_halted_for_good(v->fd, v->run));
}

static void run_guest(struct vcpu *v)
{
    struct vcpus *c = v->all;
    while (!atomic_load_explicit(&c->stop, memory_order_acquire)) {
        int r = kvm_ioctl_n(v->fd, KVM_RUN, 0);
        if (r == -EINTR || r == -EAGAIN) {
            on_signal(v);
        } else if (r < 0) {
            guest_over(c, false, "the host can no longer run the guest: %s", strerror(-r));
        } else if (v->run->exit_reason == KVM_EXIT_IO) {
            on_port(v);
        } else if (v->run->exit_reason == KVM_EXIT_MMIO) {
            on_mmio(v);
        } else {
            on_strange_exit(v);
        }
    }
}

static void *vcpu_main(void *arg)
{
    struct vcpu *v = arg;
    struct vcpus *c = v->all;
    char name[16];
    (void)snprintf(name, sizeof(name), "vcpu %u", v->id);
    (void)prctl(PR_SET_NAME, name, 0, 0, 0);
    int r = c->filter ? seccomp_enter(SECCOMP_VCPU) : 0;
    (void)pthread_mutex_lock(&c->lock);
    if (r < 0)
        c->filter_error = r;
    c->filtered++;
    assert(c->filtered <= c->n);
    (void)pthread_cond_broadcast(&c->entered);
    while (c->filtered < c->n && !atomic_load(&c->stop)) /* none runs before all are filtered */
        (void)pthread_cond_wait(&c->entered, &c->lock);
    bool go = c->filter_error == 0;
    (void)pthread_mutex_unlock(&c->lock);
    if (go)
        run_guest(v);
    unsigned were = atomic_fetch_sub(&c->alive, 1);
    assert(were > 0);
    if (were == 1)
        wake_main(c);
    return NULL;
}

/* --- on the main thread --------------------------------------------------------------------- */

static int map_vcpu(struct vcpu *v, struct vm *vm)
{
    int fd = kvm_ioctl_n(vm->fd, KVM_CREATE_VCPU, v->id);
    if (fd < 0)
        return fd;
    v->fd = fd;
    void *p = mmap(NULL, vm->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    v->run = p;
    return 0;
}

int vcpus_create(struct vcpus *c, struct vm *vm, unsigned n, uint64_t entry, struct err *e)
{
    assert(n >= 1 && n <= ARCH_CPUS_MAX);
    *c = (struct vcpus){.vm = vm, .wake_fd = -1};
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->entered, NULL);
    struct sigaction sa = {.sa_handler = on_kick_signal};
    (void)sigaction(KICK_SIGNAL, &sa, NULL);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < n; i++) {
        struct vcpu *v = &c->cpu[i];
        v->all = c;
        v->id = i;
        v->fd = -1;
        c->n = i + 1;
        r = map_vcpu(v, vm);
        if (r < 0)
            err_sys(e, -r, "KVM cannot create virtual CPU %u", i);
        else
            r = arch_vcpu_init(vm, v->fd, i, n, entry, e);
    }
    if (r < 0)
        vcpus_destroy(c);
    return r;
}

static int start_threads(struct vcpus *c)
{
    pthread_attr_t attr;
    int r = -pthread_attr_init(&attr);
    if (r < 0)
        return r;
    (void)pthread_attr_setstacksize(&attr, STACK_SIZE);
    for (unsigned i = 0; r == 0 && i < c->n; i++) {
        atomic_fetch_add(&c->alive, 1);
        r = -pthread_create(&c->cpu[i].thread, &attr, vcpu_main, &c->cpu[i]);
        c->cpu[i].started = r == 0;
        if (r < 0)
            atomic_fetch_sub(&c->alive, 1);
    }
    (void)pthread_attr_destroy(&attr);
    return r;
}

int vcpus_run(struct vcpus *c, bool filter, struct err *e)
{
    assert(c->n > 0 && c->filtered == 0);
    c->filter = filter;
    int r = start_threads(c);
    if (r < 0) {
        vcpus_stop(c);
        return err_sys(e, -r, "cannot start a thread for each of %u CPUs", c->n);
    }
    (void)pthread_mutex_lock(&c->lock);
    while (c->filtered < c->n)
        (void)pthread_cond_wait(&c->entered, &c->lock);
    r = c->filter_error;
    (void)pthread_mutex_unlock(&c->lock);
    return r < 0 ? err_sys(e, -r, "cannot install the system call filter of a virtual CPU") : 0;
}

/* immediate_exit stops a thread that is about to enter the guest; the signal, one that is in it. */
static void kick(struct vcpu *v)
{
    if (!v->started)
        return;
    __atomic_store_n(&v->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
    (void)pthread_kill(v->thread, KICK_SIGNAL);
}

void vcpus_stop(struct vcpus *c)
{
    atomic_store(&c->stop, true);
    (void)pthread_mutex_lock(&c->lock);
    (void)pthread_cond_broadcast(&c->entered);
    (void)pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < c->n_devices; i++)
        mmio_cancel(c->devices[i]);
    for (unsigned i = 0; i < c->n; i++)
        kick(&c->cpu[i]);
}

void vcpus_look(struct vcpus *c)
{
    for (unsigned i = 0; i < c->n; i++) {
        atomic_store(&c->cpu[i].halted, false);
        atomic_store(&c->cpu[i].looking, true);
        kick(&c->cpu[i]);
    }
}

bool vcpus_halted(struct vcpus *c)
{
    for (unsigned i = 0; i < c->n; i++)
        if (!atomic_load(&c->cpu[i].halted))
            return false;
    return true;
}

size_t vcpus_console(struct vcpus *c, char *to, size_t n)
{
    (void)pthread_mutex_lock(&c->lock);
    n = MIN(n, c->console_len);
    for (size_t i = 0; i < n; i++)
        to[i] = c->console[(c->console_start + i) % CONSOLE_RING];
    c->console_start = (c->console_start + n) % CONSOLE_RING;
    c->console_len -= n;
    (void)pthread_mutex_unlock(&c->lock);
    return n;
}

void vcpus_destroy(struct vcpus *c)
{
    if (c->n == 0)
        return;
    vcpus_stop(c);
    for (unsigned i = 0; i < c->n; i++) {
        struct vcpu *v = &c->cpu[i];
        if (v->started)
            (void)pthread_join(v->thread, NULL);
        if (v->run)
            (void)munmap(v->run, c->vm->run_size);
        close_fd(&v->fd);
    }
    (void)pthread_cond_destroy(&c->entered);
    (void)pthread_mutex_destroy(&c->lock);
    c->n = 0;
}
