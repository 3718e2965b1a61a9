/* The first frames of a session: what to run, or which session to resume. */
#pragma once

#include "client/session.h"

/* HELLO, and EXEC or ATTACH. */
int exec_frame_put(struct buf *tx, const struct session_request *req, bool stdin_open,
                   struct err *e);
/* Adds the size of this process's terminal, if it has one; else the agent's default applies, or the
 * previous size. */
void exec_frame_size(struct proto_writer *w);
