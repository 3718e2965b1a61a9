/* What is in a workspace, by path: on the local side, in the bucket, or at the last sync.
 *
 * The same JSON holds the last two: the bucket's manifest (.msb/manifest.json below the prefix) and
 * the record of the last sync (workspaces/NAME/s3-base.json). The manifest's bytes are hostile.
 */
#pragma once

#include "s3/client.h"
#include "util/err.h"
#include "util/later.h"
#include "util/strlist.h"
#include "workspace/ignore.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

enum { S3_ENTRIES_MAX = S3_LIST_MAX, S3_MANIFEST_MAX = 64 << 20, S3_TARGET_MAX = 4095 };
#define S3_FILE_MAX (5ULL << 30) /* what a server copies in one request */

enum s3_kind { S3_KIND_FILE, S3_KIND_DIR, S3_KIND_LINK };

struct s3_entry {
    char *path;
    enum s3_kind kind;
    unsigned mode; /* permissions */
    uint64_t size;
    int64_t mtime_ns;
    char sha[65]; /* of content or target; "" = not known, or a directory */
    bool unread;  /* local side: s3_tree_read() has yet to find out what is in it */
    bool guessed; /* sha is made of the etag: nobody has read the content yet. Not in manifests */
    char later
        [LATER_SIZE]; /* local side: its content is still in the bucket, by this id; "" = here */
    char etag[S3_ETAG_SIZE]; /* of its object; "" = none, or not known */
    char *staged;     /* where the content is until the object has it: below .msb/new/; NULL */
    uint64_t ino;     /* local side, as of the last look: with the ctime it tells whether */
    int64_t ctime_ns; /* anything has changed since */
};

struct s3_tree {
    struct s3_entry *v; /* sorted by path once s3_tree_sort() was called */
    size_t n, cap;
    struct strlist pending; /* manifest: what a push that is under way adds; not there yet */
};

void s3_tree_free(struct s3_tree *t); /* harmless twice */
#define AUTO_S3_TREE CLEANUP(s3_tree_free)

/* Copies *from with its strings, under the path; NULL: out of memory, or too many. The pointer
 * is good until the next one is added. */
struct s3_entry *s3_tree_add(struct s3_tree *t, const char *path, const struct s3_entry *from);
/* Sorts; of several with one path one stays. */
void s3_tree_sort(struct s3_tree *t);
struct s3_entry *s3_tree_find(const struct s3_tree *t, const char *path);
/* The first that is below the path ("": of all); n: there is none. */
size_t s3_tree_below(const struct s3_tree *t, const char *path);
/* Directories that are only implied by what is below them; a file of such a name gives way. */
int s3_tree_imply_dirs(struct s3_tree *t);

/* The same thing for a user: kind, permissions and content. NULL = nothing there. */
bool s3_entry_same(const struct s3_entry *a, const struct s3_entry *b);
/* Whether a file or link still is what was looked at then. */
bool s3_entry_untouched(const struct s3_entry *a, const struct stat *st);
/* The same, as far as it can be told after a rename. */
bool s3_entry_unwritten(const struct s3_entry *a, const struct stat *st);
void s3_entry_stat(struct s3_entry *a, const struct stat *st);

/* Text is malloc'd. local: with what only this host needs. */
char *s3_tree_dump(const struct s3_tree *t, bool local);
/* -EBADMSG. Entries that cannot be files are left out. */
int s3_tree_parse(const char *text, size_t n, struct s3_tree *ret);
/* Its two ways: only what is exactly as s3_tree_dump() writes it, and anything. */
int s3_tree_parse_own(const char *text, size_t n, struct s3_tree *ret);
int s3_tree_parse_any(const char *text, size_t n, struct s3_tree *ret);

/* What is below dirfd and is not ignored. Contents are read where `base` does not vouch for them. Names
 * that cannot be keys, and sockets, pipes and devices, are left out and reported. fill is for files
 * whose content is still in the bucket, but which are not where base has them: it brings it, or
 * says 1, and the file is left out. -EXDEV: something is mounted there. */
struct s3_scan {
    const struct s3_tree *base;
    const struct s3_tree *remote; /* or NULL: what has another size in base and here gets no sum */
    struct ignore *ignore;
    void (*warn)(void *ctx, const char *text);
    void *warn_ctx;
    int (*fill)(void *ctx, int fd, const char *path, struct err *e);
    void *fill_ctx;
    bool *lost; /* or NULL: set if something is gone from where it has just been seen */
};
/* What can be told without reading a content: files that `base` does not vouch for are `unread`. fill is
 * called for directories alone, `remote` need not be known yet. */
int s3_tree_walk(int dirfd, const struct s3_scan *how, struct s3_tree *ret, struct err *e);
/* Looks into these; those that are gone since, or are left out, leave the tree. Where `remote` is known,
 * files that are too large for a bucket are what base says. */
int s3_tree_read(int dirfd, const struct s3_scan *how, struct s3_tree *t, struct err *e);
/* Both. */
int s3_tree_scan(int dirfd, const struct s3_scan *how, struct s3_tree *ret, struct err *e);
