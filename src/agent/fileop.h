/* The file service: serves a stream that begins with FILES.
 *
 * It runs in a child of the agent, one for each stream, as the user that FILES names: a FIFO
 * without a writer, a share whose server hangs or a slow disk blocks this stream and nothing else.
 * So it is plain, blocking code: take a request, do it, answer, until the stream ends.
 *
 * Invariants
 *  1. Only regular files are read and written: files are opened without blocking and checked before
 *     they are used.
 *  2. Each request is answered once, with FILE_OK or FILE_ERR, and consumes all its frames.
 *  3. The agent keeps the stream open too, but only to see it end; it then gives the child
 *     FILES_END_MS to notice, and to undo what is unfinished.
 */
#pragma once

#include "agent/users.h"
#include "proto/files.h"
#include "util/buf.h"
#include "util/err.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>

enum { FILES_END_MS = 1000 };

/* The stream's end in the child. */
struct fchan {
    int fd;
    struct buf rx, tx;
    struct proto_frame cur; /* the frame that fchan_next gave out last */
    bool taken;             /* cur is still in rx */
    bool ended;             /* FILE_END has come for this request */
    bool lost;              /* the other end is gone */
    uint32_t only;          /* as for fileop_serve() */
};

/* Gets the next frame, valid until the next call. Sends pending output before waiting. -ECONNRESET:
 * the stream has ended. */
int fchan_next(struct fchan *c, struct proto_frame *f);
/* Like fchan_next, for the further frames of a request; unknown types are skipped. */
int fchan_part(struct fchan *c, struct proto_frame *f);
/* Sends pending output if there is a lot of it. -ECONNRESET. */
int fchan_relieve(struct fchan *c);
int fchan_flush(struct fchan *c);
void fchan_put_attr(struct fchan *c, uint16_t type, const struct file_attr *a); /* a may be NULL */
/* Reads up to n bytes from fd into a FILE_DATA frame. Returns the number read; 0 at the end;
 * -errno. */
ssize_t fchan_send_from(struct fchan *c, int fd, uint64_t n);

/* The next entry's name; NULL at the end, or with errno set, which is 0 at the end. */
const char *fileop_next_name(DIR *d);

/* Operations. Each puts FILE_OK itself, or returns -errno with *e set. */
typedef int (*fileop_fn)(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_stat(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_list(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_mkdir(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_remove(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_rename(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_set(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_symlink(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_read(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_write(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_get(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_put(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_sync(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_layer(struct fchan *c, const struct file_req *q, struct err *e);
int fileop_watch(struct fchan *c, const struct file_req *q, struct err *e);

/* Opens a regular file for reading, without blocking. -EISDIR, -EINVAL if it is something else. */
int open_regular(int dirfd, const char *name, int flags, struct stat *st);
/* Creates the parent directories of path; 0 or -errno. */
int make_parents(const char *path);
/* Attributes of dirfd/name, with a link's target; 0 or -errno. */
int entry_attr(int dirfd, const char *name, int at_flags, struct file_attr *a);
/* A random name for a temporary file: ".msb-XXXXXXXX". */
enum { TEMP_NAME_MAX = 32 };
void temp_name(char out[TEMP_NAME_MAX]);

/* Serves `fd` until its end, in the child. `in` is what was received after FILES. only: LAYER, to
 * allow nothing else; 0: everything except that. */
void fileop_serve(int fd, uint32_t only, const uint8_t *in, size_t n);
