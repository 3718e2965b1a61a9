/* Trees as JSON: writing them, reading our own, and reading anyone's.
 *
 * Nearly everything that is read was written here, and a sandbox's start waits for it: such text is
 * read in one pass. Anything that differs, even by a space, is left to the library; so the fast
 * path accepts a subset, and must yield the same result for it.
 */
#include "s3/tree.h"
#include "util/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"file", "dir", "symlink"};

/* --- writing --------------------------------------------------------------------------------- */

/* Written by hand: for 200,000 entries, a tree of values would cost more than all the rest. */
static int put_text(struct buf *b, const char *name, const char *v)
{
    int r = name ? buf_printf(b, ",\"%s\":\"", name) : buf_append(b, "\"", 1);
    while (r == 0 && *v) {
        size_t n = strcspn(v, "\"\\");
        r = buf_append(b, v, n);
        v += n;
        if (r == 0 && *v)
            r = buf_printf(b, "\\%c", *v++);
    }
    return r < 0 ? r : buf_append(b, "\"", 1);
}

static int put_entry(struct buf *b, const struct s3_entry *a, bool local)
{
    int r = put_text(b, NULL, a->path);
    if (r == 0)
        r = buf_printf(b, ":{\"type\":\"%s\",\"mode\":%u,\"size\":%llu,\"mtime_ns\":%lld",
                       kinds[a->kind], a->mode, (unsigned long long)a->size,
                       (long long)a->mtime_ns);
    if (r == 0 && a->sha[0])
        r = put_text(b, "sha256", a->sha);
    if (r == 0 && a->etag[0])
        r = put_text(b, "etag", a->etag);
    if (r == 0 && a->staged)
        r = put_text(b, "staged", a->staged);
    if (r == 0 && local && a->guessed)
        r = buf_printf(b, ",\"guessed\":true");
    if (r == 0 && local && a->later[0])
        r = put_text(b, "later", a->later);
    if (r == 0 && local)
        r = buf_printf(b, ",\"ino\":%llu,\"ctime_ns\":%lld", (unsigned long long)a->ino,
                       (long long)a->ctime_ns);
    return r < 0 ? r : buf_append(b, "}", 1);
}

static int put_list(struct buf *b, const char *name, const struct strlist *l)
{
    int r = buf_printf(b, ",\"%s\":[", name);
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        r = i ? buf_append(b, ",", 1) : 0;
        if (r == 0)
            r = put_text(b, NULL, l->v[i]);
    }
    return r < 0 ? r : buf_append(b, "]", 1);
}

char *s3_tree_dump(const struct s3_tree *t, bool local)
{
    AUTO_BUF struct buf b;
    bool first = true;
    buf_init(&b, 2L * S3_MANIFEST_MAX);
    int r = buf_printf(&b, "{\"version\":1,\"entries\":{");
    for (size_t i = 0; r == 0 && i < t->n; i++) {
        if (t->v[i].guessed && !local)
            continue;
        if (!first)
            r = buf_append(&b, ",", 1);
        first = false;
        if (r == 0)
            r = put_entry(&b, &t->v[i], local);
    }
    if (r == 0)
        r = buf_append(&b, "}", 1);
    if (r == 0)
        r = put_list(&b, "pending", &t->pending);
    if (r == 0 && t->gone.n)
        r = put_list(&b, "gone", &t->gone);
    if (r == 0 && t->lineage[0])
        r = put_text(&b, "lineage", t->lineage);
    if (r == 0 && t->push[0])
        r = put_text(&b, "push", t->push);
    if (r == 0)
        r = buf_append(&b, "}", 2);
    return r < 0 ? NULL : strdup((const char *)buf_head(&b));
}

/* --- reading anything ------------------------------------------------------------------------ */

static bool get_number(const json_t *j, const char *name, uint64_t max, uint64_t *ret)
{
    const json_t *v = json_object_get(j, name);
    if (!v)
        return true;
    json_int_t n = json_integer_value(v);
    *ret = (uint64_t)n;
    return json_is_integer(v) && n >= 0 && (uint64_t)n <= max;
}

static bool get_text(const json_t *j, const char *name, char *out, size_t size, const char *chars)
{
    const char *v = json_string_value(json_object_get(j, name));
    if (v && strlen(v) < size && (!chars || strspn(v, chars) == strlen(v)))
        (void)snprintf(out, size, "%s", v);
    else
        out[0] = '\0';
    return true;
}

/* "staged" becomes part of a key. */
static bool name_ok(const char *name)
{
    return *name && strlen(name) <= 64 &&
           strspn(name, "0123456789abcdefghijklmnopqrstuvwxyz-") == strlen(name);
}

static bool is_hex(const char *v)
{
    return strspn(v, "0123456789abcdef") == strlen(v);
}

