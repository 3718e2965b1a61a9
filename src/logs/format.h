/* The sandbox's log files on disk: shared by the monitor, which writes them, and `msb logs`, which
 * reads them.
 *
 * exec.log holds what commands wrote, system.log what happened to the sandbox. One JSON object a
 * line:
 *     {"t":"2026-01-02T03:04:05.678901234Z","s":"stdout","d":"text","id":7}
 * t   UTC, nanoseconds
 * s   stdout, stderr, output (what a tty session wrote), system
 * d   the bytes. As text when they are UTF-8 without a NUL; as base64, with "e":"b64" in the
 *     object, otherwise. A line of output may be split over several entries, and an entry may hold
 *     many lines. A system entry is one line without a newline
 * id  the exec; absent if there is none
 *
 * A file is rotated (NAME -> NAME.1 -> NAME.2) before it would exceed LOG_FILE_MAX. Files are only
 * appended to. A crash may truncate a line: readers skip what does not parse.
 */
#pragma once

enum {
    LOG_FILE_MAX = 10 * 1024 * 1024,
    LOG_FILES = 3,             /* exec.log exec.log.1 exec.log.2 */
    LOG_CHUNK_MAX = 64 * 1024, /* bytes of output in one line at most */
    /* The longest possible line: every byte as \u00XX, and the other members. */
    LOG_LINE_MAX = 6 * LOG_CHUNK_MAX + 256,
};

#define LOG_EXEC_NAME "exec.log"
#define LOG_SYSTEM_NAME "system.log"
#define LOG_NET_NAME "net.log" /* another format: logs/net_record.h */

enum log_source { LOG_STDOUT, LOG_STDERR, LOG_OUTPUT /* a tty's */, LOG_SYSTEM };
