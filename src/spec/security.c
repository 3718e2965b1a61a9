#include "spec/security.h"

#include "proto/proto.h"
#include "spec/read.h"
#include "spec/spec.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "util/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { GROUP_TEXT_MAX = 64, SYSCTL_TEXT_MAX = 256 };

/* By number, as in <linux/capability.h>. */
static const char *const cap_names[SPEC_CAP_COUNT] = {
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
};
enum { CAP_CHOWN = 0, CAP_DAC_OVERRIDE = 1, CAP_FOWNER = 3 };
#define BIT(n) (UINT64_C(1) << (n))

static const struct {
    const char *name;
    uint64_t caps;
    bool no_new_privs;
    uint32_t pids;
} profiles[] = {
    [SECURITY_DEFAULT] = {"default", SPEC_CAPS_ALL, false, 0},
    /* Whoever may trace the agent has what it has (docs/security.md). */
    [SECURITY_RESTRICTED] = {"restricted",
                             SPEC_CAPS_ALL & ~SPEC_CAP_SYS_ADMIN & ~SPEC_CAP_SYS_PTRACE, true, 0},
    [SECURITY_DOCKER] = {"docker", BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER), true,
                         256},
};

void spec_security_init(struct spec_security *s)
{
    *s = (struct spec_security){.caps = SPEC_CAPS_ALL};
}

void spec_security_free(struct spec_security *s)
{
    strlist_free(&s->groups);
    strlist_free(&s->sysctls);
    spec_security_init(s);
}

const char *security_profile_name(enum security_profile p)
{
    return profiles[p].name;
}

bool spec_security_set_profile(struct spec_security *s, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(profiles); i++)
        if (strcmp(name, profiles[i].name) == 0) {
            s->profile = (enum security_profile)i;
            s->caps = profiles[i].caps;
            s->no_new_privs = profiles[i].no_new_privs;
            s->pids = profiles[i].pids;
            return true;
        }
    return false;
}

static bool is_default(const struct spec_security *s)
{
    return s->caps == SPEC_CAPS_ALL && !s->no_new_privs && !s->read_only && s->pids == 0;
}

/* --- capabilities ---------------------------------------------------------------------------- */

int spec_parse_cap(const char *name, uint64_t *ret, struct err *e)
{
    const char *plain = strncasecmp(name, "CAP_", 4) == 0 ? name + 4 : name;
    if (strcasecmp(name, "ALL") == 0) {
        *ret = SPEC_CAPS_ALL;
        return 0;
    }
    for (size_t i = 0; i < SPEC_CAP_COUNT; i++)
        if (strcasecmp(plain, cap_names[i]) == 0) {
            *ret = BIT(i);
            return 0;
        }
    return err_hinted(e, err_set(e, EINVAL, "unknown capability '%.64s'", name),
                      "expected ALL or a name from capabilities(7), such as NET_RAW or CAP_CHOWN");
}

void spec_caps_format(uint64_t caps, char out[SPEC_CAPS_TEXT_MAX])
{
    size_t n = 0;
    (void)snprintf(out, SPEC_CAPS_TEXT_MAX, caps == SPEC_CAPS_ALL ? "all" : "none");
    for (size_t i = 0; caps != SPEC_CAPS_ALL && i < SPEC_CAP_COUNT; i++)
        if (caps & BIT(i))
            n += (size_t)snprintf(out + n, SPEC_CAPS_TEXT_MAX - n, "%s%s", n ? "," : "",
                                  cap_names[i]);
}

/* --- groups and settings --------------------------------------------------------------------- */

int spec_add_group(struct spec_security *s, const char *group, struct err *e)
{
    bool ok = *group && strlen(group) <= GROUP_TEXT_MAX;
    for (const char *p = group; ok && *p; p++)
        ok = ascii_alnum(*p) || strchr("._-", *p);
    if (!ok)
        return err_set(e, EINVAL, "invalid group '%.64s': expected a name or a number", group);
    if (strlist_has(&s->groups, group))
        return 0;
    if (s->groups.n >= SPEC_GROUPS_MAX)
        return err_set(e, E2BIG, "invalid config: at most %d additional groups", SPEC_GROUPS_MAX);
    return strlist_add(&s->groups, group) < 0 ? err_oom(e) : 0;
}

