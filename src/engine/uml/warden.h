/* The supervisor of a user-mode kernel: pid 1 of its tree. The kernel's seccomp filter refers to it
 * the few calls that would otherwise escape every limit (jail/seccomp.c).
 *
 * Guest code can take over its kernel, so the limits must hold against a hostile one. The host
 * limits memory per process, and a kernel has hundreds of them. What makes the total finite is that
 * only the kernel may have its own memory:
 *
 *     execveat   a new process shares the kernel's memory (the filter insists) until here: from now
 *                on it is a stub, with a few private pages and few descriptors
 *     clone      as fork() does it, with a copy of that memory: never, or a few times for a
 *                kernel that traces
 *     mmap       of memory that is anonymous and shared, which no limit counts: once, three pages
 *
 * A kernel with several CPUs must also ask before the calls with which it could spread over the
 * whole host:
 *
 *     clone      of a thread: one for each CPU but the first
 *     sched_setaffinity
 *                with the number of one of its CPUs in place of the size of a mask, and no mask: the
 *                warden moves the process to the CPU of the host that belongs to it. (A kernel with
 *                one CPU may have a second place for the process that it runs.)
 *
 * And where the host insists on randomizing the address of the heap:
 *
 *     brk        the heap is empty and starts where the program ends: guest memory is behind it,
 *                and anything between the two would count as guest memory. The C library then gets
 *                what it needs with mmap().
 *
 * A filter's question names the process and has the arguments by value, so no answer can be
 * undermined by changing memory after the fact.
 */
#pragma once

#include "engine/uml/desk.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { UML_CPUS_MAX = 32 };

struct warden_params {
    pid_t kernel;
    int listener;          /* where questions come from; -1: there are none */
    bool traced;           /* the kernel may fork a few times */
    unsigned threads;      /* that it may have besides its first: one for each further CPU */
    int cpu[UML_CPUS_MAX]; /* the host CPU to which each of its own is pinned */
    size_t n_cpus;         /* 0: it runs anywhere */
    uint64_t heap;         /* what brk() returns, where the filter asks about it */
    /* In a reduced jail: what the kernel gets from us. There, we are not pid 1 of a namespace: the
     * kernel leads a process group, which ends with it, and SIGTERM ends it. */
    struct desk *desk;
};

/* Answers questions until the kernel ends; then ends the calling process the way the kernel
 * ended. */
void __attribute__((noreturn)) warden_main(const struct warden_params *p);
