/* Loads sandboxes for display: for list, status, inspect and others. */
#pragma once

#include "cli/core/noun.h"
#include "store/background.h"

/* For verbs that use sandboxes_load(). */
/* clang-format off */
#define LABEL_FILTER \
    {"label", 0, "KEY[=VALUE]", "Only sandboxes with all of these labels", OPT_REPEAT}
/* clang-format on */

/* Opens one sandbox by name. show_one() returns 0 or, after printing why not, an exit code. */
int show_open(const char *name, struct sandbox *ret, struct err *e);
int show_one(const char *name, struct sandbox *ret);

/* For nouns whose items are sandboxes: those that `keep` accepts and that have all --label options,
 * sorted by `order`; the one with that name; releasing either. */
typedef bool (*keep_fn)(const struct sandbox *sb, const struct args *a);
typedef int (*order_fn)(const void *a, const void *b);
int sandboxes_load(struct items *l, keep_fn keep, order_fn order, struct err *e);
int sandboxes_open(struct items *l, const char *name, struct err *e);
void sandboxes_free(struct items *l);
const struct sandbox *sandbox_item(const struct items *l, size_t i);
void sandbox_item_name(const struct items *l, size_t i, struct buf *out);

int sandbox_by_name(const void *a, const void *b); /* for qsort */

/* What it is doing, with the outcome of its latest background command: "running (exited 1)". */
enum { STATUS_TEXT_MAX = 32 };
void show_status(const struct sandbox *sb, const struct background *b, char out[STATUS_TEXT_MAX]);
/* All its background commands. */
json_t *background_json(const struct background *b);

/* What it was started with, if it runs; else what it will be started with. `room` is storage for
 * it, an initialized spec to be freed. */
const struct sandbox_spec *show_active(const struct items *l, const struct sandbox *sb,
                                       struct sandbox_spec *room);

/* Published ports (sandbox_ports), *ret malloc'd; none if they cannot be read. */
size_t show_ports(const struct sandbox *sb, struct spec_port **ret);
/* "127.0.0.1:8080->80/tcp, ..." */
void show_ports_text(const struct sandbox *sb, struct buf *out);
