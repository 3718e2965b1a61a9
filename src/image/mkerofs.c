/* mkerofs: builds an EROFS image without root, for the disks that msb itself ships.
 *
 *     mkerofs DIR OUT                 the directory, unchanged
 *     mkerofs --manifest FILE... OUT  what the manifests list, no matter who owns the sources
 *
 * A manifest has one entry per line; '#' starts a comment; fields are separated by blanks:
 *
 *     dir     PATH MODE [UID GID]
 *     file    PATH MODE SOURCE       SOURCE is relative to the manifest
 *     symlink PATH TARGET
 *     link    PATH TARGET            a hard link to an entry above
 *     char    PATH MODE MAJOR MINOR
 *
 * -D NAME=VALUE replaces @NAME@ in the lines. Everything belongs to root unless the line says
 * otherwise, and has the time given by --mtime SECONDS: the same inputs give the same bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "image/layer/source.h"
#include "util/cleanup.h"

enum { LIST_MAX = 32, FIELDS_MAX = 5, LINE_MAX_BYTES = 8192 };

struct mk {
    struct tree tree;
    struct erofs_writer w;
    int64_t mtime;
    const char *manifests[LIST_MAX];
    int nmanifests;
    const char *defs[LIST_MAX];
    int ndefs;
};

/* Copies `in` to out[LINE_MAX_BYTES] with @NAME@ replaced. */
static int expand(const struct mk *mk, const char *in, char *out, struct err *e)
{
    size_t n = 0;
    while (*in) {
        const char *end = *in == '@' ? strchr(in + 1, '@') : NULL;
        const char *value = NULL;
        size_t len = end ? (size_t)(end - in - 1) : 0;
        for (int i = 0; end && i < mk->ndefs; i++)
            if (strncmp(mk->defs[i], in + 1, len) == 0 && mk->defs[i][len] == '=')
                value = mk->defs[i] + len + 1;
        if (end && !value)
            return err_set(e, EINVAL, "%.*s is not defined: use -D", (int)len + 2, in);
        size_t add = value ? strlen(value) : 1;
        if (n + add + 1 > LINE_MAX_BYTES)
            return err_set(e, E2BIG, "line too long");
        memcpy(out + n, value ? value : in, add);
        n += add;
        in = value ? end + 1 : in + 1;
    }
    out[n] = '\0';
    return 0;
}

static int parse_number(const char *s, int base, unsigned long max, unsigned long *ret,
                        struct err *e)
{
    char *end;
    errno = 0;
    *ret = s ? strtoul(s, &end, base) : 0;
    if (!s || errno || *end || end == s || *ret > max)
        return err_set(e, EINVAL, "'%s' is not a number here", s ? s : "");
    return 0;
}

static int add_file(struct mk *mk, const char *path, unsigned long mode, const char *dir,
                    const char *source, struct err *e)
{
    char full[PATH_MAX];
    bool relative = source[0] != '/';
    int len =
        snprintf(full, sizeof(full), "%s%s%s", relative ? dir : "", relative ? "/" : "", source);
    if (len < 0 || (size_t)len >= sizeof(full))
        return err_set(e, ENAMETOOLONG, "%s", source);
    AUTO_CLOSE int fd = open(full, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "%s", full);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "%s is not a file", full);
    struct tree_attr a = {
        .mode = (uint16_t)(S_IFREG | mode), .mtime = mk->mtime, .size = (uint64_t)st.st_size};
    struct tree_inode *ino;
    int r = tree_add(&mk->tree, path, &a, &ino, e);
    if (r == 0)
        r = erofs_file_begin(&mk->w, ino, e);
    static char buf[1 << 16];
    for (uint64_t at = 0; r == 0 && at < a.size;) {
        ssize_t n = pread(fd, buf, sizeof(buf), (off_t)at);
        if (n <= 0)
            return err_sys(e, n < 0 ? errno : EIO, "%s", full);
        r = erofs_file_write(&mk->w, at, buf, (size_t)n, e);
        at += (uint64_t)n;
    }
    return r < 0 ? r : erofs_file_end(&mk->w, e);
}

