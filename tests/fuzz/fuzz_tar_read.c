/* Archives from strangers: the reader finds the same entries in a file and in a stream; what a scan
 * finds lies inside the file; a tree of it keeps to the grammar of copy/tree.h. The first byte of
 * the input chooses whether the checksums are made right. */
#include "copy/tar.h"
#include "fuzz_tar.h"
#include "fuzz_tree.h"
#include "image/tar/read.h"
#include "image/tar/scan.h"
#include "util/cleanup.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 20, ENTRIES_MAX = 1000 };

static void check_path(const char *path)
{
    must(path[0] != '/' && strncmp(path, "../", 3) != 0 && strcmp(path, "..") != 0 &&
         !strstr(path, "/../") && !strstr(path, "//") && strlen(path) <= TAR_PATH_MAX);
}

static void check_item(const struct tar_item *x, size_t length)
{
    check_path(x->path);
    must(x->type >= '0' && x->type <= '6' && x->mode <= 07777);
    must(*x->path || x->type == '5');
    must(!x->link == (x->type != '1' && x->type != '2'));
    must(x->offset <= length && (x->type == '0' || x->size == 0));
}

static struct tar_reader *reader(int fd, bool file, struct err *e)
{
    const struct tar_reader_options o = {
        .file = file, .entries_max = ENTRIES_MAX, .path_max = TAR_PATH_MAX};
    struct tar_reader *r = NULL;
    must(lseek(fd, 0, SEEK_SET) == 0 && tar_reader_new(&r, fd, &o, e) == 0);
    return r;
}

/* Content of the stream is read, that of the file skipped. A file shows at a header that its
 * content is missing, a stream at the end of it. */
static void read_twice(int fd, size_t length)
{
    struct err e = {0}, f = {0};
    AUTO_FREE struct tar_reader *file = reader(fd, true, &f);
    AUTO_FREE struct tar_reader *stream = reader(fd, false, &e);
    struct tar_item a, b;
    int x;
    while ((x = tar_next(stream, &a)) > 0) {
        check_item(&a, length);
        int y = tar_next(file, &b);
        if (y > 0) {
            check_item(&b, length);
            must(strcmp(a.path, b.path) == 0 && a.type == b.type && a.mode == b.mode &&
                 a.uid == b.uid && a.gid == b.gid && a.mtime_ns == b.mtime_ns && a.size == b.size &&
                 a.offset == b.offset && !a.link == !b.link &&
                 (!a.link || strcmp(a.link, b.link) == 0));
            must(b.size <= length - b.offset);
        }
        uint64_t got = 0;
        const void *p;
        ssize_t n = 0;
        while (a.type == '0' && (n = tar_data(stream, &p)) > 0)
            got += (uint64_t)n;
        must(y > 0 ? n == 0 && got == a.size : y == -EBADMSG && f.code);
        if (y <= 0)
            return;
    }
    must(x == 0 || e.code);
    int y = tar_next(file, &b);
    must(y == x || (x < 0 && y == -EBADMSG));
}

static void check_members(const struct tar_members *m, size_t length)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct tar_member *x = &m->v[i];
        must(x->offset <= length && x->size <= length - x->offset && *x->name);
        must(strlen(x->name) < TAR_NAME_MAX && (!i || strcmp(m->v[i - 1].name, x->name) < 0));
        check_path(x->name);
        const struct tar_member *found = tar_find(m, x->name);
        must(x->kind == TAR_FILE ? found == x : !found || found->kind == TAR_FILE);
    }
}

static void scan(int fd, size_t length)
{
    struct tar_members m;
    struct err e = {0};
    if (tar_scan(fd, &m, &e) < 0) {
        must(e.msg[0]);
        return;
    }
    check_members(&m, length);
    tar_members_free(&m);
}

static void to_tree(int fd)
{
    struct err e = {0};
    struct tree_progress p = {0};
    struct checker c = {.sink.ops = &checker_ops, .hard_links = true};
    must(lseek(fd, 0, SEEK_SET) == 0);
    int r = tree_from_tar(fd, &c.sink, &p, &e);
    must(r == 0 || e.code);
    must(r < 0 || (c.depth == 0 && !c.in_file));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfile();
    if (size < 1 || size > INPUT_MAX)
        return 0;
    size_t n = size - 1;
    AUTO_FREE uint8_t *copy = malloc(size);
    must(copy);
    memcpy(copy, data + 1, n);
    if (data[0] & 1)
        fix_headers(copy, n);
    must(ftruncate(fd, 0) == 0 && pwrite(fd, copy, n, 0) == (ssize_t)n);
    read_twice(fd, n);
    scan(fd, n);
    to_tree(fd);
    return 0;
}
