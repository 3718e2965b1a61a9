/* Parsing is done by libarchive; only its tar reader is linked. Its results are untrusted: names,
 * sizes and offsets are checked by the tree and by the writer.
 *
 * The library converts names to the locale's character set. In the C locale, it cannot, and returns
 * the plain bytes, which is what a file name is. The caller creates that locale, since here it may
 * be too late to take the C library's locks (convert.h). */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <iconv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "image/layer/source.h"
#include "util/cleanup.h"

struct tar {
    struct source_tar *s;
    struct tree *t;
    struct erofs_writer *w;
    struct archive *a;
    struct archive_entry *ent;
    struct err io; /* of the bytes themselves */
    uint64_t entries, bytes;
};

/* ---- input ---- */

static la_ssize_t tar_read(struct archive *a, void *data, const void **ret)
{
    struct tar *tar = data;
    ssize_t n = tar->s->next(tar->s->ctx, ret, &tar->io);
    if (n < 0) {
        archive_set_error(a, tar->io.code, "read error");
        return -1;
    }
    tar->bytes += (uint64_t)n;
    return n;
}

static int tar_fail(struct tar *tar, struct err *e)
{
    const char *why = archive_error_string(tar->a);
    if (tar->io.code) {
        err_copy(e, &tar->io);
        return -tar->io.code;
    }
    if (archive_errno(tar->a) == ENOMEM)
        return err_oom(e);
    /* The format was not recognized although there were bytes. */
    if (!tar->entries && archive_format(tar->a) == 0 &&
        (!why || strstr(why, "Unrecognized archive format")))
        return err_hinted(e, err_set(e, EINVAL, "this is not a tar archive"),
                          "a layer or image file is a tar, plain or compressed with gzip or zstd");
    return err_set(e, EINVAL, "the archive is damaged: %s", why ? why : "unknown error");
}

/* ---- attributes ---- */

/* The kernel's format of an ACL in an extended attribute. */
struct acl_entry {
    uint16_t tag, perm;
    uint32_t id;
};
enum { ACL_VERSION = 2, ACL_ENTRIES_MAX = 1024 };

static uint16_t acl_tag(int tag)
{
    switch (tag) {
    case ARCHIVE_ENTRY_ACL_USER_OBJ:
        return 0x01;
    case ARCHIVE_ENTRY_ACL_USER:
        return 0x02;
    case ARCHIVE_ENTRY_ACL_GROUP_OBJ:
        return 0x04;
    case ARCHIVE_ENTRY_ACL_GROUP:
        return 0x08;
    case ARCHIVE_ENTRY_ACL_MASK:
        return 0x10;
    case ARCHIVE_ENTRY_ACL_OTHER:
        return 0x20;
    default:
        return 0;
    }
}

