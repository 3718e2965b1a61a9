#include "cli/docker/docker.h"

#include "cli/core/show.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMAND_SHOWN = 20, EXIT_KILLED = 137 };

/* --- a container ----------------------------------------------------------------------------- */

void docker_look(const struct store *s, const struct sandbox *sb, struct docker_look *l)
{
    struct background b;
    char text[48];
    *l = (struct docker_look){.running = docker_is_running(sb), .ended_ns = sb->state.updated_ns};
    docker_id(sb->spec.name, sb->spec.created_ns, l->id);
    background_load(s, sb, &b);
    const struct background_command *c = background_latest(&b, false);
    if (c && c->ended)
        l->exit_code = c->exit_code == BACKGROUND_UNKNOWN ? EXIT_KILLED : c->exit_code;
    else if (sb->state.status == STATUS_CRASHED)
        l->exit_code = EXIT_KILLED;
    docker_duration(docker_since(l->running ? sb->state.started_ns : l->ended_ns), text);
    if (l->running)
        (void)snprintf(l->status, sizeof(l->status), "Up %s", text);
    else
        (void)snprintf(l->status, sizeof(l->status), "Exited (%d) %s ago", l->exit_code, text);
}

static json_t *command_json(const struct sandbox_spec *s, bool whole)
{
    AUTO_STRLIST struct strlist argv = {0};
    if (strlist_copy(&argv, &s->entrypoint) < 0 || strlist_copy(&argv, &s->cmd) < 0)
        return NULL;
    AUTO_JSON json_t *text = docker_joined(argv.v, " ");
    const char *words = json_string_value(text);
    if (!words)
        return NULL;
    bool cut = !whole && strlen(words) > COMMAND_SHOWN;
    int shown = cut ? COMMAND_SHOWN - 1 : (int)strlen(words);
    while (cut && shown > 0 && ((unsigned char)words[shown] & 0xc0) == 0x80)
        shown--; /* not within a character */
    return json_sprintf("\"%.*s%s\"", shown, words, cut ? "…" : "");
}

static json_t *ports_text(const struct sandbox *sb)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    show_ports_text(sb, &b);
    return json_stringn(buf_len(&b) ? (const char *)buf_head(&b) : "", buf_len(&b));
}

static json_t *mounts_text(const struct sandbox_spec *s)
{
    AUTO_STRLIST struct strlist sources = {0};
    for (size_t i = 0; i < s->n_mounts; i++)
        if (s->mounts[i].source && strlist_add(&sources, s->mounts[i].source) < 0)
            return NULL;
    return docker_joined(sources.v, ",");
}

/* One line of `ps`. */
static json_t *row_json(const struct docker_cmd *d, const struct sandbox *sb,
                        const struct docker_look *l)
{
    char created[TIME_TEXT_MAX];
    bool whole = docker_has(d, "no-trunc");
    time_rfc3339(sb->spec.created_ns, created);
    created[10] = ' ';
    created[19] = '\0';
    return json_pack(
        "{s:s%, s:s, s:s, s:o, s:o, s:s, s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:s, s:s}", "ID",
        l->id, (size_t)(whole ? DOCKER_ID_SIZE - 1 : DOCKER_SHORT_ID), "Names", sb->spec.name,
        "Image", sb->spec.image, "Command", command_json(&sb->spec, whole), "CreatedAt",
        json_sprintf("%s +0000 UTC", created), "State", l->running ? "running" : "exited",
        "RunningFor", docker_ago(sb->spec.created_ns), "Status", l->status, "Size", "0B", "Ports",
        ports_text(sb), "Labels", docker_joined(sb->spec.labels.v, ","), "Label",
        json_pairs(sb->spec.labels.v), "Mounts", mounts_text(&sb->spec), "Networks",
        sb->spec.net.off ? "none" : "bridge", "LocalVolumes", "0", "Platform", "linux");
}

/* --- filters --------------------------------------------------------------------------------- */

typedef bool (*filter_fn)(const struct sandbox *sb, const struct docker_look *l, const char *v);

/* A part of the name; ^ and $ anchor it. */
static bool by_name(const struct sandbox *sb, const struct docker_look *l, const char *v)
{
    bool start = *v == '^';
    v += start;
    v += *v == '/';
    size_t n = strlen(v);
    bool end = n > 0 && v[n - 1] == '$';
    n -= end;
    for (const char *at = sb->spec.name; *at; at++) {
        if (strncmp(at, v, n) == 0 && (!end || !at[n]))
            return true;
        if (start)
            break;
    }
    return false;
}

static bool by_id(const struct sandbox *sb, const struct docker_look *l, const char *v)
{
    return strncmp(l->id, v, strlen(v)) == 0;
}

static bool by_status(const struct sandbox *sb, const struct docker_look *l, const char *v)
{
    return strcmp(v, l->running ? "running" : "exited") == 0;
}