/* Settings that programs are known to need, and that only affect the guest's own resources. A name
 * that ends in a dot stands for everything below it. */
static const char *const sysctls[] = {
    "fs.file-max",          "fs.inotify.",        "fs.mqueue.",    "fs.nr_open",
    "kernel.msgmax",        "kernel.msgmnb",      "kernel.msgmni", "kernel.sem",
    "kernel.shm",           "kernel.threads-max", "net.",          "vm.max_map_count",
    "vm.overcommit_memory", "vm.swappiness",
};

static bool is_settable(const char *key, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(sysctls); i++) {
        size_t len = strlen(sysctls[i]);
        bool family = sysctls[i][len - 1] == '.' || strcmp(sysctls[i], "kernel.shm") == 0;
        if ((family ? n > len : n == len) && strncmp(key, sysctls[i], len) == 0)
            return true;
    }
    return false;
}

int spec_add_sysctl(struct spec_security *s, const char *arg, struct err *e)
{
    size_t n = strcspn(arg, "=");
    bool ok = arg[n] && arg[n + 1] && strlen(arg) <= SYSCTL_TEXT_MAX && arg[n - !!n] != '.';
    for (size_t i = 0; ok && i < n; i++)
        ok = ascii_alnum(arg[i]) || strchr("_-", arg[i]) ||
             (arg[i] == '.' && i > 0 && arg[i - 1] != '.');
    for (const char *p = arg + n; ok && *p; p++)
        ok = *p == '\t' || (*p >= ' ' && *p < 0x7f);
    if (!ok || n == 0)
        return err_set(e, EINVAL, "invalid setting '%.64s': expected KEY=VALUE, such as %s", arg,
                       "net.core.somaxconn=1024");
    if (!is_settable(arg, n))
        return err_hinted(
            e, err_set(e, EINVAL, "the setting '%.*s' cannot be set with --sysctl", (int)n, arg),
            "allowed are net.*, fs.mqueue.*, fs.inotify.*, kernel.msg*, kernel.sem, "
            "kernel.shm*, vm.max_map_count and a few more; root can set others inside");
    if (s->sysctls.n >= SPEC_SYSCTLS_MAX)
        return err_set(e, E2BIG, "invalid config: at most %d settings (--sysctl)",
                       SPEC_SYSCTLS_MAX);
    return strlist_set_env(&s->sysctls, arg) < 0 ? err_oom(e) : 0;
}

/* --- text and JSON --------------------------------------------------------------------------- */

char *spec_security_text(const struct spec_security *s)
{
    char caps[SPEC_CAPS_TEXT_MAX], pids[32] = "any number of";
    char *out;
    spec_caps_format(s->caps, caps);
    if (s->pids)
        (void)snprintf(pids, sizeof(pids), "%u", s->pids);
    int r = asprintf(&out, "%s; capabilities %s; %snew privileges; %s processes%s",
                     profiles[s->profile].name, caps, s->no_new_privs ? "no " : "", pids,
                     s->read_only ? "; read-only" : "");
    return r < 0 ? NULL : out;
}

static json_t *caps_json(uint64_t caps)
{
    if (caps == SPEC_CAPS_ALL)
        return json_null();
    json_t *a = json_array();
    for (size_t i = 0; i < SPEC_CAP_COUNT; i++)
        if (caps & BIT(i))
            json_add(&a, json_string(cap_names[i]));
    return a;
}

json_t *spec_security_to_json(const struct spec_security *s)
{
    return json_pack("{s:s, s:o, s:b, s:b, s:o, s:o, s:o}", "profile", profiles[s->profile].name,
                     "capabilities", caps_json(s->caps), "no_new_privileges", s->no_new_privs,
                     "read_only", s->read_only, "pids_limit",
                     s->pids ? json_integer(s->pids) : json_null(), "groups",
                     json_list(s->groups.v), "sysctls", json_list(s->sysctls.v));
}

