/* A tree of files in transit: from a host directory, a sandbox or a tar stream to any of them.
 *
 * A source calls a sink for each entry, depth first:
 *
 *     tree  = dir tree* leave | file data* done | link
 *
 * A tar may contain a hard link (FILE_HAS_HARD); it only goes to guests.
 *
 * Names are single components (file_name_ok), in every source. The copy, not a guest, names the
 * first entry: a guest does not decide where it goes.
 */
#pragma once

#include "proto/files.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum { COPY_ENTRIES_MAX = 20 * 1000 * 1000 };

struct tree_sink;
struct tree_sink_ops {
    int (*dir)(struct tree_sink *s, const struct file_attr *a, struct err *e);
    int (*leave)(struct tree_sink *s, struct err *e);
    /* At most a->size bytes follow. */
    int (*file)(struct tree_sink *s, const struct file_attr *a, struct err *e);
    int (*data)(struct tree_sink *s, const void *p, size_t n, struct err *e);
    int (*done)(struct tree_sink *s, struct err *e);
    int (*link)(struct tree_sink *s, const struct file_attr *a, struct err *e);
};
struct tree_sink {
    const struct tree_sink_ops *ops;
};

/* The copy's progress, for display. */
struct tree_progress {
    uint64_t files, bytes;
    uint64_t entries;                      /* of any kind, skipped ones included */
    uint64_t skipped;                      /* neither file, directory nor link */
    void (*tick)(struct tree_progress *p); /* may be NULL; called often */
    void (*warn)(const char *text);        /* may be NULL */
};

/* Counts an entry, and warns if it cannot be copied; -E2BIG beyond the limit. */
int tree_note(struct tree_progress *p, const struct file_attr *a, struct err *e);
void tree_note_bytes(struct tree_progress *p, size_t n);

/* A name that may come from a guest, made safe to display. */
void tree_safe_name(const char *name, char *to, size_t size);
