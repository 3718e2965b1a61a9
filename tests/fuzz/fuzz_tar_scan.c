/* Archives of images from strangers: what a scan finds lies inside the file. The first byte of the
 * input chooses whether the checksums are made right, so that mutations get past them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/tar/scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK = 512, INPUT_MAX = 1 << 20 };

static void fix_checksums(uint8_t *p, size_t n)
{
    for (uint8_t *h = p; h + BLOCK <= p + n; h += BLOCK) {
        unsigned sum = 0;
        char text[16];
        memset(h + 148, ' ', 8);
        for (int i = 0; i < BLOCK; i++)
            sum += h[i];
        if (sum == 8 * ' ')
            memset(h + 148, 0, 8); /* the end */
        else
            memcpy(h + 148, text, (size_t)snprintf(text, sizeof(text), "%06o", sum & 0777777) + 1);
    }
}

static void check(const struct tar_members *m, size_t length)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct tar_member *x = &m->v[i];
        if (x->offset > length || x->size > length - x->offset || !*x->name ||
            strlen(x->name) >= TAR_NAME_MAX || (i && strcmp(m->v[i - 1].name, x->name) >= 0))
            abort();
        if (x->name[0] == '/' || strcmp(x->name, "..") == 0 || strstr(x->name, "/../"))
            abort();
        const struct tar_member *found = tar_find(m, x->name);
        if (x->kind == TAR_FILE ? found != x : found && found->kind != TAR_FILE)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0 && (fd = memfd_create("fuzz", MFD_CLOEXEC)) < 0)
        abort();
    if (size < 1 || size > INPUT_MAX)
        return 0;
    uint8_t *copy = malloc(size);
    if (!copy)
        abort();
    memcpy(copy, data + 1, size - 1);
    if (data[0] & 1)
        fix_checksums(copy, size - 1);
    if (ftruncate(fd, 0) < 0 || pwrite(fd, copy, size - 1, 0) != (ssize_t)size - 1)
        abort();
    free(copy);
    struct tar_members m;
    struct err e = {0};
    if (tar_scan(fd, &m, &e) == 0) {
        check(&m, size - 1);
        tar_members_free(&m);
    } else if (!e.msg[0]) {
        abort();
    }
    return 0;
}
