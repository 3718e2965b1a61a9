#include "copy/tree.h"

#include "util/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

void tree_safe_name(const char *name, char *to, size_t size)
{
    (void)snprintf(to, size, "%s", name);
    utf8_defuse(to);
}

int tree_note(struct tree_progress *p, const struct file_attr *a, struct err *e)
{
    char name[PROTO_NAME_MAX + 1], text[PROTO_NAME_MAX + 64];
    if (++p->entries > COPY_ENTRIES_MAX)
        return err_set(e, E2BIG, "more than %d files", COPY_ENTRIES_MAX);
    if (S_ISREG(a->mode) || S_ISLNK(a->mode))
        p->files++;
    if (p->tick)
        p->tick(p);
    if (S_ISREG(a->mode) || S_ISDIR(a->mode) || S_ISLNK(a->mode))
        return 0;
    p->skipped++;
    tree_safe_name(a->name, name, sizeof(name));
    (void)snprintf(text, sizeof(text), "'%s' is neither a file, a directory nor a link; skipped",
                   name);
    if (p->warn)
        p->warn(text);
    return 0;
}

void tree_note_bytes(struct tree_progress *p, size_t n)
{
    p->bytes += n;
    if (p->tick)
        p->tick(p);
}
