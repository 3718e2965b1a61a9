/* What the policy says about the audit log: a file's settings for all sandboxes. */
#include "store/audit.h"
#include "policy/impl.h"
#include "util/cleanup.h"

enum { COMMAND_WORDS_MAX = 64 };

/* The highest level that any file asks for; the program of the first file that has one. */
static void add_file(const struct layer *l, struct audit_settings *a, char **command)
{
    const struct setting *level = layer_get(l, "audit", "level");
    const struct setting *argv = layer_get(l, "audit", "argv");
    const struct setting *syslog = layer_get(l, "audit", "syslog");
    const struct setting *journald = layer_get(l, "audit", "journald");
    const struct setting *words = layer_get(l, "audit", "command");
    if (level)
        a->level = MAX(a->level, (int)level->number);
    a->hash_argv = a->hash_argv || (argv && argv->number);
    a->syslog = a->syslog || (syslog && syslog->number);
    a->journald = a->journald || (journald && journald->number);
    if (!words || command[0])
        return;
    for (size_t i = 0; i < words->n && i < COMMAND_WORDS_MAX; i++)
        command[i] = words->item[i].text;
    a->command = command;
}

void policy_audit(const struct store *s)
{
    static struct rulebook *book; /* the program's words stay in it */
    static char *command[COMMAND_WORDS_MAX + 1];
    struct audit_settings a = {.level = -1};
    struct err e = {0};
    book = rulebook_seen;
    rulebook_seen = NULL;
    if (!book && rulebook_load(s, &book, &e) < 0)
        a.level = AUDIT_ALL; /* its settings are unknown: everything is recorded */
    for (size_t i = 0; book && i < book->n; i++)
        add_file(&book->file[i].all, &a, command);
    audit_configure(&a);
}
