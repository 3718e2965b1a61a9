/* The end of the guest: everyone is asked to go, then made to, then the writable layer and
 * mounted disks are brought to rest and the power goes off. */
#ifndef MSB_AGENT_POWER_H
#define MSB_AGENT_POWER_H

#include "agent/engine.h"

#include <stdint.h>

struct power {
    struct engine *engine;
    int upper_fd;        /* a directory on the ext4 layer; -1 = nothing to save */
    void (*saved)(void); /* told when all is on disk, before the power goes; may be NULL */
    struct loop_timer timer;
    struct loop_src signals; /* what halt, poweroff and reboot send to PID 1 */
    bool killing;
    bool childless; /* nothing left to wait for but clients */
};

/* From here on the usual signals to PID 1 begin an orderly stop as well. */
void power_init(struct power *p, struct engine *e, int upper_fd);
/* Begins an orderly stop; a second call can only shorten the grace. */
void power_stop(struct power *p, uint64_t grace_ms);
/* To be called after every turn of the loop: switches off when nobody is left to wait for. */
void power_check(const struct power *p);
/* Never returns. */
void power_off(int upper_fd) __attribute__((noreturn));

#endif
