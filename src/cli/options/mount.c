#include "cli/options/mount.h"

#include "cli/core/ui.h"
#include "proto/proto.h"
#include "sandbox/mount_wait.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- options --------------------------------------------------------------------------------- */

/* Options given so far, besides the flags, whose bits are those of proto_mount_option. */
enum {
    SEEN_SIZE = 1 << 8,
    SEEN_QUOTA = 1 << 9,
    SEEN_CACHE = 1 << 10,
    SEEN_UID = 1 << 11,
    SEEN_GID = 1 << 12,
    SEEN_KIND = 1 << 13,
    SEEN_FORMAT = 1 << 14,
    SEEN_FSTYPE = 1 << 15,
    SEEN_MODE = 1 << 16,
};

/* What is being parsed. */
struct parse {
    const char *option;
    struct spec_mount *m;
    uint32_t seen;
    char *fstype; /* malloc'd */
};

static int once(const char *word, uint32_t what, uint32_t *seen, struct err *e)
{
    if (*seen & what)
        return err_set(e, EINVAL, "mount option '%s' repeats or contradicts another", word);
    *seen |= what;
    return 0;
}

/* ro, rw, noexec ...: 1 if the word is not one of them. */
static int flag_option(const char *word, struct spec_mount *m, uint32_t *seen, struct err *e)
{
    static const struct {
        const char *off, *on;
        uint32_t bit;
    } flags[] = {{"rw", "ro", PROTO_MOUNT_RO},
                 {"exec", "noexec", PROTO_MOUNT_NOEXEC},
                 {"suid", "nosuid", PROTO_MOUNT_NOSUID},
                 {"dev", "nodev", PROTO_MOUNT_NODEV}};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        bool on = strcmp(word, flags[i].on) == 0;
        if (!on && strcmp(word, flags[i].off) != 0)
            continue;
        m->options |= on ? flags[i].bit : 0;
        return once(word, flags[i].bit, seen, e);
    }
    return 1;
}

static int size_value(const char *word, const char *value, uint64_t *ret, struct err *e)
{
    if (parse_size(value, MIB, ret) < 0 || *ret == 0)
        return err_set(e, EINVAL, "mount option '%s': %s", word, PARSE_SIZE_EXAMPLES);
    return 0;
}

static int id_value(const char *word, const char *value, uint32_t *ret, struct err *e)
{
    uint64_t v;
    if (parse_u64(value, &v) < 0 || v >= UINT32_MAX)
        return err_set(e, EINVAL, "mount option '%s': expected a number", word);
    *ret = (uint32_t)v;
    return 0;
}

/* Other programs' options: accepted if they name what msb does anyway, or what a guest with its own
 * kernel cannot notice (SELinux labels, which the share server does not need). */
static int fixed_option(const char *word, struct err *e)
{
    static const char *const ours[] = {
        "stat-virt=strict", "host-perms=mirror", "follow-root-symlinks", "z", "Z", "cached",
        "delegated",        "consistent"};
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (strcmp(word, ours[i]) == 0)
            return 0;
    if (strncmp(word, "stat-virt=", 10) == 0 || strncmp(word, "host-perms=", 11) == 0)
        return err_set(e, ENOSYS, "mount option '%s' is not available yet (only %s is)", word,
                       word[0] == 's' ? ours[0] : ours[1]);
    return 1;
}

/* kind= and size= of a named volume: 1 if the word is neither. */
static int named_word(const char *word, struct parse *p, struct err *e)
{
    if (strncmp(word, "kind=", 5) == 0) {
        p->m->disk = strcmp(word + 5, "disk") == 0;
        if (!p->m->disk && strcmp(word + 5, "dir") != 0)
            return err_set(e, EINVAL, "mount option '%s': expected dir or disk", word);
        return once(word, SEEN_KIND, &p->seen, e);
    }
    if (strncmp(word, "size=", 5) == 0) {
        int r = once(word, SEEN_SIZE, &p->seen, e);
        return r < 0 ? r : size_value(word, word + 5, &p->m->size, e);
    }
    return 1;
}

