/* From the command line of `create` and `run` to a spec. */
#include "cli/options/sandbox.h"

#include "cli/core/ui.h"
#include "cli/options/copy.h"
#include "cli/options/env.h"
#include "cli/options/mount.h"
#include "cli/options/net.h"
#include "cli/options/resource.h"
#include "cli/options/tls.h"
#include "cli/options/traffic.h"
#include "cli/options/workspace.h"
#include "image/image.h"
#include "policy/rulebook.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* --- single values -------------------------------------------------------------------------- */

static int text_option(const struct args *a, const char *name, char **to, struct err *e)
{
    const char *v = args_get(a, name);
    if (!v)
        return 0;
    if (!*v)
        return args_bad_value(a, name, v, "must not be empty", e);
    *to = strdup(v);
    return *to ? 0 : err_oom(e);
}

static int time_option(const struct args *a, const char *name, uint64_t *ms, struct err *e)
{
    const char *v = args_get(a, name);
    if (!v)
        return 0;
    int r = parse_duration_ms(v, ms);
    return r < 0
               ? args_bad_value(a, name, v, r == -ERANGE ? "too long" : PARSE_DURATION_EXAMPLES, e)
               : 0;
}

/* A bad number is a usage error. */
static int numbers(const struct args *a, struct sandbox_request *q, struct err *e)
{
    struct sandbox_spec *s = &q->spec;
    int r = cpus_option(a, "cpus", &s->cpus, e);
    if (r >= 0)
        r = cpus_option(a, "max-cpus", &s->max_cpus, e);
    if (r < 0) {
        q->exit_code = EXIT_USAGE;
        return r;
    }
    r = memory_option(a, "memory", &s->memory_mib, e);
    if (r >= 0)
        r = memory_option(a, "max-memory", &s->max_memory_mib, e);
    return MIN(r, 0);
}

static int root_disk_option(const struct args *a, struct sandbox_spec *s, struct err *e)
{
    const char *v = args_get(a, "root-disk");
    if (!v)
        return 0;
    const char *size = v;
    if (strncmp(v, "tmpfs", 5) == 0 && (v[5] == '\0' || v[5] == ':')) {
        s->root_disk = ROOT_DISK_TMPFS;
        s->root_disk_bytes = 0;
        if (v[5] == '\0')
            return 0;
        size = v + 6;
    } else if (strncmp(v, "flat", 4) == 0 && (v[4] == '\0' || strchr(":,", v[4]))) {
        return err_hinted(e, err_set(e, ENOSYS, "--root-disk %s is not available yet", v),
                          "use a size such as 8G, tmpfs[:SIZE] or an ext4 image's path");
    } else if (strchr("./~", v[0]) || strchr(v, '/')) {
        return root_disk_file_option(s, v, e);
    }
    int r = parse_size(size, MIB, &s->root_disk_bytes);
    if (r == 0 && s->root_disk_bytes == 0)
        r = -EINVAL;
    return r < 0
               ? args_bad_value(
                     a, "root-disk", v,
                     r == -ERANGE
                         ? "too large"
                         : "expected a size such as 8G, tmpfs[:SIZE], or the path of an ext4 image",
                     e)
               : 0;
}

static int engine_option(const struct args *a, struct sandbox_spec *s, struct err *e)
{
    const char *v = args_get(a, "engine");
    const char *env = getenv("MSB_ENGINE");
    if (!v && (!env || !*env))
        return 0;
    s->engine = engine_kind_parse(v ? v : env);
    if (s->engine == ENGINE_INVALID) /* from the environment: the option has fixed choices */
        return err_set(e, EINVAL, "invalid MSB_ENGINE '%s': expected auto, kvm, uml or uml-ptrace",
                       env);
    return 0;
}

/* --- scripts -------------------------------------------------------------------------------- */

/* Decodes in place; unknown escapes are kept. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        static const char from[] = "ntr\\\"'", into[] = "\n\t\r\\\"'";
        const char *at = s[0] == '\\' && s[1] ? strchr(from, s[1]) : NULL;
        if (at) {
            *to++ = into[at - from];
            s++;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

/* The body with a #! line for the sandbox's shell, if it has none, and a newline at the end. */
static char *shell_script(const char *body, const char *shell)
{
    AUTO_FREE char *text = strdup(body);
    if (!text)
        return NULL;
    unescape(text);
    size_t n = strlen(text);
    const char *newline = n && text[n - 1] == '\n' ? "" : "\n";
    char *out;
    int r;
    if (strncmp(text, "#!", 2) == 0)
        r = asprintf(&out, "%s%s", text, newline);
    else
        r = asprintf(&out, "#!%s%s\n%s%s", shell[0] == '/' ? "" : "/usr/bin/env ", shell, text,
                     newline);
    return r < 0 ? NULL : out;
}

