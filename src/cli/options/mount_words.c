/* --mount type=bind,source=./src,target=/src,readonly: mounts in words, as elsewhere. */
#include "cli/options/mount.h"
#include "util/cleanup.h"
#include "util/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct words {
    const char *type, *source, *target, *size;
    bool readonly;
};

/* "", "true", "1": yes. -1: neither yes nor no. */
static int truth(const char *value)
{
    if (!*value || strcmp(value, "true") == 0 || strcmp(value, "1") == 0)
        return 1;
    return strcmp(value, "false") == 0 || strcmp(value, "0") == 0 ? 0 : -1;
}

static int take_word(struct words *w, const char *key, const char *value, struct err *e)
{
    const struct {
        const char *key;
        const char **to;
    } texts[] = {{"type", &w->type},      {"source", &w->source}, {"src", &w->source},
                 {"target", &w->target},  {"dst", &w->target},    {"destination", &w->target},
                 {"tmpfs-size", &w->size}};
    /* Words for what shares do anyway, or that are meaningless to a guest with its own kernel. */
    static const char moot[] = "bind-propagation|consistency|volume-nocopy|z|Z";
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (strcmp(key, texts[i].key) != 0)
            continue;
        if (*texts[i].to || !*value)
            return err_set(e, EINVAL, "'%s' is given twice, or without a value", key);
        *texts[i].to = value;
        return 0;
    }
    if (word_among(moot, key))
        return 0;
    int yes = word_among("readonly|ro", key) ? truth(value) : -1;
    if (yes < 0)
        return err_set(e, EINVAL,
                       "unsupported '%s': expected type=, source=, target=, readonly or "
                       "tmpfs-size=",
                       key);
    w->readonly = yes;
    return 0;
}

/* A path on the host, even if it does not look like one. */
static bool looks_like_path(const char *source)
{
    return strchr("./~", *source) != NULL;
}

static int add(struct sandbox_spec *s, const struct words *w, struct err *e)
{
    const char *type = w->type ? w->type : "volume";
    bool bind = strcmp(type, "bind") == 0, tmpfs = strcmp(type, "tmpfs") == 0;
    AUTO_FREE char *text = NULL;
    int n;
    if (!bind && !tmpfs && strcmp(type, "volume") != 0)
        return err_set(e, EINVAL, "unsupported type '%s': expected bind, volume or tmpfs", type);
    if (!w->target)
        return err_set(e, EINVAL, "target= is missing");
    if (!tmpfs && !w->source)
        return err_set(e, EINVAL, "source= is missing");
    if (tmpfs)
        n = asprintf(&text, "%s%s%s%s", w->target, w->size ? ":size=" : "", w->size ? w->size : "",
                     w->readonly ? ":ro" : "");
    else
        n = asprintf(&text, "%s%s:%s%s", bind && !looks_like_path(w->source) ? "./" : "", w->source,
                     w->target, w->readonly ? ":ro" : "");
    if (n < 0) {
        text = NULL;
        return err_oom(e);
    }
    if (tmpfs)
        return tmpfs_option(s, text, e);
    return mount_option(s, bind ? "volume" : "mount-named", text, e);
}

int mount_words_option(struct sandbox_spec *s, const char *arg, struct err *e)
{
    AUTO_FREE char *copy = strdup(arg);
    struct words w = {0};
    char *rest = copy, *word;
    int r = copy ? 0 : err_oom(e);
    while (r == 0 && (word = strsep(&rest, ","))) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        r = take_word(&w, word, value ? value : "", e);
    }
    if (r == 0)
        r = add(s, &w, e);
    if (r < 0) {
        err_wrap(e, r, "--mount '%s'", arg);
        err_hint(e, "for example --mount type=bind,source=./src,target=/src,readonly");
    }
    return r;
}
