/* Named volumes: directories that outlive sandboxes.
 *
 *     $MSB_HOME/volumes/NAME/volume.json    when it was made, how large it may become
 *                            data/          what sandboxes see
 *
 * A volume is there once its volume.json is; a directory without one is the rest of a creation or
 * removal that died, and is made anew or removed. A volume that a sandbox mounts cannot be removed,
 * whether that runs or not.
 */
#ifndef MSB_CORE_VOLUME_H
#define MSB_CORE_VOLUME_H

#include "core/store.h"

enum { VOLUME_NAME_MAX = 100 };

struct volume {
    char name[VOLUME_NAME_MAX + 1];
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t quota;      /* bytes; 0 = no limit */
};

int volume_check_name(const char *name, struct err *e);
/* "volume already exists: NAME" (EEXIST) if it does. */
int volume_create(const struct store *s, const char *name, uint64_t quota, struct err *e);
/* Makes it if it is not there; fills in what it is. */
int volume_ensure(const struct store *s, const char *name, struct volume *ret, struct err *e);
/* "volume not found: NAME" (ENOENT). */
int volume_open(const struct store *s, const char *name, struct volume *ret, struct err *e);
/* EBUSY, naming the sandbox, while one mounts it. */
int volume_remove(const struct store *s, const char *name, struct err *e);
/* All of them, by name; free() the list. */
int volume_list(const struct store *s, struct volume **ret, size_t *n, struct err *e);
/* Where its data is; malloc'd. */
char *volume_path(const struct store *s, const char *name);
/* Bytes that it takes on disk, as far as that can be seen. */
uint64_t volume_used(const struct store *s, const char *name);

#endif
