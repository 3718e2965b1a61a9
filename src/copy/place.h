/* Where a copy goes, by the rules of `docker cp`.
 *
 *     SRC         DST missing                DST a file    DST a directory
 *     file, link  becomes DST                replaces it   goes into it, with its own name
 *     directory   becomes DST                refused       goes into it, with its own name
 *     directory/. becomes DST                refused       what is in it goes into DST
 *
 * The parent of a missing DST must exist. DST/ must be a directory, SRC/ too.
 */
#pragma once

#include "proto/files.h"
#include "util/err.h"

#include <stdbool.h>

/* A path, taken apart. */
struct copy_path {
    char path[PROTO_PATH_MAX + 1];   /* without trailing slashes and "/." */
    char parent[PROTO_PATH_MAX + 1]; /* "." if there is no slash */
    char name[PROTO_NAME_MAX + 1];   /* the last component; "" if it cannot be used as a name */
    bool slash;                      /* it ended in "/" or "/.": it must be a directory */
    bool contents;                   /* it ended in "/.", or has no name: copy what is in it */
};

int copy_path_parse(struct copy_path *p, const char *text, struct err *e);

enum copy_place {
    PLACE_AS,    /* as DST's own name in DST's parent */
    PLACE_IN,    /* in DST, as SRC's name */
    PLACE_MERGE, /* SRC's content in DST */
};

struct copy_facts {
    const struct copy_path *src, *dst;
    bool src_is_dir;
    bool dst_exists, dst_is_dir;
};

/* enum copy_place, or -errno. */
int copy_place(const struct copy_facts *f, struct err *e);
