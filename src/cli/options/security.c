#include "cli/options/security.h"

#include "cli/options/env.h"

#include "proto/proto.h"
#include "util/parse.h"
#include "util/words.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

static const struct opt security_opts[] = {
    {"security", 0, "PROFILE",
     "What root may do to the guest's own kernel: anything (default); restricted: no "
     "CAP_SYS_ADMIN, no CAP_SYS_PTRACE, no new privileges; docker: three capabilities, 256 "
     "processes, scratch directories in memory",
     .choices = SECURITY_PROFILES},
    {"cap-drop", 0, "CAPABILITY", "Deny root a capability, or ALL", OPT_REPEAT},
    {"cap-add", 0, "CAPABILITY", "Let root keep a capability, or ALL; applied after --cap-drop",
     OPT_REPEAT},
    {"no-new-privileges", 0, NULL, "Let no program gain privileges (set-user-ID, sudo)"},
    {"security-opt", 0, "OPTION", "The same in Docker's spelling: no-new-privileges[:true]",
     OPT_REPEAT},
    {"pids-limit", 0, "N", "Limit on processes and threads (default: none)"},
    {"read-only", 0, NULL, "Make the root file system read-only, but not mounts"},
    {0},
};
const struct opt_group security_group = {"Guest hardening", security_opts};

static const struct opt guest_opts[] = {
    {"shm-size", 0, "SIZE", "Size of /dev/shm (default: half of the memory)"},
    {"group-add", 0, "GROUP", "Add a supplementary group to commands", OPT_REPEAT},
    {"sysctl", 0, "KEY=VALUE",
     "Set a kernel setting of the guest: net.*, kernel.shm*, vm.max_map_count and others",
     OPT_REPEAT},
    {"init", 0, "PATH|auto",
     "Run an init from the image, such as systemd, as PID 1 for commands; auto looks for one. "
     "Without a value: accepted and ignored, since PID 1 of a sandbox acts as an init anyway",
     OPT_OPTIONAL},
    {"init-arg", 0, "TEXT", "Argument for that init", OPT_REPEAT | OPT_HYPHEN},
    {"init-env", 0, "KEY[=VALUE]", "Environment variable for that init; KEY alone copies yours",
     OPT_REPEAT},
    {0},
};
const struct opt_group guest_group = {"Guest settings", guest_opts};

/* Docker's options for what msb does anyway are accepted. */
static int security_opt(const char *value, struct spec_security *s, struct err *e)
{
    bool on = word_among("no-new-privileges|no-new-privileges:true|no-new-privileges=true", value);
    if (on || word_among("no-new-privileges:false|no-new-privileges=false", value)) {
        s->no_new_privs = on;
        return 0;
    }
    if (word_among("seccomp=unconfined|apparmor=unconfined|label=disable|label:disable|"
                   "systempaths=unconfined",
                   value))
        return 0;
    return err_hinted(e, err_set(e, EINVAL, "unsupported --security-opt '%.64s'", value),
                      "expected no-new-privileges[:true]; there is no AppArmor, SELinux or seccomp "
                      "profile in a guest: see --security and --cap-drop");
}

static int pids_option(const struct args *a, const char *v, struct spec_security *s, struct err *e)
{
    uint64_t n = 0;
    if (strcmp(v, "-1") != 0 && (parse_u64(v, &n) < 0 || n > SPEC_PIDS_MAX))
        return args_bad_value(a, "pids-limit", v, "expected a number of processes; 0 is no limit",
                              e);
    s->pids = (uint32_t)n;
    return 0;
}

static int shm_option(const struct args *a, const char *v, struct sandbox_spec *s, struct err *e)
{
    uint64_t size;
    if (parse_size(v, MIB, &size) < 0 || size == 0)
        return args_bad_value(a, "shm-size", v, PARSE_SIZE_EXAMPLES, e);
    for (size_t i = 0; i < s->n_mounts; i++)
        if (strcmp(s->mounts[i].guest, "/dev/shm") == 0 && s->mounts[i].kind == MOUNT_TMPFS) {
            s->mounts[i].size = size;
            return 0;
        }
    struct spec_mount m = {.kind = MOUNT_TMPFS,
                           .guest = (char *)(uintptr_t) "/dev/shm",
                           .size = size,
                           .options = PROTO_MOUNT_NOSUID | PROTO_MOUNT_NODEV | PROTO_MOUNT_NOEXEC};
    return spec_add_mount(s, &m, e);
}

static int one_option(const struct args *a, const struct arg_opt *o, struct sandbox_spec *s,
                      struct err *e)
{
    const char *name = o->opt->name;
    struct spec_security *sec = &s->security;
    if (strcmp(name, "no-new-privileges") == 0)
        sec->no_new_privs = true;
    else if (strcmp(name, "read-only") == 0)
        sec->read_only = true;
    else if (strcmp(name, "security-opt") == 0)
        return security_opt(o->value, sec, e);
    else if (strcmp(name, "pids-limit") == 0)
        return pids_option(a, o->value, sec, e);
    else if (strcmp(name, "shm-size") == 0)
        return shm_option(a, o->value, s, e);
    else if (strcmp(name, "group-add") == 0)
        return spec_add_group(sec, o->value, e);
    else if (strcmp(name, "sysctl") == 0)
        return spec_add_sysctl(sec, o->value, e);
    else if (strcmp(name, "init") == 0 && o->value)
        return spec_init_set_path(&s->init, o->value, e);
    else if (strcmp(name, "init-arg") == 0)
        return strlist_add(&s->init.args, o->value) < 0 ? err_oom(e) : 0;
    else if (strcmp(name, "init-env") == 0)
        return env_option(&s->init.env, o->value, e);
    return 0;
}

/* All values of --cap-drop or --cap-add; *all if ALL is among them. */
static int collect_caps(const struct args *a, const char *name, uint64_t *bits, bool *all,
                        struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < a->n_opts; i++) {
        uint64_t cap = 0;
        if (strcmp(a->opts[i].opt->name, name) != 0)
            continue;
        r = spec_parse_cap(a->opts[i].value, &cap, e);
        if (r == 0 && cap == SPEC_CAPS_ALL)
            *all = true;
        else
            *bits |= cap;
    }
    return r < 0 ? err_wrap(e, r, "--%s", name) : 0;
}

static int cap_options(const struct args *a, struct spec_security *s, struct err *e)
{
    uint64_t drop = 0, add = 0;
    bool drop_all = false, add_all = false;
    int r = collect_caps(a, "cap-drop", &drop, &drop_all, e);
    if (r == 0)
        r = collect_caps(a, "cap-add", &add, &add_all, e);
    if (r < 0)
        return r;
    s->caps = drop_all ? 0 : s->caps;
    s->caps = ((add_all ? SPEC_CAPS_ALL : s->caps) & ~drop) | add;
    return 0;
}

int security_options(const struct args *a, struct sandbox_spec *s, struct err *e)
{
    for (size_t i = 0; i < a->n_opts; i++)
        if (strcmp(a->opts[i].opt->name, "security") == 0) /* one of its choices */
            (void)spec_security_set_profile(&s->security, a->opts[i].value);
    int r = cap_options(a, &s->security, e);
    for (size_t i = 0; r == 0 && i < a->n_opts; i++)
        r = one_option(a, &a->opts[i], s, e);
    return r;
}
