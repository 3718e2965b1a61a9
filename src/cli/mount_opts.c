#include "cli/mount_opts.h"

#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int no_memory(struct err *e)
{
    return err_set(e, ENOMEM, "out of memory");
}

/* --- options --------------------------------------------------------------------------------- */

/* What was given already, beside the flags, whose bits are those of proto_mount_option. */
enum {
    SEEN_SIZE = 1 << 8,
    SEEN_QUOTA = 1 << 9,
    SEEN_CACHE = 1 << 10,
    SEEN_UID = 1 << 11,
    SEEN_GID = 1 << 12,
    SEEN_OTHER = 1 << 13
};

static int once(const char *word, uint32_t what, uint32_t *seen, struct err *e)
{
    if (*seen & what)
        return err_set(e, EINVAL, "mount option '%s' repeats or contradicts another", word);
    *seen |= what;
    return 0;
}

/* ro, rw, noexec ...: 1 if the word is none of these. */
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

/* What other programs can choose, and what of it is so here in any case. */
static int fixed_option(const char *word, uint32_t *seen, struct err *e)
{
    static const char *const ours[] = {"stat-virt=strict", "host-perms=mirror",
                                       "follow-root-symlinks"};
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (strcmp(word, ours[i]) == 0)
            return 0;
    if (strncmp(word, "stat-virt=", 10) == 0 || strncmp(word, "host-perms=", 11) == 0)
        return err_set(e, ENOSYS, "mount option '%s' is not available yet (only %s is)", word,
                       word[0] == 's' ? ours[0] : ours[1]);
    (void)seen;
    return 1;
}

static int share_word(const char *word, struct spec_mount *m, uint32_t *seen, struct err *e)
{
    const char *value = strchr(word, '=');
    value = value ? value + 1 : "";
    int r = fixed_option(word, seen, e);
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
                   "unsupported mount option '%s' (there are ro, rw, noexec, nosuid, nodev, "
                   "cache=auto|none|always, uid=N,gid=N, quota=SIZE)",
                   word);
}

static int tmpfs_word(const char *word, struct spec_mount *m, uint32_t *seen, struct err *e)
{
    if (strncmp(word, "size=", 5) == 0) {
        int r = once(word, SEEN_SIZE, seen, e);
        return r < 0 ? r : size_value(word, word + 5, &m->size, e);
    }
    return err_set(e, EINVAL, "unsupported mount option '%s' (there are ro, noexec, nosuid, nodev)",
                   word);
}

/* A list with commas. */
static int words(char *list, struct spec_mount *m, uint32_t *seen, struct err *e)
{
    char *word;
    while ((word = strsep(&list, ","))) {
        int r = flag_option(word, m, seen, e);
        if (r > 0)
            r = m->kind == MOUNT_TMPFS ? tmpfs_word(word, m, seen, e)
                                       : share_word(word, m, seen, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* --- tmpfs ----------------------------------------------------------------------------------- */

static int tmpfs_parts(char *rest, struct spec_mount *m, struct err *e)
{
    uint32_t seen = 0;
    char *part;
    while ((part = strsep(&rest, ":"))) {
        int r;
        if (!(seen & SEEN_SIZE) && *part >= '0' && *part <= '9') {
            if (parse_size(part, MIB, &m->size) < 0)
                return err_set(e, EINVAL, "invalid size '%s': %s", part, PARSE_SIZE_EXAMPLES);
            seen |= SEEN_SIZE;
            r = 0;
        } else {
            r = words(part, m, &seen, e);
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
        return no_memory(e);
    struct spec_mount m = {.kind = MOUNT_TMPFS};
    char *rest = copy;
    m.guest = strsep(&rest, ":");
    int r = rest ? tmpfs_parts(rest, &m, e) : 0;
    if (r < 0)
        return err_wrap(e, "--tmpfs '%s'", arg);
    return spec_add_mount(s, &m, e);
}

/* --- host directories and files -------------------------------------------------------------- */

/* The first colon before a slash: what comes before may have colons, too. */
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

/* Absolute, without symbolic links: a path that has one later was tampered with. */
static int resolve(const char *source, char **ret, struct err *e)
{
    AUTO_FREE char *path = NULL;
    const char *home = getenv("HOME");
    if (source[0] == '~' && (source[1] == '\0' || source[1] == '/')) {
        if (!home || home[0] != '/')
            return err_set(e, ENOENT, "'%s': HOME is not set", source);
        if (asprintf(&path, "%s%s", home, source + 1) < 0)
            return no_memory(e);
    }
    *ret = realpath(path ? path : source, NULL);
    if (*ret)
        return 0;
    int code = errno;
    err_sys(e, code, "cannot mount '%s'", source);
    if (code == ENOENT)
        err_hint(e, "it must exist on the host: mkdir -p %s", source);
    return -code;
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

/* SOURCE:DEST,ro is how it was once written. */
static int check_comma(const char *source, const char *dest, struct err *e)
{
    const char *comma = strchr(dest, ',');
    if (!comma)
        return 0;
    err_set(e, EINVAL, "mount options come after a colon, not a comma: '%s:%s'", source, dest);
    err_hint(e, "write it as '%s:%.*s:%s'", source, (int)(comma - dest), dest, comma + 1);
    return -EINVAL;
}

static int parse_mount(const char *option, const char *arg, struct spec_mount *m, char *copy,
                       struct err *e)
{
    uint32_t seen = 0;
    char *rest = split_source(copy);
    if (!rest) {
        err_set(e, EINVAL, "expected SOURCE:DEST[:OPTIONS] with an absolute DEST: got '%s'", arg);
        err_hint(e, "such as ./src:/work or ~/data:/data:ro");
        return -EINVAL;
    }
    m->guest = strsep(&rest, ":");
    int r = check_comma(copy, m->guest, e);
    if (r == 0 && rest)
        r = words(rest, m, &seen, e);
    if (r < 0)
        return r;
    if (!(seen & SEEN_UID) != !(seen & SEEN_GID))
        return err_set(e, EINVAL, "uid= and gid= go together");
    bool named = strcmp(option, "mount-named") == 0;
    if (named || (strcmp(option, "volume") == 0 && !is_path(copy))) {
        m->kind = MOUNT_NAMED;
        m->source = strdup(copy);
        return m->source ? 0 : no_memory(e);
    }
    r = resolve(copy, &m->source, e);
    return r < 0 ? r : check_kind(option, copy, m, e);
}

int mount_option(struct sandbox_spec *s, const char *option, const char *arg, struct err *e)
{
    AUTO_FREE char *copy = strdup(arg);
    if (!copy)
        return no_memory(e);
    struct spec_mount m = {.kind = MOUNT_BIND};
    int r = parse_mount(option, arg, &m, copy, e);
    if (r < 0)
        err_wrap(e, "--%s", option);
    else
        r = spec_add_mount(s, &m, e);
    free(m.source);
    return r;
}