static bool entry_ok(const struct s3_entry *a)
{
    for (const char *p = a->etag; *p; p++) /* it becomes part of a header */
        if (*p <= 0x20 || *p >= 0x7f || *p == '"')
            return false;
    return a->kind == S3_KIND_DIR || strlen(a->sha) == 64;
}

static bool read_entry(const json_t *j, struct s3_entry *a)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    uint64_t mode = 0644, mtime = 0, ctime = 0;
    size_t kind = 0;
    while (kind < ARRAY_LEN(kinds) && (!type || strcmp(type, kinds[kind]) != 0))
        kind++;
    a->kind = (enum s3_kind)kind;
    bool ok = kind < ARRAY_LEN(kinds) && get_number(j, "mode", 0777, &mode) &&
              get_number(j, "size", INT64_MAX, &a->size) &&
              get_number(j, "mtime_ns", INT64_MAX, &mtime) &&
              get_number(j, "ino", INT64_MAX, &a->ino) &&
              get_number(j, "ctime_ns", INT64_MAX, &ctime);
    a->mode = (unsigned)mode;
    a->mtime_ns = (int64_t)mtime;
    a->ctime_ns = (int64_t)ctime;
    (void)get_text(j, "sha256", a->sha, sizeof(a->sha), "0123456789abcdef");
    (void)get_text(j, "etag", a->etag, sizeof(a->etag), NULL);
    (void)get_text(j, "later", a->later, sizeof(a->later), "0123456789abcdef");
    a->guessed = json_is_true(json_object_get(j, "guessed"));
    const char *staged = json_string_value(json_object_get(j, "staged"));
    a->staged = staged && name_ok(staged) ? (char *)staged : NULL;
    return ok && entry_ok(a);
}

enum list { PENDING, GONE };

/* Of a path, or of an object that is gone (s3_gone_name). */
static bool is_name(const char *text, enum list kind)
{
    if (kind == PENDING)
        return s3_path_ok(text);
    return strspn(text, "0123456789abcdef") == S3_ETAG_DIGITS && text[S3_ETAG_DIGITS] == '/' &&
           s3_path_ok(text + S3_ETAG_DIGITS + 1);
}

static bool is_marked(const char *text, enum list kind)
{
    size_t n = strspn(text, "0123456789abcdef");
    return n == S3_MARK && text[n] == ' ' && is_name(text + n + 1, kind);
}

static int read_list(const json_t *j, enum list kind, struct strlist *l)
{
    size_t i;
    const json_t *v;
    /* clang-format off */
    json_array_foreach((json_t *)j, i, v)
    /* clang-format on */
    {
        const char *name = json_string_value(v);
        bool marked = name && is_marked(name, kind);
        if (!name || i >= S3_ENTRIES_MAX || (!marked && !is_name(name, kind)))
            continue;
        if (strlist_printf(l, "%s%s", marked ? "" : S3_NO_MARK " ", name) < 0)
            return -ENOMEM;
    }
    return 0;
}

int s3_tree_parse_any(const char *text, size_t n, struct s3_tree *ret)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    AUTO_JSON json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    json_t *entries = json_object_get(root, "entries");
    const char *path;
    json_t *v;
    if (json_integer_value(json_object_get(root, "version")) != 1 || !json_is_object(entries) ||
        json_object_size(entries) > S3_ENTRIES_MAX)
        return -EBADMSG;
    /* clang-format off */
    json_object_foreach(entries, path, v)
    /* clang-format on */
    {
        struct s3_entry a = {0};
        if (s3_path_ok(path) && read_entry(v, &a) && !s3_tree_add(&t, path, &a))
            return -ENOMEM;
    }
    int r = read_list(json_object_get(root, "pending"), PENDING, &t.pending);
    if (r == 0)
        r = read_list(json_object_get(root, "gone"), GONE, &t.gone);
    if (r < 0)
        return r;
    (void)get_text(root, "lineage", t.lineage, sizeof(t.lineage), "0123456789abcdef");
    (void)get_text(root, "push", t.push, sizeof(t.push), "0123456789abcdef");
    s3_tree_sort(&t);
    *ret = t;
    t = (struct s3_tree){0};
    return 0;
}

/* --- reading our own ------------------------------------------------------------------------- */

struct scanner {
    const char *p, *end;
};

static bool word(struct scanner *s, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, w, n) != 0)
        return false;
    s->p += n;
    return true;
}

static bool number(struct scanner *s, uint64_t max, uint64_t *ret)
{
    const char *from = s->p;
    uint64_t n = 0;
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++) {
        if (n > (max - (uint64_t)(*s->p - '0')) / 10)
            return false;
        n = 10 * n + (uint64_t)(*s->p - '0');
    }
    *ret = n;
    return s->p > from && (*from != '0' || s->p == from + 1);
}

