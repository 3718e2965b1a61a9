/* The contents of a workspace, by path: on the local side, in the bucket, or at the last sync.
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
#define S3_FILE_MAX (5ULL << 30) /* the most that a server copies in one request */

/* Says whose something is that does not count yet, and since when: 8 hex digits for the workspace
 * on its host, and 8 for the time. */
enum { S3_MARK = 16 };
#define S3_NO_MARK "0000000000000000"

/* Hex digits that stand for an ETag. */
enum { S3_ETAG_DIGITS = 8 };

/* The name of an object that is gone: the digits of its ETag, "/" and its path. */
enum { S3_GONE_SIZE = S3_ETAG_DIGITS + 1 + S3_PATH_MAX + 1 };

/* Staged content's ID: a mark, 16 random hex digits, and those of the ETag of the object that it
 * will replace ("" = none). IDs of earlier versions end before that. */
enum { S3_ID = S3_MARK + 16 + S3_ETAG_DIGITS };

/* Hex digits that a manifest made over nothing gets at random, and that stay in all that replace it:
 * another lineage means that the bucket was wiped or replaced. */
enum { S3_LINEAGE = 16 };

enum s3_kind { S3_KIND_FILE, S3_KIND_DIR, S3_KIND_LINK };

struct s3_entry {
    char *path;
    enum s3_kind kind;
    unsigned mode; /* permissions */
    uint64_t size;
    int64_t mtime_ns;
    char sha[65]; /* of content or target; "" = not known, or a directory */
    bool unread;  /* local side: s3_tree_read() has yet to read its content */
    bool guessed; /* sha is derived from the etag: the content was never read. Not in manifests */
    char later
        [LATER_SIZE]; /* local side: its content is still in the bucket, under this id; "" = here */
    char etag[S3_ETAG_SIZE]; /* of its object; "" = none, or not known. Remote side: as listed, even
                              * if the content is staged; in the manifest, then of what is staged */
    char *staged;     /* where the content is until the object has it: below .msb/new/; NULL */
    uint64_t ino;     /* local side, as of the last scan: with the ctime it tells whether */
    int64_t ctime_ns; /* anything has changed since */
};

struct s3_tree {
    struct s3_entry *v; /* sorted by path once s3_tree_sort() was called */
    size_t n, cap;
    struct strlist pending; /* manifest: "MARK PATH" of what pushes are adding; not there yet */
    struct strlist gone;    /* manifest: "MARK OBJECT" of what pushes have removed (s3_gone_name),
                             * whose objects may still be there */
    char lineage[S3_LINEAGE + 1]; /* manifest; "" = not known, by earlier versions */
    char push[S3_LINEAGE + 1];    /* the same, at random, of the push that wrote it */
};

void s3_tree_free(struct s3_tree *t); /* may be called twice */
#define AUTO_S3_TREE CLEANUP(s3_tree_free)

/* Adds a copy of *from and its strings, under the path; NULL: out of memory, or too many. The
 * pointer is valid until the next one is added. */
struct s3_entry *s3_tree_add(struct s3_tree *t, const char *path, const struct s3_entry *from);
/* Sorts the entries; of several with the same path, one stays. */
void s3_tree_sort(struct s3_tree *t);
struct s3_entry *s3_tree_find(const struct s3_tree *t, const char *path);
/* The index of the first entry below the path ("": of all); n: there is none. */
size_t s3_tree_below(const struct s3_tree *t, const char *path);
/* Adds directories that are only implied by what is below them; a file of the same name gives
 * way. */
int s3_tree_imply_dirs(struct s3_tree *t);

/* Whether they are the same to a user: kind, permissions and content. NULL = nothing there. */
bool s3_entry_same(const struct s3_entry *a, const struct s3_entry *b);
/* Whether a file or link is unchanged since it was scanned. */
bool s3_entry_untouched(const struct s3_entry *a, const struct stat *st);
/* The same, as far as can be told after a rename. */
bool s3_entry_unwritten(const struct s3_entry *a, const struct stat *st);
void s3_entry_stat(struct s3_entry *a, const struct stat *st);

/* Text is malloc'd. local: include what only this host needs. */
char *s3_tree_dump(const struct s3_tree *t, bool local);
/* -EBADMSG. Entries that cannot be files are left out. */
int s3_tree_parse(const char *text, size_t n, struct s3_tree *ret);
/* Its two variants: one parses only what is exactly as s3_tree_dump() writes it, the other
 * anything. */
int s3_tree_parse_own(const char *text, size_t n, struct s3_tree *ret);
int s3_tree_parse_any(const char *text, size_t n, struct s3_tree *ret);

/* Scans what is below dirfd and not ignored. Contents are read where `base` does not vouch for
 * them. Names that cannot be keys, and sockets, pipes and devices, are left out and reported. fill
 * is called for files whose content is still in the bucket, but which have moved from where base
 * has them: it fetches the content, or returns 1, and the file is left out. -EXDEV: something is
 * mounted there. */
struct s3_scan {
    const struct s3_tree *base;
    const struct s3_tree *remote; /* or NULL: files whose size is neither base's nor this get no
                                   * hash, unless `all` do */
    bool all;
    struct ignore *ignore;
    void (*warn)(void *ctx, const char *text);
    void *warn_ctx;
    int (*fill)(void *ctx, int fd, const char *path, struct err *e);
    void *fill_ctx;
    bool *lost; /* or NULL: set if something vanished during the scan */
};
/* The part that needs no contents: files that `base` does not vouch for are `unread`. fill is
 * called only for directories; `remote` need not be known yet. */
int s3_tree_walk(int dirfd, const struct s3_scan *how, struct s3_tree *ret, struct err *e);
/* Reads the contents of those files; any that have disappeared, or are left out, are removed from
 * the tree. Where `remote` is known, files too large for a bucket are what base says. */
int s3_tree_read(int dirfd, const struct s3_scan *how, struct s3_tree *t, struct err *e);
/* Does both. */
int s3_tree_scan(int dirfd, const struct s3_scan *how, struct s3_tree *ret, struct err *e);
