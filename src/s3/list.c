/* Lists what is below a prefix.
 *
 * A page has a thousand objects, and the next page can only be requested after it: with many
 * objects, round trips dominate. So if there is a second page, the top-level directories are
 * requested, and ranges between some of them are listed in parallel. That takes a server that lists
 * in order and starts where it is told to: if one does not, which can be detected, its pages are
 * read one after another.
 */
#include "s3/call.h"
#include "s3/xml.h"
#include "util/array.h"
#include "util/parse.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

/* --- one page -------------------------------------------------------------------------------- */

struct listed {
    char *key;
    uint64_t size;
    char etag[S3_ETAG_SIZE];
};

/* Objects are kept until the end of their page, where some servers first say how keys are
 * encoded. */
struct page {
    struct listed *v, next;
    size_t n, cap;
    char *token;
    bool more, encoded, top;
};

/* The request: all below the prefix, or only what comes after a key. */
struct ask {
    const char *prefix, *after;
    bool top; /* directories represent their contents */
};

static void page_clear(struct page *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->v[i].key);
    free(p->next.key);
    p->next = (struct listed){0};
    p->n = 0;
    p->more = p->encoded = false;
}

static void page_free(struct page *p)
{
    page_clear(p);
    free(p->v);
    free(p->token);
    *p = (struct page){0};
}

/* %XX and +, in place. -EBADMSG: malformed, or a NUL. */
static int unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (*s != '%') {
            *to++ = *s == '+' ? ' ' : *s;
            continue;
        }
        char hex[3] = {s[1], s[1] ? s[2] : '\0', '\0'};
        if (strspn(hex, "0123456789abcdefABCDEF") != 2 || strcmp(hex, "00") == 0)
            return -EBADMSG;
        *to++ = (char)strtol(hex, NULL, 16);
        s += 2;
    }
    *to = '\0';
    return 0;
}

/* Takes its key. */
static int add(struct page *p, struct listed *a)
{
    if (!a->key || p->n >= S3_LIST_MAX)
        return -EBADMSG;
    if (ARRAY_GROW(p->v, p->n, p->cap, 1000) < 0)
        return -ENOMEM;
    p->v[p->n++] = *a;
    *a = (struct listed){0};
    return 0;
}

static int on_list_xml(void *ctx, const char *path, const char *text)
{
    static const char root[] = "/ListBucketResult/";
    struct page *p = ctx;
    if (strncmp(path, root, sizeof(root) - 1) != 0)
        return 0;
    path += sizeof(root) - 1;
    if (strcmp(path, "Contents/Key") == 0)
        return s3_call_text(&p->next.key, text);
    if (p->top && strcmp(path, "CommonPrefixes/Prefix") == 0)
        return s3_call_text(&p->next.key, text);
    if (strcmp(path, "Contents/Size") == 0)
        return parse_u64(text, &p->next.size) < 0 || p->next.size > INT64_MAX ? -EBADMSG : 0;
    if (strcmp(path, "Contents/ETag") == 0)
        s3_call_etag(p->next.etag, text);
    else if (strcmp(path, "Contents") == 0 || (p->top && strcmp(path, "CommonPrefixes") == 0))
        return add(p, &p->next);
    else if (strcmp(path, "IsTruncated") == 0)
        p->more = strcmp(text, "true") == 0;
    else if (strcmp(path, "EncodingType") == 0)
        p->encoded = strcmp(text, "url") == 0;
    else if (strcmp(path, "NextContinuationToken") == 0)
        return s3_call_text(&p->token, text);
    return 0;
}

