/* The user a command runs as: "name|uid[:group|gid]" resolved against the image's own passwd and
 * group files, by the rules of `docker run --user`.
 *
 *   - a name must be in passwd; a number need not be (then gid 0, home "/")
 *   - without a group: the user's primary group plus every group that lists the user
 *   - with a group: only that one
 *
 * The files belong to the guest: they may be missing, huge, malformed, or not files at all.
 */
#pragma once

#include "util/err.h"

#include <sys/stat.h>
#include <sys/types.h>

enum { USER_GROUPS_MAX = 128, USER_HOME_MAX = 1024, USER_SPEC_MAX = 256 };

struct identity {
    uid_t uid;
    gid_t gid;
    gid_t groups[USER_GROUPS_MAX]; /* supplementary */
    size_t ngroups;
    char home[USER_HOME_MAX];
};

/* `passwd` and `group` are the files' text, "" when there is none. -EINVAL or -ENOENT with a
 * sentence in *e. */
int user_resolve(struct identity *id, const char *spec, const char *passwd, const char *group,
                 struct err *e);

/* Remembers the last answer until either file changes: most commands run as the same user, and
 * two stat calls are cheaper than reading two files. */
struct user_cache {
    const char *passwd_path, *group_path;
    struct stat passwd, group;
    char spec[USER_SPEC_MAX];
    char *const *more; /* groups that every user also has; set by the owner before the first look */
    size_t n_more;
    struct identity id;
    int valid;
};
void user_cache_init(struct user_cache *c, const char *passwd_path, const char *group_path);
/* NULL on failure, with *e set. The answer lives until the next call. */
const struct identity *user_lookup(struct user_cache *c, const char *spec, struct err *e);
