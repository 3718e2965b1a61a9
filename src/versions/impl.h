/* Shared by the parts of a version store. */
#pragma once

#include "versions/versions.h"

#define VERSIONS_DIR "versions"
enum { TREE_MAX = 128 << 20, VERSION_NAME_MAX = 32 };

struct depot {
    int dir;     /* versions/ */
    int data;    /* the files */
    int objects; /* versions/objects */
    int fresh;   /* versions/new, empty at first */
    warn_fn warn;
};
#define DEPOT_NONE                                        \
    {                                                     \
        .dir = -1, .data = -1, .objects = -1, .fresh = -1 \
    }
void depot_close(struct depot *d);
#define AUTO_DEPOT CLEANUP(depot_close)

/* Passes a warning on; names in it are made safe to show. */
void depot_warn(void *depot, const char *text);

/* make: create it if there are no versions yet; otherwise -ENOENT, without a message. */
int depot_open(int dir, bool make, warn_fn warn, struct depot *ret, struct err *e);

bool depot_has(const struct depot *d, const char *sha);
/* Stores a file's content, or a link's target, in versions/new. a->sha and a->size become what was
 * stored. */
int depot_add(struct depot *d, struct s3_entry *a, struct err *e);
/* Moves them from there to their places, once they are on disk. */
int depot_settle(struct depot *d, struct err *e);
/* Copies an object to fresh/NAME; -EBADMSG: it is damaged. */
int depot_take(struct depot *d, const struct s3_entry *a, const char *name, struct err *e);
/* Removes objects that are not in the sorted list. */
int depot_sweep(struct depot *d, char *const *used, size_t n, struct err *e);

int version_load_tree(const struct depot *d, unsigned id, struct s3_tree *ret, struct err *e);
int version_scan(const struct depot *d, const struct s3_tree *base, struct s3_tree *ret,
                 struct err *e);