static int read_caps(struct spec_security *s, const json_t *o, struct err *e)
{
    AUTO_STRLIST struct strlist names = {0};
    int r = read_list(o, "capabilities", &names, e);
    if (r < 0 || !member(o, "capabilities"))
        return r;
    s->caps = 0;
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        uint64_t bits = 0;
        r = spec_parse_cap(names.v[i], &bits, e);
        s->caps |= bits;
    }
    return r;
}

static int read_each(struct spec_security *s, const json_t *o, const char *key,
                     int (*add)(struct spec_security *, const char *, struct err *), struct err *e)
{
    AUTO_STRLIST struct strlist l = {0};
    int r = read_list(o, key, &l, e);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = add(s, l.v[i], e);
    return r;
}

int spec_security_from_json(struct spec_security *s, const json_t *j, struct err *e)
{
    const json_t *o;
    uint64_t pids = 0;
    int r = read_object(j, "security", &o, e);
    if (r < 0)
        return r;
    const json_t *profile = o ? member(o, "profile") : member(j, "security_profile");
    const char *name = plain_text(profile);
    if (profile && (!name || !spec_security_set_profile(s, name)))
        return bad(e, "security_profile");
    if (!o) /* a spec that only names a profile gets what that says */
        return 0;
    s->caps = SPEC_CAPS_ALL;
    s->no_new_privs = s->read_only = false;
    r = read_caps(s, o, e);
    if (r == 0)
        r = read_bool(o, "no_new_privileges", &s->no_new_privs, e);
    if (r == 0)
        r = read_bool(o, "read_only", &s->read_only, e);
    if (r == 0)
        r = read_u64(o, "pids_limit", &pids, e);
    if (r == 0 && pids > SPEC_PIDS_MAX)
        return bad(e, "pids_limit");
    s->pids = (uint32_t)pids;
    if (r == 0)
        r = read_each(s, o, "groups", spec_add_group, e);
    return r < 0 ? r : read_each(s, o, "sysctls", spec_add_sysctl, e);
}

/* --- mounts of a profile --------------------------------------------------------------------- */

/* Directories in memory, like those that agents request to harden `docker run`; the later ones only
 * if nothing is to be kept. */
static const struct {
    const char *path;
    uint64_t size;
    uint32_t options;
    bool passing;
} scratch[] = {
    {"/tmp", 512 * MIB, PROTO_MOUNT_NOSUID, false},
    {"/var/tmp", 256 * MIB, PROTO_MOUNT_NOSUID | PROTO_MOUNT_NOEXEC, false},
    {"/run", 64 * MIB, PROTO_MOUNT_NOSUID | PROTO_MOUNT_NOEXEC, false},
    {"/workspace", 10 * GIB, 0, true},
    {"/home", 1 * GIB, 0, true},
    {"/root", 1 * GIB, 0, true},
};

static bool is_mounted(const struct sandbox_spec *s, const char *path)
{
    for (size_t i = 0; i < s->n_mounts; i++)
        if (strcmp(s->mounts[i].guest, path) == 0)
            return true;
    return strcmp(path, "/workspace") == 0 && (s->workspace.name || s->workspace.path);
}

int spec_secure_mounts(struct sandbox_spec *s, struct err *e)
{
    int r = 0;
    for (size_t i = 0; s->security.profile == SECURITY_DOCKER && i < ARRAY_LEN(scratch); i++) {
        struct spec_mount m = {.kind = MOUNT_TMPFS,
                               .guest = (char *)(uintptr_t)scratch[i].path,
                               .size = scratch[i].size,
                               .options = scratch[i].options};
        if (r == 0 && (s->ephemeral || !scratch[i].passing) && !is_mounted(s, m.guest))
            r = spec_add_mount(s, &m, e);
    }
    for (size_t i = 0; s->security.profile == SECURITY_RESTRICTED && i < s->n_mounts; i++)
        s->mounts[i].options |= PROTO_MOUNT_NOSUID | PROTO_MOUNT_NODEV;
    return r;
}

bool spec_is_restricted(const struct sandbox_spec *s)
{
    return s->write_paths.n > 0 || !is_default(&s->security);
}

bool spec_is_sealed(const struct sandbox_spec *s)
{
    return s->init.path || spec_is_restricted(s);
}
