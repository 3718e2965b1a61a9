/* Mounts in the guest: each is checked when it is added; parents come first. */
#include "spec/spec.h"

#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/text.h"
#include "util/words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_TEXT_MAX = 4095, LAST_WRITES_MS = 1000 };

char *spec_guest_path(const char *path)
{
    if (path[0] != '/' || strlen(path) > PATH_TEXT_MAX || !utf8_valid(path))
        return NULL;
    char *out = calloc(1, strlen(path) + 2);
    if (!out)
        return NULL;
    size_t n = 0;
    while (*path) {
        while (*path == '/')
            path++;
        size_t len = strcspn(path, "/");
        if (len == 2 && path[0] == '.' && path[1] == '.') {
            free(out);
            return NULL;
        }
        if (len > 0 && !(len == 1 && path[0] == '.')) {
            out[n++] = '/';
            memcpy(out + n, path, len);
            n += len;
        }
        path += len;
    }
    if (n == 0)
        out[n++] = '/';
    out[n] = '\0';
    return out;
}

/* A container runtime also mounts its own files in /dev. */
static bool may_cover(const struct sandbox_spec *s, const char *path)
{
    return strcmp(path, "/dev/shm") == 0 ||
           (s->root_share && spec_path_within(path, "/dev") && strcmp(path, "/dev") != 0 &&
            !spec_path_within(path, "/dev/pts"));
}

static int check_target(const struct sandbox_spec *s, const char *path, struct err *e)
{
    static const char *const ours[] = {"/proc", "/sys", "/dev", "/.msb"};
    if (strcmp(path, "/") == 0 && !s->root_share)
        return err_set(e, EINVAL, "invalid config: cannot mount a volume at guest root /");
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (spec_path_within(path, ours[i]) && !may_cover(s, path))
            return err_set(e, EINVAL,
                           "invalid config: %s is set up by msb; mount elsewhere than %s", ours[i],
                           path);
    for (size_t i = 0; i < s->n_mounts; i++)
        if (strcmp(s->mounts[i].guest, path) == 0)
            return err_set(e, EINVAL, "invalid config: two mounts on the same guest path: %s",
                           path);
    return 0;
}

bool mount_is_disk(const struct spec_mount *m)
{
    return m->kind == MOUNT_DISK || (m->kind == MOUNT_NAMED && m->disk);
}

bool mount_is_share(const struct spec_mount *m)
{
    return m->kind != MOUNT_TMPFS && !mount_is_disk(m);
}

uint64_t spec_last_writes_ms(const struct sandbox_spec *s)
{
    if (s->root_disk == ROOT_DISK_FILE)
        return LAST_WRITES_MS;
    for (size_t i = 0; i < s->n_mounts; i++)
        if (s->mounts[i].kind != MOUNT_TMPFS && !(s->mounts[i].options & PROTO_MOUNT_RO))
            return LAST_WRITES_MS;
    return 0;
}

enum disk_sync spec_disk_sync(const struct sandbox_spec *s)
{
    if (s->disk_sync != DISK_SYNC_AUTO)
        return s->disk_sync;
    return s->ephemeral && s->root_disk != ROOT_DISK_FILE ? DISK_SYNC_NEVER : DISK_SYNC_ALWAYS;
}

bool mount_fstype_known(const char *fstype)
{
    return word_among("ext4|ext3|ext2|erofs", fstype);
}

static int check_room(const struct sandbox_spec *s, const struct spec_mount *m, struct err *e)
{
    size_t shares = m->kind != MOUNT_TMPFS;
    for (size_t i = 0; i < s->n_mounts; i++)
        shares += s->mounts[i].kind != MOUNT_TMPFS;
    if (shares > SPEC_SHARES_MAX && !s->in_pod)
        return err_set(e, E2BIG, "invalid config: at most %d host directories, files and disks",
                       SPEC_SHARES_MAX);
    if (s->n_mounts >= SPEC_MOUNTS_MAX)
        return err_set(e, E2BIG, "invalid config: at most %d mounts", SPEC_MOUNTS_MAX);
    return 0;
}

