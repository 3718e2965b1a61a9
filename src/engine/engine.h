/* What runs a guest: the one interface that every engine implements.
 *
 * An engine is given guest memory size, a kernel and a list of virtio devices, and runs the kernel
 * with those devices until it ends. It knows nothing of images, sandboxes or agents; the devices
 * know nothing of engines.
 *
 *     kvm   vCPU threads in this process, devices behind virtio-mmio
 *     uml   a jailed child tree running a user-mode kernel, devices behind vhost-user
 *
 * What an engine needs of the host is opened by engine_choose(), in the launcher, with its user's
 * rights; the descriptor travels with the monitor. start() is called once, in the monitor, inside
 * its namespaces but before its capabilities are dropped and its seccomp filter is closed: all
 * processes, sockets and mounts that the engine will ever need are made there. run() follows when
 * capabilities are gone, just before the filter closes: threads that an engine has are started
 * there, each closes its own filter, and no instruction of the guest is executed before that.
 * Afterwards only event loops and those threads run.
 */
#ifndef MSB_ENGINE_ENGINE_H
#define MSB_ENGINE_ENGINE_H

#include "engine/kind.h"
#include "util/err.h"
#include "util/loop.h"
#include "virtio/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENGINE_DEVICES_MAX = 19 /* pins that an I/O APIC has for them */ };

struct engine_device {
    struct virtio_dev *dev;            /* NULL: another process serves it */
    struct loop *loop;                 /* whose thread serves it, or at least answers for it */
    const struct virtio_dev_ops *kind; /* of one that is served elsewhere, */
    int server_fd; /* ... and where its vhost-user socket, listening or connected, is to be sent */
};

struct engine_params {
    uint64_t memory_bytes;
    unsigned n_cpus;      /* up to the engine's max_cpus */
    int device_fd;        /* of struct engine_choice; not owned */
    int kernel_fd;        /* the kernel's ELF file, O_RDONLY; not owned */
    int null_fd;          /* /dev/null, opened while it could be; not owned */
    const char *cpuinfo;  /* host's /proc/cpuinfo, cut to its first CPU; may be "" */
    const char *init;     /* program the kernel starts, on the first disk */
    int cpu;              /* pin the guest to this CPU; -1 = leave it alone */
    bool verbose;         /* kernel messages of all levels */
    const char *jail_dir; /* an empty directory that an engine may mount over */
    struct engine_device devices[ENGINE_DEVICES_MAX]; /* probed in this order */
    size_t n_devices;
};

/* Called on the main loop. */
struct engine_events {
    /* The guest is gone; nothing of it is left. clean: it powered itself off. `how` says how it
     * ended, for the user. */
    void (*ended)(void *ctx, bool clean, const char *how);
    /* Kernel console output: untrusted bytes. */
    void (*console)(void *ctx, const char *p, size_t n);
    /* A device was broken by its driver and is dead. `what` is a string literal. May be called
     * from the device's thread. */
    void (*device_broken)(void *ctx, const char *what);
};

struct engine;

struct engine_ops {
    const char *name;
    const char *kernel_file; /* in the assets directory */
    int max_cpus;            /* CPUs a guest can use */
    bool owns_memory;        /* guest memory is this process's own: a balloon can give it back */
    bool one_cpu;            /* a guest stays on one CPU, by turns with who serves its devices */
    /* Opens what it needs of the host. NULL: nothing. */
    int (*open)(int *ret_fd, struct err *e);
    int (*start)(struct engine **ret, const struct engine_params *p, struct loop *l,
                 const struct engine_events *ev, void *ctx, struct err *e);
    int (*run)(struct engine *en, struct err *e); /* NULL: start() did it all */
    void (*kill)(struct engine *en);              /* ended() follows */
    void (*free)(struct engine *en);
    /* Optional: whether the guest has given up all its devices, that is, goes down in order. */
    bool (*going_down)(struct engine *en);
    /* Optional: a line for the log of somebody who looks for time. */
    void (*describe)(struct engine *en, char *to, size_t size);
};

extern const struct engine_ops engine_kvm;
extern const struct engine_ops engine_uml;        /* stub processes under seccomp: the fast mode */
extern const struct engine_ops engine_uml_ptrace; /* ... under ptrace: for hosts without it */

/* The engine that a sandbox will run on, and what it needs of the host. */
struct engine_choice {
    const struct engine_ops *ops;
    int device_fd;     /* what ops->open opened; -1 = nothing */
    char why[512];     /* a phrase for `doctor` */
    char warning[256]; /* what the user should know; "" = nothing */
};

/* Resolves `auto`, once: what comes out is handed on to the monitor. An engine that was asked for
 * by name is used even where `auto` would not take it, with a warning, unless it cannot run at all:
 * then e says why. */
int engine_choose(enum engine_kind kind, struct engine_choice *ret, struct err *e);
void engine_choice_close(struct engine_choice *c);

#define ENGINE_CHOICE_NONE \
    {                      \
        .device_fd = -1    \
    }

#endif
