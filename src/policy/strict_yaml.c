#include "policy/strict_yaml.h"

#include "util/array.h"
#include "util/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    const char *name;
    yaml_parser_t parser;
    size_t nodes;
    struct err *e;
};

static void cleanup_event(yaml_event_t *ev)
{
    yaml_event_delete(ev);
}
#define AUTO_EVENT CLEANUP(cleanup_event)

static int fail_at(const struct reader *r, yaml_mark_t m, const char *text)
{
    return err_set(r->e, EINVAL, "%s:%zu:%zu: %s", r->name, m.line + 1, m.column + 1, text);
}

static int next_event(struct reader *r, yaml_event_t *ev)
{
    if (yaml_parser_parse(&r->parser, ev))
        return 0;
    const yaml_parser_t *p = &r->parser;
    memset(ev, 0, sizeof(*ev));
    if (p->error == YAML_MEMORY_ERROR)
        return err_oom(r->e);
    if (p->error == YAML_READER_ERROR)
        return err_set(r->e, EINVAL, "%s: not text in UTF-8, at byte %zu", r->name,
                       p->problem_offset);
    return fail_at(r, p->problem_mark, p->problem ? p->problem : "not valid YAML");
}

/* Refuses what no node may have, whatever its kind. */
static int check_plain(const struct reader *r, const yaml_event_t *ev)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (ev->type == YAML_SCALAR_EVENT) {
        anchor = ev->data.scalar.anchor;
        tag = ev->data.scalar.tag;
    } else if (ev->type == YAML_SEQUENCE_START_EVENT) {
        anchor = ev->data.sequence_start.anchor;
        tag = ev->data.sequence_start.tag;
    } else if (ev->type == YAML_MAPPING_START_EVENT) {
        anchor = ev->data.mapping_start.anchor;
        tag = ev->data.mapping_start.tag;
    }
    if (ev->type == YAML_ALIAS_EVENT || anchor)
        return fail_at(r, ev->start_mark, "anchors and aliases are not allowed here");
    return tag ? fail_at(r, ev->start_mark, "tags (!) are not allowed here") : 0;
}

static int take_text(struct reader *r, const yaml_event_t *ev, char **ret)
{
    const char *text = (const char *)ev->data.scalar.value;
    if (!text || strlen(text) != ev->data.scalar.length)
        return fail_at(r, ev->start_mark, "a NUL character is not allowed here");
    *ret = strdup(text);
    return *ret ? 0 : err_oom(r->e);
}

struct yaml *yaml_add(struct yaml *to)
{
    if ((to->n & (to->n - 1)) == 0) { /* full at every power of two */
        if (ARRAY_RESIZE(to->item, to->n ? 2 * to->n : 1) < 0)
            return NULL;
    }
    to->item[to->n] = (struct yaml){0};
    return &to->item[to->n++];
}

static int read_node(struct reader *r, const yaml_event_t *ev, unsigned depth, struct yaml *ret);

static int check_key(struct reader *r, const struct yaml *map, const yaml_event_t *ev)
{
    if (ev->type != YAML_SCALAR_EVENT)
        return fail_at(r, ev->start_mark, "a key must be a word");
    if (map->n == YAML_KEYS_MAX)
        return fail_at(r, ev->start_mark, "too many keys");
    int x = check_plain(r, ev);
    const char *key = (const char *)ev->data.scalar.value;
    if (x == 0 && yaml_get(map, key))
        return err_set(r->e, EINVAL, "%s:%zu:%zu: '%.60s' is given twice: first in line %u",
                       r->name, ev->start_mark.line + 1, ev->start_mark.column + 1, key,
                       yaml_get(map, key)->line);
    return x;
}

/* 1 = it has ended. */
static int read_item(struct reader *r, unsigned depth, struct yaml *ret)
{
    AUTO_EVENT yaml_event_t ev = {0};
    AUTO_FREE char *key = NULL;
    int x = next_event(r, &ev);
    if (x < 0 || ev.type == YAML_SEQUENCE_END_EVENT || ev.type == YAML_MAPPING_END_EVENT)
        return x < 0 ? x : 1;
    if (ret->kind == YAML_MAP) {
        x = check_key(r, ret, &ev);
        if (x == 0)
            x = take_text(r, &ev, &key);
        if (x < 0)
            return x;
        yaml_event_delete(&ev);
        x = next_event(r, &ev);
    }
    if (x < 0)
        return x;
    struct yaml *item = yaml_add(ret);
    if (!item)
        return err_oom(r->e);
    item->key = steal_ptr(&key);
    return read_node(r, &ev, depth + 1, item);
}

