/* Trees from strangers: what a guest answers to GET, and what is in a tar stream. Whatever comes, a
 * sink hears only what the grammar of copy/tree.h allows. The first byte says which it is, and
 * whether checksums of headers are made right. */
#include "copy/guest.h"
#include "copy/tar.h"
#include "image/tar/format.h"
#include "util/cleanup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 96 * 1024 };

struct checker {
    struct tree_sink sink;
    int depth;
    bool in_file, hard_links;
    uint64_t left;
};

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check_name(struct checker *c, const struct file_attr *a)
{
    must(!c->in_file && file_name_ok(a->name) && strlen(a->name) <= PROTO_NAME_MAX);
}

static int on_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct checker *c = (struct checker *)s;
    check_name(c, a);
    must(++c->depth <= PROTO_DEPTH_MAX && S_ISDIR(a->mode));
    return 0;
}

static int on_leave(struct tree_sink *s, struct err *e)
{
    struct checker *c = (struct checker *)s;
    must(!c->in_file && c->depth-- > 0);
    return 0;
}

static int on_file(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct checker *c = (struct checker *)s;
    check_name(c, a);
    must(S_ISREG(a->mode) && !(a->has & FILE_HAS_HARD));
    c->in_file = true;
    c->left = a->size;
    return 0;
}

static int on_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    struct checker *c = (struct checker *)s;
    must(c->in_file && n <= c->left && p);
    c->left -= n;
    return 0;
}

static int on_done(struct tree_sink *s, struct err *e)
{
    struct checker *c = (struct checker *)s;
    must(c->in_file);
    c->in_file = false;
    return 0;
}

static int on_link(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct checker *c = (struct checker *)s;
    check_name(c, a);
    must(a->target[0] && strlen(a->target) <= PROTO_PATH_MAX);
    if (a->has & FILE_HAS_HARD)
        must(c->hard_links && a->target[0] != '/' && !strstr(a->target, "/../") &&
             strncmp(a->target, "../", 3) != 0 && strcmp(a->target, "..") != 0);
    else
        must(S_ISLNK(a->mode));
    return 0;
}

static const struct tree_sink_ops ops = {
    .dir = on_dir,
    .leave = on_leave,
    .file = on_file,
    .data = on_data,
    .done = on_done,
    .link = on_link,
};

static void from_guest(const uint8_t *data, size_t size, struct checker *c)
{
    int fd[2];
    struct files f;
    struct err e = {0};
    struct tree_progress p = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return;
    (void)!send(fd[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd[1], SHUT_WR);
    must(files_open(&f, fd[0], "fuzz", NULL, NULL, &e) == 0);
    int r = tree_from_guest(&f, "/x", false, "first", &c->sink, &p, &e);
    must(r == 0 || e.code);
    must(r < 0 || (c->depth == 0 && !c->in_file));
    files_close(&f);
    (void)close(fd[1]);
}

static void fix_checksums(uint8_t *p, size_t n)
{
    for (; n >= TAR_BLOCK; p += TAR_BLOCK, n -= TAR_BLOCK) {
        struct tar_header *h = (struct tar_header *)(void *)p;
        unsigned sum = 0;
        char text[16];
        memset(h->checksum, ' ', sizeof(h->checksum));
        for (size_t i = 0; i < TAR_BLOCK; i++)
            sum += p[i];
        (void)snprintf(text, sizeof(text), "%06o", sum & 0777777);
        if (sum == 8 * ' ')
            memset(h->checksum, 0, sizeof(h->checksum));
        else
            memcpy(h->checksum, text, 7);
    }
}

static void from_tar(const uint8_t *data, size_t size, bool fix, struct checker *c)
{
    struct err e = {0};
    struct tree_progress p = {0};
    AUTO_FREE uint8_t *copy = malloc(size + 1);
    AUTO_CLOSE int fd = memfd_create("tar", MFD_CLOEXEC);
    if (!copy || fd < 0)
        return;
    memcpy(copy, data, size);
    if (fix)
        fix_checksums(copy, size);
    if (write(fd, copy, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET) != 0)
        return;
    c->hard_links = true;
    int r = tree_from_tar(fd, &c->sink, &p, &e);
    must(r == 0 || e.code);
    must(r < 0 || (c->depth == 0 && !c->in_file));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checker c = {.sink.ops = &ops};
    if (size < 1 || size > INPUT_MAX)
        return 0;
    if (data[0] & 1)
        from_tar(data + 1, size - 1, data[0] & 2, &c);
    else
        from_guest(data + 1, size - 1, &c);
    return 0;
}