static int acl_cmp(const void *a, const void *b)
{
    const struct acl_entry *x = a, *y = b;
    if (x->tag != y->tag)
        return x->tag - y->tag;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int add_acl(struct tar *tar, struct tree_inode *ino, int kind, const char *xattr,
                   struct err *e)
{
    if (archive_entry_acl_reset(tar->ent, kind) == 0)
        return 0;
    struct {
        uint32_t version;
        struct acl_entry e[ACL_ENTRIES_MAX];
    } acl = {.version = ACL_VERSION};
    size_t n = 0;
    int type, perm, tag, id;
    const char *who;
    while (archive_entry_acl_next(tar->ent, kind, &type, &perm, &tag, &id, &who) == ARCHIVE_OK) {
        uint16_t t = acl_tag(tag);
        bool named = t == 0x02 || t == 0x08;
        if (!t || (named && id < 0)) /* a name known only on its own system */
            continue;
        if (n == ACL_ENTRIES_MAX)
            return err_set(e, E2BIG, "an ACL has more than %d entries", ACL_ENTRIES_MAX);
        acl.e[n++] = (struct acl_entry){t, (uint16_t)(perm & 7), named ? (uint32_t)id : UINT32_MAX};
    }
    if (n < 3)
        return 0;
    /* #syscalls:converter sysinfo (qsort asks how much memory there is) */
    qsort(acl.e, n, sizeof(acl.e[0]), acl_cmp);
    return tree_set_xattr(tar->t, ino, xattr, &acl, sizeof(acl.version) + n * sizeof(acl.e[0]), e);
}

static int add_xattrs(struct tar *tar, struct tree_inode *ino, struct err *e)
{
    const char *name;
    const void *value;
    size_t len;
    int r = 0;
    (void)archive_entry_xattr_reset(tar->ent);
    while (r == 0 && archive_entry_xattr_next(tar->ent, &name, &value, &len) == ARCHIVE_OK)
        if (name && source_wants_xattr(name))
            r = tree_set_xattr(tar->t, ino, name, value, len, e);
    if (r == 0)
        r = add_acl(tar, ino, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, "system.posix_acl_access", e);
    if (r == 0 && ino && S_ISDIR(ino->mode))
        r = add_acl(tar, ino, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT, "system.posix_acl_default", e);
    return r;
}

static int get_attr(struct tar *tar, const char *path, struct tree_attr *ret, struct err *e)
{
    struct archive_entry *ent = tar->ent;
    int64_t uid = archive_entry_uid(ent), gid = archive_entry_gid(ent);
    int64_t size = archive_entry_size(ent);
    if (uid < 0 || gid < 0 || uid >= UINT32_MAX || gid >= UINT32_MAX)
        return err_set(e, EINVAL, "entry '%.512s' has a bad owner", path);
    if (size < 0)
        return err_set(e, EINVAL, "entry '%.512s' has a bad size", path);
    /* Headers can have the one time before that, but the library's attribute reader cannot. */
    int64_t mtime = MAX(archive_entry_mtime(ent), -INT64_MAX);
    long nsec = archive_entry_mtime_nsec(ent);
    if (mtime < 0 && mtime > -INT64_MAX && nsec > 0 &&
        nsec < 1000000000) { /* the library takes "-1.25" as -1 + 0.25 */
        mtime--;
        nsec = 1000000000 - nsec;
    }
    *ret = (struct tree_attr){
        .mode = (uint16_t)(archive_entry_filetype(ent) | (archive_entry_perm(ent) & 07777)),
        .uid = (uint32_t)uid,
        .gid = (uint32_t)gid,
        .mtime = mtime,
        .mtime_nsec = nsec >= 0 && nsec < 1000000000 ? (uint32_t)nsec : 0,
        .size = (uint64_t)size,
        .target = archive_entry_symlink(ent),
    };
    if (S_ISCHR(ret->mode) || S_ISBLK(ret->mode)) {
        uint64_t major = archive_entry_rdevmajor(ent), minor = archive_entry_rdevminor(ent);
        ret->major = (uint32_t)MIN(major, (uint64_t)UINT32_MAX);
        ret->minor = (uint32_t)MIN(minor, (uint64_t)UINT32_MAX);
    }
    return 0;
}

/* ---- entries ---- */

static int add_data(struct tar *tar, struct tree_inode *ino, struct err *e)
{
    int r = erofs_file_begin(tar->w, ino, e);
    while (r == 0) {
        const void *p;
        size_t n;
        la_int64_t offset;
        int got = archive_read_data_block(tar->a, &p, &n, &offset);
        if (got == ARCHIVE_EOF)
            return erofs_file_end(tar->w, e);
        if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
            return tar_fail(tar, e);
        if (offset < 0)
            return err_set(e, EINVAL, "file data lies outside the file's size");
        if (n)
            r = erofs_file_write(tar->w, (uint64_t)offset, p, n, e);
    }
    return r;
}

/* A layer's marks: DIR/.wh.NAME deletes DIR/NAME, DIR/.wh..wh..opq hides all of DIR. Returns 1 if
 * the entry is one. */
static int add_mark(struct tar *tar, const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t dir = (size_t)(base - path);
    if (!tar->s->layer || strncmp(base, ".wh.", 4) != 0)
        return 0;
    const char *name = base + 4;
    char target[TREE_PATH_MAX];
    if (strlen(path) >= sizeof(target))
        return err_set(e, ENAMETOOLONG, "entry '%.64s...' has a path over %d bytes", path,
                       TREE_PATH_MAX - 1);
    memcpy(target, path, dir);
    target[dir] = '\0';
    int r;
    if (strcmp(name, ".wh..opq") == 0) {
        r = tree_opaque(tar->t, target, e);
    } else if (strncmp(name, ".wh.", 4) == 0) {
        r = 0; /* other such marks belong to union file systems */
    } else if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        r = err_set(e, EINVAL, "entry '%.512s' is an invalid whiteout", path);
    } else {
        memcpy(target + dir, name, strlen(name) + 1);
        r = tree_whiteout(tar->t, target, e);
    }
    return r < 0 ? r : 1;
}

