/* The first frames of a session: what to run, or what to take up again. */
#pragma once

#include "client/session.h"

/* HELLO, and EXEC or ATTACH. */
int exec_frame_put(struct buf *tx, const struct session_request *req, bool stdin_open,
                   struct err *e);
/* The size of this process's terminal, if it has one: else the agent's default holds, or what it was
 * before. */
void exec_frame_size(struct proto_writer *w);
