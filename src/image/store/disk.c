/* All the files of an image's disk, in order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "image/store/internal.h"
#include "util/cleanup.h"
#include "util/fs.h"

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
    if (fd < 0 || fstat(fd, &st) < 0)
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
    int r = fd < 0 ? -errno : cache_check_image(fd, 0, &d->length[0]);
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
    AUTO_CLOSE int images = top < 0 ? -1 : dir_open_at(top, "images");
    AUTO_RECORD struct record rec = {0};
    ret->n = 0;
    r = images < 0 ? -errno : add_single(ret, images, &d);
    if (images >= 0 && r == -ENOENT) {
        r = record_read(images, &d, &rec);
        if (r == 0)
            r = add_all(ret, top, &rec);
    }
    if (r == 0)
        return 0;
    image_disk_close(ret);
    return err_sys(e, -r, "cannot open image %s", digest);
}
