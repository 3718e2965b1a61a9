#include "image/tar/scan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "image/tar/read.h"
#include "util/array.h"
#include "util/cleanup.h"

enum { MEMBERS_STEP = 64 };

void tar_members_free(struct tar_members *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->v[i].name);
        free(m->v[i].link);
    }
    free(m->v);
    *m = (struct tar_members){0};
}

/* ---- scanning ---- */

static int add_member(struct tar_members *all, const struct tar_item *item, struct err *e)
{
    if (all->n % MEMBERS_STEP == 0) {
        if (ARRAY_RESIZE(all->v, all->n + MEMBERS_STEP) < 0)
            return err_oom(e);
    }
    struct tar_member *m = &all->v[all->n++];
    *m = (struct tar_member){.name = strdup(item->path),
                             .link = item->link ? strdup(item->link) : NULL,
                             .offset = item->offset,
                             .size = item->size,
                             .kind = item->type == '0'   ? TAR_FILE
                                     : item->type == '1' ? TAR_HARDLINK
                                                         : TAR_SYMLINK};
    return !m->name || (item->link && !m->link) ? err_oom(e) : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tar_member *)a)->name, ((const struct tar_member *)b)->name);
}

static int sort_members(struct tar_members *m, struct err *e)
{
    if (m->n)
        qsort(m->v, m->n, sizeof(*m->v), by_name);
    for (size_t i = 1; i < m->n; i++)
        if (strcmp(m->v[i - 1].name, m->v[i].name) == 0)
            return err_set(e, EBADMSG, "the archive has two members '%.256s'", m->v[i].name);
    return 0;
}

int tar_scan(int fd, struct tar_members *ret, struct err *e)
{
    const struct tar_reader_options o = {
        .file = true, .entries_max = TAR_MEMBERS_MAX, .path_max = TAR_NAME_MAX - 1};
    AUTO_FREE struct tar_reader *reader = NULL;
    struct tar_members all = {0};
    struct tar_item item;
    int r = tar_reader_new(&reader, fd, &o, e);
    while (r == 0 && (r = tar_next(reader, &item)) > 0)
        r = item.type <= '2' ? add_member(&all, &item, e) : 0;
    if (r == 0)
        r = sort_members(&all, e);
    if (r < 0) {
        tar_members_free(&all);
        return r;
    }
    *ret = all;
    return 0;
}

/* ---- finding ---- */

/* The target of a symlink in `from`, as a name in the archive; false if it leads out. */
static bool resolve_link(const char *from, const char *link, char out[TAR_NAME_MAX])
{
    const char *slash = strrchr(from, '/');
    size_t n = *link == '/' || !slash ? 0 : (size_t)(slash - from);
    memcpy(out, from, n); /* shorter than TAR_NAME_MAX, as all names are */
    for (const char *p = link; *p;) {
        size_t k = strcspn(p, "/");
        if (k == 2 && p[0] == '.' && p[1] == '.') {
            if (!n)
                return false;
            while (n && out[n - 1] != '/')
                n--;
            n -= n > 0;
        } else if (k && !(k == 1 && p[0] == '.')) {
            if (n + k + 2 > TAR_NAME_MAX)
                return false;
            if (n)
                out[n++] = '/';
            memcpy(out + n, p, k);
            n += k;
        }
        p += k + (p[k] == '/');
    }
    out[n] = '\0';
    return n > 0;
}

const struct tar_member *tar_find(const struct tar_members *m, const char *name)
{
    char at[TAR_NAME_MAX], next[TAR_NAME_MAX];
    if (!m->n || strlen(name) >= sizeof(at))
        return NULL;
    memcpy(at, name, strlen(name) + 1);
    if (tar_clean_path(at) < 0)
        return NULL;
    for (int i = 0; i <= TAR_LINKS_MAX; i++) {
        struct tar_member key = {.name = at};
        const struct tar_member *found = bsearch(&key, m->v, m->n, sizeof(*m->v), by_name);
        if (!found || found->kind == TAR_FILE)
            return found;
        /* A hard link's target is a name in the archive, a symlink's is relative to the link. */
        bool hard = found->kind == TAR_HARDLINK;
        if (!resolve_link(hard ? "" : at, found->link, next))
            return NULL;
        memcpy(at, next, strlen(next) + 1);
    }
    return NULL;
}
