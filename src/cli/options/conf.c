#include "cli/core/conf.h"

#include "cli/options/sandbox.h"
#include "policy/strict_yaml.h"
#include "util/array.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/words.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    CONF_ENTRIES_MAX = 4096, /* of all files */
    CONF_VALUE_MAX = 1 << 20,
    KNOWN_MAX = 192,
};

static const struct opt conf_opts[] = {
    {"conf", 0, "FILE", "Read settings from a YAML file, whose keys are the names of options",
     OPT_REPEAT},
    {"net-conf", 0, "FILE", "The same, for network settings only", OPT_REPEAT},
    {"resource-conf", 0, "FILE", "The same, for resources", OPT_REPEAT},
    {"runtime-conf", 0, "FILE", "The same, for the sandbox and its commands", OPT_REPEAT},
    {"fs-conf", 0, "FILE", "The same, for files, volumes and sockets", OPT_REPEAT},
    {"secret-conf", 0, "FILE", "The same, for secrets", OPT_REPEAT},
    {"script-conf", 0, "FILE", "The same, for scripts", OPT_REPEAT},
    {0},
};
const struct opt_group conf_group = {"Settings in files", conf_opts};

static bool is_conf(const struct opt *o)
{
    return o >= conf_opts && o < conf_opts + ARRAY_LEN(conf_opts);
}

/* --- keys ------------------------------------------------------------------------------------- */

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* Whether a file named by that option may have an option of that group. */
static bool is_about(const char *which, const struct opt_group *g, const char *name)
{
    bool secret = begins(name, "secret") || begins(name, "on-secret");
    bool script = begins(name, "script");
    if (strcmp(which, "conf") == 0)
        return true;
    if (strcmp(which, "net-conf") == 0)
        return !secret && (g == &net_group || g == &tls_group || g == &traffic_group);
    if (strcmp(which, "resource-conf") == 0)
        return g == &resource_group || strcmp(name, "pids-limit") == 0 ||
               strcmp(name, "shm-size") == 0;
    if (strcmp(which, "fs-conf") == 0)
        return g == &file_group;
    if (strcmp(which, "secret-conf") == 0)
        return secret;
    if (strcmp(which, "script-conf") == 0)
        return script;
    return !secret && !script &&
           (g == &identity_group || g == &command_group || g == &security_group ||
            g == &guest_group || g == &image_group);
}

/* Excludes options that name further files, and those for this one command. */
static bool is_setting(const struct opt *o)
{
    static const char *const not [] = {"policy", "replace", "replace-with-timeout",
                                       "stop-when-done"};
    for (size_t i = 0; i < ARRAY_LEN(not ); i++)
        if (strcmp(o->name, not [i]) == 0)
            return false;
    return !is_conf(o) && !(o->flags & OPT_LATER);
}

static bool is_sandbox_group(const struct opt_group *g)
{
    static const struct opt_group *const all[] = {SANDBOX_GROUPS};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i] == g)
            return true;
    return false;
}

/* key_ and key- are the same key. */
static bool same_key(const char *key, const char *name)
{
    while (*key && (*key == *name || (*key == '_' && *name == '-'))) {
        key++;
        name++;
    }
    return *key == *name;
}

struct source {
    struct args *a;
    const char *which, *name;
    struct err *e;
};

static const struct opt *find_key(const struct source *s, const struct yaml *y, const char **known)
{
    size_t n = 0;
    if (strcmp(s->which, "conf") == 0)
        known[n++] = "image";
    for (const struct opt_group *const *g = s->a->cmd->groups; g && *g; g++)
        for (const struct opt *o = (*g)->opts; is_sandbox_group(*g) && o->name; o++) {
            if (!is_setting(o) || !is_about(s->which, *g, o->name))
                continue;
            if (same_key(y->key, o->name) || (o->alias && same_key(y->key, o->alias)))
                return o;
            if (n < KNOWN_MAX - 1 && !(o->flags & OPT_HIDDEN))
                known[n++] = o->name;
        }
    known[n] = NULL;
    return NULL;
}

/* --- values ----------------------------------------------------------------------------------- */

