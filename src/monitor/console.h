/* The guest kernel's console: its last line is kept for error messages, and so is its panic
 * message, which tells more than the signal that ends it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { CONSOLE_LINE_MAX = 256 };

struct console {
    char line[CONSOLE_LINE_MAX]; /* the last one, printable */
    size_t len;
    bool over;       /* it is complete: the next byte starts a new one */
    char panic[192]; /* a phrase, or "" */
    bool starved;    /* the host refused the kernel memory: it keeps running, but nothing in it
                      * makes progress */
};

/* Untrusted bytes, as they come. */
void console_note(struct console *c, const char *p, size_t n);
