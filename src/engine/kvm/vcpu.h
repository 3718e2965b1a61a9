/* Virtual CPUs: one thread each, running the guest until it is told to stop.
 *
 * A vCPU thread is the closest that a guest's code gets to us, so it has its own seccomp filter,
 * the tightest of all: it can run its CPU, signal eventfds and wait on locks. It opens nothing,
 * sends nothing, allocates nothing. What it has to report goes into `struct vcpus` and an eventfd,
 * and the main loop does the rest. All state of a virtual CPU is in KVM or here, none on its stack.
 */
#pragma once

#include "engine/kvm/arch.h"
#include "engine/kvm/vm.h"
#include "util/err.h"
#include "virtio/mmio.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { CONSOLE_RING = 16 * 1024 };

/* Why a virtual CPU returned to us. */
enum vcpu_exit { EXIT_PORT, EXIT_MMIO_READ, EXIT_MMIO_WRITE, EXIT_SIGNAL, EXIT_OTHER, EXIT_KINDS };

struct vcpus;

struct vcpu {
    struct vcpus *all;
    unsigned id;
    int fd;
    struct kvm_run *run;
    pthread_t thread;
    bool started;        /* there is a thread to join */
    atomic_bool looking; /* asked whether it is halted for good */
    atomic_bool halted;  /* ... the answer */
    _Atomic uint64_t exits[EXIT_KINDS];
    _Atomic uint64_t strange; /* accesses to addresses where there is nothing */
};

struct vcpus {
    struct vm *vm;
    struct mmio *const *devices;
    unsigned n_devices;
    struct vcpu cpu[ARCH_CPUS_MAX];
    unsigned n;
    int wake_fd; /* eventfd: something below changed; not owned */
    bool filter; /* each thread installs its filter first */
    atomic_bool stop;
    atomic_uint alive; /* threads */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t entered;
    unsigned filtered; /* threads that have installed their filter, or failed to */
    int filter_error;  /* -errno */
    bool over;         /* the guest ended by itself ... */
    bool reset;        /* ... by a reset, which may be an orderly one */
    char how[160];     /* ... and how */
    char console[CONSOLE_RING];
    size_t console_start, console_len; /* new bytes overwrite the oldest */
};

/* Creates the CPUs; they do not run yet. On failure, nothing is left behind. */
int vcpus_create(struct vcpus *c, struct vm *vm, unsigned n, uint64_t entry, struct err *e);
/* Starts the threads and returns once each has installed its filter; from then on the guest runs.
 * filter: false in tests, which need more system calls. */
int vcpus_run(struct vcpus *c, bool filter, struct err *e);
/* On the main thread: makes all CPUs stop soon. wake_fd is signaled when the last one has. */
void vcpus_stop(struct vcpus *c);
/* Asks every CPU whether it is halted for good; a little later, vcpus_halted() has the answer. */
void vcpus_look(struct vcpus *c);
bool vcpus_halted(struct vcpus *c);
/* Takes up to n bytes of console output. */
size_t vcpus_console(struct vcpus *c, char *to, size_t n);
/* Stops and joins all threads, and frees everything. */
void vcpus_destroy(struct vcpus *c);