static bool by_code(const struct sandbox *sb, const struct docker_look *l, const char *v)
{
    return !l->running && atoi(v) == l->exit_code;
}

/* With or without its tag. */
static bool by_image(const struct sandbox *sb, const struct docker_look *l, const char *v)
{
    size_t n = strlen(v);
    const char *image = sb->spec.image;
    return strncmp(image, v, n) == 0 && (!image[n] || image[n] == ':');
}

static bool by_label(const struct sandbox *sb, const struct docker_look *l, const char *v)
{
    struct strlist want = {.v = (char *[]){(char *)(uintptr_t)v, NULL}, .n = 1};
    return spec_matches_labels(&sb->spec, &want);
}

static const struct filter {
    const char *key; /* with its '=' */
    filter_fn fn;
    bool all;       /* includes containers that are not running */
    bool each_must; /* several with the same key must all match; else any of them */
} filters[] = {
    {"name=", by_name, false, false},      {"id=", by_id, false, false},
    {"status=", by_status, true, false},   {"exited=", by_code, true, false},
    {"ancestor=", by_image, false, false}, {"label=", by_label, false, true},
};

static const struct filter *filter_of(const struct docker_kept *k)
{
    for (size_t i = 0; strcmp(k->name, "filter") == 0 && i < ARRAY_LEN(filters); i++)
        if (strncmp(k->value, filters[i].key, strlen(filters[i].key)) == 0)
            return &filters[i];
    return NULL;
}

static int check_filters(const struct docker_cmd *d, struct err *e)
{
    for (size_t i = 0; i < d->n_kept; i++)
        if (strcmp(d->kept[i].name, "filter") == 0 && !filter_of(&d->kept[i]))
            return err_set(e, EINVAL,
                           "invalid filter '%s': expected name=, id=, status=, exited=, ancestor= "
                           "or label=",
                           d->kept[i].value);
    return 0;
}

static bool passes(const struct docker_cmd *d, const struct filter *f, const struct sandbox *sb,
                   const struct docker_look *l)
{
    size_t given = 0, matching = 0;
    for (size_t i = 0; i < d->n_kept; i++)
        if (filter_of(&d->kept[i]) == f) {
            given++;
            matching += f->fn(sb, l, d->kept[i].value + strlen(f->key));
        }
    return given == 0 || (f->each_must ? matching == given : matching > 0);
}

static bool is_wanted(const struct docker_cmd *d, const struct sandbox *sb,
                      const struct docker_look *l)
{
    bool all = docker_has(d, "all") || docker_has(d, "latest") || docker_has(d, "last");
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (!passes(d, &filters[i], sb, l))
            return false;
    for (size_t i = 0; i < d->n_kept; i++)
        all = all || (filter_of(&d->kept[i]) && filter_of(&d->kept[i])->all);
    return all || l->running;
}

/* --- ps -------------------------------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    const struct sandbox *x = a, *y = b;
    return (x->spec.created_ns < y->spec.created_ns) - (x->spec.created_ns > y->spec.created_ns);
}

int docker_ps(struct docker_cmd *d)
{
    static const char usual[] = "{{.ID}}\t{{.Image}}\t{{.Command}}\t{{.RunningFor}}\t{{.Status}}\t"
                                "{{.Ports}}\t{{.Names}}";
    AUTO_STORE struct store s = STORE_NONE;
    struct sandbox *list = NULL;
    struct err e = {0};
    size_t n = 0, shown = 0, most = SIZE_MAX;
    const char *last = docker_get(d, "last");
    json_t *rows = json_array();
    if (docker_has(d, "latest") || last)
        most = last ? (size_t)strtoul(last, NULL, 10) : 1;
    int r = check_filters(d, &e);
    if (r == 0)
        r = store_open(&s, &e);
    if (r == 0)
        r = store_list(&s, &list, &n, &e);
    if (r == 0 && n > 0)
        qsort(list, n, sizeof(*list), newest_first);
    for (size_t i = 0; r == 0 && i < n && shown < most; i++) {
        struct docker_look l;
        docker_look(&s, &list[i], &l);
        if (is_wanted(d, &list[i], &l)) {
            json_add(&rows, row_json(d, &list[i], &l));
            shown++;
        }
    }
    if (list)
        sandbox_list_free(list, n);
    if (r < 0) {
        json_decref(rows);
        return docker_show_fail(&e);
    }
    json_t *headers =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:{}, s:s, s:s, s:s}",
                  "ID", "CONTAINER ID", "Names", "NAMES", "Image", "IMAGE", "Command", "COMMAND",
                  "CreatedAt", "CREATED AT", "State", "STATE", "RunningFor", "CREATED", "Status",
                  "STATUS", "Size", "SIZE", "Ports", "PORTS", "Labels", "LABELS", "Label", "Mounts",
                  "MOUNTS", "Networks", "NETWORKS", "LocalVolumes", "LOCAL VOLUMES");
    return docker_print_rows(d, usual, headers, rows);
}
