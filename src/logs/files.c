#include "logs/files.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_SIZE = 256 * 1024,
    BUF_MAX = LOG_LINE_MAX + READ_SIZE,
    BACK_SIZE = 64 * 1024,
};

/* --- the set of files --- */

static int open_one(const struct log_stream *s, int number, struct log_file *f, struct stat *st)
{
    char name[NAME_MAX];
    if (number)
        (void)snprintf(name, sizeof(name), "%s.%d", s->name, number);
    else
        (void)snprintf(name, sizeof(name), "%s", s->name);
    int fd = openat(s->dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    if (fstat(fd, st) < 0 || !S_ISREG(st->st_mode)) {
        (void)close(fd);
        return -EINVAL;
    }
    *f = (struct log_file){.fd = fd, .dev = st->st_dev, .ino = st->st_ino};
    return 0;
}

static int find_file(const struct log_file *files, int n, const struct log_file *f)
{
    for (int i = 0; i < n; i++)
        if (files[i].ino == f->ino && files[i].dev == f->dev)
            return i;
    return -1;
}

/* With a margin of more than a second: the kernel's clock for files lags behind that of the
 * entries. */
static bool written_before(const struct stat *st, uint64_t ns)
{
    return ((uint64_t)st->st_mtim.tv_sec + 2) * 1000000000ULL < ns;
}

/* Newest first (invariant 1), then reversed. */
static int open_set(const struct log_stream *s, struct log_file *files, uint64_t since_ns)
{
    struct log_file found[LOG_FILES] = {0};
    int n = 0;
    for (int number = 0; number < LOG_FILES; number++) {
        struct log_file f = {0};
        struct stat st = {0};
        int r = open_one(s, number, &f, &st);
        if (r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -EACCES) {
            while (n)
                (void)close(found[--n].fd);
            return r;
        }
        if (r < 0)
            continue;
        if (find_file(found, n, &f) >= 0 || written_before(&st, since_ns))
            (void)close(f.fd);
        else
            found[n++] = f;
    }
    for (int i = 0; i < n; i++)
        files[i] = found[n - 1 - i];
    return n;
}

static off_t size_of(const struct log_stream *s, int file)
{
    struct stat st = {0};
    return fstat(s->files[file].fd, &st) < 0 ? 0 : st.st_size;
}

int log_stream_open(struct log_stream *s, int dirfd, const char *name, uint64_t since_ns)
{
    *s = (struct log_stream){.dirfd = dirfd, .name = name, .parse = log_line_parse};
    buf_init(&s->buf, BUF_MAX);
    int n = open_set(s, s->files, since_ns);
    if (n < 0)
        return n;
    s->n_files = n;
    if (n)
        s->back = (struct log_place){n - 1, size_of(s, n - 1)};
    s->end = s->back;
    return 0;
}

void log_stream_close(struct log_stream *s)
{
    for (int i = 0; i < s->n_files; i++)
        (void)close(s->files[i].fd);
    s->n_files = 0;
    log_stream_drop(s);
    buf_free(&s->buf);
    free(s->window);
    s->window = NULL;
}

void log_stream_drop(struct log_stream *s)
{
    log_entry_free(&s->entry);
}

void log_stream_seek(struct log_stream *s, struct log_place to)
{
    s->at = to;
    s->too_long = false;
    buf_reset(&s->buf);
}

/* The current file may have been rotated, even away: it stays the first of the new set, and the
 * later files follow. */
int log_stream_refresh(struct log_stream *s)
{
    struct log_file fresh[LOG_FILES];
    int n = open_set(s, fresh, 0);
    if (n < 0)
        return n;
    int mine = s->n_files ? find_file(fresh, n, &s->files[s->n_files - 1]) : -1;
    if (s->n_files && mine == n - 1) { /* nothing new */
        while (n)
            (void)close(fresh[--n].fd);
        return 0;
    }
    int kept = 0;
    if (s->n_files) {
        for (int i = 0; i < s->n_files - 1; i++)
            (void)close(s->files[i].fd);
        s->files[0] = s->files[s->n_files - 1];
        kept = 1;
        s->at.file = 0;
    }
    for (int i = 0; i < n; i++) {
        if (i <= mine)
            (void)close(fresh[i].fd);
        else
            s->files[kept++] = fresh[i];
    }
    s->n_files = kept;
    return 0;
}

/* --- forwards --- */

/* 1: a line was taken from buf and parsed; 0: no whole line there. */
static int take_line(struct log_stream *s)
{
    size_t len;
    while ((len = buf_len(&s->buf))) {
        const char *start = (const char *)buf_head(&s->buf);
        const char *nl = memchr(start, '\n', len);
        if (!nl) {
            if (len > LOG_LINE_MAX) {
                s->too_long = true;
                buf_reset(&s->buf);
            }
            return 0;
        }
        size_t n = (size_t)(nl - start);
        s->entry_at = (struct log_place){s->at.file, s->at.off - (off_t)len};
        bool ok = !s->too_long && s->parse(start, n, &s->entry) == 0;
        s->too_long = false;
        buf_consume(&s->buf, n + 1);
        if (ok)
            return 1;
    }
    return 0;
}

int log_stream_next(struct log_stream *s)
{
    log_stream_drop(s);
    for (;;) {
        if (take_line(s))
            return 1;
        if (s->at.file >= s->n_files)
            return 0;
        uint8_t *to = buf_reserve(&s->buf, READ_SIZE);
        if (!to)
            return -ENOMEM;
        ssize_t n = pread(s->files[s->at.file].fd, to, READ_SIZE, s->at.off);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            buf_commit(&s->buf, (size_t)n);
            s->at.off += n;
        } else if (n == 0) {
            if (s->at.file == s->n_files - 1)
                return 0; /* the rest of a line may still come */
            log_stream_seek(s, (struct log_place){s->at.file + 1, 0});
        }
    }
}

