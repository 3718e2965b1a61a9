/* Write paths: the only parts of the guest that may be written, if there are any. The guest's
 * kernel enforces them; a share outside all of them is also read-only for its server. */
#include "spec/spec.h"

#include "proto/proto.h"
#include "util/cleanup.h"

#include <errno.h>
#include <string.h>

bool spec_path_within(const char *path, const char *dir)
{
    size_t n = strcmp(dir, "/") == 0 ? 0 : strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

int spec_add_write_path(struct sandbox_spec *s, const char *path, struct err *e)
{
    static const char *const ours[] = {"/proc", "/sys", "/dev", "/.msb"};
    AUTO_FREE char *clean = spec_guest_path(path);
    if (!clean)
        return err_set(e, EINVAL, "invalid config: write path must be absolute, without '..': %s",
                       path);
    if (strcmp(clean, "/") == 0)
        return err_hinted(
            e, err_set(e, EINVAL, "invalid config: the write path / would restrict nothing"),
            "without --write-path all of the guest is writable");
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (spec_path_within(clean, ours[i]))
            return err_set(e, EINVAL,
                           "invalid config: %s is set up by msb and cannot be a write path", clean);
    if (strlist_has(&s->write_paths, clean))
        return 0;
    if (s->write_paths.n >= SPEC_WRITE_PATHS_MAX)
        return err_set(e, E2BIG, "invalid config: at most %d write paths", SPEC_WRITE_PATHS_MAX);
    return strlist_add(&s->write_paths, clean) < 0 ? err_oom(e) : 0;
}

void spec_protect_mounts(struct sandbox_spec *s)
{
    /* A read-only root leaves mounts as requested. */
    bool all = s->write_paths.n == 0 || s->security.read_only;
    for (size_t i = 0; !all && i < s->n_mounts; i++) {
        struct spec_mount *m = &s->mounts[i];
        bool written = false;
        for (size_t j = 0; !written && j < s->write_paths.n; j++)
            written = spec_path_within(m->guest, s->write_paths.v[j]) ||
                      spec_path_within(s->write_paths.v[j], m->guest);
        if (!written)
            m->options |= PROTO_MOUNT_RO;
    }
}
