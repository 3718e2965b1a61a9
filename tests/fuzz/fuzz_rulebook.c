/* Policy files: what is accepted can be shown and judged, and what is not says where it is wrong. */
#include "cli/core/conf.h"
#include "cli/core/verbs.h"
#include "policy/rulebook.h"
#include "policy/strict_yaml.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t count(const struct yaml *y, unsigned depth)
{
    size_t n = 1;
    if (depth > YAML_DEPTH_MAX || (y->kind == YAML_TEXT) != (y->text != NULL) ||
        (depth > 0 && y->line == 0))
        abort();
    for (size_t i = 0; i < y->n; i++) {
        if ((y->kind == YAML_MAP) != (y->item[i].key != NULL))
            abort();
        n += count(&y->item[i], depth + 1);
    }
    return n;
}

static bool same(const char *a, const char *b)
{
    return !a == !b && (!a || strcmp(a, b) == 0);
}

/* Two readers, one tree: whatever the quick one takes. */
static void compare(const struct yaml *a, const struct yaml *b)
{
    if (a->kind != b->kind || a->line != b->line || a->column != b->column ||
        a->plain != b->plain || a->n != b->n || !same(a->key, b->key) || !same(a->text, b->text))
        abort();
    for (size_t i = 0; i < a->n; i++)
        compare(&a->item[i], &b->item[i]);
}

static void read_twice(const char *text, size_t n)
{
    AUTO_YAML struct yaml quick = {0}, full = {0};
    if (yaml_plain_parse(text, n, &quick) < 0)
        return;
    if (yaml_full_parse("f", text, n, &full, NULL) < 0)
        abort();
    compare(&quick, &full);
}

static void judge(const struct rulebook *b)
{
    AUTO_SPEC struct sandbox_spec s;
    AUTO_VERDICT struct verdict v = {0};
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    struct store none = STORE_NONE;
    struct err e = {0};
    none.home = (char *)"/";
    spec_init(&s);
    s.name = strdup("x");
    s.image = strdup("python:3");
    if (!s.name || !s.image || spec_add_label(&s, "team=a", &e) < 0)
        abort();
    if (rulebook_judge(b, &none, HOLD_START, 0, &s, &v, &e) < 0)
        abort();
    json_decref(verdict_json(&v));
    json_decref(rulebook_json(b));
    rulebook_print(b, &out);
}

/* Settings of a sandbox are read by the same reader. */
static void read_settings(const uint8_t *data, size_t size)
{
    const char *image[2] = {NULL};
    struct args a = {.cmd = &cmd_create, .pos = image};
    struct err e = {0};
    if (conf_read(&a, "conf", "f", (const char *)data, size, &e) < 0 && strncmp(e.msg, "f", 1) != 0)
        abort();
    for (size_t i = 0; i < a.n_opts; i++)
        if (!a.opts[i].value != !a.opts[i].opt->value)
            abort();
    free(a.opts);
    strlist_free(&a.own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_settings(data, size);
    if (size <= YAML_FILE_MAX)
        read_twice((const char *)data, size);
    AUTO_YAML struct yaml y = {0};
    AUTO_RULEBOOK struct rulebook *b = NULL;
    struct err e = {0};
    if (yaml_tree_parse("f", (const char *)data, size, &y, &e) == 0) {
        if (count(&y, 0) > YAML_NODES_MAX)
            abort();
    } else if (strncmp(e.msg, "f", 1) != 0) {
        abort();
    }
    e = (struct err){0};
    if (rulebook_load_text("f", (const char *)data, size, &b, &e) == 0)
        judge(b);
    else if (strncmp(e.msg, "f", 1) != 0)
        abort();
    return 0;
}
