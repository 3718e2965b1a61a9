/* A file system's tree in memory: everything about the files except their bytes.
 *
 * One structure serves the content of an archive, a directory, one layer of an image, and several
 * layers merged. Nothing is ever written to the host under a name found in an image, so a hostile
 * name could at worst produce an odd tree. These rules prevent that too:
 *
 * 1. A name is 1..255 bytes without '/' or NUL, and never "." or "..".
 * 2. Leading '/' and './' of a path, doubled slashes and '.' components are ignored. A '..'
 *    component is refused.
 * 3. Missing parents appear as directories (0755, root), marked implicit: in a merge they do not
 *    change the directory below them, and are not created only to hold marks.
 * 4. A symlink as a parent is followed inside the tree, as an extraction in a chroot follows it:
 *    real archives have entries like lib/x where lib links to usr/lib. Following stops after
 *    TREE_SYMLINKS_MAX links. Any other parent that is not a directory is refused.
 * 5. The last entry of a name wins. A directory over a directory gets the new attributes and keeps
 *    its children; anything else replaces what was there, children included.
 * 6. A hard link's target must exist already and may not be a directory. A layer's may lie in a
 *    layer below: it then becomes a link when the layers are merged.
 * 7. Replaced entries keep their memory until the tree is freed, so limits count entries ever
 *    added, including a merged layer's deletions.
 *
 * The children of a directory form a balanced (AA) tree, sorted by byte value as EROFS requires: no
 * hash to flood, and no sorting later.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "util/err.h"

enum {
    TREE_NAME_MAX = 255,
    TREE_PATH_MAX = 4096,         /* bytes of a path, terminator included */
    TREE_DEPTH_MAX = 1024,        /* directories above an entry */
    TREE_SYMLINKS_MAX = 40,       /* followed for one path */
    TREE_XATTR_NAME_MAX = 255,    /* prefix included */
    TREE_XATTR_VALUE_MAX = 65535, /* what the on-disk field holds */
    TREE_XATTRS_MAX = 128 << 10,  /* names and values of one inode */
    TREE_XATTR_COUNT_MAX = 1024,  /* attributes of one inode */
    TREE_MAJOR_MAX = 0xfff,
    TREE_MINOR_MAX = 0xfffff,
};
/* Entries of one tree, and the memory of everything in it. An ordinary entry takes 150 bytes. */
#define TREE_ENTRIES_MAX (4U << 20)
#define TREE_MEMORY_MAX (1ULL << 30)

enum tree_flags {
    TREE_IMPLICIT = 1,    /* a directory that was not listed */
    TREE_WHITEOUT = 2,    /* a layer's entry that deletes the name below (a 0:0 device) */
    TREE_OPAQUE = 4,      /* a layer's directory that hides what is below */
    TREE_INLINE_TAIL = 8, /* data.tail holds the bytes after the last full block */
    TREE_LINK = 16,       /* a layer's hard link to what lies below; looks like a symlink to it */
    TREE_PHANTOM = 32,    /* in a merge: an implicit directory with nothing but marks in it */
};

struct tree_xattr {
    struct tree_xattr *next; /* sorted by name */
    uint16_t value_len;
    uint8_t name_len;
    char bytes[]; /* name, NUL, value */
};

/* Where a regular file's bytes are: full blocks in a blob, the rest in the writer's tail spool. */
struct tree_data {
    uint64_t block; /* first block, relative to the blob */
    uint64_t tail;  /* spool offset, with TREE_INLINE_TAIL */
    uint32_t blob;  /* 0 while there is one */
};

struct tree_inode {
    uint16_t mode; /* with S_IFMT */
    uint8_t flags;
    uint32_t uid, gid;
    uint32_t mtime_nsec;
    int64_t mtime;
    uint64_t size; /* regular: bytes; symlink: length of target */
    struct tree_xattr *xattrs;
    union {
        struct tree_data data; /* S_IFREG */
        struct {
            struct tree_dirent *children;
            struct tree_inode *parent; /* the root is its own */
            uint32_t depth;            /* root: 0 */
        } dir;
        const char *target; /* S_IFLNK */
        struct {
            uint32_t major, minor;
        } dev; /* S_IFCHR, S_IFBLK */
    };
    /* The writer's: */
    uint32_t nlink;
    uint64_t nid; /* 0: not placed yet */
};

struct tree_dirent {
    struct tree_dirent *left, *right;
    struct tree_inode *inode; /* NULL: deleted */
    uint8_t level;
    uint8_t name_len;
    char name[]; /* terminated */
};

struct tree_chunk;

struct tree {
    struct tree_inode *root;
    struct tree_chunk *chunks;
    size_t chunk_used, chunk_size;
    uint64_t memory; /* of all chunks */
    uint32_t entries;
    uint32_t max_entries;
    uint64_t bytes; /* sum of regular sizes ever added */
    uint64_t max_bytes;
    bool has_links; /* some entry is a TREE_LINK */
};

/* The attributes of an entry. */
struct tree_attr {
    uint16_t mode;
    uint32_t uid, gid;
    int64_t mtime;
    uint32_t mtime_nsec;
    uint64_t size;         /* S_IFREG */
    const char *target;    /* S_IFLNK */
    uint32_t major, minor; /* S_IFCHR, S_IFBLK */
};

/* max_entries and max_bytes: 0 stands for TREE_ENTRIES_MAX and no limit. */
int tree_init(struct tree *t, uint32_t max_entries, uint64_t max_bytes);
void tree_free(struct tree *t);

/* Adds or replaces an entry; *ret (may be NULL) is its inode, to take xattrs and data. */
int tree_add(struct tree *t, const char *path, const struct tree_attr *attr,
             struct tree_inode **ret, struct err *e);
/* As tree_add, for a caller that walks directories itself: `name` in `dir`. */
int tree_add_at(struct tree *t, struct tree_inode *dir, const char *name,
                const struct tree_attr *attr, struct tree_inode **ret, struct err *e);
int tree_link(struct tree *t, const char *path, const char *target, struct err *e);
int tree_link_at(struct tree *t, struct tree_inode *dir, const char *name,
                 struct tree_inode *target, struct err *e);
int tree_set_xattr(struct tree *t, struct tree_inode *ino, const char *name, const void *value,
                   size_t len, struct err *e);
/* The entry that a path names (a symlink itself, not what it points to), or NULL. */
struct tree_inode *tree_lookup(struct tree *t, const char *path);

/* As tree_link; a target that is not here is taken to be in a layer below. */
int tree_link_below(struct tree *t, const char *path, const char *target, struct err *e);
/* A layer's marks: the name is deleted; what lies below the directory is hidden. */
int tree_whiteout(struct tree *t, const char *path, struct err *e);
int tree_opaque(struct tree *t, const char *path, struct err *e);

/* Puts `layer` over `base`, which has no marks. The layer's entries move: it is empty afterwards,
 * also on failure. */
int tree_merge(struct tree *base, struct tree *layer, struct err *e);

/* Walks the living children of a directory in name order. */
struct tree_iter {
    struct tree_dirent *stack[64]; /* an AA tree of 2^32 nodes is not deeper */
    int depth;
};
void tree_iter_init(struct tree_iter *it, const struct tree_inode *dir);
struct tree_dirent *tree_iter_next(struct tree_iter *it);
