#include "oci/state.h"

#include "oci/group.h"
#include "spec/names.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STATE_MAX = 4 * 1024 * 1024,
    STAT_MAX = 1024,
    START_TIME_FIELD = 22,
    FILTER_MAX = 64 * 1024,
};

#define FILTER_FILE "filter"

const char *oci_status_name(enum oci_status s)
{
    static const char *const names[] = {
        [OCI_CREATING] = "creating", [OCI_CREATED] = "created", [OCI_RUNNING] = "running",
        [OCI_PAUSED] = "paused",     [OCI_STOPPED] = "stopped",
    };
    return names[s];
}

/* When a process was started, in ticks since boot: together with its PID, it identifies a process
 * for good. 0: it is not alive, which includes zombies. */
static uint64_t start_time(pid_t pid)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    AUTO_CLOSE int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    char buf[STAT_MAX];
    ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
    if (n <= 0)
        return 0;
    buf[n] = '\0';
    char *p = strrchr(buf, ')'); /* the name may hold anything */
    if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X')
        return 0;
    p += 2;
    for (int field = 3; p && field < START_TIME_FIELD; field++)
        p = (p = strchr(p, ' ')) ? p + 1 : NULL;
    return p ? strtoull(p, NULL, 10) : 0;
}

static bool lives(const struct oci_container *c)
{
    json_int_t then = json_integer_value(json_object_get(c->j, "start_time"));
    return c->pid > 0 && then > 0 && start_time(c->pid) == (uint64_t)then;
}

void container_refresh(struct oci_container *c)
{
    c->pid = (pid_t)json_integer_value(json_object_get(c->j, "pid"));
    bool started = faccessat(c->dirfd, "started", F_OK, 0) == 0;
    if (!c->j || (c->pid == 0 && !started))
        c->status = OCI_CREATING;
    else if (!lives(c))
        c->status = OCI_STOPPED;
    else if (!started)
        c->status = OCI_CREATED;
    else
        c->status = group_is_frozen(json_object_get(c->j, "groups")) ? OCI_PAUSED : OCI_RUNNING;
}

static int open_dir(const struct oci_runtime *rt, const char *id, struct oci_container *c,
                    struct err *e)
{
    int r = spec_check_name(id, e);
    if (r < 0)
        return err_wrap(e, r, "container id");
    c->dirfd = dir_open_at(rt->containers_fd, id);
    if (c->dirfd == -ENOENT)
        return err_set(e, ENOENT, "container '%s' does not exist", id);
    if (c->dirfd < 0)
        return err_sys(e, -c->dirfd, "cannot open container '%s'", id);
    c->id = strdup(id);
    return c->id ? 0 : err_oom(e);
}

int container_open(const struct oci_runtime *rt, const char *id, struct oci_container *ret,
                   struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    json_error_t why;
    int r = open_dir(rt, id, &c, e);
    if (r < 0)
        return r;
    r = file_read_at(c.dirfd, "state.json", STATE_MAX, &text, &n);
    if (r < 0 && r != -ENOENT)
        return err_sys(e, -r, "cannot read the state of container '%s'", id);
    c.j = r == 0 ? json_loadb(text, n, 0, &why) : NULL;
    if (r == 0 && !json_is_object(c.j))
        return err_set(e, EINVAL, "the state of container '%s' is damaged: %s", id, why.text);
    container_refresh(&c);
    *ret = c;
    c = (struct oci_container)CONTAINER_NONE;
    return 0;
}

int container_make(const struct oci_runtime *rt, const char *id, struct oci_container *ret,
                   struct err *e)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    int r = spec_check_name(id, e);
    if (r < 0)
        return err_wrap(e, r, "container id");
    if (mkdirat(rt->containers_fd, id, 0700) < 0)
        return errno == EEXIST ? err_set(e, EEXIST, "container '%s' already exists", id)
                               : err_sys(e, errno, "cannot create container '%s'", id);
    r = open_dir(rt, id, &c, e);
    if (r < 0)
        return r;
    *ret = c;
    c = (struct oci_container)CONTAINER_NONE;
    return 0;
}

void container_close(struct oci_container *c)
{
    close_fd(&c->dirfd);
    free(c->id);
    json_decref(c->j);
    *c = (struct oci_container)CONTAINER_NONE;
}

int container_forget(const struct oci_runtime *rt, const char *id, struct err *e)
{
    int r = remove_tree_at(rt->containers_fd, id);
    return r < 0 ? err_sys(e, -r, "cannot remove container '%s'", id) : 0;
}

int container_save_filter(const struct oci_container *c, const struct session_request *req,
                          struct err *e)
{
    int r = req->filter
                ? file_replace_at(c->dirfd, FILTER_FILE, req->filter, req->filter_size, 0600, false)
                : 0;
    return r < 0 ? err_sys(e, -r, "cannot write the state of container '%s'", c->id) : 0;
}

int container_read_filter(const struct oci_container *c, char **ret, size_t *size, struct err *e)
{
    int r = file_read_at(c->dirfd, FILTER_FILE, FILTER_MAX, ret, size);
    return r < 0 && r != -ENOENT ? err_sys(e, -r, "cannot read the state of container '%s'", c->id)
                                 : 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int container_list(const struct oci_runtime *rt, struct strlist *ret, struct err *e)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(rt->containers_fd, ".");
    if (!d)
        return err_sys(e, errno, "cannot list the containers");
    for (const struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.' && strlist_add(ret, entry->d_name) < 0)
            return err_oom(e);
    if (ret->n)
        qsort(ret->v, ret->n, sizeof(*ret->v), by_name);
    return 0;
}

int container_save(struct oci_container *c, json_t *j, pid_t pid, struct err *e)
{
    json_put(&j, "pid", json_integer(pid));
    if (j)
        json_put(&j, "start_time", json_integer((json_int_t)start_time(pid)));
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    if (!text) {
        json_decref(j);
        return err_oom(e);
    }
    json_decref(c->j);
    c->j = j;
    c->pid = pid;
    int r = file_replace_at(c->dirfd, "state.json", text, strlen(text), 0600, false);
    return r < 0 ? err_sys(e, -r, "cannot write the state of container '%s'", c->id) : 0;
}

json_t *container_state(const struct oci_container *c)
{
    bool dead = c->status == OCI_STOPPED;
    return json_pack("{s:s, s:s, s:i, s:s, s:O*, s:O*}", "ociVersion", OCI_VERSION, "id", c->id,
                     "pid", dead ? 0 : (int)c->pid, "status", oci_status_name(c->status), "bundle",
                     json_object_get(c->j, "bundle"), "annotations",
                     json_object_get(c->j, "annotations"));
}
