/* A small EROFS reader for tests, written against the format and not against the writer: it checks
 * every rule it relies on and fails the running test when one is broken. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct er {
    const uint8_t *map;
    size_t len;
    uint64_t meta; /* byte offset of nid 0 */
    uint64_t root; /* nid */
    uint64_t inos; /* as the superblock says */
    int64_t epoch;
    uint32_t epoch_nsec;
};

struct er_inode {
    uint64_t nid;
    uint16_t mode;
    uint32_t uid, gid, nlink;
    uint64_t size;
    int64_t mtime;
    uint32_t mtime_nsec;
    uint32_t u; /* block address or device */
    bool inl, extended;
    uint64_t xattr; /* byte offset; 0 without */
    size_t xattr_len;
    uint64_t tail; /* byte offset of the inline tail */
};

/* A dirent as found on disk. */
struct er_dirent {
    const char *name;
    size_t len;
    uint64_t nid;
    uint8_t type;
};

void er_open(struct er *r, int fd);
void er_close(struct er *r);
void er_inode(const struct er *r, uint64_t nid, struct er_inode *ret);
/* Reads content into buf, which has room for n bytes at that offset; short at the end. */
size_t er_read(const struct er *r, const struct er_inode *ino, uint64_t offset, void *buf,
               size_t n);
/* False when there is no such path. Symlinks are not followed. */
bool er_lookup(const struct er *r, const char *path, struct er_inode *ret);
/* Calls fn for each entry of a directory, in disk order, having checked the order. */
void er_each(const struct er *r, const struct er_inode *dir,
             void (*fn)(void *arg, const struct er_dirent *d), void *arg);
/* The value of an attribute, named with its prefix; NULL when it is not there. */
const void *er_xattr(const struct er *r, const struct er_inode *ino, const char *name,
                     size_t *ret_len);
/* Visits everything: link counts, types, the number of inodes, no inode on top of another. Returns
 * the number of directory entries, "." and ".." aside. */
size_t er_check(const struct er *r);