static int read_node(struct reader *r, const yaml_event_t *ev, unsigned depth, struct yaml *ret)
{
    ret->line = (unsigned)ev->start_mark.line + 1;
    ret->column = (unsigned)ev->start_mark.column + 1;
    int x = check_plain(r, ev);
    if (x < 0)
        return x;
    if (depth > YAML_DEPTH_MAX || ++r->nodes > YAML_NODES_MAX)
        return fail_at(r, ev->start_mark,
                       depth > YAML_DEPTH_MAX ? "too deeply nested" : "too long");
    if (ev->type == YAML_SCALAR_EVENT) {
        ret->kind = YAML_TEXT;
        ret->plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        return take_text(r, ev, &ret->text);
    }
    ret->kind = ev->type == YAML_SEQUENCE_START_EVENT ? YAML_LIST : YAML_MAP;
    while (x == 0)
        x = read_item(r, depth, ret);
    return x < 0 ? x : 0;
}

static int read_document(struct reader *r, struct yaml *ret)
{
    bool begun = false;
    for (;;) {
        AUTO_EVENT yaml_event_t ev = {0};
        int x = next_event(r, &ev);
        if (x < 0 || ev.type == YAML_STREAM_END_EVENT)
            return x;
        if (ev.type == YAML_DOCUMENT_START_EVENT) {
            if (begun)
                return fail_at(r, ev.start_mark, "a second document ('---') is not allowed here");
            if (ev.data.document_start.version_directive ||
                ev.data.document_start.tag_directives.start !=
                    ev.data.document_start.tag_directives.end)
                return fail_at(r, ev.start_mark, "directives (%) are not allowed here");
            begun = true;
        } else if (ev.type != YAML_STREAM_START_EVENT && ev.type != YAML_DOCUMENT_END_EVENT) {
            x = read_node(r, &ev, 0, ret);
            if (x < 0)
                return x;
        }
    }
}

int yaml_tree_parse(const char *name, const char *text, size_t n, struct yaml *ret, struct err *e)
{
    if (n > YAML_FILE_MAX)
        return err_set(e, EFBIG, "%s is too large: at most %d KiB", name, YAML_FILE_MAX >> 10);
    int r = yaml_plain_parse(text, n, ret);
    if (r == -ENOMEM)
        return err_oom(e);
    return r == -EAGAIN ? yaml_full_parse(name, text, n, ret, e) : r;
}

int yaml_full_parse(const char *name, const char *text, size_t n, struct yaml *ret, struct err *e)
{
    struct reader r = {.name = name, .e = e};
    *ret = (struct yaml){.kind = YAML_MAP, .line = 1, .column = 1};
    if (!yaml_parser_initialize(&r.parser))
        return err_oom(e);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    int x = read_document(&r, ret);
    yaml_parser_delete(&r.parser);
    if (x == 0 && ret->kind == YAML_TEXT && ret->plain && !*ret->text) { /* "---" alone */
        yaml_tree_free(ret);
        ret->kind = YAML_MAP;
        ret->line = ret->column = 1;
    }
    if (x < 0)
        yaml_tree_free(ret);
    return x;
}

void yaml_tree_free(struct yaml *y)
{
    for (size_t i = 0; i < y->n; i++)
        yaml_tree_free(&y->item[i]);
    free(y->item);
    free(y->key);
    free(y->text);
    *y = (struct yaml){0};
}

const struct yaml *yaml_get(const struct yaml *map, const char *key)
{
    for (size_t i = 0; map->kind == YAML_MAP && i < map->n; i++)
        if (strcmp(map->item[i].key, key) == 0)
            return &map->item[i];
    return NULL;
}

int yaml_fail(const char *name, const struct yaml *at, struct err *e, const char *fmt, ...)
{
    char text[ERR_MSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(e, EINVAL, "%s:%u:%u: %s", name, at->line, at->column, text);
}

int yaml_expect(const char *name, const struct yaml *y, enum yaml_kind kind, const char *what,
                struct err *e)
{
    static const char *const kinds[] = {
        [YAML_TEXT] = "a single value", [YAML_LIST] = "a list", [YAML_MAP] = "a map of keys"};
    if (y->kind != kind)
        return yaml_fail(name, y, e, "%s must be %s", what, kinds[kind]);
    if (kind == YAML_TEXT && y->plain && !*y->text)
        return yaml_fail(name, y, e, "%s has no value", what);
    return 0;
}

int yaml_flag(const char *name, const struct yaml *y, bool *ret, struct err *e)
{
    bool yes = y->kind == YAML_TEXT && y->plain && strcmp(y->text, "true") == 0;
    if (!yes && !(y->kind == YAML_TEXT && y->plain && strcmp(y->text, "false") == 0))
        return yaml_fail(name, y, e, "%s must be true or false", y->key ? y->key : "this");
    *ret = yes;
    return 0;
}

int yaml_unknown_key(const char *name, const struct yaml *y, const char *const *known,
                     struct err *e)
{
    const char *best = NULL;
    unsigned unlike = TEXT_FAR;
    for (; *known; known++) {
        unsigned d = word_unlikeness(y->key, *known);
        if (d < unlike) {
            unlike = d;
            best = *known;
        }
    }
    (void)yaml_fail(name, y, e, "unknown key '%.60s'", y->key);
    if (best)
        err_hint(e, "did you mean '%s'?", best);
    return -EINVAL;
}