/* ${NAME} is an environment variable, which must be set. */
static int expand(const struct source *s, const struct yaml *y, struct buf *to)
{
    for (const char *p = y->text; *p;) {
        const char *at = strstr(p, "${"), *end = at ? strchr(at, '}') : NULL;
        size_t n = at ? (size_t)(at - p) : strlen(p);
        if (buf_append(to, p, n) < 0)
            return err_oom(s->e);
        if (!at)
            break;
        AUTO_FREE char *name = end ? strndup(at + 2, (size_t)(end - at - 2)) : NULL;
        bool ok = name && (isalpha((unsigned char)*name) || *name == '_');
        for (const char *c = name; ok && *c; c++)
            ok = isalnum((unsigned char)*c) || *c == '_';
        if (!ok)
            return yaml_fail(s->name, y, s->e, "'${' must begin the name of a variable: ${NAME}");
        const char *value = getenv(name);
        if (!value)
            return yaml_fail(s->name, y, s->e, "the variable %.60s is not set", name);
        if (buf_append(to, value, strlen(value)) < 0)
            return err_oom(s->e);
        p = end + 1;
    }
    return 0;
}

static bool excludes(const struct opt *a, const struct opt *b)
{
    return (a->conflicts && strcmp(a->conflicts, b->name) == 0) ||
           (b->conflicts && strcmp(b->conflicts, a->name) == 0);
}

/* Drops an earlier file's value for an option that can be given only once. */
static void drop(struct args *a, const struct opt *o)
{
    size_t kept = 0;
    for (size_t i = 0; i < a->n_opts; i++)
        if ((a->opts[i].opt != o || (o->flags & OPT_REPEAT)) && !excludes(a->opts[i].opt, o))
            a->opts[kept++] = a->opts[i];
    a->n_opts = kept;
}

static int add(const struct source *s, const struct opt *o, const char *prefix,
               const struct yaml *y)
{
    struct args *a = s->a;
    AUTO_BUF struct buf b = {.limit = CONF_VALUE_MAX};
    if (a->n_opts >= CONF_ENTRIES_MAX)
        return yaml_fail(s->name, y, s->e, "too many settings");
    int r = o->value ? yaml_expect(s->name, y, YAML_TEXT, prefix ? prefix : o->name, s->e) : 0;
    if (r == 0 && prefix &&
        (buf_append(&b, prefix, strlen(prefix)) < 0 || buf_append(&b, "=", 1) < 0))
        r = err_oom(s->e);
    if (r == 0 && o->value)
        r = expand(s, y, &b);
    if (r == 0 && buf_append(&b, "", 1) < 0)
        r = err_oom(s->e);
    if (r < 0)
        return r;
    const char *text = (const char *)buf_head(&b);
    if (o->choices && !word_among(o->choices, text))
        return yaml_fail(s->name, y, s->e, "%s: '%.60s' is not one of %s", o->name, text,
                         o->choices);
    if (ARRAY_RESIZE(a->opts, a->n_opts + 1) < 0)
        return err_oom(s->e);
    if (strlist_add(&a->own, text) < 0)
        return err_oom(s->e);
    a->opts[a->n_opts++] = (struct arg_opt){o, o->value ? a->own.v[a->own.n - 1] : NULL};
    return 0;
}

/* A text, a list of them, or a map for KEY=VALUE; true for an option that has no value. */
static int read_option(const struct source *s, const struct opt *o, const struct yaml *y)
{
    bool on = true, many = o->flags & OPT_REPEAT, pairs = many && o->value && strchr(o->value, '=');
    int r = o->value ? 0 : yaml_flag(s->name, y, &on, s->e);
    if (r < 0)
        return r;
    if (o->value && y->kind != YAML_TEXT && !(many && y->kind == YAML_LIST) &&
        !(pairs && y->kind == YAML_MAP))
        return yaml_fail(s->name, y, s->e, "%s must be %s", y->key,
                         pairs  ? "a value, a list of them, or a map of keys"
                         : many ? "a value, or a list of them"
                                : "a single value");
    drop(s->a, o);
    if (!on)
        return 0;
    if (y->kind == YAML_TEXT)
        return add(s, o, NULL, y);
    for (size_t i = 0; r == 0 && i < y->n; i++)
        r = add(s, o, y->item[i].key, &y->item[i]);
    return r;
}

static int read_image(const struct source *s, const struct yaml *y)
{
    struct args *a = s->a;
    AUTO_BUF struct buf b = {.limit = CONF_VALUE_MAX};
    int r = yaml_expect(s->name, y, YAML_TEXT, "image", s->e);
    if (r == 0)
        r = expand(s, y, &b);
    if (r < 0)
        return r;
    if (buf_append(&b, "", 1) < 0 || strlist_add(&a->own, (const char *)buf_head(&b)) < 0)
        return err_oom(s->e);
    a->pos[0] = a->own.v[a->own.n - 1];
    a->n_pos = 1;
    return 0;
}

