#include "image/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>

#include "image/store/internal.h"
#include "util/cleanup.h"
#include "util/fs.h"

/* --- open and close ------------------------------------------------------------------------- */

int store_flock(int fd, int op)
{
    while (flock(fd, op) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

static int open_all(struct image_store *s, const char *cache_dir)
{
    AUTO_CLOSE int top = cache_top(cache_dir);
    if (top < 0)
        return top;
    const struct {
        const char *name;
        int *fd;
    } dirs[] = {{"layers", &s->layers_fd},
                {"disks", &s->disks_fd},
                {"docs", &s->docs_fd},
                {"refs", &s->refs_fd},
                {"partial", &s->partial_fd}};
    int r = cache_open(&s->cache, top);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(dirs); i++) {
        *dirs[i].fd = cache_subdir(top, dirs[i].name);
        r = *dirs[i].fd < 0 ? *dirs[i].fd : 0;
    }
    if (r < 0)
        return r;
    s->gc_fd = openat(top, "gc.lock", O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return s->gc_fd < 0 ? -errno : store_flock(s->gc_fd, LOCK_SH);
}

int image_store_open(struct image_store *s, const char *cache_dir, struct err *e)
{
    *s = (struct image_store)IMAGE_STORE_INIT;
    int r = open_all(s, cache_dir);
    if (r == 0)
        return 0;
    image_store_close(s);
    return err_sys(e, -r, "cannot open the image store '%s'", cache_dir);
}

void image_store_close(struct image_store *s)
{
    int *fds[] = {&s->layers_fd, &s->disks_fd, &s->docs_fd, &s->refs_fd, &s->partial_fd, &s->gc_fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close_fd(fds[i]);
    cache_close(&s->cache);
}

/* --- what is in it -------------------------------------------------------------------------- */

int store_open_layer(int layers_fd, const struct digest *diff_id, uint64_t *ret_size)
{
    char name[RECORD_NAME_SIZE];
    record_erofs_name(diff_id, name);
    AUTO_CLOSE int fd = openat(layers_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int r = cache_check_image(fd, 0, ret_size);
    if (r == -EBADMSG)
        return -ENOENT;
    return r < 0 ? r : steal_fd(&fd);
}

bool image_store_has_layer(const struct image_store *s, const struct digest *diff_id,
                           uint64_t *ret_erofs_size)
{
    uint64_t size = 0;
    AUTO_CLOSE int fd = store_open_layer(s->layers_fd, diff_id, &size);
    if (fd >= 0 && ret_erofs_size)
        *ret_erofs_size = size;
    return fd >= 0;
}

int store_read_doc(int docs_fd, const struct digest *d, size_t max, char **ret, size_t *ret_len)
{
    char hex[DIGEST_HEX_SIZE];
    AUTO_FREE char *text = NULL;
    digest_hex(d, hex);
    int r = file_read_at(docs_fd, hex, max, &text, ret_len);
    if (r == -EFBIG || r == -EINVAL || r == -ELOOP)
        return -ENOENT;
    if (r < 0)
        return r;
    struct digest is = digest_of(text, *ret_len);
    if (!digest_equal(&is, d))
        return -ENOENT;
    *ret = steal_ptr(&text);
    return 0;
}
