#include "oci/runtime.h"

#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/text.h"
#include "util/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The root of an ordinary user's namespace may not write to /run. */
static int default_root(char **ret, struct err *e)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    bool system = geteuid() == 0 && access("/run", W_OK) == 0;
    int n = system                 ? asprintf(ret, "/run/msb-runtime")
            : run && run[0] == '/' ? asprintf(ret, "%s/msb-runtime", run)
                                   : asprintf(ret, "/tmp/msb-runtime-%u", geteuid());
    return n < 0 ? err_oom(e) : 0;
}

int oci_open(struct oci_runtime *rt, const struct oci_globals *g, struct err *e)
{
    AUTO_FREE char *root = NULL;
    int r = 0;
    rt->g = g;
    if (!g->root)
        r = default_root(&root, e);
    else if (!(root = g->root[0] == '/' ? strdup(g->root) : realpath(g->root, NULL)))
        r = err_sys(e, errno, "cannot use --root %s", g->root);
    if (r < 0 || !root)
        return r < 0 ? r : err_oom(e);
    r = mkdir_parents(root, 0700);
    if (r < 0)
        return err_sys(e, -r, "cannot create %s", root);
    if (setenv("MSB_HOME", root, 1) < 0)
        return err_oom(e);
    r = store_open(&rt->store, e);
    if (r < 0)
        return r;
    rt->containers_fd = store_subdir_open(&rt->store, "containers", e);
    return rt->containers_fd < 0 ? rt->containers_fd : 0;
}

void oci_close(struct oci_runtime *rt)
{
    close_fd(&rt->containers_fd);
    store_close(&rt->store);
}

/* The message and its first hint as one line. */
static void error_text(const struct err *e, char *to, size_t size)
{
    (void)snprintf(to, size, "%s%s%s", e->msg, e->hints ? ": " : "", e->hints ? e->hint[0] : "");
}

static int open_log(const struct oci_globals *g)
{
    if (g->log_fd)
        return fcntl(g->log_fd, F_DUPFD_CLOEXEC, 3);
    return g->log ? open(g->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600) : -1;
}

void oci_hold_log(struct oci_globals *g)
{
    int fd = open_log(g);
    g->log_fd = fd > 0 ? fd : 0;
    g->log = NULL;
}

void oci_log_error(const struct oci_globals *g, const struct err *e)
{
    char text[2 * ERR_MSG_MAX], when[TIME_TEXT_MAX];
    AUTO_CLOSE int fd = open_log(g);
    if (fd < 0)
        return;
    error_text(e, text, sizeof(text));
    utf8_defuse(text); /* it may have been cut anywhere */
    time_rfc3339(realtime_ns(), when);
    AUTO_JSON json_t *j =
        g->log_json ? json_pack("{s:s, s:s, s:s}", "level", "error", "msg", text, "time", when)
                    : json_string(text);
    AUTO_FREE char *line = j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (line && g->log_json)
        (void)dprintf(fd, "%s\n", line);
    else if (line)
        (void)dprintf(fd, "time=\"%s\" level=error msg=%s\n", when, line);
}
