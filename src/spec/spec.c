#include "spec/spec.h"

#include "image/oci/digest.h"
#include "image/store/upper.h"
#include "spec/signals.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/parse.h"
#include "util/text.h"
#include "util/words.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

enum {
    LABEL_KEY_MAX = 256,
    LABEL_VALUE_MAX = 4096,
    SCRIPT_NAME_MAX = 255,
    PATH_TEXT_MAX = 4095,
};

void spec_init(struct sandbox_spec *s)
{
    *s = (struct sandbox_spec){
        .cpus = 1,
        .memory_mib = 512,
        .engine = ENGINE_AUTO,
        .placement = PLACEMENT_SPREAD,
        .root_disk = ROOT_DISK_MANAGED,
        .root_disk_bytes = 4 * GIB,
        .workspace.max = SPEC_WORKSPACE_MAX_DEFAULT,
    };
    spec_net_init(&s->net);
    spec_security_init(&s->security);
}

void spec_free(struct sandbox_spec *s)
{
    free(s->name);
    free(s->image);
    free(s->image_digest);
    free(s->root_disk_file);
    strlist_free(&s->env);
    strlist_free(&s->entrypoint);
    strlist_free(&s->cmd);
    spec_init_free(&s->init);
    free(s->placement_profile);
    strlist_free(&s->secrets);
    strlist_free(&s->labels);
    strlist_free(&s->image_labels);
    free(s->workdir);
    free(s->user);
    free(s->shell);
    free(s->hostname);
    free(s->log_level);
    free(s->stop_signal);
    strlist_free(&s->ports);
    strlist_free(&s->volumes);
    strlist_free(&s->write_paths);
    strlist_free(&s->masked);
    strlist_free(&s->fixed);
    spec_security_free(&s->security);
    spec_patches_free(&s->patches);
    spec_workspace_free(&s->workspace);
    for (size_t i = 0; i < s->n_mounts; i++) {
        free(s->mounts[i].guest);
        free(s->mounts[i].source);
        free(s->mounts[i].fstype);
    }
    free(s->mounts);
    strlist_free(&s->script_files);
    for (size_t i = 0; i < s->n_scripts; i++) {
        free(s->scripts[i].name);
        free(s->scripts[i].body);
    }
    free(s->scripts);
    spec_net_free(&s->net);
    spec_vsock_free(&s->vsocks);
    spec_init(s);
}

/* --- text ----------------------------------------------------------------------------------- */

/* Text that goes to the guest unchanged: no control characters, valid UTF-8. */
static bool plain(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return *s && strlen(s) <= PATH_TEXT_MAX && utf8_valid(s);
}

/* --- names ---------------------------------------------------------------------------------- */

