#include "agent/env.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An insertion-ordered set of variables. Clients may send thousands, so finding an earlier entry
 * of the same name is a hash lookup. */
struct table {
    char **vars;
    size_t n;
    uint32_t *slots; /* index into vars, plus one; 0 = free */
    size_t mask;
};

static size_t name_len(const char *var)
{
    const char *eq = strchr(var, '=');
    return eq ? (size_t)(eq - var) : 0;
}

static uint32_t *find_slot(const struct table *t, const char *name, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)name[i]) * 16777619u;
    size_t at = h & t->mask;
    while (t->slots[at]) {
        const char *var = t->vars[t->slots[at] - 1];
        if (strncmp(var, name, n) == 0 && var[n] == '=')
            break;
        at = (at + 1) & t->mask;
    }
    return &t->slots[at];
}

static void put_var(struct table *t, char *var)
{
    size_t n = name_len(var);
    if (n == 0)
        return;
    uint32_t *slot = find_slot(t, var, n);
    if (*slot) {
        t->vars[*slot - 1] = var;
    } else {
        t->vars[t->n++] = var;
        *slot = (uint32_t)t->n;
    }
}

static char **find_var(const struct table *t, const char *name)
{
    uint32_t *slot = find_slot(t, name, strlen(name));
    return *slot ? &t->vars[*slot - 1] : NULL;
}

static bool path_has(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    for (const char *p = path;; p++) {
        if (strncmp(p, dir, n) == 0 && (p[n] == ':' || p[n] == '\0'))
            return true;
        p = strchr(p, ':');
        if (!p)
            return false;
    }
}

/* Generated strings: a bump allocator over the tail of the result's single allocation. */
struct text {
    char *p;
};

static char *text_join(struct text *t, const char *a, const char *b, const char *c, const char *d)
{
    char *s = t->p;
    t->p = stpcpy(stpcpy(stpcpy(stpcpy(t->p, a), b), c), d) + 1;
    return s;
}

static void finish_path(struct table *t, struct text *x, bool scripts, bool plain,
                        const char **value)
{
    char **var = find_var(t, "PATH");
    const char *path = var ? *var + strlen("PATH=") : "";
    const char *front = scripts && !path_has(path, ENV_SCRIPTS_DIR) ? ENV_SCRIPTS_DIR : "";
    const char *back = plain || path_has(path, ENV_TOOLS_DIR) ? "" : ENV_TOOLS_DIR;
    char *s = text_join(x, "PATH=", front, *front && *path ? ":" : "", path);
    if (*back) {
        x->p--; /* back over the NUL: continue the same string */
        (void)text_join(x, *path || *front ? ":" : "", back, "", "");
    }
    put_var(t, s);
    *value = s + strlen("PATH=");
}

/* The most room that text_join will need. */
static size_t text_room(const struct env_in *in)
{
    size_t longest = strlen(ENV_DEFAULT_PATH);
    const struct req_common *sets[] = {in->base, in->extra};
    for (size_t k = 0; k < ARRAY_LEN(sets); k++)
        for (size_t i = 0; sets[k] && i < sets[k]->nenv; i++)
            if (strncmp(sets[k]->env[i], "PATH=", 5) == 0)
                longest = MAX(longest, strlen(sets[k]->env[i]));
    return longest + strlen(in->home) + (in->hostname ? strlen(in->hostname) : 0) + 256;
}

/* Whether the image has a description of such a terminal, in one of the usual places. */
static bool is_known(const char *term)
{
    static const char *const dirs[] = {"/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo",
                                       "/usr/lib/terminfo"};
    char path[128];
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        (void)snprintf(path, sizeof(path), "%s/%c/%s", dirs[i], term[0], term);
        if (access(path, R_OK) == 0)
            return true;
    }
    return false;
}

/* The user's own terminal type if the guest knows it; else a common one with as many colors. */
static const char *terminal_kind(const char *term)
{
    static const char plain[] = "xterm", colors[] = "xterm-256color";
    if (!term || term[0] == '.' || !*term || strlen(term) > ENV_TERM_MAX || strchr(term, '/'))
        return plain;
    if (is_known(term))
        return term;
    return strstr(term, "256color") && is_known(colors) ? colors : plain;
}

int env_build(struct env *e, const struct env_in *in)
{
    size_t most = 8 + (in->base ? in->base->nenv : 0) + (in->extra ? in->extra->nenv : 0);
    size_t slots = 16;
    while (slots < most * 2)
        slots *= 2;
    AUTO_FREE uint32_t *index = calloc(slots, sizeof(*index));
    char **vars = malloc((most + 1) * sizeof(*vars) + text_room(in));
    *e = (struct env){0};
    if (!index || !vars) {
        free(vars);
        return -ENOMEM;
    }
    struct table t = {.vars = vars, .slots = index, .mask = slots - 1};
    struct text x = {.p = (char *)(vars + most + 1)};

    put_var(&t, text_join(&x, "PATH=", ENV_DEFAULT_PATH, "", ""));
    if (in->hostname)
        put_var(&t, text_join(&x, "HOSTNAME=", in->hostname, "", ""));
    if (in->tty)
        put_var(&t, text_join(&x, "TERM=", terminal_kind(in->term), "", ""));
    put_var(&t, text_join(&x, "HOME=", in->home, "", ""));
    for (size_t i = 0; in->base && i < in->base->nenv; i++)
        put_var(&t, in->base->env[i]);
    for (size_t i = 0; in->extra && i < in->extra->nenv; i++)
        put_var(&t, in->extra->env[i]);
    finish_path(&t, &x, in->scripts, in->plain, &e->path);
    t.vars[t.n] = NULL;
    e->vars = vars;
    return 0;
}

void env_free(struct env *e)
{
    free(e->vars);
    *e = (struct env){0};
}

void path_walk_init(struct path_walk *w, const char *path, const char *name)
{
    *w = (struct path_walk){.name = name, .rest = path, .name_len = strlen(name)};
}

bool path_walk_next(struct path_walk *w, char *to, size_t size)
{
    if (strchr(w->name, '/')) {
        if (w->started || w->name_len >= size)
            return false;
        w->started = true;
        memcpy(to, w->name, w->name_len + 1);
        return true;
    }
    while (w->rest && w->name_len) {
        const char *dir = w->rest;
        size_t n = strcspn(dir, ":");
        w->rest = dir[n] ? dir + n + 1 : NULL;
        if (n + 1 + w->name_len >= size)
            continue;
        memcpy(to, dir, n);
        if (n)
            to[n++] = '/';
        memcpy(to + n, w->name, w->name_len + 1);
        return true;
    }
    return false;
}