/* One guest cannot mount the same disk twice: its file system has a single writer. */
static int check_disk(const struct sandbox_spec *s, const struct spec_mount *m, struct err *e)
{
    if (m->fstype && !mount_fstype_known(m->fstype))
        return err_set(e, EINVAL, "invalid config: %s: unknown file system '%.32s' (expected: %s)",
                       m->guest, m->fstype, MOUNT_FSTYPES);
    if (m->qcow2 && !(m->options & PROTO_MOUNT_RO))
        return err_set(e, EINVAL, "invalid config: %s: a qcow2 image is mounted read-only (ro)",
                       m->guest);
    if (m->quota || m->uid || m->gid || m->cache || m->file)
        return err_set(e, EINVAL,
                       "invalid config: %s: quota=, uid=, gid= and cache= are for host "
                       "directories, not for disks",
                       m->guest);
    for (size_t i = 0; m->source && i < s->n_mounts; i++)
        if (s->mounts[i].kind == m->kind && strcmp(s->mounts[i].source, m->source) == 0)
            return err_set(e, EINVAL, "invalid config: disk '%s' is mounted twice, on %s and on %s",
                           m->source, s->mounts[i].guest, m->guest);
    return 0;
}

static int check_source(const struct sandbox_spec *s, const struct spec_mount *m, struct err *e)
{
    if (m->kind == MOUNT_TMPFS)
        return 0;
    int r = mount_is_disk(m) ? check_disk(s, m, e) : 0;
    if (r < 0)
        return r;
    if (m->kind == MOUNT_NAMED)
        return volume_check_name(m->source ? m->source : "", e);
    if (!m->source || m->source[0] != '/' || strlen(m->source) > PATH_TEXT_MAX)
        return err_set(e, EINVAL,
                       "invalid config: the source of the mount on %s must be an absolute path",
                       m->guest);
    if (!utf8_valid(m->source))
        return err_set(e, EINVAL, "invalid config: the source of the mount on %s is not UTF-8",
                       m->guest);
    if (m->file && m->quota)
        return err_set(e, EINVAL, "invalid config: %s: a quota is for directories", m->guest);
    return 0;
}

int spec_add_mount(struct sandbox_spec *s, const struct spec_mount *m, struct err *e)
{
    const uint32_t known = PROTO_MOUNT_RO | PROTO_MOUNT_NOEXEC | PROTO_MOUNT_NOSUID |
                           PROTO_MOUNT_NODEV | (m->kind == MOUNT_TMPFS ? PROTO_MOUNT_COPY : 0);
    if (m->guest[0] != '/')
        return err_set(e, EINVAL, "invalid config: guest mount path must be absolute: %s",
                       m->guest);
    AUTO_FREE char *guest = spec_guest_path(m->guest);
    if (!guest)
        return err_set(e, EINVAL, "invalid config: not a usable guest mount path: %s", m->guest);
    int r = check_target(s, guest, e);
    if (r == 0)
        r = check_source(s, m, e);
    if (r == 0)
        r = check_room(s, m, e);
    if (r < 0)
        return r;
    if (m->size > INT64_MAX || m->quota > INT64_MAX || (m->options & ~known))
        return err_set(e, EINVAL, "invalid config: mount on %s: size or options out of range",
                       m->guest);
    AUTO_FREE char *source = m->source ? strdup(m->source) : NULL;
    AUTO_FREE char *fstype = m->fstype ? strdup(m->fstype) : NULL;
    struct spec_mount *more = reallocarray(s->mounts, s->n_mounts + 1, sizeof(*more));
    if (more)
        s->mounts = more;
    if (!more || (m->source && !source) || (m->fstype && !fstype))
        return err_oom(e);
    size_t at = s->n_mounts++;
    for (; at > 0 && strcmp(more[at - 1].guest, guest) > 0; at--)
        more[at] = more[at - 1];
    more[at] = *m;
    more[at].guest = steal_ptr(&guest);
    more[at].source = steal_ptr(&source);
    more[at].fstype = steal_ptr(&fstype);
    return 0;
}

static const char *const cache_names[] = {
    [MOUNT_CACHE_AUTO] = "auto",
    [MOUNT_CACHE_NONE] = "none",
    [MOUNT_CACHE_ALWAYS] = "always",
};

const char *mount_cache_name(enum mount_cache c)
{
    return cache_names[c];
}

bool mount_cache_parse(const char *s, enum mount_cache *ret)
{
    int i = WORD_FIND(cache_names, s);
    if (i >= 0)
        *ret = (enum mount_cache)i;
    return i >= 0;
}