int conf_read(struct args *a, const char *which, const char *name, const char *text, size_t n,
              struct err *e)
{
    AUTO_YAML struct yaml y = {0};
    struct source s = {.a = a, .which = which, .name = name, .e = e};
    const char *known[KNOWN_MAX];
    int r = yaml_tree_parse(name, text, n, &y, e);
    if (r == 0)
        r = yaml_expect(name, &y, YAML_MAP, "a file of settings", e);
    for (size_t i = 0; r == 0 && i < y.n; i++) {
        bool image = strcmp(which, "conf") == 0 && strcmp(y.item[i].key, "image") == 0;
        const struct opt *o = image ? NULL : find_key(&s, &y.item[i], known);
        r = image ? read_image(&s, &y.item[i])
            : o   ? read_option(&s, o, &y.item[i])
                  : yaml_unknown_key(name, &y.item[i], known, e);
    }
    return r;
}

/* --- files and the command line --------------------------------------------------------------- */

static int read_file(struct args *a, const char *which, const char *path, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read --%s %s", which, path);
    if (!S_ISREG(st.st_mode) || st.st_size > YAML_FILE_MAX)
        return err_set(e, EINVAL, "--%s %s is %s", which, path,
                       S_ISREG(st.st_mode) ? "too large" : "not a regular file");
    size_t n = (size_t)st.st_size;
    AUTO_FREE char *text = malloc(n + 1);
    int r = text ? pread_all(fd, text, n, 0) : -ENOMEM;
    return r < 0 ? err_sys(e, -r, "cannot read --%s %s", which, path)
                 : conf_read(a, which, path, text, n, e);
}

static bool is_profile(const char *name)
{
    return word_among("net|no-net|network|net-default|net-default-egress|net-default-ingress",
                      name);
}

/* Whether the command line replaces that option. Several options together choose the network, so
 * any of them replaces the others; "none" also overrides a file's rules. */
static bool is_overruled(const struct args *typed, const struct opt *o)
{
    for (size_t i = 0; i < typed->n_opts; i++) {
        const struct opt *t = typed->opts[i].opt;
        bool none = strcmp(t->name, "no-net") == 0 ||
                    (strcmp(t->name, "network") == 0 && strcmp(typed->opts[i].value, "none") == 0);
        if ((t == o && !(o->flags & OPT_REPEAT)) || excludes(t, o) ||
            (is_profile(t->name) && is_profile(o->name)) ||
            (none && strcmp(o->name, "net-rule") == 0))
            return true;
    }
    return false;
}

/* Of several matching network rules, the first applies; of everything else, the last: so rules are
 * merged in the opposite order. */
static int merge(struct args *a, const struct args *files, struct err *e)
{
    struct arg_opt *all = calloc(a->n_opts + files->n_opts + 1, sizeof(*all));
    size_t n = 0;
    if (!all)
        return err_oom(e);
    for (size_t i = 0; i < files->n_opts; i++)
        if (strcmp(files->opts[i].opt->name, "net-rule") != 0 &&
            !is_overruled(a, files->opts[i].opt))
            all[n++] = files->opts[i];
    for (size_t i = 0; i < a->n_opts; i++)
        all[n++] = a->opts[i];
    for (size_t i = 0; i < files->n_opts; i++)
        if (strcmp(files->opts[i].opt->name, "net-rule") == 0 &&
            !is_overruled(a, files->opts[i].opt))
            all[n++] = files->opts[i];
    free(a->opts);
    a->opts = all;
    a->n_opts = n;
    if (a->n_pos == 0 && files->n_pos)
        a->pos[a->n_pos++] = files->pos[0];
    return 0;
}

int conf_expand(struct args *a, struct err *e)
{
    const char *image[2] = {NULL};
    struct args files = {.cmd = a->cmd, .pos = image};
    int r = 0;
    for (size_t i = 0; r == 0 && i < a->n_opts; i++)
        if (is_conf(a->opts[i].opt))
            r = read_file(&files, a->opts[i].opt->name, a->opts[i].value, e);
    if (r == 0 && (files.n_opts || files.n_pos))
        r = merge(a, &files, e);
    a->own = files.own;
    free(files.opts);
    return r;
}