static int disk_word(const char *word, struct parse *p, struct err *e)
{
    if (strncmp(word, "format=", 7) == 0) {
        p->m->qcow2 = strcmp(word + 7, "qcow2") == 0;
        if (strcmp(word + 7, "raw") != 0 && !p->m->qcow2) {
            (void)err_set(e, ENOTSUP, "mount option '%s': only raw and qcow2 images are supported",
                          word);
            err_hint(e, "convert it: qemu-img convert -O raw FROM TO.raw");
            return -ENOTSUP;
        }
        return once(word, SEEN_FORMAT, &p->seen, e);
    }
    if (strncmp(word, "fstype=", 7) == 0) {
        if (!mount_fstype_known(word + 7))
            return err_set(e, EINVAL, "mount option '%s': the guest's kernel supports %s", word,
                           MOUNT_FSTYPES);
        int r = once(word, SEEN_FSTYPE, &p->seen, e);
        p->fstype = r < 0 ? p->fstype : strdup(word + 7);
        return r == 0 && !p->fstype ? err_oom(e) : r;
    }
    return err_set(
        e, EINVAL,
        "unsupported mount option '%s': expected %sformat=raw, format=qcow2 or fstype=ext4", word,
        strcmp(p->option, "root-disk") == 0 ? "" : "ro, rw, noexec, nosuid, nodev, ");
}

static int share_word(const char *word, struct parse *p, struct err *e)
{
    struct spec_mount *m = p->m;
    uint32_t *seen = &p->seen;
    const char *value = strchr(word, '=');
    value = value ? value + 1 : "";
    int r = fixed_option(word, e);
    if (r > 0 && strcmp(p->option, "mount-named") == 0)
        r = named_word(word, p, e);
    if (r <= 0)
        return r;
    if (strncmp(word, "quota=", 6) == 0) {
        r = once(word, SEEN_QUOTA, seen, e);
        return r < 0 ? r : size_value(word, value, &m->quota, e);
    }
    if (strncmp(word, "uid=", 4) == 0) {
        r = once(word, SEEN_UID, seen, e);
        return r < 0 ? r : id_value(word, value, &m->uid, e);
    }
    if (strncmp(word, "gid=", 4) == 0) {
        r = once(word, SEEN_GID, seen, e);
        return r < 0 ? r : id_value(word, value, &m->gid, e);
    }
    if (strncmp(word, "cache=", 6) == 0) {
        if (!mount_cache_parse(value, &m->cache))
            return err_set(e, EINVAL, "mount option '%s': expected auto, none or always", word);
        return once(word, SEEN_CACHE, seen, e);
    }
    return err_set(e, EINVAL,
                   "unsupported mount option '%s': expected ro, rw, noexec, nosuid, nodev, "
                   "cache=auto|none|always, uid=N,gid=N or quota=SIZE",
                   word);
}

static int tmpfs_word(const char *word, struct spec_mount *m, uint32_t *seen, struct err *e)
{
    if (strncmp(word, "size=", 5) == 0) {
        int r = once(word, SEEN_SIZE, seen, e);
        return r < 0 ? r : size_value(word, word + 5, &m->size, e);
    }
    if (strncmp(word, "mode=", 5) == 0) {
        char *end;
        unsigned long mode = strtoul(word + 5, &end, 8);
        if (word[5] < '0' || word[5] > '7' || *end || mode == 0 || mode > 07777)
            return err_set(e, EINVAL, "mount option '%s': expected octal digits, such as 1777",
                           word);
        m->mode = (uint32_t)mode;
        return once(word, SEEN_MODE, seen, e);
    }
    if (strncmp(word, "uid=", 4) == 0 || strncmp(word, "gid=", 4) == 0) {
        bool user = *word == 'u';
        int r = once(word, user ? SEEN_UID : SEEN_GID, seen, e);
        return r < 0 ? r : id_value(word, word + 4, user ? &m->uid : &m->gid, e);
    }
    return err_set(e, EINVAL,
                   "unsupported mount option '%s': expected ro, noexec, nosuid, nodev, size=SIZE, "
                   "mode=OCTAL, uid=N or gid=N",
                   word);
}

