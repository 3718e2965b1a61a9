#include "spec/diff.h"

#include "util/array.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_TEXT = 32 };

void spec_changes_free(struct spec_changes *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->v[i].name);
        free(c->v[i].before);
        free(c->v[i].after);
    }
    free(c->v);
    *c = (struct spec_changes){0};
}

/* Copies all; equal values are not a change. `name`: n bytes, of a secret. */
static int note(struct spec_changes *l, const char *field, const char *name, size_t n,
                const char *before, const char *after)
{
    if (before && after ? strcmp(before, after) == 0 : !before && !after)
        return 0;
    if (ARRAY_RESIZE(l->v, l->n + 1) < 0)
        return -ENOMEM;
    struct spec_change *c = &l->v[l->n++];
    *c = (struct spec_change){.field = field,
                              .name = name ? strndup(name, n) : NULL,
                              .before = before ? strdup(before) : NULL,
                              .after = after ? strdup(after) : NULL};
    bool short_of_memory = (name && !c->name) || (before && !c->before) || (after && !c->after);
    return short_of_memory ? -ENOMEM : 0;
}

static int note_text(struct spec_changes *l, const char *field, const char *before,
                     const char *after)
{
    return note(l, field, NULL, 0, before, after);
}

static int note_cpus(struct spec_changes *l, const char *field, double before, double after)
{
    char was[NUMBER_TEXT], is[NUMBER_TEXT];
    (void)snprintf(was, sizeof(was), "%g", before);
    (void)snprintf(is, sizeof(is), "%g", after);
    return note_text(l, field, was, is);
}

static int note_mib(struct spec_changes *l, const char *field, uint64_t before, uint64_t after)
{
    char was[NUMBER_TEXT], is[NUMBER_TEXT];
    format_mib(before, was, sizeof(was));
    format_mib(after, is, sizeof(is));
    return note_text(l, field, was, is);
}

/* A maximum that was not set follows the value that it limits. */
static int diff_numbers(const struct sandbox_spec *old, const struct sandbox_spec *now,
                        struct spec_changes *l)
{
    int r = note_cpus(l, "cpus", old->cpus, now->cpus);
    if (r == 0 && (old->max_cpus > 0 || now->max_cpus > 0))
        r = note_cpus(l, "max_cpus", spec_max_cpus(old), spec_max_cpus(now));
    if (r == 0)
        r = note_mib(l, "memory", old->memory_mib, now->memory_mib);
    if (r == 0 && (old->max_memory_mib > 0 || now->max_memory_mib > 0))
        r = note_mib(l, "max_memory", spec_max_memory_mib(old), spec_max_memory_mib(now));
    if (r == 0)
        r = note_mib(l, "root_disk", old->root_disk_bytes / MIB, now->root_disk_bytes / MIB);
    return r;
}

/* The entry whose key is the first n bytes of `key`; NULL = none. */
static const char *entry_of(const struct strlist *l, const char *key, size_t n, char sep)
{
    for (size_t i = 0; i < l->n; i++)
        if (strncmp(l->v[i], key, n) == 0 && l->v[i][n] == sep)
            return l->v[i];
    return NULL;
}

/* Lists of KEY SEP VALUE: what is new or different, then what is gone. */
static int diff_list(struct spec_changes *l, const char *field, char sep, const struct strlist *old,
                     const struct strlist *now)
{
    const char stop[] = {sep, '\0'};
    bool named = sep == '@';
    int r = 0;
    for (size_t i = 0; r == 0 && i < now->n; i++) {
        size_t n = strcspn(now->v[i], stop);
        const char *before = entry_of(old, now->v[i], n, sep);
        r = note(l, field, named ? now->v[i] : NULL, n, before, now->v[i]);
    }
    for (size_t i = 0; r == 0 && i < old->n; i++) {
        size_t n = strcspn(old->v[i], stop);
        if (!entry_of(now, old->v[i], n, sep))
            r = note(l, field, named ? old->v[i] : NULL, n, old->v[i], NULL);
    }
    return r;
}

int spec_diff(const struct sandbox_spec *old, const struct sandbox_spec *now,
              struct spec_changes *ret)
{
    AUTO_FREE char *was = spec_security_text(&old->security);
    AUTO_FREE char *is = spec_security_text(&now->security);
    int r = was && is ? diff_numbers(old, now, ret) : -ENOMEM;
    if (r == 0)
        r = diff_list(ret, "env", '=', &old->env, &now->env);
    if (r == 0)
        r = diff_list(ret, "label", '=', &old->labels, &now->labels);
    if (r == 0)
        r = note_text(ret, "workdir", old->workdir, now->workdir);
    if (r == 0)
        r = note_text(ret, "security", was, is);
    if (r == 0)
        r = diff_list(ret, "secret", '@', &old->net.bound.secrets, &now->net.bound.secrets);
    return r;
}

const char *spec_change_kind(const struct spec_change *c)
{
    return !c->before ? "added" : c->after ? "updated" : "removed";
}

static json_t *text_or_nothing(const char *s)
{
    return s ? json_string(s) : NULL;
}

json_t *spec_change_json(const struct spec_change *c, const char *disposition)
{
    return json_pack(
        "{s:s, s:s, s:o*, s:s, s:o*, s:o*, s:s}", "kind", c->name ? "secret" : "config", "field",
        c->field, "name", text_or_nothing(c->name), "change", spec_change_kind(c), "before",
        text_or_nothing(c->before), "after", text_or_nothing(c->after), "disposition", disposition);
}