static int add_fields(struct mk *mk, const char *dir, char **f, struct err *e)
{
    unsigned long mode = 0, major, minor;
    struct tree_attr a = {.mtime = mk->mtime};
    bool has_mode = strcmp(f[0], "symlink") != 0 && strcmp(f[0], "link") != 0;
    if (!f[1] || !f[2])
        return err_set(e, EINVAL, "too few fields");
    if (has_mode && parse_number(f[2], 8, 07777, &mode, e) < 0)
        return -EINVAL;
    if (strcmp(f[0], "dir") == 0) {
        unsigned long uid = 0, gid = 0;
        if (f[3] && (parse_number(f[3], 10, UINT32_MAX, &uid, e) < 0 ||
                     parse_number(f[4], 10, UINT32_MAX, &gid, e) < 0))
            return -EINVAL;
        a.mode = (uint16_t)(S_IFDIR | mode);
        a.uid = (uint32_t)uid;
        a.gid = (uint32_t)gid;
    } else if (strcmp(f[0], "file") == 0 && f[3]) {
        return add_file(mk, f[1], mode, dir, f[3], e);
    } else if (strcmp(f[0], "symlink") == 0) {
        a.mode = S_IFLNK | 0777;
        a.target = f[2];
    } else if (strcmp(f[0], "link") == 0) {
        return tree_link(&mk->tree, f[1], f[2], e);
    } else if (strcmp(f[0], "char") == 0) {
        if (parse_number(f[3], 10, TREE_MAJOR_MAX, &major, e) < 0 ||
            parse_number(f[4], 10, TREE_MINOR_MAX, &minor, e) < 0)
            return -EINVAL;
        a.mode = (uint16_t)(S_IFCHR | mode);
        a.major = (uint32_t)major;
        a.minor = (uint32_t)minor;
    } else {
        return err_set(e, EINVAL, "unknown entry '%s'", f[0]);
    }
    return tree_add(&mk->tree, f[1], &a, NULL, e);
}

static int add_line(struct mk *mk, const char *dir, char *line, struct err *e)
{
    char expanded[LINE_MAX_BYTES], *save = NULL, *fields[FIELDS_MAX + 1] = {NULL};
    line[strcspn(line, "#\n")] = '\0';
    int r = expand(mk, line, expanded, e), n = 0;
    if (r < 0)
        return r;
    for (char *f = strtok_r(expanded, " \t", &save); f && n < FIELDS_MAX;
         f = strtok_r(NULL, " \t", &save))
        fields[n++] = f;
    return n ? add_fields(mk, dir, fields, e) : 0;
}

static int add_manifest(struct mk *mk, const char *file, struct err *e)
{
    AUTO_FCLOSE FILE *f = fopen(file, "re");
    if (!f)
        return err_sys(e, errno, "%s", file);
    const char *slash = strrchr(file, '/');
    char dir[PATH_MAX];
    (void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    for (int no = 1; getline(&line, &cap, f) >= 0; no++) {
        int r = add_line(mk, dir, line, e);
        if (r < 0)
            return err_wrap(e, r, "%s:%d", file, no);
    }
    return ferror(f) ? err_set(e, EIO, "%s: read error", file) : 0;
}

static int add_directory(struct mk *mk, const char *path, struct err *e)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "%s", path);
    struct source_dir s = {.fd = fd, .name = path};
    int r = source_dir_scan(&s, &mk->tree, e);
    return r < 0 ? r : source_dir_load(&s, &mk->tree, &mk->w, e);
}

static int build(struct mk *mk, const char *dir, const char *out, struct err *e)
{
    AUTO_CLOSE int fd = open(out, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(e, errno, "%s", out);
    int r = tree_init(&mk->tree, 0, 0) < 0 ? err_oom(e) : 0;
    erofs_begin(&mk->w, fd, -1);
    if (r == 0 && !dir)
        r = tree_add(&mk->tree, "/",
                     &(struct tree_attr){.mode = S_IFDIR | 0755, .mtime = mk->mtime}, NULL, e);
    for (int i = 0; r == 0 && i < mk->nmanifests; i++)
        r = add_manifest(mk, mk->manifests[i], e);
    if (r == 0 && dir)
        r = add_directory(mk, dir, e);
    if (r == 0)
        r = erofs_finish(&mk->w, &mk->tree, e);
    erofs_abort(&mk->w);
    tree_free(&mk->tree);
    if (r < 0)
        (void)unlink(out);
    return r;
}

static int usage(void)
{
    fputs("usage: mkerofs DIR OUT\n"
          "       mkerofs [-D NAME=VALUE] [--mtime SECONDS] --manifest FILE... OUT\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"manifest", required_argument, NULL, 'm'},
                                            {"mtime", required_argument, NULL, 't'},
                                            {NULL, 0, NULL, 0}};
    struct mk mk = {.mtime = 0};
    struct err e = {0};
    unsigned long seconds = 0;
    for (int c; (c = getopt_long(argc, argv, "D:", options, NULL)) != -1;) {
        if (c == 'm' && mk.nmanifests < LIST_MAX)
            mk.manifests[mk.nmanifests++] = optarg;
        else if (c == 'D' && mk.ndefs < LIST_MAX)
            mk.defs[mk.ndefs++] = optarg;
        else if (c != 't' || parse_number(optarg, 10, LONG_MAX, &seconds, &e) < 0)
            return usage();
    }
    mk.mtime = (int64_t)seconds;
    bool from_dir = mk.nmanifests == 0;
    if (argc - optind != (from_dir ? 2 : 1))
        return usage();
    if (build(&mk, from_dir ? argv[optind] : NULL, argv[argc - 1], &e) < 0) {
        fprintf(stderr, "mkerofs: %s\n", e.msg);
        return 1;
    }
    return 0;
}
