#include "store/background.h"

#include "store/json_file.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/utf8.h"

#include <stdio.h>
#include <string.h>

enum { FILE_MAX = 64 * 1024 };

static const char COMMANDS_FILE[] = "commands.json";

void background_add_word(char text[BACKGROUND_TEXT_MAX + 1], const char *word, size_t n)
{
    size_t at = strlen(text);
    (void)snprintf(text + at, BACKGROUND_TEXT_MAX + 1 - at, "%s%.*s", at ? " " : "",
                   (int)MIN(n, (size_t)BACKGROUND_TEXT_MAX), word);
    utf8_defuse(text + at);
}

/* Drops the oldest that has ended, or else simply the oldest. */
static void drop_one(struct background *b)
{
    size_t at = 0;
    while (at < b->n && !b->v[at].ended)
        at++;
    if (at == b->n)
        at = 0;
    memmove(&b->v[at], &b->v[at + 1], (--b->n - at) * sizeof(b->v[0]));
}

void background_note(struct background *b, const struct background_command *c)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->v[i].id == c->id) {
            b->v[i] = *c;
            return;
        }
    if (c->ended && b->n == BACKGROUND_MAX) /* it had to make room before */
        return;
    if (b->n == BACKGROUND_MAX)
        drop_one(b);
    b->v[b->n++] = *c;
}

int background_save(int run_fd, const struct background *b)
{
    json_t *a = json_array();
    for (size_t i = 0; i < b->n; i++) {
        const struct background_command *c = &b->v[i];
        json_add(&a, json_pack("{s:I, s:s, s:b, s:b, s:b, s:i, s:I, s:I}", "id", (json_int_t)c->id,
                               "command", c->text, "tty", c->tty, "no_stdin", c->no_stdin, "ended",
                               c->ended, "exit_code", c->exit_code, "started_ns",
                               (json_int_t)c->started_ns, "ended_ns", (json_int_t)c->ended_ns));
    }
    return json_file_save(run_fd, COMMANDS_FILE, a, false);
}

static bool read_command(const json_t *j, struct background_command *c)
{
    json_int_t id = 0, started = 0, ended_ns = 0;
    const char *text = "";
    int tty = 0, no_stdin = 0, ended = 0, code = BACKGROUND_UNKNOWN;
    if (json_unpack((json_t *)j, "{s:I, s:s, s?b, s?b, s?b, s?i, s?I, s?I}", "id", &id, "command",
                    &text, "tty", &tty, "no_stdin", &no_stdin, "ended", &ended, "exit_code", &code,
                    "started_ns", &started, "ended_ns", &ended_ns) < 0 ||
        id < 1 || id > UINT32_MAX || code < BACKGROUND_UNKNOWN || code > 255 || started < 0 ||
        ended_ns < 0)
        return false;
    *c = (struct background_command){.id = (uint32_t)id,
                                     .tty = tty,
                                     .no_stdin = no_stdin,
                                     .ended = ended,
                                     .exit_code = code,
                                     .started_ns = (uint64_t)started,
                                     .ended_ns = (uint64_t)ended_ns};
    (void)snprintf(c->text, sizeof(c->text), "%s", text);
    utf8_defuse(c->text);
    return true;
}

void background_load(const struct store *s, const struct sandbox *sb, struct background *ret)
{
    char path[SPEC_NAME_MAX + 32];
    AUTO_JSON json_t *a = NULL;
    ret->n = 0;
    (void)snprintf(path, sizeof(path), "%s/run/%s", sb->spec.name, COMMANDS_FILE);
    if (json_file_load(s->sandboxes_fd, path, FILE_MAX, &a) < 0)
        return;
    for (size_t i = 0; i < json_array_size(a) && ret->n < BACKGROUND_MAX; i++) {
        struct background_command *c = &ret->v[ret->n];
        if (!read_command(json_array_get(a, i), c) || c->started_ns < sb->state.started_ns)
            continue;
        if (!c->ended && sb->state.pid == 0) { /* nothing was left to see its end */
            c->ended = true;
            c->exit_code = BACKGROUND_UNKNOWN;
            c->ended_ns = sb->state.updated_ns;
        }
        ret->n++;
    }
}

const struct background_command *background_latest(const struct background *b, bool running)
{
    const struct background_command *best = NULL;
    for (size_t i = 0; i < b->n; i++)
        if ((!running || !b->v[i].ended) && (!best || b->v[i].id > best->id))
            best = &b->v[i];
    return best;
}
