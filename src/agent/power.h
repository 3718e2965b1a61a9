/* Shutting the guest down: processes are asked to end, then killed; then the writable layer and
 * mounted disks are frozen and the power goes off. */
#pragma once

#include "agent/server.h"

#include <stdint.h>

struct power {
    struct server *server;
    int upper_fd;        /* a directory on the writable layer; -1 = nothing to save */
    void (*saved)(void); /* called when everything is on disk, before power-off; may be NULL */
    struct loop_timer timer;
    struct loop_src signals; /* what halt, poweroff and reboot send to PID 1 */
    bool killing;
    bool childless; /* nothing but clients is left to wait for */
};

/* From here on, the signals of halt and poweroff to PID 1 also begin an orderly stop; in a pod's
 * guest, only SIGTERM does. */
void power_init(struct power *p, struct server *srv, int upper_fd);
/* Begins an orderly stop; a second call can only shorten the grace. */
void power_stop(struct power *p, uint64_t grace_ms);
/* Call after every turn of the loop: powers off once there is nothing left to wait for. */
void power_check(const struct power *p);
/* Never returns. */
void power_off(int upper_fd) __attribute__((noreturn));
