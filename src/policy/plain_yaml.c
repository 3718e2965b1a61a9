/* Reads files as people usually write them, without libyaml, which takes five times as long: a
 * policy is read at every create. It is conservative by design: anything that is not clearly of the
 * form below is left to libyaml (-EAGAIN), including errors, and the resulting tree is the same
 * (fuzz_rulebook.c compares them).
 *
 * Printable ASCII. Maps and lists in blocks, by indentation, or of one line in brackets; keys are
 * words; texts of one line, with or without quotes, and without escapes.
 */
#include "policy/strict_yaml.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 64 };

struct plain {
    const char *p, *end;
    const char *begin; /* of the line */
    unsigned line;
    int indent; /* of the line; -1 at the end */
    size_t nodes;
};

static unsigned column(const struct plain *r)
{
    return (unsigned)(r->p - r->begin);
}

static char peek(const struct plain *r)
{
    return r->p < r->end ? *r->p : '\n';
}

static void skip_spaces(struct plain *r)
{
    while (peek(r) == ' ')
        r->p++;
}

/* At the end of a line, or before a comment: the latter needs a space before it. */
static bool at_line_end(const struct plain *r)
{
    return peek(r) == '\n' || (*r->p == '#' && (r->p == r->begin || r->p[-1] == ' '));
}

/* Moves from the end of a line to the beginning of the next one that is not empty. */
static void next_line(struct plain *r)
{
    for (;;) {
        skip_spaces(r);
        if (!at_line_end(r)) {
            r->indent = (int)column(r);
            return;
        }
        const char *newline = memchr(r->p, '\n', (size_t)(r->end - r->p));
        if (!newline) {
            r->indent = -1;
            return;
        }
        r->p = r->begin = newline + 1;
        r->line++;
    }
}

static int end_line(struct plain *r)
{
    skip_spaces(r);
    if (!at_line_end(r))
        return -EAGAIN;
    next_line(r);
    return 0;
}

/* --- values of one line ----------------------------------------------------------------------- */

static int take(const char *from, const char *to, char **ret)
{
    *ret = strndup(from, (size_t)(to - from));
    return *ret ? 0 : -ENOMEM;
}

static bool is_plain(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("/._+-=@*~$", c));
}

static int read_quoted(struct plain *r, struct yaml *ret)
{
    char quote = *r->p++;
    const char *from = r->p;
    while (peek(r) != quote && peek(r) != '\n' && peek(r) != '\\')
        r->p++;
    const char *to = r->p;
    if (peek(r) != quote || (++r->p < r->end && *r->p == quote))
        return -EAGAIN;
    return take(from, to, &ret->text);
}

static int read_text(struct plain *r, bool flow, struct yaml *ret)
{
    const char *from = r->p, *to = from;
    ret->plain = true;
    if (!isalnum((unsigned char)*from) && !strchr("/._+", *from))
        return -EAGAIN;
    for (; peek(r) != '\n'; r->p++) {
        char c = *r->p;
        bool inside = c == ':' && r->p + 1 < r->end && is_plain(r->p[1]);
        if (is_plain(c) || (!flow && (c == ',' || inside)))
            to = r->p + 1;
        else if (c != ' ')
            break; /* the caller decides */
    }
    return take(from, to, &ret->text);
}

/* Length of the word before a colon; 0: there is none. */
static size_t key_length(const struct plain *r)
{
    const char *p = r->p;
    while (p < r->end && (isalnum((unsigned char)*p) || *p == '_'))
        p++;
    bool key = p < r->end && *p == ':' && (p + 1 == r->end || p[1] == ' ' || p[1] == '\n');
    return key && p - r->p <= KEY_MAX ? (size_t)(p - r->p) : 0;
}

/* A new member of a list, or of a map, whose key comes next. */
static int read_member(struct plain *r, struct yaml *to, struct yaml **ret)
{
    AUTO_FREE char *key = NULL;
    if (to->kind == YAML_MAP) {
        size_t n = key_length(r);
        if (n == 0 || to->n == YAML_KEYS_MAX)
            return -EAGAIN;
        if (take(r->p, r->p + n, &key) < 0)
            return -ENOMEM;
        if (yaml_get(to, key))
            return -EAGAIN;
        r->p += n + 1;
    }
    *ret = yaml_add(to);
    if (!*ret)
        return -ENOMEM;
    (*ret)->key = steal_ptr(&key);
    skip_spaces(r);
    return 0;
}

