/* The sandbox's log files: what commands wrote, and what happened to the sandbox.
 *
 * One JSON object a line, as documented for `msb logs --json`:
 *     {"t":"2026-01-02T03:04:05.678901234Z","s":"stdout","d":"text","id":7}
 * with "e":"b64" when d holds base64 because the bytes were not UTF-8. A file is rotated at
 * LOG_FILE_MAX, LOG_FILES of them are kept. Lines are buffered for at most LOG_FLUSH_MS, and a
 * crash of the monitor loses no more than that.
 */
#ifndef MSB_MONITOR_EXEC_LOG_H
#define MSB_MONITOR_EXEC_LOG_H

#include "util/buf.h"

#include <stdint.h>

enum {
    LOG_FILE_MAX = 10 * 1024 * 1024,
    LOG_FILES = 3, /* exec.log exec.log.1 exec.log.2 */
    LOG_FLUSH_MS = 50,
    LOG_CHUNK_MAX = 64 * 1024, /* bytes of output in one line at most */
};

enum log_source { LOG_STDOUT, LOG_STDERR, LOG_OUTPUT /* a tty's */, LOG_SYSTEM };

struct exec_log {
    int dirfd;        /* the logs directory; not owned */
    const char *name; /* "exec.log" */
    int fd;
    uint64_t size;
    struct buf pending;
    int broken; /* -errno of the first write that failed: logging stops, the sandbox does not */
};

int exec_log_open(struct exec_log *l, int logs_dirfd, const char *name);
void exec_log_close(struct exec_log *l); /* flushes */
/* id 0 = none. Splits at LOG_CHUNK_MAX, never inside a UTF-8 character where that can be helped. */
void exec_log_write(struct exec_log *l, enum log_source s, uint32_t id, const void *p, size_t n);
void exec_log_printf(struct exec_log *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* LOG_SYSTEM */
void exec_log_flush(struct exec_log *l);

#endif
