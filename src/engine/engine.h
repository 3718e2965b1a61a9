/* What runs a guest: the interface that every engine implements.
 *
 * An engine is given a memory size, a kernel and a list of virtio devices, and runs the kernel with
 * those devices until it ends. It knows nothing of images, sandboxes or agents; the devices know
 * nothing of engines.
 *
 *     kvm   vCPU threads in this process, devices behind virtio-mmio
 *     uml   a jailed child tree running a user-mode kernel, devices behind vhost-user
 *
 * engine_choose() opens what an engine needs from the host, in the launcher, with the caller's
 * rights; the descriptor is handed to the monitor. start() is called once, in the monitor, inside
 * its namespaces but before it drops its capabilities and installs its seccomp filter: all
 * processes, sockets and mounts that the engine will ever need are made there. run() follows when
 * the capabilities are gone, just before the filter is installed: it starts the engine's threads,
 * each of which installs its own filter, and no guest instruction is executed before that.
 * Afterwards only event loops and those threads run.
 */
#pragma once

#include "engine/kind.h"
#include "util/err.h"
#include "util/loop.h"
#include "virtio/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENGINE_DEVICES_MAX = 19 /* as many pins as an I/O APIC has for them */ };

/* For every guest's kernel: no devices that nobody asked for, and a table of connections that does not
 * grow with memory, since it is cleared at boot. */
#define ENGINE_LEAN "dummy.numdummies=0 zram.num_devices=0 nf_conntrack.hashsize=4096"

/* The largest memory for which a guest's kernel sizes its hash tables by itself, since it clears
 * them at boot; and the arguments that keep them at that size: names, inodes, TCP, UDP. */
#define ENGINE_TABLES_MEMORY (2ULL << 30)
#define ENGINE_TABLES \
    "dhash_entries=262144 ihash_entries=131072 thash_entries=16384 uhash_entries=1024"

struct engine_device {
    struct virtio_dev *dev;            /* NULL: another process serves it */
    struct loop *loop;                 /* its thread serves the device, or connects to its server */
    const struct virtio_dev_ops *kind; /* of a device that another process serves, */
    int server_fd; /* ... and the socket to it, over which it is sent its vhost-user socket */
};

struct engine_params {
    uint64_t memory_bytes;
    unsigned n_cpus;      /* up to the engine's max_cpus */
    int device_fd;        /* of struct engine_choice; not owned */
    int kernel_fd;        /* the kernel's ELF file, O_RDONLY; not owned */
    int null_fd;          /* /dev/null; not owned */
    const char *cpuinfo;  /* the first CPU's entry in the host's /proc/cpuinfo; may be "" */
    const char *init;     /* program the kernel starts, on the first disk */
    int cpu;              /* pin the guest to this CPU and those after it; -1 = do not */
    bool spread;          /* ... and, if pinned, let one of its processes use the next */
    bool verbose;         /* kernel messages of all levels */
    const char *jail_dir; /* an empty directory that an engine may mount over */
    bool reduced;         /* there are no namespaces (jail/reduced.h); the engine enters jail_dir */
    bool own_user;        /* no other process runs as our user */
    struct engine_device devices[ENGINE_DEVICES_MAX]; /* probed in this order */
    size_t n_devices;
};

/* Called on the main loop. */
struct engine_events {
    /* The guest is completely gone. clean: it powered itself off. `how` says how it ended, for the
     * user. */
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
    const char *smp_file;    /* ... for a guest with several CPUs; where it is not installed, the
                              * guest gets one. NULL = the same */
    int max_cpus;            /* CPUs a guest can use */
    int max_cpus_reduced;    /* ... in a reduced jail (jail/reduced.h) */
    bool owns_memory;        /* guest memory is this process's own: a balloon can give it back */
    bool huge_pages;         /* its guest kernel has transparent huge pages */
    bool one_cpu;            /* each guest CPU is best kept on one host CPU */
    /* Opens what it needs from the host. NULL = nothing. */
    int (*open)(int *ret_fd, struct err *e);
    int (*start)(struct engine **ret, const struct engine_params *p, struct loop *l,
                 const struct engine_events *ev, void *ctx, struct err *e);
    int (*run)(struct engine *en, struct err *e); /* NULL = start() does it all */
    void (*kill)(struct engine *en);              /* ended() follows */
    void (*free)(struct engine *en);
    /* Optional: whether the guest has released all its devices, that is, is shutting down
     * cleanly. */
    bool (*going_down)(struct engine *en);
    /* Optional: the CPU time of its processes, once the guest has ended. */
    uint64_t (*cpu_ns)(const struct engine *en);
    /* Optional: a line of performance counters for the log. */
    void (*describe)(struct engine *en, char *to, size_t size);
};

extern const struct engine_ops engine_kvm;
extern const struct engine_ops engine_uml;        /* guest processes under seccomp: the fast mode */
extern const struct engine_ops engine_uml_ptrace; /* ... under ptrace, for hosts without seccomp */

/* The engine that a sandbox will run on, and what it needs from the host. */
struct engine_choice {
    const struct engine_ops *ops;
    int device_fd;     /* what ops->open opened; -1 = nothing */
    char why[512];     /* a phrase for `doctor` */
    char warning[256]; /* what the user should know; "" = nothing */
};

/* Resolves `auto`, once: the choice is handed to the monitor. An engine that was asked for by name
 * is used even where `auto` would not choose it, with a warning, unless it cannot run at all. */
int engine_choose(enum engine_kind kind, struct engine_choice *ret, struct err *e);
void engine_choice_close(struct engine_choice *c);

#define ENGINE_CHOICE_NONE \
    {                      \
        .device_fd = -1    \
    }
