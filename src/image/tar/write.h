/* Writes tar archives: POSIX headers, with PAX records for values that do not fit into one.
 *
 * The same entries give the same bytes: times, owners and order are the caller's, nothing is taken
 * from the host. Output is buffered, and hashed on the way if asked.
 */
#ifndef MSB_IMAGE_TAR_WRITE_H
#define MSB_IMAGE_TAR_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "image/erofs/tree.h"
#include "image/oci/digest.h"

struct tar_out {
    int fd;              /* not owned; -1: nothing is written, only hashed and counted */
    struct hasher *hash; /* not owned; NULL: not hashed */
    uint64_t bytes;      /* so far */
    size_t len;
    uint8_t *buf;
};

int tar_out_init(struct tar_out *o, int fd, struct hasher *hash); /* -ENOMEM */
void tar_out_free(struct tar_out *o);                             /* harmless twice */
int tar_out_write(struct tar_out *o, const void *p, size_t n);
int tar_out_flush(struct tar_out *o);

struct tar_entry {
    const char *path;
    char type; /* '0' file, '1' hard link, '2' symlink, '3', '4' device, '5' directory, '6' */
    const char *link; /* of '1' and '2' */
    uint16_t mode;
    uint32_t uid, gid;
    int64_t mtime;
    uint32_t mtime_nsec;
    uint64_t size; /* of '0'; so many bytes must follow, then tar_put_padding() */
    uint32_t major, minor;
    const struct tree_xattr *xattrs;
};

/* -EINVAL: an attribute has a name that no record can hold. */
int tar_put_header(struct tar_out *o, const struct tar_entry *t);
int tar_put_padding(struct tar_out *o, uint64_t size);
int tar_put_end(struct tar_out *o);
/* A whole file: mode 0644, owned by root, with time 0. */
int tar_put_file(struct tar_out *o, const char *path, const void *p, size_t n);

#endif