static int list_page(struct s3_client *c, const struct ask *ask, struct page *p, struct err *e)
{
    AUTO_S3_CALL struct s3_call q;
    s3_call_init(&q, "GET", NULL);
    int r = s3_call_query(&q, "list-type", "2");
    if (r == 0)
        r = s3_call_query(&q, "encoding-type", "url");
    if (r == 0)
        r = s3_call_query(&q, "prefix", ask->prefix);
    if (r == 0 && ask->top)
        r = s3_call_query(&q, "delimiter", "/");
    if (r == 0 && p->token)
        r = s3_call_query(&q, "continuation-token", p->token);
    else if (r == 0 && ask->after)
        r = s3_call_query(&q, "start-after", ask->after);
    if (r < 0)
        return err_oom(e);
    AUTO_FREE char *before = steal_ptr(&p->token);
    page_clear(p);
    p->top = ask->top;
    r = s3_call_run(c, &q, "list the bucket", e);
    if (r == 0 && q.status != 200)
        r = s3_call_explain(c, &q, "list the bucket", e);
    if (r < 0)
        return r;
    r = xml_parse((const char *)buf_head(&q.reply), buf_len(&q.reply), on_list_xml, p);
    for (size_t i = 0; r == 0 && p->encoded && i < p->n; i++)
        r = unescape(p->v[i].key);
    if (r == -ENOMEM)
        return err_oom(e);
    if (r < 0 || (p->more && !p->token))
        return err_set(e, EPROTO, "the server's listing is malformed");
    if (p->more && before && strcmp(before, p->token) == 0)
        return err_set(e, E2BIG, "the server's listing does not end");
    return 0;
}

/* --- several at once ------------------------------------------------------------------------- */

enum { RANGES_MAX = 4 }; /* each usually reads one page too many */

struct listing {
    struct s3_client *c;
    const char *prefix;
    atomic_size_t seen;
    atomic_uint pages;
    atomic_bool stop; /* there is no point in continuing */
};

/* What comes after one key, up to another. */
struct range {
    struct listing *l;
    const char *from, *to; /* NULL: to the end */
    struct page kept;
    int r;
    struct err e;
};

static int next_page(struct listing *l, const struct ask *ask, struct page *p, struct err *e)
{
    return atomic_fetch_add(&l->pages, 1) < S3_PAGES_MAX
               ? list_page(l->c, ask, p, e)
               : err_set(e, E2BIG, "the server's listing does not end");
}

static int count(struct listing *l, size_t n, struct err *e)
{
    return atomic_fetch_add(&l->seen, n) + n > S3_LIST_MAX
               ? err_set(e, E2BIG, "there are more than %d objects", S3_LIST_MAX)
               : 0;
}

/* Moves a page's objects that are in the range. -EDOM: they are not in order. 1: there are no
 * more. */
static int keep(struct range *a, struct page *p)
{
    for (size_t i = 0; i < p->n; i++) {
        const char *last = a->kept.n ? a->kept.v[a->kept.n - 1].key : a->from;
        if (strcmp(p->v[i].key, last) <= 0)
            return -EDOM;
        if (a->to && strcmp(p->v[i].key, a->to) > 0)
            return 1;
        int r = add(&a->kept, &p->v[i]);
        if (r < 0)
            return r;
    }
    return p->more ? 0 : 1;
}

static void *list_range(void *ctx)
{
    struct range *a = ctx;
    const struct ask ask = {.prefix = a->l->prefix, .after = a->from};
    struct page p = {0};
    while (a->r == 0 && !atomic_load(&a->l->stop)) {
        size_t before = a->kept.n;
        a->r = next_page(a->l, &ask, &p, &a->e);
        if (a->r == 0)
            a->r = keep(a, &p);
        int over = count(a->l, a->kept.n - before, &a->e);
        if (over < 0)
            a->r = over;
    }
    if (a->r < 0)
        atomic_store(&a->l->stop, true);
    page_free(&p);
    return NULL;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->key, ((const struct listed *)b)->key);
}

/* Servers that keep files list what is in "a/" before "a.b", as their directories are sorted, and
 * not by bytes. A cut anywhere else is valid in both orders. v is sorted by bytes: those names come
 * right before "a/". */
static bool is_cut(const struct page *p, size_t i)
{
    for (size_t k = i; k < p->n; k++) {
        const char *dir = p->v[k].key;
        size_t n = strlen(dir);
        if (n && dir[n - 1] == '/' && strncmp(p->v[i].key, dir, n - 1) == 0)
            return k == i && (i == 0 || strncmp(p->v[i - 1].key, dir, n - 1) != 0);
    }
    return true;
}

