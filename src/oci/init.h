/* The process of a container, as its caller sees it.
 *
 * `create` forks it and ends, so that it becomes a child of the nearest subreaper (conmon, a shim),
 * which waits for it: its exit code is the container command's. It is in the namespaces that the
 * configuration names, starts the sandbox, and holds its leash (proto.h, F_LEASH): however this
 * process ends, the guest ends. It passes signals on to the command.
 *
 *     create ─fork─▶ booter: cgroup, namespaces ─clone─▶ init: a terminal, perhaps
 *                    booter: (hooks, in create) ─▶ boots, and ends
 *                                                        init: the container's files, meanwhile
 *                                                        init: leash ─▶ waits
 *     start  ──start.sock──▶ init: runs the command, passes its stdio through, exits with its code
 *
 * It is alone in a pid namespace, outside of which the sandbox runs: if it is killed, its guest
 * still has time to write back what it has in memory. Once the guest is up, it sees only the
 * container's files (view.h) and has no capabilities left, since what it reads from then on comes
 * from the guest.
 */
#pragma once

#include "oci/config.h"
#include "oci/state.h"

struct oci_init {
    struct oci_runtime *rt;
    struct container_config *config;
    const struct oci_container *container;
    const json_t *groups;
    const char *console_socket; /* NULL: stdio is inherited */
    const char *pod;            /* whose guest it is in; NULL: its own */
    int lock; /* of its name: if its creator is killed, it is free once the guest has booted, or not */
};

/* Sent twice: once there is a process in the container's namespaces, and once the guest is up. The
 * first is answered with one byte. */
struct oci_report {
    int code;  /* 0: all is well */
    pid_t pid; /* the container's process; in the second report, its number in a pod (pod.h) */
    char text[ERR_MSG_MAX];
    char hint[ERR_MSG_MAX / 2];
};

/* Runs in the new process, which group_fork() made; sock leads to its creator. */
void __attribute__((noreturn)) booter_main(const struct oci_init *in, bool in_group, int sock);

/* 0, or -errno with the error that the report describes; the other end's death is an error, too.
 * pid may be NULL. */
int report_receive(int sock, pid_t *pid, struct err *e);
void report_send(int sock, pid_t pid, const struct err *e);

/* For `start`: tells it to run the command, and waits until it does. */
int init_start_command(const struct oci_container *c, struct err *e);
