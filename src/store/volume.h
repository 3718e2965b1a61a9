/* Named volumes: directories, or disks, that outlive sandboxes.
 *
 *     $MSB_HOME/volumes/NAME/volume.json    what it is, when it was made, how large it may become
 *                            data/          a directory: what sandboxes see
 *                            disk.raw       a disk: ext4, which guests mount and nobody else
 *
 * A volume is there once its volume.json is; a directory without one is the rest of a creation or
 * removal that died, and is made anew or removed. A volume that a sandbox mounts cannot be removed,
 * whether that runs or not: who is about to mount one holds a shared flock on volumes/ until the
 * sandbox is on record, who removes one holds it alone.
 */
#ifndef MSB_STORE_VOLUME_H
#define MSB_STORE_VOLUME_H

#include "store/store.h"

enum volume_kind { VOLUME_DIR, VOLUME_DISK };

struct volume {
    char name[VOLUME_NAME_MAX + 1];
    enum volume_kind kind;
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t quota;      /* of a directory, in bytes; 0 = no limit */
    uint64_t size;       /* of a disk */
};
const char *volume_kind_name(enum volume_kind k);

/* "volume already exists: NAME" (EEXIST) if it does. size: a directory's quota, or a disk's size.
 */
int volume_create(const struct store *s, const char *name, enum volume_kind kind, uint64_t size,
                  struct err *e);
/* Makes what a mount names if it is not there; fills in what it is, which must be of that kind. */
int volume_ensure(const struct store *s, const struct spec_mount *m, struct volume *ret,
                  struct err *e);
/* Before a sandbox is made: which of its mounts are disks, since volumes of that name are. */
int volume_settle(const struct store *s, struct sandbox_spec *spec, struct err *e);
/* Alone with all volumes and workspaces: what volume_hold() waits for. A descriptor, or -errno. */
int volume_lock_all(const struct store *s, struct err *e);
/* Keeps all of them from being removed until *ret is closed; -1 if the spec needs none. */
int volume_hold(const struct store *s, const struct sandbox_spec *spec, int *ret, struct err *e);
/* "volume not found: NAME" (ENOENT). */
int volume_open(const struct store *s, const char *name, struct volume *ret, struct err *e);
/* EBUSY, naming the sandbox, while one mounts it. */
int volume_remove(const struct store *s, const char *name, struct err *e);
/* All of them, by name; free() the list. */
int volume_list(const struct store *s, struct volume **ret, size_t *n, struct err *e);
/* Where its data is; malloc'd. */
char *volume_path(const struct store *s, const struct volume *v);
/* Bytes that it takes on disk, as far as that can be seen. */
uint64_t volume_used(const struct store *s, const struct volume *v);
/* The same of any directory; takes dir_fd. */
uint64_t tree_used(int dir_fd);

#endif