/* Options, separated by commas. */
static int words(char *list, struct parse *p, struct err *e)
{
    char *word;
    while ((word = strsep(&list, ","))) {
        int r = flag_option(word, p->m, &p->seen, e);
        if (r > 0 && p->m->kind == MOUNT_TMPFS)
            r = tmpfs_word(word, p->m, &p->seen, e);
        else if (r > 0 && p->m->kind == MOUNT_DISK)
            r = disk_word(word, p, e);
        else if (r > 0)
            r = share_word(word, p, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* --- tmpfs ----------------------------------------------------------------------------------- */

static int tmpfs_parts(char *rest, struct spec_mount *m, struct err *e)
{
    struct parse p = {.option = "tmpfs", .m = m};
    char *part;
    while ((part = strsep(&rest, ":"))) {
        int r;
        if (!(p.seen & SEEN_SIZE) && *part >= '0' && *part <= '9') {
            if (parse_size(part, MIB, &m->size) < 0)
                return err_set(e, EINVAL, "invalid size '%s': %s", part, PARSE_SIZE_EXAMPLES);
            p.seen |= SEEN_SIZE;
            r = 0;
        } else {
            r = words(part, &p, e);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int tmpfs_option(struct sandbox_spec *s, const char *arg, struct err *e)
{
    AUTO_FREE char *copy = strdup(arg);
    if (!copy)
        return err_oom(e);
    struct spec_mount m = {.kind = MOUNT_TMPFS};
    char *rest = copy;
    m.guest = strsep(&rest, ":");
    int r = rest ? tmpfs_parts(rest, &m, e) : 0;
    if (r < 0)
        return err_wrap(e, r, "--tmpfs '%s'", arg);
    return spec_add_mount(s, &m, e);
}

/* --- host directories and files -------------------------------------------------------------- */

/* At the first colon that a slash follows: SOURCE may contain colons, too. */
static char *split_source(char *arg)
{
    char *colon = strstr(arg, ":/");
    if (!colon || colon == arg)
        return NULL;
    *colon = '\0';
    return colon + 1;
}

static bool is_path(const char *source)
{
    return *source && strchr("./~", *source);
}

/* Resolved now, so that a symbolic link found in it later means tampering. */
int mount_resolve(const char *source, bool file, char **ret, struct err *e)
{
    AUTO_FREE char *path = NULL;
    const char *home = getenv("HOME");
    if (source[0] == '~' && (source[1] == '\0' || source[1] == '/')) {
        if (!home || home[0] != '/')
            return err_set(e, ENOENT, "'%s': HOME is not set", source);
        if (asprintf(&path, "%s%s", home, source + 1) < 0)
            return err_oom(e);
    }
    int r = mount_wait(path ? path : source, ui_warn, e);
    if (r < 0)
        return r;
    *ret = realpath(path ? path : source, NULL);
    if (*ret)
        return 0;
    int code = errno;
    err_sys(e, code, "cannot mount '%s'", source);
    if (code == ENOENT && !file)
        err_hint(e, "create it on the host: mkdir -p %s", source);
    else if (code == ENOENT)
        err_hint(
            e, "there is no such file on the host; relative paths start at the current directory");
    return -code;
}

/* Refuses image formats other than raw and qcow2. A guest that may write the file can make it look
 * like anything, so format=raw skips this. */
static int check_format(const char *source, const char *path, bool *qcow2, struct err *e)
{
    static const struct {
        const char *magic, *name;
    } formats[] = {
        {"KDMV", "vmdk"}, {"# Disk Descriptor", "vmdk"}, {"vhdxfile", "vhdx"}, {"conectix", "vpc"}};
    char head[32] = "";
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head) - 1);
    if (n < 0)
        return err_sys(e, errno, "cannot read '%s'", source);
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if ((size_t)n >= strlen(formats[i].magic) &&
            memcmp(head, formats[i].magic, strlen(formats[i].magic)) == 0) {
            (void)err_set(e, ENOTSUP, "'%s' is a %s image: only raw and qcow2 images are supported",
                          source, formats[i].name);
            err_hint(e, "convert it: qemu-img convert -O raw %s %s.raw", source, source);
            return -ENOTSUP;
        }
    *qcow2 = n >= 4 && memcmp(head, "QFI\xfb", 4) == 0;
    return 0;
}

/* Checks only what can be read without trusting the file; the jailed monitor checks the rest. */
static int check_qcow2(const char *source, const struct parse *p, struct err *e)
{
    bool root = strcmp(p->option, "root-disk") == 0;
    if (!p->m->qcow2 || (!root && p->m->options & PROTO_MOUNT_RO))
        return 0;
    (void)err_set(e, ENOTSUP, "'%s' is a qcow2 image: msb can only read those", source);
    if (!root)
        err_hint(e, "mount it read-only: %s:%s:ro", source, p->m->guest);
    err_hint(e, "to write, convert it: qemu-img convert -O raw %s %s.raw", source, source);
    return -ENOTSUP;
}

static int check_disk(const char *source, struct parse *p, struct err *e)
{
    struct stat st;
    if (!p->m->source || stat(p->m->source, &st) < 0)
        return err_sys(e, errno, "cannot mount '%s'", source);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "cannot mount '%s': not a regular file", source);
    p->m->fstype = p->fstype;
    if (p->fstype && strcmp(p->fstype, "erofs") == 0)
        p->m->options |= PROTO_MOUNT_RO;
    int r = p->seen & SEEN_FORMAT ? 0 : check_format(source, p->m->source, &p->m->qcow2, e);
    return r < 0 ? r : check_qcow2(source, p, e);
}

static int check_kind(const char *option, const char *source, struct spec_mount *m, struct err *e)
{
    struct stat st;
    if (!m->source || stat(m->source, &st) < 0)
        return err_sys(e, errno, "cannot mount '%s'", source);
    m->file = S_ISREG(st.st_mode);
    if (!m->file && !S_ISDIR(st.st_mode))
        return err_set(e, EINVAL, "cannot mount '%s': it is neither a directory nor a regular file",
                       source);
    if (m->file && strcmp(option, "mount-dir") == 0)
        return err_set(e, ENOTDIR, "'%s' is a file (use --mount-file)", source);
    if (!m->file && strcmp(option, "mount-file") == 0)
        return err_set(e, EISDIR, "'%s' is a directory (use --mount-dir)", source);
    return 0;
}

/* SOURCE:DEST,ro is an older syntax. */
static int check_comma(const char *source, const char *dest, struct err *e)
{
    const char *comma = strchr(dest, ',');
    if (!comma)
        return 0;
    err_set(e, EINVAL, "mount options come after a colon, not a comma: '%s:%s'", source, dest);
    err_hint(e, "write it as '%s:%.*s:%s'", source, (int)(comma - dest), dest, comma + 1);
    return -EINVAL;
}

static int parse_named(struct parse *p, const char *name, struct err *e)
{
    struct spec_mount *m = p->m;
    if (!m->disk && (p->seen & SEEN_SIZE))
        return err_set(e, EINVAL, "size= requires kind=disk; use quota= to limit a directory");
    m->kind = MOUNT_NAMED;
    m->source = strdup(name);
    return m->source ? 0 : err_oom(e);
}

static int parse_mount(const char *arg, struct parse *p, char *copy, struct err *e)
{
    struct spec_mount *m = p->m;
    const char *option = p->option;
    char *rest = split_source(copy);
    if (!rest) {
        err_set(e, EINVAL, "expected SOURCE:DEST[:OPTIONS] with an absolute DEST: got '%s'", arg);
        err_hint(e, "for example ./src:/work or ~/data:/data:ro");
        return -EINVAL;
    }
    m->guest = strsep(&rest, ":");
    int r = check_comma(copy, m->guest, e);
    if (r == 0 && rest)
        r = words(rest, p, e);
    if (r < 0)
        return r;
    if (!(p->seen & SEEN_UID) != !(p->seen & SEEN_GID))
        return err_set(e, EINVAL, "uid= and gid= must be given together");
    bool named = strcmp(option, "mount-named") == 0;
    if (named || (strcmp(option, "volume") == 0 && !is_path(copy)))
        return parse_named(p, copy, e);
    bool file = m->kind == MOUNT_DISK || strcmp(option, "mount-file") == 0;
    r = mount_resolve(copy, file, &m->source, e);
    if (r < 0)
        return r;
    return m->kind == MOUNT_DISK ? check_disk(copy, p, e) : check_kind(option, copy, m, e);
}

/* Reads only two bytes; the guest's kernel reads the rest. */
static int check_ext4(const char *source, const char *path, struct err *e)
{
    enum { EXT4_MAGIC_AT = 1024 + 56 };
    uint8_t magic[2] = {0};
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_sys(e, errno, "cannot read '%s'", source);
    if (pread(fd, magic, sizeof(magic), EXT4_MAGIC_AT) == sizeof(magic) && magic[0] == 0x53 &&
        magic[1] == 0xef)
        return 0;
    return err_hinted(e, err_set(e, EINVAL, "'%s' does not contain an ext4 file system", source),
                      "make one: mkfs.ext4 %s", source);
}

int root_disk_file_option(struct sandbox_spec *s, const char *arg, struct err *e)
{
    AUTO_FREE char *copy = strdup(arg), *fstype = NULL;
    AUTO_FREE char *path = NULL;
    struct spec_mount m = {.kind = MOUNT_DISK};
    struct parse p = {.option = "root-disk", .m = &m};
    struct stat st = {0};
    if (!copy)
        return err_oom(e);
    char *format = strstr(copy, ":format="), *type = strstr(copy, ":fstype=");
    char *rest = format ? format : type, *word;
    if (rest)
        *rest++ = '\0';
    int r = 0;
    while (r == 0 && (word = strsep(&rest, ",")))
        r = disk_word(word, &p, e);
    fstype = p.fstype;
    if (r == 0 && fstype && strcmp(fstype, "ext4") != 0)
        r = err_set(e, EINVAL, "a root disk has an ext4 file system, not %s", fstype);
    if (r == 0)
        r = mount_resolve(copy, true, &path, e);
    m.source = path;
    if (r == 0)
        r = check_disk(copy, &p, e);
    if (r == 0)
        r = check_ext4(copy, path, e);
    if (r == -ENOENT && !path)
        err_hint(e, "make one: truncate -s 8G %s && mkfs.ext4 %s", copy, copy);
    if (r < 0)
        return err_wrap(e, r, "--root-disk");
    assert(path);
    s->root_disk = ROOT_DISK_FILE;
    s->root_disk_bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    s->root_disk_file = steal_ptr(&path);
    return 0;
}

int mount_option(struct sandbox_spec *s, const char *option, const char *arg, struct err *e)
{
    AUTO_FREE char *copy = strdup(arg);
    if (!copy)
        return err_oom(e);
    struct spec_mount m = {.kind = strcmp(option, "mount-disk") == 0 ? MOUNT_DISK : MOUNT_BIND};
    struct parse p = {.option = option, .m = &m};
    int r = parse_mount(arg, &p, copy, e);
    if (r < 0)
        err_wrap(e, r, "--%s", option);
    else
        r = spec_add_mount(s, &m, e);
    free(m.source);
    free(p.fstype);
    return r;
}