static int begin_node(struct plain *r, unsigned depth, enum yaml_kind kind, struct yaml *ret)
{
    ret->kind = kind;
    ret->line = r->line;
    ret->column = column(r) + 1;
    return depth > YAML_DEPTH_MAX || ++r->nodes > YAML_NODES_MAX ? -EAGAIN : 0;
}

static int read_value(struct plain *r, bool flow, unsigned depth, struct yaml *ret);

/* [a, b] or {a: b} */
static int read_flow(struct plain *r, unsigned depth, struct yaml *ret)
{
    char end = *r->p++ == '[' ? ']' : '}';
    int x = 0;
    skip_spaces(r);
    while (x == 0 && peek(r) != end) {
        struct yaml *item = NULL;
        if (ret->n > 0 && *r->p++ != ',')
            return -EAGAIN;
        skip_spaces(r);
        x = read_member(r, ret, &item);
        if (x == 0)
            x = read_value(r, true, depth + 1, item);
        skip_spaces(r);
        if (x == 0 && peek(r) != end && peek(r) != ',')
            return -EAGAIN;
    }
    r->p += x == 0;
    return x;
}

static int read_value(struct plain *r, bool flow, unsigned depth, struct yaml *ret)
{
    char c = peek(r);
    enum yaml_kind kind = c == '[' ? YAML_LIST : c == '{' ? YAML_MAP : YAML_TEXT;
    int x = c == '\n' ? -EAGAIN : begin_node(r, depth, kind, ret);
    if (x < 0)
        return x;
    if (kind != YAML_TEXT)
        return read_flow(r, depth, ret);
    return c == '"' || c == '\'' ? read_quoted(r, ret) : read_text(r, flow, ret);
}

/* --- blocks ----------------------------------------------------------------------------------- */

static bool at_entry(const struct plain *r)
{
    return peek(r) == '-' && r->p + 1 < r->end && r->p[1] == ' ';
}

static int read_block(struct plain *r, unsigned depth, struct yaml *ret);

/* What is in the block `indent`, under a key or after "- ". */
static int read_inner(struct plain *r, int indent, bool key, unsigned depth, struct yaml *ret)
{
    if (!key && key_length(r)) { /* a map that begins beside its "- " */
        r->indent = (int)column(r);
        return read_block(r, depth, ret);
    }
    if (!at_line_end(r)) {
        int x = read_value(r, false, depth, ret);
        return x < 0 ? x : end_line(r);
    }
    if (!key)
        return -EAGAIN;
    next_line(r);
    /* A list may be as far to the left as its key. */
    return r->indent > indent || (r->indent == indent && at_entry(r)) ? read_block(r, depth, ret)
                                                                      : -EAGAIN;
}

static int read_block(struct plain *r, unsigned depth, struct yaml *ret)
{
    int indent = r->indent;
    bool list = at_entry(r);
    int x = begin_node(r, depth, list ? YAML_LIST : YAML_MAP, ret);
    while (x == 0 && r->indent == indent && at_entry(r) == list) {
        struct yaml *item = NULL;
        r->p += list;
        x = read_member(r, ret, &item);
        if (x == 0)
            x = read_inner(r, indent, !list, depth + 1, item);
    }
    return x == 0 && r->indent > indent ? -EAGAIN : x;
}

int yaml_plain_parse(const char *text, size_t n, struct yaml *ret)
{
    struct plain r = {.p = text, .begin = text, .end = text + n, .line = 1};
    *ret = (struct yaml){0};
    for (size_t i = 0; i < n; i++)
        if ((text[i] < ' ' || text[i] > '~') && text[i] != '\n')
            return -EAGAIN;
    next_line(&r);
    int x = r.indent < 0 ? -EAGAIN : read_block(&r, 0, ret);
    if (x == 0 && r.indent >= 0)
        x = -EAGAIN;
    if (x < 0)
        yaml_tree_free(ret);
    return x;
}
