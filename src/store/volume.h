/* Named volumes: directories, or disks, that outlive sandboxes (store/named.h).
 *
 *     $MSB_HOME/volumes/NAME/volume.json    its kind, when it was created, how large it may become
 *                            data/          a directory: what sandboxes see
 *                            disk.raw       a disk: ext4, which only guests mount
 */
#pragma once

#include "store/named.h"

enum volume_kind { VOLUME_DIR, VOLUME_DISK };

struct volume {
    char name[VOLUME_NAME_MAX + 1];
    enum volume_kind kind;
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t quota;      /* of a directory, in bytes; 0 = no limit */
    uint64_t size;       /* of a disk */
};
extern const struct named_kind named_volumes;
const char *volume_kind_name(enum volume_kind k);

/* "volume already exists: NAME" (EEXIST) if it does. size: a directory's quota, or a disk's size.
 */
int volume_create(const struct store *s, const char *name, enum volume_kind kind, uint64_t size,
                  struct err *e);
/* Creates the volume that a mount names if it does not exist. *ret describes it; an existing one
 * must have the kind and size that the mount asks for. */
int volume_ensure(const struct store *s, const struct spec_mount *m, struct volume *ret,
                  struct err *e);
/* Before a sandbox is created: marks mounts of disk volumes. */
int volume_settle(const struct store *s, struct sandbox_spec *spec, struct err *e);
/* Keeps volumes and workspaces from being removed until *ret is closed; -1 if the spec has none. */
int volume_hold(const struct store *s, const struct sandbox_spec *spec, int *ret, struct err *e);
/* EBUSY, naming the sandbox, while one mounts it. */
int volume_remove(const struct store *s, const char *name, struct err *e);
/* Sorted by name; free() the list. */
int volume_list(const struct store *s, struct volume **ret, size_t *n, struct err *e);
/* Where its data is; malloc'd. */
char *volume_path(const struct store *s, const struct volume *v);
/* The disk space that it takes, in bytes, at any depth, except for what we may not read. */
uint64_t volume_used(const struct store *s, const struct volume *v);
/* The same for any directory; 0 for NULL. */
uint64_t tree_used(const char *path);
