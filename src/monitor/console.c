#include "monitor/console.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void note_panic(struct console *c)
{
    static const char mark[] = "Kernel panic - not syncing: ";
    const char *at = c->panic[0] ? NULL : strstr(c->line, mark);
    if (at)
        (void)snprintf(c->panic, sizeof(c->panic), "the guest kernel panicked: %s",
                       at + sizeof(mark) - 1);
}

static void note_starved(struct console *c)
{
    c->starved = c->starved || strstr(c->line, "UML ran out of memory on the host side");
}

void console_note(struct console *c, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n' || p[i] == '\r') {
            note_panic(c);
            note_starved(c);
            c->over = true;
            continue;
        }
        if (c->over)
            c->len = 0;
        c->over = false;
        if (c->len + 1 < sizeof(c->line))
            c->line[c->len++] = p[i] >= 0x20 && p[i] < 0x7f ? p[i] : '?';
        assert(c->len < sizeof(c->line));
        c->line[c->len] = '\0';
    }
}