/* An entry before the key can only be the directory that contains the key. */
static bool is_in_order(const struct page *p, const char *after)
{
    for (size_t i = 0; i < p->n && strcmp(p->v[i].key, after) <= 0; i++)
        if (strncmp(after, p->v[i].key, strlen(p->v[i].key)) != 0)
            return false;
    return true;
}

/* Finds where the ranges other than the first begin: at top-level names after the key. */
static int find_cuts(struct listing *l, const char *after, struct strlist *cuts)
{
    struct page p = {0};
    int r = next_page(l, &(struct ask){.prefix = l->prefix, .after = after, .top = true}, &p, NULL);
    size_t first = 0, k = 0;
    if (p.n)
        qsort(p.v, p.n, sizeof(*p.v), by_key);
    while (first < p.n && strcmp(p.v[first].key, after) <= 0)
        first++;
    size_t m = p.n - first, n = MIN(m, (size_t)RANGES_MAX - 1);
    for (; r == 0 && k < n && is_in_order(&p, after); k++) {
        size_t i = first + (k + 1) * m / (n + 1);
        const char *at = p.v[i].key;
        const char *before = cuts->n ? cuts->v[cuts->n - 1] : after;
        if (strcmp(at, before) > 0 && strlen(at) <= S3_KEY_MAX && is_cut(&p, i))
            r = strlist_add(cuts, at);
    }
    page_free(&p);
    return r;
}

static int deliver(const struct page *p, s3_list_fn fn, void *ctx, struct err *e)
{
    int r = 0;
    for (size_t k = 0; r == 0 && k < p->n; k++)
        r = fn(ctx, p->v[k].key, p->v[k].size, p->v[k].etag, e);
    return r;
}

/* Lists what comes after the key. 1: impossible with this server, or with these names. */
static int list_at_once(struct listing *l, const char *after, s3_list_fn fn, void *ctx,
                        struct err *e)
{
    AUTO_STRLIST struct strlist cuts = {0};
    pthread_t thread[RANGES_MAX];
    bool runs[RANGES_MAX] = {0};
    if (find_cuts(l, after, &cuts) < 0 || cuts.n == 0)
        return 1;
    size_t n = cuts.n + 1, seen = atomic_load(&l->seen);
    AUTO_FREE struct range *v = calloc(n, sizeof(*v));
    if (!v)
        return err_oom(e);
    for (size_t i = 0; i < n; i++) {
        v[i].l = l;
        v[i].from = i ? cuts.v[i - 1] : after;
        v[i].to = i < cuts.n ? cuts.v[i] : NULL;
        runs[i] = pthread_create(&thread[i], NULL, list_range, &v[i]) == 0;
    }
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        if (runs[i])
            (void)pthread_join(thread[i], NULL);
        else
            (void)list_range(&v[i]);
        if (v[i].r < 0 && (r == 0 || v[i].r == -EDOM)) {
            r = v[i].r == -EDOM ? -EDOM : v[i].r == -ENOMEM ? err_oom(e) : v[i].r;
            if (r != -EDOM && r != -ENOMEM)
                err_copy(e, &v[i].e);
        }
    }
    for (size_t i = 0; i < n; i++) {
        r = r == 0 ? deliver(&v[i].kept, fn, ctx, e) : r;
        page_free(&v[i].kept);
    }
    atomic_store(&l->seen, seen);
    return r == -EDOM ? 1 : r;
}

int s3_list(struct s3_client *c, const char *prefix, s3_list_fn fn, s3_more_fn more, void *ctx,
            struct err *e)
{
    struct listing l = {.c = c, .prefix = prefix};
    struct page p = {.more = true};
    int r = 0;
    for (bool first = true; r == 0 && p.more; first = false) {
        r = next_page(&l, &(struct ask){.prefix = prefix}, &p, e);
        if (r == 0)
            r = count(&l, p.n, e);
        if (r == 0)
            r = deliver(&p, fn, ctx, e);
        if (r != 0 || !first || !p.more || !p.n)
            continue;
        if (more)
            more(ctx);
        r = list_at_once(&l, p.v[p.n - 1].key, fn, ctx, e);
        p.more = r == 1;
        r = MIN(r, 0);
    }
    page_free(&p);
    return r;
}