/* Up to the quote that ends it. */
static bool text(struct scanner *s, char *out, size_t size)
{
    for (size_t n = 0; s->p < s->end && n < size; n++) {
        char c = *s->p++;
        if (c == '"') {
            out[n] = '\0';
            return true;
        }
        if (c == '\\' && (s->p == s->end || (*s->p != '"' && *s->p != '\\')))
            return false;
        out[n] = c == '\\' ? *s->p++ : c;
        if (out[n] >= 0 && out[n] < 0x20)
            return false;
    }
    return false;
}

static bool scan_kind(struct scanner *s, enum s3_kind *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (word(s, kinds[i])) {
            *ret = (enum s3_kind)i;
            return word(s, "\"");
        }
    return false;
}

/* Anything unexpected need not be refused, but must be left to the library. */
static bool scan_entry(struct scanner *s, struct s3_entry *a, char staged[S3_ETAG_SIZE])
{
    uint64_t mode = 0, mtime = 0, ctime = 0;
    bool ok = word(s, ":{\"type\":\"") && scan_kind(s, &a->kind) && word(s, ",\"mode\":") &&
              number(s, 0777, &mode) && word(s, ",\"size\":") && number(s, INT64_MAX, &a->size) &&
              word(s, ",\"mtime_ns\":") && number(s, INT64_MAX, &mtime);
    if (!ok)
        return false;
    if (word(s, ",\"sha256\":\""))
        ok = text(s, a->sha, sizeof(a->sha)) && is_hex(a->sha);
    if (ok && word(s, ",\"etag\":\""))
        ok = text(s, a->etag, sizeof(a->etag));
    if (ok && word(s, ",\"staged\":\"")) {
        ok = text(s, staged, S3_ETAG_SIZE) && name_ok(staged);
        a->staged = staged;
    }
    a->guessed = ok && word(s, ",\"guessed\":true");
    if (ok && word(s, ",\"later\":\""))
        ok = text(s, a->later, sizeof(a->later)) && is_hex(a->later);
    if (ok && word(s, ",\"ino\":"))
        ok = number(s, INT64_MAX, &a->ino) && word(s, ",\"ctime_ns\":") &&
             number(s, INT64_MAX, &ctime);
    a->mode = (unsigned)mode;
    a->mtime_ns = (int64_t)mtime;
    a->ctime_ns = (int64_t)ctime;
    return ok && word(s, "}") && entry_ok(a);
}

static bool scan_entries(struct scanner *s, struct s3_tree *t)
{
    char path[S3_PATH_MAX + 1], staged[S3_ETAG_SIZE];
    for (bool first = true; !word(s, "}"); first = false) {
        struct s3_entry a = {0};
        if ((!first && !word(s, ",")) || !word(s, "\"") || !text(s, path, sizeof(path)) ||
            !scan_entry(s, &a, staged) || !s3_path_ok(path))
            return false;
        if (t->n && strcmp(t->v[t->n - 1].path, path) >= 0) /* sorted, without duplicates */
            return false;
        if (!s3_tree_add(t, path, &a))
            return false;
    }
    return true;
}

static bool scan_list(struct scanner *s, enum list kind, struct strlist *l)
{
    char name[S3_MARK + 1 + S3_GONE_SIZE] = "";
    for (bool first = true; !word(s, "]"); first = false) {
        if ((!first && !word(s, ",")) || !word(s, "\"") || !text(s, name, sizeof(name)) ||
            !is_marked(name, kind) || l->n >= S3_ENTRIES_MAX || strlist_add(l, name) < 0)
            return false;
    }
    return true;
}

static bool scan_hex(struct scanner *s, const char *begin, char out[S3_LINEAGE + 1])
{
    return !word(s, begin) || (text(s, out, S3_LINEAGE + 1) && is_hex(out));
}

int s3_tree_parse_own(const char *text, size_t n, struct s3_tree *ret)
{
    AUTO_S3_TREE struct s3_tree t = {0};
    struct scanner s = {text, text + n};
    if (!word(&s, "{\"version\":1,\"entries\":{") || !scan_entries(&s, &t) ||
        !word(&s, ",\"pending\":[") || !scan_list(&s, PENDING, &t.pending))
        return -EBADMSG;
    if (word(&s, ",\"gone\":[") && !scan_list(&s, GONE, &t.gone))
        return -EBADMSG;
    if (!scan_hex(&s, ",\"lineage\":\"", t.lineage) || !scan_hex(&s, ",\"push\":\"", t.push) ||
        !word(&s, "}") || s.p < s.end)
        return -EBADMSG;
    *ret = t;
    t = (struct s3_tree){0};
    return 0;
}

int s3_tree_parse(const char *text, size_t n, struct s3_tree *ret)
{
    return s3_tree_parse_own(text, n, ret) == 0 ? 0 : s3_tree_parse_any(text, n, ret);
}
