/* The control stream to the monitor: HELLO and CONFIG at the start, PING, ENV and SHUTDOWN later. */
#pragma once

#include "agent/request.h"
#include "proto/proto.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/loop.h"

struct control {
    struct loop_src src;
    struct loop *loop;
    struct buf rx, tx;
    void (*on_shutdown)(struct control *c, uint64_t grace_ms);
    void (*on_lost)(struct control *c);
    void (*on_seal)(struct control *c);
    void (*on_env)(struct control *c, const struct proto_frame *f);
};

/* Connects and says HELLO. */
int control_open(struct control *c, struct err *e);
/* Waits for CONFIG. */
int control_configure(struct control *c, struct config *cfg, struct err *e);
void control_ready(struct control *c);
void control_sealed(struct control *c);
/* Tells the monitor why the guest cannot start, and waits a moment for it to read that. */
void control_fail(struct control *c, const struct err *e);
/* Tells the monitor that everything is on disk, and waits a moment for it to cut the power. */
void control_down(struct control *c);
void control_log(struct control *c, const char *text);
/* Reports the number of processes killed for lack of memory. */
void control_oom(struct control *c, uint64_t kills);
/* Hands events to the loop from now on. */
int control_watch(struct control *c, struct loop *l);