/* --- backwards --- */

/* Puts the BACK_SIZE bytes before the window in front of it. */
static int widen(struct log_stream *s)
{
    off_t start = s->back.off - (off_t)s->window_len;
    size_t more = (size_t)MIN(start, (off_t)BACK_SIZE);
    size_t need = s->window_len + more;
    if (need > s->window_cap) {
        char *w = realloc(s->window, need);
        if (!w)
            return -ENOMEM;
        s->window = w;
        s->window_cap = need;
    }
    memmove(s->window + more, s->window, s->window_len);
    int r = pread_all(s->files[s->back.file].fd, s->window, more, (uint64_t)start - more);
    if (r < 0)
        return r;
    s->window_len = need;
    return 0;
}

/* Takes the last line off the window: 1 with the line; 0 if its beginning is not there yet. */
static int take_last_line(struct log_stream *s, const char **line, size_t *n)
{
    size_t len = s->window_len;
    if (len == 0)
        return 0;
    size_t body = s->window[len - 1] == '\n' ? len - 1 : len;
    const char *nl = body ? memrchr(s->window, '\n', body) : NULL;
    bool whole_file = s->back.off == (off_t)len;
    if (!nl && !whole_file)
        return 0;
    size_t start = nl ? (size_t)(nl - s->window) + 1 : 0;
    *line = s->window + start;
    *n = body - start;
    bool unfinished = body == len && s->back.file == s->end.file && s->back.off == s->end.off;
    s->back.off -= (off_t)(len - start);
    if (unfinished) /* being written just now */
        s->end = s->back;
    s->window_len = start;
    return 1;
}

int log_stream_prev(struct log_stream *s)
{
    log_stream_drop(s);
    while (s->back.file < s->n_files) {
        const char *line;
        size_t n;
        if (take_last_line(s, &line, &n)) {
            s->entry_at = s->back;
            if (s->parse(line, n, &s->entry) == 0)
                return 1;
            continue;
        }
        if (s->back.off == 0) {
            if (s->back.file == 0)
                return 0;
            s->back.file--;
            s->back.off = size_of(s, s->back.file);
            s->window_len = 0;
            continue;
        }
        if (s->window_len > LOG_LINE_MAX) { /* no entry is that long: forget this end of it */
            s->back.off -= (off_t)s->window_len;
            s->window_len = 0;
        }
        int r = widen(s);
        if (r < 0)
            return r;
    }
    return 0;
}
