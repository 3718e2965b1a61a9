/* Named things that outlive sandboxes, with a directory under $MSB_HOME for each kind.
 *
 *     $MSB_HOME/volumes/NAME/volume.json             store/volume.h
 *               workspaces/NAME/workspace.json       workspace/workspace.h
 *               secrets/NAME                         store/secret.h; listed here, and nothing else
 *
 * A volume or workspace exists once its record does. A directory without one is left from an
 * interrupted creation or removal: the next creation uses it, or it is removed.
 *
 * Neither can be removed while a sandbox uses it, running or not. A process that is about to give
 * one to a sandbox holds a shared lock on all of them until the sandbox is recorded; a process that
 * removes one holds it exclusively.
 */
#pragma once

#include "store/store.h"

struct named_kind {
    const char *what; /* for messages: "volume" */
    const char *dir;  /* that holds all of them: "volumes" */
    size_t size;      /* of the struct that describes one, which begins with its name */
    int (*check_name)(const char *name, struct err *e);
    int (*load)(int all, const char *name, void *ret); /* -ENOENT: there is none */

    /* For things that sandboxes use: */
    const char *record; /* the file: "volume.json" */
    bool (*used_by)(const struct sandbox_spec *spec, const char *name);
    const char *use; /* "is mounted by" */
};

/* The directory of all of them. Without `make`, -ENOENT and no message if there never was one. */
int named_dir_open(const struct store *s, const struct named_kind *k, bool make, struct err *e);
/* "volume not found: NAME" (ENOENT). */
int named_open(const struct store *s, const struct named_kind *k, const char *name, void *ret,
               struct err *e);
/* All of them, by name: an array to free(). Those that cannot be read are omitted. */
int named_list(const struct store *s, const struct named_kind *k, void **ret, size_t *n,
               struct err *e);
/* EBUSY, naming the sandbox, while one uses it. */
int named_remove(const struct store *s, const struct named_kind *k, const char *name,
                 struct err *e);

/* The lock of all volumes and workspaces, until the descriptor is closed. op: LOCK_SH or LOCK_EX. */
int named_lock_all(const struct store *s, int op, struct err *e);

/* For a kind's own functions. `all` is the directory of all of them; made: of one. */
int named_made_open(const struct named_kind *k, int all, const char *name, struct err *e);
/* *ret is NULL if the record is damaged: what it describes still exists. */
int named_record_load(const struct named_kind *k, int all, const char *name, json_t **ret);