static int add_entry(struct tar *tar, struct err *e)
{
    const char *path = archive_entry_pathname(tar->ent);
    if (!path || !*path)
        return err_set(e, EINVAL, "entry %llu has no name", (unsigned long long)tar->entries);
    int r = add_mark(tar, path, e);
    if (r)
        return r < 0 ? r : 0;
    const char *hardlink = archive_entry_hardlink(tar->ent);
    if (hardlink)
        return tar->s->layer ? tree_link_below(tar->t, path, hardlink, e)
                             : tree_link(tar->t, path, hardlink, e);
    struct tree_attr attr = {0};
    struct tree_inode *ino = NULL;
    r = get_attr(tar, path, &attr, e);
    if (r == 0)
        r = tree_add(tar->t, path, &attr, &ino, e);
    if (r < 0)
        return r;
    r = add_xattrs(tar, ino, e);
    if (r == 0 && S_ISREG(attr.mode) && attr.size)
        r = add_data(tar, ino, e);
    /* Errors in the archive or the disk are not about the entry. */
    if (r == -E2BIG)
        (void)err_wrap(e, r, "entry '%.256s'", path);
    return r;
}

/* A layer may be empty; the root of a sandbox may not. */
static int check_empty(const struct tar *tar, struct err *e)
{
    if (tar->entries || tar->s->layer)
        return 0;
    return err_set(e, EINVAL, "the archive is empty");
}

static int read_entries(struct tar *tar, struct err *e)
{
    for (;;) {
        int got = archive_read_next_header(tar->a, &tar->ent);
        if (got == ARCHIVE_EOF || (got == ARCHIVE_FATAL && !tar->bytes && !tar->io.code))
            return check_empty(tar, e);
        /* A warning comes with a usable entry: often a name that is not ASCII, kept as it is. */
        if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
            return tar_fail(tar, e);
        tar->entries++;
        int r = add_entry(tar, e);
        if (r < 0)
            return r;
    }
}

/* What follows the archive's end is part of its digest. */
static int read_rest(struct tar *tar, struct err *e)
{
    const void *p;
    la_ssize_t n;
    while ((n = tar_read(tar->a, tar, &p)) > 0)
        continue;
    return n < 0 ? tar_fail(tar, e) : 0;
}

static int load(struct tar *tar, struct err *e)
{
    if (!tar->a || archive_read_support_format_tar(tar->a) != ARCHIVE_OK)
        return err_oom(e);
    int r = 0;
    if (archive_read_open(tar->a, tar, NULL, tar_read, NULL) != ARCHIVE_OK && tar->bytes)
        r = tar_fail(tar, e);
    if (r == 0)
        r = read_entries(tar, e);
    return r < 0 ? r : read_rest(tar, e);
}

/* The first conversion of a name from UTF-8 makes the C library load its converters from files. */
static void load_converters(void)
{
    iconv_t cd = iconv_open("ANSI_X3.4-1968", "UTF-8");
    if (cd != (iconv_t)-1)
        (void)iconv_close(cd);
}

void source_tar_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_converters);
}

int source_tar_load(struct source_tar *s, struct tree *t, struct erofs_writer *w, struct err *e)
{
    struct tar tar = {.s = s, .t = t, .w = w, .a = archive_read_new()};
    locale_t old = uselocale(s->locale);
    int r = load(&tar, e);
    archive_read_free(tar.a);
    (void)uselocale(old);
    return r;
}