/* FNV-1a: spreads names, proves nothing. */
static uint32_t hash32(const char *s)
{
    uint32_t h = 2166136261u;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

void spec_hostname_from(const char *name, char out[SPEC_HOSTNAME_MAX])
{
    enum { CUT = SPEC_HOSTNAME_MAX - 1 - 9 }; /* room for '-' and eight digits */
    size_t n = 0, len = strlen(name);
    size_t max = len < SPEC_HOSTNAME_MAX ? len : (size_t)CUT;
    for (size_t i = 0; i < max; i++)
        if (ascii_alnum(name[i]) || n > 0) /* a host name starts with a letter or a digit */
            out[n++] = ascii_alnum(name[i]) ? name[i] : '-';
    while (n > 0 && out[n - 1] == '-')
        n--;
    out[n] = '\0';
    if (n == 0)
        (void)snprintf(out, SPEC_HOSTNAME_MAX, "sandbox");
    else if (max < len)
        (void)snprintf(out + n, SPEC_HOSTNAME_MAX - n, "-%08x", hash32(name));
}

/* --- resource limits ------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint32_t resource;
} rlimit_names[] = {
    {"as", RLIMIT_AS},           {"core", RLIMIT_CORE},         {"cpu", RLIMIT_CPU},
    {"data", RLIMIT_DATA},       {"fsize", RLIMIT_FSIZE},       {"locks", RLIMIT_LOCKS},
    {"memlock", RLIMIT_MEMLOCK}, {"msgqueue", RLIMIT_MSGQUEUE}, {"nice", RLIMIT_NICE},
    {"nofile", RLIMIT_NOFILE},   {"nproc", RLIMIT_NPROC},       {"rss", RLIMIT_RSS},
    {"rtprio", RLIMIT_RTPRIO},   {"rttime", RLIMIT_RTTIME},     {"sigpending", RLIMIT_SIGPENDING},
    {"stack", RLIMIT_STACK},
};

const char *spec_rlimit_name(uint32_t resource)
{
    for (size_t i = 0; i < ARRAY_LEN(rlimit_names); i++)
        if (rlimit_names[i].resource == resource)
            return rlimit_names[i].name;
    return NULL;
}

static bool rlimit_by_name(const char *name, size_t n, uint32_t *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(rlimit_names); i++)
        if (strlen(rlimit_names[i].name) == n && strncasecmp(rlimit_names[i].name, name, n) == 0) {
            *ret = rlimit_names[i].resource;
            return true;
        }
    return false;
}

static bool parse_limit(const char *s, uint64_t *ret)
{
    if (strcmp(s, "unlimited") == 0 || strcmp(s, "-1") == 0) {
        *ret = RLIM_INFINITY;
        return true;
    }
    return parse_u64(s, ret) == 0 && *ret <= INT64_MAX;
}

int spec_parse_rlimit(const char *arg, struct spec_rlimit *ret, struct err *e)
{
    const char *eq = strchr(arg, '=');
    if (!eq || eq == arg || !eq[1])
        return err_set(e, EINVAL,
                       "rlimit must be in format RESOURCE=LIMIT: got '%s' (such as nofile=1024 or "
                       "nofile=1024:2048)",
                       arg);
    struct spec_rlimit l = {0};
    if (!rlimit_by_name(arg, (size_t)(eq - arg), &l.resource))
        return err_hinted(
            e, err_set(e, EINVAL, "unknown rlimit resource: %.*s", (int)(eq - arg), arg),
            "one of: as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, "
            "nproc, rss, rtprio, rttime, sigpending, stack");
    AUTO_FREE char *soft = strdup(eq + 1);
    if (!soft)
        return err_oom(e);
    char *hard = strchr(soft, ':');
    if (hard)
        *hard++ = '\0';
    if (!parse_limit(soft, &l.soft))
        return err_set(e, EINVAL, "invalid soft limit: '%s' in rlimit '%s' is not a number", soft,
                       arg);
    l.hard = l.soft;
    if (hard && !parse_limit(hard, &l.hard))
        return err_set(e, EINVAL, "invalid hard limit: '%s' in rlimit '%s' is not a number", hard,
                       arg);
    if (l.soft > l.hard)
        return err_set(e, EINVAL, "soft limit cannot exceed hard limit: rlimit '%s'", arg);
    *ret = l;
    return 0;
}

/* A later limit on the same resource replaces the earlier one. */
int spec_add_rlimit(struct sandbox_spec *s, const char *arg, struct err *e)
{
    struct spec_rlimit l = {0};
    size_t i = 0;
    int r = spec_parse_rlimit(arg, &l, e);
    if (r < 0)
        return r;
    while (i < s->n_rlimits && s->rlimits[i].resource != l.resource)
        i++;
    if (i == SPEC_RLIMITS_MAX)
        return err_set(e, E2BIG, "invalid config: at most %d rlimits", SPEC_RLIMITS_MAX);
    s->rlimits[i] = l;
    s->n_rlimits = MAX(s->n_rlimits, i + 1);
    return 0;
}

/* --- labels --------------------------------------------------------------------------------- */

static int check_label(const char *key, size_t key_len, const char *value, struct err *e)
{
    static const char *const reserved[] = {"sandbox.", "microsandbox.", "service."};
    if (key_len == 0)
        return err_set(e, EINVAL, "invalid config: label key must not be empty");
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
        if (strncmp(key, reserved[i], strlen(reserved[i])) == 0)
            return err_set(e, EINVAL, "invalid config: label key '%.*s' uses reserved prefix '%s'",
                           (int)key_len, key, reserved[i]);
    if (key_len > LABEL_KEY_MAX || strlen(value) > LABEL_VALUE_MAX)
        return err_set(
            e, EINVAL,
            "invalid config: label '%.*s' is too long (at most %d bytes of key and %d of "
            "value)",
            (int)MIN(key_len, (size_t)32), key, LABEL_KEY_MAX, LABEL_VALUE_MAX);
    if (!utf8_valid(key))
        return err_set(e, EINVAL, "invalid config: label '%.*s' is not UTF-8", (int)key_len, key);
    return 0;
}

/* From now on, the label with that key is not the image's. */
static void forget_image_label(struct sandbox_spec *s, const char *key, size_t n)
{
    struct strlist *l = &s->image_labels;
    for (size_t i = 0; i < l->n; i++)
        if (strlen(l->v[i]) == n && memcmp(l->v[i], key, n) == 0) {
            free(l->v[i]);
            memmove(&l->v[i], &l->v[i + 1], (l->n - i) * sizeof(*l->v)); /* with its NULL */
            l->n--;
            return;
        }
}

/* Labels are kept sorted by key, as in the JSON form. */
int spec_add_label(struct sandbox_spec *s, const char *arg, struct err *e)
{
    size_t key_len = strcspn(arg, "=");
    const char *value = arg[key_len] ? arg + key_len + 1 : "";
    int r = check_label(arg, key_len, value, e);
    if (r < 0)
        return r;
    char *kv;
    if (asprintf(&kv, "%.*s=%s", (int)key_len, arg, value) < 0)
        return err_oom(e);
    forget_image_label(s, arg, key_len);
    size_t at = 0;
    while (at < s->labels.n && strncmp(s->labels.v[at], kv, key_len + 1) < 0)
        at++;
    if (at < s->labels.n && strncmp(s->labels.v[at], kv, key_len + 1) == 0) {
        free(s->labels.v[at]);
        s->labels.v[at] = kv;
        return 0;
    }
    if (s->labels.n >= SPEC_LABELS_MAX) {
        free(kv);
        return err_set(e, E2BIG, "invalid config: at most %d labels", SPEC_LABELS_MAX);
    }
    if (strlist_take(&s->labels, kv) < 0)
        return err_oom(e);
    for (size_t i = s->labels.n - 1; i > at; i--) {
        s->labels.v[i] = s->labels.v[i - 1];
        s->labels.v[i - 1] = kv;
    }
    return 0;
}

bool spec_matches_labels(const struct sandbox_spec *s, const struct strlist *want)
{
    for (size_t i = 0; i < want->n; i++) {
        const char *w = want->v[i];
        size_t n = strcspn(w, "=");
        bool found = false;
        for (size_t j = 0; !found && j < s->labels.n; j++) {
            const char *l = s->labels.v[j];
            found = w[n] ? strcmp(l, w) == 0 : strncmp(l, w, n) == 0 && l[n] == '=';
        }
        if (!found)
            return false;
    }
    return true;
}

/* --- what an image declares ----------------------------------------------------------------- */

/* Appends to a list of at most `max`, unless it is there already. */
static int add_once(struct strlist *l, const char *what, size_t max, const char *name,
                    struct err *e)
{
    if (strlist_has(l, what))
        return 0;
    if (l->n >= max)
        return err_set(e, E2BIG, "invalid config: at most %zu %s", max, name);
    return strlist_add(l, what) < 0 ? err_oom(e) : 0;
}

int spec_add_port(struct sandbox_spec *s, const char *port, struct err *e)
{
    AUTO_FREE char *number = strndup(port, strcspn(port, "/"));
    const char *protocol = strchr(port, '/');
    uint64_t n;
    if (!number)
        return err_oom(e);
    if (parse_u64(number, &n) < 0 || n < 1 || n > 65535 ||
        (protocol && strcmp(protocol, "/tcp") != 0 && strcmp(protocol, "/udp") != 0 &&
         strcmp(protocol, "/sctp") != 0))
        return err_set(e, EINVAL,
                       "invalid config: invalid port '%.64s': expected a port such as 80/tcp",
                       port);
    char text[32];
    (void)snprintf(text, sizeof(text), "%d%s", (int)n, protocol ? protocol : "/tcp");
    return add_once(&s->ports, text, SPEC_PORTS_MAX, "ports", e);
}

int spec_add_volume(struct sandbox_spec *s, const char *path, struct err *e)
{
    AUTO_FREE char *clean = spec_guest_path(path);
    if (!clean || strcmp(clean, "/") == 0 || !plain(clean))
        return err_set(e, EINVAL, "invalid config: invalid volume directory '%.64s'", path);
    return add_once(&s->volumes, clean, SPEC_VOLUMES_MAX, "volumes", e);
}

int spec_add_secret(struct sandbox_spec *s, const char *name, struct err *e)
{
    int r = secret_check_name(name, e);
    return r < 0 ? r : add_once(&s->secrets, name, SPEC_SECRETS_MAX, "secrets", e);
}

/* --- scripts -------------------------------------------------------------------------------- */

static int check_script(const char *name, const char *body, struct err *e)
{
    if (!*name)
        return err_set(e, EINVAL, "script name must not be empty (NAME=BODY)");
    bool ok = strlen(name) <= SCRIPT_NAME_MAX && strcmp(name, ".") != 0 &&
              strcmp(name, "..") != 0 && utf8_valid(name);
    for (const char *p = name; ok && *p; p++)
        ok = (unsigned char)*p > 0x20 && *p != 0x7f && *p != '/';
    if (!ok)
        return err_set(e, EINVAL,
                       "script name '%.64s' must be a plain file name: no '/', no spaces, at most "
                       "%d bytes",
                       name, SCRIPT_NAME_MAX);
    if (strlen(body) > SPEC_SCRIPT_BODY_MAX)
        return err_set(e, E2BIG, "script '%s' is too large: at most %d MiB", name,
                       SPEC_SCRIPT_BODY_MAX >> 20);
    if (!utf8_valid(body))
        return err_set(e, EINVAL, "script '%s' is not UTF-8 text", name);
    return 0;
}

/* Scripts are kept sorted by name, as the JSON form has them; a second body replaces the first. */
int spec_add_script(struct sandbox_spec *s, const char *name, const char *body, struct err *e)
{
    int r = check_script(name, body, e);
    if (r < 0)
        return r;
    AUTO_FREE char *new_name = strdup(name);
    AUTO_FREE char *new_body = strdup(body);
    if (!new_name || !new_body)
        return err_oom(e);
    size_t at = 0;
    while (at < s->n_scripts && strcmp(s->scripts[at].name, name) < 0)
        at++;
    if (at < s->n_scripts && strcmp(s->scripts[at].name, name) == 0) {
        free(s->scripts[at].body);
        s->scripts[at].body = steal_ptr(&new_body);
        return 0;
    }
    if (s->n_scripts >= SPEC_SCRIPTS_MAX)
        return err_set(e, E2BIG, "invalid config: at most %d scripts", SPEC_SCRIPTS_MAX);
    if (ARRAY_RESIZE(s->scripts, s->n_scripts + 1) < 0)
        return err_oom(e);
    memmove(&s->scripts[at + 1], &s->scripts[at], (s->n_scripts - at) * sizeof(*s->scripts));
    s->scripts[at] = (struct spec_script){steal_ptr(&new_name), steal_ptr(&new_body)};
    s->n_scripts++;
    return 0;
}

/* --- validation ----------------------------------------------------------------------------- */

double spec_max_cpus(const struct sandbox_spec *s)
{
    return MAX(s->max_cpus, s->cpus);
}

uint64_t spec_max_memory_mib(const struct sandbox_spec *s)
{
    return MAX(s->max_memory_mib, s->memory_mib);
}

/* Limits of growth; 0: not given. */
static int check_growth(const struct sandbox_spec *s, struct err *e)
{
    if (!isfinite(s->max_cpus) || s->max_cpus < 0 || s->max_cpus > SPEC_CPUS_MAX)
        return err_set(e, EINVAL, "invalid config: max_cpus must be 1 to %d", SPEC_CPUS_MAX);
    if (s->max_cpus > 0 && s->max_cpus < s->cpus)
        return err_set(e, EINVAL,
                       "invalid config: max_cpus %g must be greater than or equal to cpus %g",
                       s->max_cpus, s->cpus);
    if (s->max_memory_mib > SPEC_MEMORY_MAX_MIB)
        return err_set(e, EINVAL, "invalid config: max_memory must be at most %d GiB",
                       SPEC_MEMORY_MAX_MIB >> 10);
    if (s->max_memory_mib > 0 && s->max_memory_mib < s->memory_mib)
        return err_set(
            e, EINVAL,
            "invalid config: max_memory %llu MiB must be greater than or equal to memory %llu MiB",
            (unsigned long long)s->max_memory_mib, (unsigned long long)s->memory_mib);
    return s->placement_profile ? placement_check_name(s->placement_profile, e) : 0;
}

static int check_resources(const struct sandbox_spec *s, struct err *e)
{
    if (!isfinite(s->cpus) || s->cpus <= 0)
        return err_set(e, EINVAL, "invalid config: cpus must be greater than 0");
    if (s->cpus > SPEC_CPUS_MAX)
        return err_set(e, EINVAL, "invalid config: cpus must be at most %d", SPEC_CPUS_MAX);
    if (s->memory_mib == 0)
        return err_set(e, EINVAL, "invalid config: memory must be greater than 0");
    if (s->memory_mib < SPEC_MEMORY_MIN_MIB || s->memory_mib > SPEC_MEMORY_MAX_MIB)
        return err_set(e, EINVAL, "invalid config: memory must be %d MiB to %d GiB: got %llu MiB",
                       SPEC_MEMORY_MIN_MIB, SPEC_MEMORY_MAX_MIB >> 10,
                       (unsigned long long)s->memory_mib);
    bool managed = s->root_disk == ROOT_DISK_MANAGED, file = s->root_disk == ROOT_DISK_FILE;
    if (file != (s->root_disk_file != NULL) ||
        (file && (s->root_disk_file[0] != '/' || !utf8_valid(s->root_disk_file))))
        return err_set(e, EINVAL,
                       "invalid config: the path of the root disk must be absolute and UTF-8");
    if (s->root_disk_bytes &&
        ((managed && s->root_disk_bytes < UPPER_SIZE_MIN) || s->root_disk_bytes > UPPER_SIZE_MAX))
        return err_set(e, EINVAL, "invalid config: root disk must be %d MiB to %d TiB",
                       (int)(UPPER_SIZE_MIN >> 20), (int)(UPPER_SIZE_MAX >> 40));
    if (s->idle_timeout_ms > INT64_MAX / 1000000 || s->max_duration_ms > INT64_MAX / 1000000)
        return err_set(e, EINVAL, "invalid config: timeout out of range");
    if (s->output_max > INT64_MAX)
        return err_set(e, EINVAL, "invalid config: output limit out of range");
    return check_growth(s, e);
}

static int check_env(const struct strlist *env, struct err *e)
{
    for (size_t i = 0; i < env->n; i++) {
        const char *eq = strchr(env->v[i], '=');
        if (!eq || eq == env->v[i])
            return err_set(e, EINVAL, "invalid config: environment entry '%.64s' is not KEY=VALUE",
                           env->v[i]);
        if (!utf8_valid(env->v[i]))
            return err_set(e, EINVAL, "invalid config: environment variable '%.*s' is not UTF-8",
                           (int)MIN(eq - env->v[i], 64), env->v[i]);
    }
    return 0;
}

static int check_hostname(const char *h, struct err *e)
{
    size_t n = strlen(h);
    bool ok = n > 0 && n < SPEC_HOSTNAME_MAX && ascii_alnum(h[0]) && ascii_alnum(h[n - 1]);
    for (const char *p = h; ok && *p; p++)
        ok = ascii_alnum(*p) || *p == '-' || *p == '.';
    if (!ok)
        return err_set(e, EINVAL,
                       "invalid config: hostname '%.80s' must be 1 to %d letters, digits, dots and "
                       "hyphens",
                       h, SPEC_HOSTNAME_MAX - 1);
    return 0;
}

static int check_runtime(const struct sandbox_spec *s, struct err *e)
{
    if (s->workdir && (s->workdir[0] != '/' || !plain(s->workdir)))
        return err_set(e, EINVAL, "invalid config: working directory must be an absolute path: %s",
                       s->workdir);
    if (s->user && !plain(s->user))
        return err_set(e, EINVAL,
                       "invalid config: user must be NAME or UID, optionally with :GROUP or :GID");
    if (s->shell && !plain(s->shell))
        return err_set(e, EINVAL, "invalid config: shell must be a path such as /bin/sh");
    const struct strlist *lists[] = {&s->entrypoint, &s->cmd};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (size_t j = 0; j < lists[i]->n; j++)
            if (!utf8_valid(lists[i]->v[j]))
                return err_set(e, EINVAL, "invalid config: the command is not UTF-8");
    if (s->stop_signal && signal_number(s->stop_signal) == 0)
        return err_set(e, EINVAL, "invalid config: unknown signal '%.32s'", s->stop_signal);
    if (!s->log_level || word_among("error|warn|info|debug|trace", s->log_level))
        return 0;
    return err_set(e, EINVAL, "invalid log level: %s (expected: error, warn, info, debug, trace)",
                   s->log_level);
}

/* An image's init mounts, forks and changes settings as it likes. */
static int check_init(const struct sandbox_spec *s, struct err *e)
{
    int r = spec_init_check(&s->init, e);
    if (r < 0 || !s->init.path || !spec_is_restricted(s))
        return r;
    err_set(e, EINVAL, "invalid config: --init needs a guest without restrictions");
    err_hint(e, "leave out --security, --cap-drop, --pids-limit, --read-only, --write-path and the "
                "like, or --init");
    return -EINVAL;
}

int spec_validate(struct sandbox_spec *s, struct err *e)
{
    int r = spec_check_name(s->name, e);
    if (r < 0)
        return r;
    if (!s->image || !plain(s->image))
        return err_set(e, EINVAL, "invalid config: image must be a name or a path");
    r = s->image_digest ? digest_parse(s->image_digest, &(struct digest){0}, e) : 0;
    if (r < 0)
        return err_wrap(e, r, "invalid config: image '%s'", s->image);
    r = check_resources(s, e);
    if (r == 0)
        r = check_env(&s->env, e);
    if (r == 0)
        r = check_init(s, e);
    if (r == 0)
        r = check_runtime(s, e);
    if (r == 0)
        r = spec_net_validate(&s->net, e);
    if (r == 0)
        r = spec_validate_workspace(s, e);
    if (r < 0)
        return r;
    spec_protect_mounts(s);
    s->net.slot = hash32(s->name);
    if (!s->shell && !(s->shell = strdup("/bin/sh")))
        return err_oom(e);
    if (!s->hostname) {
        char name[SPEC_HOSTNAME_MAX];
        spec_hostname_from(s->name, name);
        s->hostname = strdup(name);
        return s->hostname ? 0 : err_oom(e);
    }
    return check_hostname(s->hostname, e);
}
