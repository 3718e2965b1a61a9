#include "cli/core/show.h"

#include "cli/core/ui.h"
#include "store/ports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int show_open(const char *name, struct sandbox *ret, struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    int r = store_open(&s, e);
    return r < 0 ? r : sandbox_open(&s, name, ret, e);
}

int show_one(const char *name, struct sandbox *ret)
{
    struct err e = {0};
    return show_open(name, ret, &e) < 0 ? ui_fail(&e) : 0;
}

int sandboxes_load(struct items *l, keep_fn keep, order_fn order, struct err *e)
{
    AUTO_STRLIST struct strlist labels = {0};
    struct sandbox *list = NULL;
    size_t all = 0;
    if (args_list(l->args, "label", &labels) < 0)
        return err_oom(e);
    int r = store_list(l->store, &list, &all, e);
    l->v = list;
    for (size_t i = 0; r == 0 && i < all; i++) {
        if (keep(&list[i], l->args) && spec_matches_labels(&list[i].spec, &labels))
            list[l->n++] = list[i];
        else
            sandbox_close(&list[i]);
    }
    if (l->n)
        qsort(list, l->n, sizeof(*list), order);
    return r;
}

int sandboxes_open(struct items *l, const char *name, struct err *e)
{
    struct sandbox *sb = malloc(sizeof(*sb));
    if (!sb)
        return err_oom(e);
    int r = sandbox_open(l->store, name, sb, e);
    l->v = sb;
    l->n = r == 0;
    return r;
}

void sandboxes_free(struct items *l)
{
    sandbox_list_free(l->v, l->n);
}

const struct sandbox *sandbox_item(const struct items *l, size_t i)
{
    return (const struct sandbox *)l->v + i;
}

void sandbox_item_name(const struct items *l, size_t i, struct buf *out)
{
    (void)buf_printf(out, "%s", sandbox_item(l, i)->spec.name);
}

int sandbox_by_name(const void *a, const void *b)
{
    const struct sandbox *x = a, *y = b;
    return strcmp(x->spec.name, y->spec.name);
}

const struct sandbox_spec *show_active(const struct items *l, const struct sandbox *sb,
                                       struct sandbox_spec *room)
{
    return active_load(l->store, sb, room) ? room : &sb->spec;
}

size_t show_ports(const struct sandbox *sb, struct spec_port **ret)
{
    AUTO_STORE struct store s = STORE_NONE;
    size_t n = 0;
    *ret = NULL;
    if (store_open(&s, NULL) == 0)
        (void)sandbox_ports(&s, sb, ret, &n);
    return n;
}

void show_ports_text(const struct sandbox *sb, struct buf *out)
{
    AUTO_FREE struct spec_port *p = NULL;
    size_t n = show_ports(sb, &p);
    for (size_t i = 0; i < n; i++) {
        char text[SPEC_PORT_TEXT_MAX];
        spec_port_format(&p[i], text);
        (void)buf_printf(out, "%s%s", i ? ", " : "", text);
    }
}

void show_status(const struct sandbox *sb, const struct background *b, char out[STATUS_TEXT_MAX])
{
    const struct background_command *c = background_latest(b, false);
    const char *status = status_lower(sb->state.status);
    if (c && c->ended && c->exit_code != BACKGROUND_UNKNOWN)
        (void)snprintf(out, STATUS_TEXT_MAX, "%s (exited %d)", status, c->exit_code);
    else
        (void)snprintf(out, STATUS_TEXT_MAX, "%s", status);
}

json_t *background_json(const struct background *b)
{
    json_t *a = json_array();
    for (size_t i = 0; i < b->n; i++) {
        const struct background_command *c = &b->v[i];
        bool known = c->ended && c->exit_code != BACKGROUND_UNKNOWN;
        (void)json_array_append_new(
            a, json_pack("{s:s, s:o, s:o, s:I, s:b, s:o}", "command", c->text, "ended_at",
                         json_time(c->ended_ns), "exit_code",
                         known ? json_integer(c->exit_code) : json_null(), "id", (json_int_t)c->id,
                         "running", !c->ended, "started_at", json_time(c->started_ns)));
    }
    return a;
}
