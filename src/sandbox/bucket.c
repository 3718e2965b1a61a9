#include "sandbox/bucket.h"

#include "policy/rulebook.h"
#include "s3/config.h"
#include "util/cleanup.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <stdio.h>

int bucket_sync(const struct store *s, const char *name, struct s3_sync *how, bool *remote,
                struct err *e)
{
    int r = policy_hold_workspace(s, name, e);
    return r < 0 ? r : s3_workspace_sync(s, name, how, remote, e);
}

struct creation {
    const struct store *store;
    const char *name;
    struct s3_config *config;
    warn_fn warn;
};

static int prepare(int dirfd, void *ctx, struct err *e)
{
    const struct creation *c = ctx;
    int r = s3_workspace_probe(c->store, c->name, c->config, c->warn, e);
    if (r == 0 && !c->config->conditional && c->warn)
        c->warn(
            "this server ignores conditional writes: two hosts that sync at the same moment may "
            "overwrite each other's changes");
    return r < 0 ? r : s3_config_save(dirfd, c->config, e);
}

int bucket_create(const struct store *s, const char *name, struct s3_config *c, warn_fn warn,
                  struct err *e)
{
    struct creation x = {s, name, c, warn};
    int r = policy_hold_bucket(s, name, c, e);
    return r < 0 ? r : workspace_create(s, name, prepare, &x, e);
}

int bucket_settle(const struct store *s, const struct spec_workspace *w, warn_fn warn,
                  struct err *e)
{
    AUTO_S3_CONFIG struct s3_config c = {.max = S3_MAX_DEFAULT};
    if (!w->url || workspace_open(s, w->name, &(struct workspace){0}, NULL) == 0)
        return 0;
    int r = s3_config_url(&c, w->url, e);
    if (r == 0)
        r = s3_config_settle(&c, e);
    if (r == 0)
        r = bucket_create(s, w->name, &c, warn, e);
    if (r == -EEXIST) { /* another process was faster */
        err_clear(e);
        r = 0;
    }
    return r;
}

bool bucket_has(const struct store *s, const char *name)
{
    AUTO_S3_CONFIG struct s3_config c = {0};
    AUTO_CLOSE int dir = name ? workspace_dir_open(s, name, NULL) : -1;
    return dir >= 0 && s3_config_load(dir, &c, NULL) == 0;
}

static int level(const struct store *s, const char *name, enum s3_here here, warn_fn warn,
                 struct err *e)
{
    struct s3_sync how = {.here = here, .warn = warn};
    bool remote;
    return bucket_sync(s, name, &how, &remote, e);
}

static void tell(warn_fn warn, const struct err *why, const char *then)
{
    char text[ERR_MSG_MAX + 256];
    (void)snprintf(text, sizeof(text), "%s; %s", why->msg, then);
    if (warn)
        warn(text);
}

int bucket_enter(const struct store *s, const char *name, struct s3_sync *how, struct err *e)
{
    bool remote;
    int r = name ? bucket_sync(s, name, how, &remote, e) : 0;
    if (r == 0 || r == -ERR_POLICY)
        return r;
    AUTO_CLOSE int dir = workspace_dir_open(s, name, NULL);
    if (dir < 0 || !s3_workspace_is_filled(dir) || s3_workspace_lacks(dir, how->here))
        return r;
    tell(how->warn, e, "the workspace is as of the last sync");
    err_clear(e);
    return 0;
}

int bucket_complete(const struct store *s, const char *name, warn_fn warn, struct err *e)
{
    AUTO_CLOSE int dir = workspace_dir_open(s, name, NULL);
    bool whole = dir < 0 || !s3_workspace_lacks(dir, S3_HERE_ALL);
    return whole ? 0 : level(s, name, S3_HERE_ALL, warn, e);
}

void bucket_leave(const struct store *s, const char *name, warn_fn warn)
{
    struct err e = {0};
    char then[SPEC_NAME_MAX + 64];
    if (!name || level(s, name, S3_HERE_MARKS, warn, &e) == 0)
        return;
    (void)snprintf(then, sizeof(then), "try again with: msb workspace sync %s", name);
    tell(warn, &e, then);
}