static int script_file(const char *path, char **ret, struct err *e)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "cannot read script file '%s'", path);
    AUTO_FREE char *text = malloc(SPEC_SCRIPT_BODY_MAX + 2);
    if (!text)
        return err_oom(e);
    size_t n = 0;
    ssize_t got;
    while ((got = read(fd, text + n, SPEC_SCRIPT_BODY_MAX + 1 - n)) != 0) {
        if (got < 0 && errno != EINTR)
            return err_sys(e, errno, "cannot read script file '%s'", path);
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = '\0';
    if (n > SPEC_SCRIPT_BODY_MAX)
        return err_set(e, EFBIG, "script file '%s' is too large: at most %d MiB", path,
                       SPEC_SCRIPT_BODY_MAX >> 20);
    if (strlen(text) != n)
        return err_set(e, EINVAL, "script file '%s' is not text", path);
    *ret = steal_ptr(&text);
    return 0;
}

static int script_option(struct sandbox_spec *s, const char *opt, const char *arg, struct err *e)
{
    bool file = strcmp(opt, "script-path") == 0;
    const char *sep = strchr(arg, file ? ':' : '=');
    if (!sep)
        return err_set(e, EINVAL, "script must be in format %s: got --%s '%.60s'",
                       file ? "NAME:PATH" : "NAME=BODY", opt, arg);
    AUTO_FREE char *name = strndup(arg, (size_t)(sep - arg));
    AUTO_FREE char *body = NULL;
    if (file) {
        int r = script_file(sep + 1, &body, e);
        if (r < 0)
            return r;
        char *real = realpath(sep + 1, NULL);
        if (!real || strlist_take(&s->script_files, real) < 0)
            return err_sys(e, errno, "cannot resolve script file '%s'", sep + 1);
    } else if (strcmp(opt, "script") == 0) {
        body = shell_script(sep + 1, s->shell ? s->shell : "/bin/sh");
    } else {
        body = strdup(sep + 1);
    }
    return name && body ? spec_add_script(s, name, body, e) : err_oom(e);
}

/* --- the request ---------------------------------------------------------------------------- */

/* Repeatable options, in the order given. The shell is known by now. */
static int repeated_option(struct sandbox_request *q, const struct arg_opt *o, struct err *e)
{
    struct sandbox_spec *s = &q->spec;
    const char *name = o->opt->name;
    if (strcmp(name, "secret-env") == 0)
        return spec_add_secret(s, o->value, e);
    if (strcmp(name, "label") == 0)
        return spec_add_label(s, o->value, e);
    if (strcmp(name, "tmpfs") == 0)
        return tmpfs_option(s, o->value, e);
    if (strcmp(name, "mount") == 0)
        return mount_words_option(s, o->value, e);
    if (strcmp(name, "volume") == 0 || strncmp(name, "mount-", 6) == 0)
        return mount_option(s, name, o->value, e);
    if (strcmp(name, "rm") == 0 && !o->value) {
        q->passing = true;
        return 0;
    }
    if (strncmp(name, "copy", 4) == 0 || strcmp(name, "mkdir") == 0 || strcmp(name, "rm") == 0)
        return copy_option(s, name, o->value, e);
    if (strcmp(name, "write-path") == 0)
        return spec_add_write_path(s, o->value, e);
    if (strcmp(name, "rlimit") == 0)
        return spec_add_rlimit(s, o->value, e);
    if (strncmp(name, "script", 6) == 0 && strcmp(name, "script-conf") != 0)
        return script_option(s, name, o->value, e);
    return 0;
}

static int replace_options(const struct args *a, struct sandbox_request *q, struct err *e)
{
    q->create.replace = args_has(a, "replace") || args_has(a, "replace-with-timeout");
    q->create.replace_grace_ms = STOP_GRACE_DEFAULT_MS;
    return time_option(a, "replace-with-timeout", &q->create.replace_grace_ms, e);
}

static int name_option(const struct args *a, struct sandbox_request *q, struct err *e)
{
    const char *name = args_get(a, "name");
    q->named = name != NULL;
    if (name) {
        q->spec.name = strdup(name);
        return q->spec.name ? spec_check_name(name, e) : err_oom(e);
    }
    uint32_t id;
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        return err_sys(e, errno, "cannot generate a name");
    return asprintf(&q->spec.name, "msb-%08x", id) < 0 ? err_oom(e) : 0;
}

/* Each has fixed choices. */
static void place_options(const struct args *a, struct sandbox_spec *s)
{
    const char *placement = args_get(a, "cpu-placement"), *thp = args_get(a, "thp");
    const char *tenancy = args_get(a, "deployment-profile");
    if (placement)
        s->placement = cpu_placement_parse(placement);
    if (thp)
        s->thp = thp_parse(thp);
    s->multi_tenant = tenancy && strcmp(tenancy, "multi-tenant") == 0;
}

