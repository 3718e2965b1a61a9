/* list and inspect, for every kind of thing that msb keeps. A noun says how things of its kind are
 * read and shown; the rest is common. */
#pragma once

#include "cli/core/args.h"
#include "store/named.h"
#include "util/json.h"
#include "util/text.h"

#include <jansson.h>

struct items {
    const struct store *store;
    const struct args *args;
    void *v; /* the noun's own; freed by noun.free */
    size_t n;
};

struct noun {
    const char *none;                           /* the message if there are none */
    bool none_on_stdout;                        /* as clients expect it for some */
    bool of;                                    /* an argument says whose items; it names no item */
    const char *headers[TABLE_COLUMNS_MAX + 1]; /* of the table, ends with NULL */
    size_t widths[TABLE_COLUMNS_MAX];           /* of each column, at most; 0 = any */
    size_t status_column;                       /* colored by its value; 0 = none */
    const struct named_kind *kind; /* what these are in the store; else load, open and name: */
    int (*load)(struct items *l, struct err *e);
    int (*open)(struct items *l, const char *name, struct err *e); /* opens that one, as item 0 */
    void (*free)(struct items *l); /* also after a failure; NULL: free(v) */
    void (*name)(const struct items *l, size_t i, struct buf *out);
    void (*row)(const struct items *l, size_t i, struct table *t); /* a cell for each header */
    json_t *(*json)(const struct items *l, size_t i);
    void (*text)(const struct items *l, struct buf *out); /* all about item 0 */
};

/* Shows them as a table, names (--quiet) or JSON; only the one named by an argument, if the verb
 * takes one. Both return the exit code. */
int noun_list(const struct noun *n, const struct args *a);
/* Shows the one named by the argument, as text or JSON. */
int noun_inspect(const struct noun *n, const struct args *a);

/* "Label:          value" for noun.text; nothing if there is no value. Control characters are
 * neutralized, since guests and images choose some of these texts. */
void text_line(struct buf *b, const char *label, const char *value);
/* A title and a line for each. */
void text_section(struct buf *b, const char *title, char *const *list);
/* "Label:          a b c" */
void text_words(struct buf *b, const char *label, char *const *list);

/* Prints the table on stdout; on a terminal the header is bold and `status_column`, if not 0,
 * colored. */
int show_table(const struct table *t, size_t status_column);

json_t *json_time(uint64_t realtime_ns); /* null if 0 */
json_t *json_number(double v);           /* an integer if it is whole */
json_t *json_text(const char *s);        /* null if NULL or empty */
