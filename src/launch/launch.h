/* Starting a monitor: from a CLI process with all its privileges to a jailed process of its own.
 *
 *     msb ──fork──▶ (janitor) ──fork──▶ stage ──unshare, fork──▶ monitor
 *
 * The stage exists to make the namespaces, whose maps msb writes, and to be gone: the monitor is
 * nobody's child, in a session of its own, with none of its caller's descriptors. The janitor
 * exists for ephemeral sandboxes only: outside the jail, it deletes the directory when the monitor
 * has ended, however that came.
 */
#ifndef MSB_LAUNCH_LAUNCH_H
#define MSB_LAUNCH_LAUNCH_H

#include "engine/engine.h"
#include "spec/spec.h"
#include "store/store.h"
#include "util/err.h"

struct launch {
    int report_fd;
};

struct launch_options {
    const struct engine_choice *engine;
    bool creating;                  /* see struct monitor_params */
    bool stop_when_idle;            /* started for one command: goes with the last one */
    void (*warn)(const char *text); /* may be NULL */
};

/* Opens what the monitor needs and starts it; dirfd is the sandbox's directory. */
int launch_begin(struct launch *l, const struct store *s, int dirfd,
                 const struct sandbox_spec *spec, const struct launch_options *opt, struct err *e);
/* Waits until the guest is up, or says why it is not. Nobody has been told of the sandbox yet: who
 * closes report_fd now undoes it. */
int launch_wait(struct launch *l, struct err *e);
/* Acknowledges it: from now on it runs, whatever becomes of us. */
int launch_finish(struct launch *l, struct err *e);
/* Or ends it: it has served us, and never ran for anybody else. */
void launch_dismiss(struct launch *l);

#endif
