/* A sink that aborts unless it is told what the grammar of copy/tree.h allows. */
#pragma once

#include "copy/tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct checker {
    struct tree_sink sink;
    int depth;
    bool in_file, hard_links;
    uint64_t left;
};

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check_name(struct checker *c, const struct file_attr *a)
{
    must(!c->in_file && file_name_ok(a->name) && strlen(a->name) <= PROTO_NAME_MAX);
}

static int on_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct checker *c = (struct checker *)s;
    check_name(c, a);
    must(++c->depth <= PROTO_DEPTH_MAX && S_ISDIR(a->mode));
    return 0;
}

static int on_leave(struct tree_sink *s, struct err *e)
{
    struct checker *c = (struct checker *)s;
    must(!c->in_file && c->depth-- > 0);
    return 0;
}

static int on_file(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct checker *c = (struct checker *)s;
    check_name(c, a);
    must(S_ISREG(a->mode) && !(a->has & FILE_HAS_HARD));
    c->in_file = true;
    c->left = a->size;
    return 0;
}

static int on_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    struct checker *c = (struct checker *)s;
    must(c->in_file && n <= c->left && p);
    c->left -= n;
    return 0;
}

static int on_done(struct tree_sink *s, struct err *e)
{
    struct checker *c = (struct checker *)s;
    must(c->in_file);
    c->in_file = false;
    return 0;
}

static int on_link(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct checker *c = (struct checker *)s;
    check_name(c, a);
    must(a->target[0] && strlen(a->target) <= PROTO_PATH_MAX);
    if (a->has & FILE_HAS_HARD)
        must(c->hard_links && a->target[0] != '/' && !strstr(a->target, "/../") &&
             strncmp(a->target, "../", 3) != 0 && strcmp(a->target, "..") != 0);
    else
        must(S_ISLNK(a->mode));
    return 0;
}

static const struct tree_sink_ops checker_ops = {
    .dir = on_dir,
    .leave = on_leave,
    .file = on_file,
    .data = on_data,
    .done = on_done,
    .link = on_link,
};