static int single_options(const struct args *a, struct sandbox_request *q, struct err *e)
{
    struct sandbox_spec *s = &q->spec;
    int r = name_option(a, q, e);
    const struct {
        const char *name;
        char **to;
    } texts[] = {{"workdir", &s->workdir},
                 {"user", &s->user},
                 {"shell", &s->shell},
                 {"hostname", &s->hostname},
                 {"placement-profile", &s->placement_profile},
                 {"log-level", &s->log_level}};
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(texts); i++)
        r = text_option(a, texts[i].name, texts[i].to, e);
    if (r == 0)
        r = numbers(a, q, e);
    if (r == 0)
        r = root_disk_option(a, s, e);
    if (r == 0)
        r = engine_option(a, s, e);
    if (args_get(a, "jail")) /* the environment applies at each start */
        s->jail = jail_kind_parse(args_get(a, "jail"));
    if (r == 0)
        r = time_option(a, "max-duration", &s->max_duration_ms, e);
    if (r == 0)
        r = time_option(a, "idle-timeout", &s->idle_timeout_ms, e);
    const char *most = args_get(a, "max-output");
    if (r == 0 && most && (parse_size(most, MIB, &s->output_max) < 0 || s->output_max == 0))
        r = args_bad_value(a, "max-output", most, PARSE_SIZE_EXAMPLES, e);
    if (r == 0)
        r = replace_options(a, q, e);
    if (r == 0)
        r = workspace_options(a, s, q->named, e);
    const char *sync = args_get(a, "disk-sync");
    if (sync)
        s->disk_sync = strcmp(sync, "always") == 0  ? DISK_SYNC_ALWAYS
                       : strcmp(sync, "never") == 0 ? DISK_SYNC_NEVER
                                                    : DISK_SYNC_AUTO;
    place_options(a, s);
    return r;
}

/* Which of the settings for which a policy has defaults were given as options. */
static unsigned what_was_said(const struct args *a)
{
    static const struct {
        const char *option;
        enum spec_said said;
    } all[] = {{"cpus", SAID_CPUS},
               {"max-cpus", SAID_CPUS},
               {"memory", SAID_MEMORY},
               {"max-memory", SAID_MEMORY},
               {"root-disk", SAID_DISK},
               {"max-duration", SAID_LIFETIME},
               {"idle-timeout", SAID_IDLE},
               {"max-output", SAID_OUTPUT},
               {"net", SAID_NET},
               {"net-rule", SAID_NET},
               {"no-net", SAID_NET},
               {"network", SAID_NET},
               {"net-default", SAID_NET},
               {"net-default-egress", SAID_NET},
               {"engine", SAID_ENGINE},
               {"write-path", SAID_WRITE_PATHS},
               {"pids-limit", SAID_PROCESSES},
               {"security", SAID_SECURITY},
               {"cap-add", SAID_SECURITY},
               {"cap-drop", SAID_SECURITY}};
    unsigned said = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (args_has(a, all[i].option))
            said |= all[i].said;
    return said;
}

int sandbox_request_parse(const struct args *a, struct sandbox_request *q, struct err *e)
{
    *q = (struct sandbox_request){.image_lock = -1};
    spec_init(&q->spec);
    int r = workspace_options_check(a, e);
    bool usage = true; /* the command line is wrong, not the host */
    if (r == 0)
        r = net_options(a, &q->spec.net, e);
    if (r == 0)
        r = traffic_options(a, &q->spec.net, e);
    for (size_t i = 0; r == 0 && i < a->n_opts; i++)
        if (strcmp(a->opts[i].opt->name, "vsock") == 0)
            r = spec_vsock_add(&q->spec.vsocks, a->opts[i].value, &usage, e);
    if (r < 0) {
        q->exit_code = usage ? EXIT_USAGE : 0;
        return r;
    }
    r = single_options(a, q, e);
    if (r == 0)
        r = env_options(a, &q->spec.env, e);
    for (size_t i = 0; r == 0 && i < a->n_opts; i++)
        r = repeated_option(q, &a->opts[i], e);
    if (r == 0)
        r = security_options(a, &q->spec, e);
    if (r == 0 && !q->spec.init.path && (q->spec.init.args.n || q->spec.init.env.n)) {
        q->exit_code = EXIT_USAGE;
        r = spec_init_check(&q->spec.init, e);
    }
    if (r == 0)
        r = tls_options(a, &q->spec, e);
    if (r < 0)
        return r;
    if (q->spec.patches.n) {
        q->create.prepare = copy_prepare;
        q->create.prepare_ctx = &q->spec;
    }
    q->create.said = what_was_said(a);
    const char *image = a->n_pos ? a->pos[0] : IMAGE_BASE_REF;
    q->spec.image = strdup(image);
    return q->spec.image ? spec_validate(&q->spec, e) : err_oom(e);
}

int sandbox_request_fail(const struct sandbox_request *q, const struct err *e)
{
    if (q->exit_code == EXIT_USAGE)
        return ui_usage(e);
    int code = ui_fail(e);
    return q->exit_code ? q->exit_code : code;
}

void sandbox_request_free(struct sandbox_request *q)
{
    spec_free(&q->spec);
    close_fd(&q->image_lock);
}
