/* Disks of stored images: merged metadata, and all the files of one in order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "image/disk.h"
#include "image/erofs_format.h"
#include "image/io.h"
#include "image/store_impl.h"
#include "util/cleanup.h"

int store_disk_name(const struct image_layer *layers, size_t n, struct digest *ret)
{
    struct hasher h;
    char head[32];
    int r = hasher_init(&h);
    if (r < 0)
        return r;
    (void)snprintf(head, sizeof(head), "disk:%d:", CACHE_VERSION);
    hasher_update(&h, head, strlen(head));
    for (size_t i = 0; i < n; i++)
        hasher_update(&h, layers[i].diff_id.b, DIGEST_SIZE);
    return hasher_finish(&h, ret);
}

/* Merged metadata whose superblock speaks of `blocks` in all; -ENOENT. */
static int check_metadata(int fd, uint64_t layers_size, uint64_t *ret_size)
{
    struct erofs_super sb;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || pread_all(fd, &sb, sizeof(sb), EROFS_SUPER_OFFSET) < 0 ||
        sb.magic != EROFS_MAGIC || sb.block_bits != EROFS_BLOCK_BITS ||
        (uint64_t)st.st_size + layers_size != (uint64_t)sb.blocks << EROFS_BLOCK_BITS)
        return -ENOENT;
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static bool has_disk(const struct image_store *s, const struct digest *disk, uint64_t layers_size,
                     uint64_t *ret_size)
{
    char name[RECORD_NAME_SIZE];
    record_erofs_name(disk, name);
    AUTO_CLOSE int fd = openat(s->disks_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    return fd >= 0 && check_metadata(fd, layers_size, ret_size) == 0;
}

static int write_disk(struct image_store *s, struct cache_build *b,
                      const struct image_layer *layers, size_t n, struct err *e)
{
    int fds[OCI_LAYERS_MAX];
    size_t opened = 0;
    int r = 0;
    for (; r == 0 && opened < n; opened += r == 0) {
        uint64_t size;
        fds[opened] = store_open_layer(s->layers_fd, &layers[opened].diff_id, &size);
        if (fds[opened] < 0)
            r = err_sys(e, -fds[opened], "cannot open a layer of the image");
    }
    if (r == 0)
        r = disk_write_metadata(fds, n, b->fd, s->cache.tmp_fd, IMAGE_EXPANDED_MAX_DEFAULT, e);
    for (size_t i = 0; i < opened; i++)
        close_fd(&fds[i]);
    return r;
}

int store_make_disk(struct image_store *s, const struct image_layer *layers, size_t n,
                    const struct digest *disk, uint64_t *ret_size, struct err *e)
{
    uint64_t layers_size = 0;
    for (size_t i = 0; i < n; i++)
        layers_size += layers[i].erofs_size;
    if (n > OCI_LAYERS_MAX)
        return err_set(e, E2BIG, "the image has more than %d layers", OCI_LAYERS_MAX);
    if (has_disk(s, disk, layers_size, ret_size))
        return 0;
    struct cache_build b;
    int r = store_build_lock(&b, s, "disk", disk, e);
    if (r == 0 && !has_disk(s, disk, layers_size, ret_size)) {
        struct stat st;
        char name[RECORD_NAME_SIZE];
        record_erofs_name(disk, name);
        r = cache_build_begin(&b, e);
        if (r == 0)
            r = write_disk(s, &b, layers, n, e);
        if (r == 0 && fstat(b.fd, &st) < 0)
            r = err_sys(e, errno, "cannot look at the image's disk");
        if (r == 0)
            *ret_size = (uint64_t)st.st_size;
        if (r == 0)
            r = cache_build_publish_as(&b, s->disks_fd, name, e);
    }
    cache_build_end(&b);
    return r;
}

/* --- all the files of a disk ---------------------------------------------------------------- */

void image_disk_close(struct image_disk *d)
{
    for (size_t i = 0; i < d->n; i++)
        close_fd(&d->fd[i]);
    d->n = 0;
}

static int add_file(struct image_disk *d, int top, const char *dir, const char *file, uint64_t size)
{
    char path[RECORD_NAME_SIZE + 16];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    AUTO_CLOSE int fd = openat(top, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != size)
        return -ENOENT;
    d->length[d->n] = size;
    d->fd[d->n++] = steal_fd(&fd);
    return 0;
}

static int add_all(struct image_disk *d, int top, const struct record *rec)
{
    char name[RECORD_NAME_SIZE];
    record_erofs_name(&rec->disk, name);
    int r = add_file(d, top, "disks", name, rec->disk_size);
    for (size_t i = 0; r == 0 && i < rec->n_layers; i++) {
        record_erofs_name(&rec->layers[i].diff_id, name);
        r = add_file(d, top, "layers", name, rec->layers[i].erofs_size);
    }
    return r;
}

/* The image of a directory or a tar is one file. */
static int add_single(struct image_disk *d, int images_fd, const struct digest *digest)
{
    char name[RECORD_NAME_SIZE];
    record_erofs_name(digest, name);
    AUTO_CLOSE int fd = openat(images_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int r = fd < 0 ? -errno : cache_check_image(fd, &d->length[0]);
    if (r < 0)
        return r == -EBADMSG ? -ENOENT : r;
    d->fd[d->n++] = steal_fd(&fd);
    return 0;
}

int image_disk_open(const char *cache_dir, const char *digest, struct image_disk *ret,
                    struct err *e)
{
    struct digest d;
    int r = digest_parse(digest, &d, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int top = open(cache_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int images =
        top < 0 ? -1 : openat(top, "images", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    ret->n = 0;
    if (images < 0) {
        r = -errno;
    } else {
        struct record rec = {0};
        r = add_single(ret, images, &d);
        if (r == -ENOENT) {
            r = record_read(images, &d, &rec);
            if (r == 0)
                r = add_all(ret, top, &rec);
            record_free(&rec);
        }
    }
    if (r == 0)
        return 0;
    image_disk_close(ret);
    return err_sys(e, -r, "cannot open image %s", digest);
}
