/* The file service: what a stream that begins with FILES asks for.
 *
 * It runs in a child of the agent, one for each stream, as the user that FILES names: a FIFO
 * without a writer, a share whose server hangs or a disk that is slow stop this stream and nothing
 * else. So it is plain, blocking code: take a request, do it, answer, until the stream ends.
 *
 * Invariants
 *  1. Regular files are read and written, nothing else: what is opened is opened without waiting
 * and looked at before it is used.
 *  2. Each request is answered once, by FILE_OK or FILE_ERR, and consumes all that belongs to it.
 *  3. The agent keeps the stream open, too, but only to see it end; it then gives the child
 *     FILES_END_MS to notice by itself and undo what is half done.
 */
#ifndef MSB_AGENT_FILEOP_H
#define MSB_AGENT_FILEOP_H

#include "agent/users.h"
#include "proto/files.h"
#include "util/buf.h"
#include "util/err.h"

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
    bool lost;              /* nobody is at the other end */
};

/* The next frame; it lives until the next call. What is to be sent goes out before anything is
 * waited for. -ECONNRESET: there is none. */
int fchan_next(struct fchan *c, struct proto_frame *f);
/* As fchan_next, for what belongs to a request; frames of unknown types are passed over. */
int fchan_part(struct fchan *c, struct proto_frame *f);
/* Sends what waits, if there is a good deal of it. -ECONNRESET. */
int fchan_relieve(struct fchan *c);
int fchan_flush(struct fchan *c);
void fchan_put_attr(struct fchan *c, uint16_t type, const struct file_attr *a); /* a may be NULL */
/* Reads up to n bytes from fd into a FILE_DATA frame. How many; 0 at the end; -errno. */
ssize_t fchan_send_from(struct fchan *c, int fd, uint64_t n);

/* Operations. Each puts FILE_OK itself, or returns -errno with *err set. */
typedef int (*fileop_fn)(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_stat(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_list(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_mkdir(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_remove(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_rename(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_set(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_symlink(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_read(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_write(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_get(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_put(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_sync(struct fchan *c, const struct file_req *q, struct err *err);
int fileop_watch(struct fchan *c, const struct file_req *q, struct err *err);

/* Opens a regular file for reading without waiting. -EISDIR, -EINVAL when it is something else. */
int open_regular(int dirfd, const char *name, int flags, struct stat *st);
/* Makes the directories that lead to the last component; 0 or -errno. */
int make_parents(const char *path);
/* Attributes of what dirfd/name is, itself; 0 or -errno. */
int entry_attr(int dirfd, const char *name, int at_flags, struct file_attr *a);
struct timespec ns_to_timespec(int64_t ns);
/* A name in the same directory that nobody has: ".msb-XXXXXXXX". */
enum { TEMP_NAME_MAX = 32 };
void temp_name(char out[TEMP_NAME_MAX]);

/* Serves `fd` until its end, in the child. `in` is what was received after FILES. */
void fileop_serve(int fd, const uint8_t *in, size_t n);

#endif
