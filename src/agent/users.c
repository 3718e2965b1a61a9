#include "agent/users.h"

#include "agent/files.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DB_FILE_MAX = 1024 * 1024, FIELDS_MAX = 7 };

/* One line of a colon-separated file, split without copying. */
struct line {
    struct {
        const char *p;
        size_t n;
    } f[FIELDS_MAX];
    size_t count;
};

static bool next_line(const char **text, struct line *l)
{
    const char *p = *text;
    if (!*p)
        return false;
    size_t n = strcspn(p, "\n");
    *text = p + n + (p[n] == '\n');
    l->count = 0;
    for (const char *end = p + n; l->count < FIELDS_MAX; p++) {
        const char *colon = memchr(p, ':', (size_t)(end - p));
        const char *stop = colon ? colon : end;
        l->f[l->count].p = p;
        l->f[l->count++].n = (size_t)(stop - p);
        if (!colon)
            break;
        p = colon;
    }
    return true;
}

/* A decimal number that is a valid id: 0 .. 2^31-1, as in Docker. */
static bool parse_id(const char *p, size_t n, uint32_t *id)
{
    uint32_t v = 0;
    if (n == 0 || n > 10)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        uint32_t digit = (uint32_t)(p[i] - '0');
        if (v > (INT32_MAX - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *id = v;
    return true;
}

static bool field_is(const struct line *l, size_t i, const char *s, size_t n)
{
    return l->count > i && l->f[i].n == n && memcmp(l->f[i].p, s, n) == 0;
}

/* Finds the first entry with this name or number. */
static bool find_entry(const char *text, const char *key, size_t n, struct line *l, uint32_t *id)
{
    uint32_t want = 0, have = 0;
    bool numeric = parse_id(key, n, &want);
    while (next_line(&text, l)) {
        if (l->count < 3 || l->f[0].n == 0 || l->f[0].p[0] == '#' ||
            !parse_id(l->f[2].p, l->f[2].n, &have))
            continue;
        if (field_is(l, 0, key, n) || (numeric && have == want)) {
            *id = have;
            return true;
        }
    }
    return false;
}

static bool lists_member(const struct line *l, const char *name, size_t n)
{
    if (l->count < 4)
        return false;
    const char *p = l->f[3].p, *end = p + l->f[3].n;
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - p) == n && memcmp(p, name, n) == 0)
            return true;
        p = stop + 1;
    }
    return false;
}

static void add_groups(struct identity *id, const char *group, const char *name, size_t n)
{
    struct line l;
    uint32_t gid;
    while (next_line(&group, &l)) {
        if (l.count < 4 || !parse_id(l.f[2].p, l.f[2].n, &gid) || !lists_member(&l, name, n))
            continue;
        bool seen = false;
        for (size_t i = 0; i < id->ngroups; i++)
            seen |= id->groups[i] == gid;
        if (!seen && id->ngroups < USER_GROUPS_MAX)
            id->groups[id->ngroups++] = gid;
    }
}

int user_resolve(struct identity *id, const char *spec, const char *passwd, const char *group,
                 struct err *e)
{
    const char *colon = strchr(spec, ':');
    size_t n = colon ? (size_t)(colon - spec) : strlen(spec);
    struct line l;
    uint32_t num = 0;

    *id = (struct identity){.home = "/"};
    if (n == 0) /* ":group" means root's uid, as does an empty user */
        spec = "0", n = 1;
    if (find_entry(passwd, spec, n, &l, &num)) {
        id->uid = num;
        if (l.count > 3 && parse_id(l.f[3].p, l.f[3].n, &num))
            id->gid = num;
        if (l.count > 5 && l.f[5].n && l.f[5].n < sizeof(id->home)) {
            memcpy(id->home, l.f[5].p, l.f[5].n);
            id->home[l.f[5].n] = '\0';
        }
        if (!colon)
            add_groups(id, group, l.f[0].p, l.f[0].n);
    } else if (parse_id(spec, n, &num)) {
        id->uid = num;
    } else {
        return err_set(e, ENOENT, "no user %.*s in the image's /etc/passwd", (int)MIN(n, 200),
                       spec);
    }
    if (!colon)
        return 0;
    const char *g = colon + 1;
    if (!find_entry(group, g, strlen(g), &l, &num) && !parse_id(g, strlen(g), &num))
        return err_set(e, ENOENT, "no group %.200s in the image's /etc/group", g);
    id->gid = num;
    return 0;
}

void user_cache_init(struct user_cache *c, const char *passwd_path, const char *group_path)
{
    *c = (struct user_cache){.passwd_path = passwd_path, .group_path = group_path};
}

static int add_more_groups(struct user_cache *c, const char *group, struct err *e)
{
    for (size_t i = 0; i < c->n_more; i++) {
        const char *g = c->more[i];
        struct line l;
        uint32_t gid;
        if (!find_entry(group, g, strlen(g), &l, &gid) && !parse_id(g, strlen(g), &gid))
            return err_set(e, ENOENT, "no group %.200s in the image's /etc/group (--group-add)", g);
        if (c->id.ngroups < USER_GROUPS_MAX)
            c->id.groups[c->id.ngroups++] = gid;
    }
    return 0;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

const struct identity *user_lookup(struct user_cache *c, const char *spec, struct err *e)
{
    struct stat passwd = {0}, group = {0};
    (void)stat(c->passwd_path, &passwd); /* a missing file is all zeros, which also compares */
    (void)stat(c->group_path, &group);
    if (c->valid && strcmp(c->spec, spec) == 0 && same_file(&passwd, &c->passwd) &&
        same_file(&group, &c->group))
        return &c->id;
    c->valid = 0;
    AUTO_FREE char *ptext = file_read_text(c->passwd_path, DB_FILE_MAX, NULL);
    AUTO_FREE char *gtext = file_read_text(c->group_path, DB_FILE_MAX, NULL);
    if (user_resolve(&c->id, spec, ptext ? ptext : "", gtext ? gtext : "", e) < 0 ||
        add_more_groups(c, gtext ? gtext : "", e) < 0)
        return NULL;
    size_t len = strlen(spec);
    if (len < sizeof(c->spec)) {
        memcpy(c->spec, spec, len + 1);
        c->passwd = passwd;
        c->group = group;
        c->valid = 1;
    }
    return &c->id;
}
