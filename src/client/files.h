/* The client's end of a stream about files (proto.h, "Files").
 *
 * One connection, requests one after another. Nothing waits for just one direction: while we send,
 * we also receive, so that an agent that replies early or at length never blocks on a client that
 * only sends.
 *
 * Every byte received is hostile. Frames and fields are checked here; names and sizes are for the
 * caller to check (copy/guest.h).
 */
#pragma once

#include "proto/files.h"
#include "util/buf.h"
#include "util/err.h"

#include <stdbool.h>
#include <stddef.h>

struct files {
    int sock; /* owned since files_open() */
    struct buf rx, tx;
    struct proto_frame cur; /* the last one returned by files_next() */
    bool taken;             /* cur is still in rx */
    const char *name;       /* of the sandbox, for messages; not owned. NULL: not open */
};

/* Says HELLO and FILES. user: NULL = the sandbox's; relative paths are relative to cwd, NULL = the
 * sandbox's working directory. Does not wait for anything. Takes sock, also on failure. */
int files_open(struct files *f, int sock, const char *name, const char *user, const char *cwd,
               struct err *e);
/* The same for only LAYER (proto.h). */
int files_open_layer(struct files *f, int sock, const char *name, struct err *e);
void files_close(struct files *f); /* may be called twice */

/* Queues a request. */
int files_send(struct files *f, const struct file_req *q, struct err *e);
/* Queues a frame that belongs to a request: FILE_END, FILE_LEAVE, or with attributes FILE_ENTRY. */
int files_send_part(struct files *f, uint16_t type, const struct file_attr *a, struct err *e);
/* Queues FILE_DATA of any length. */
int files_send_data(struct files *f, const void *p, size_t n, struct err *e);
/* Whether a reply has begun to arrive: a caller that is still sending should read it, since it can
 * only be a failure. */
bool files_answered(const struct files *f);

/* Gets the next frame of a reply, after everything queued is sent. It is valid until the next call.
 * A FILE_ERR or FAIL becomes the error that it describes: -errno from the guest, or -ESHUTDOWN if
 * the sandbox is going down and has not handled the request. */
int files_next(struct files *f, struct proto_frame *frame, struct err *e);
/* Waits for FILE_OK; its attributes go to *a, which may be NULL. */
int files_wait(struct files *f, struct file_attr *a, struct err *e);

/* Sends a request and waits for its reply. */
int files_ask(struct files *f, const struct file_req *q, struct file_attr *a, struct err *e);
int files_stat(struct files *f, const char *path, uint32_t flags, struct file_attr *a,
               struct err *e);

/* A request with op, path and flags; -ENAMETOOLONG. */
int file_req_init(struct file_req *q, uint32_t op, const char *path, uint32_t flags);
