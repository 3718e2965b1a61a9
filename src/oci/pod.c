#include "oci/pod.h"

#include "client/files.h"
#include "client/request.h"
#include "oci/group.h"
#include "proto/proto.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = PROTO_HDR_LEN + PROTO_DATA_MAX, JOIN_WAIT_MS = 60000, LEAVE_WAIT_MS = 10000 };

/* --- which pod ------------------------------------------------------------------------------- */

static bool is_pod(const struct oci_container *c)
{
    return json_is_true(json_object_get(c->j, "sandbox")) && c->status != OCI_STOPPED;
}

/* The pod's id if there is one with that name; else NULL. */
static char *by_name(const struct oci_runtime *rt, const char *id)
{
    AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
    struct err ignored = {0};
    return id && container_open(rt, id, &c, &ignored) == 0 && is_pod(&c) ? strdup(id) : NULL;
}

/* A container that joins a pod's network (/proc/PID/ns/net) is in that pod, whatever its
 * annotations say. */
static char *by_network(const struct oci_runtime *rt, const char *path)
{
    AUTO_STRLIST struct strlist ids = {0};
    struct err ignored = {0};
    int pid = 0, end = 0;
    if (!path || sscanf(path, "/proc/%d/ns/net%n", &pid, &end) != 1 || !end || path[end] ||
        container_list(rt, &ids, &ignored) < 0)
        return NULL;
    for (size_t i = 0; i < ids.n; i++) {
        AUTO_CONTAINER struct oci_container c = CONTAINER_NONE;
        if (container_open(rt, ids.v[i], &c, &ignored) == 0 && is_pod(&c) && c.pid == pid)
            return strdup(ids.v[i]);
    }
    return NULL;
}

/* Finds the container in the pod whose pid namespace the new one will join. */
static int find_pids(const struct oci_runtime *rt, const char *pod, struct container_config *c,
                     struct err *e)
{
    AUTO_STRLIST struct strlist ids = {0};
    struct err ignored = {0};
    int r = pod ? container_list(rt, &ids, e) : 0;
    for (size_t i = 0; r == 0 && i < ids.n; i++) {
        AUTO_CONTAINER struct oci_container one = CONTAINER_NONE;
        char path[32];
        if (container_open(rt, ids.v[i], &one, &ignored) < 0 || one.status == OCI_STOPPED)
            continue;
        const char *its = json_string_value(json_object_get(one.j, "pod"));
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)one.pid);
        c->pids_of = (uint32_t)json_number_value(json_object_get(one.j, "number"));
        bool is_made = !its || c->pids_of; /* in the guest; the first has no number */
        if (is_made && strcmp(its ? its : one.id, pod) == 0 && is_same_file(path, c->ns.pids))
            return 0;
    }
    return r < 0 ? r
                 : refuse_namespace("pid", c->ns.pids,
                                    pod ? "it is not that of a container in this pod" : OWN_KERNEL,
                                    e);
}

int pod_find(const struct oci_runtime *rt, struct container_config *c, char **ret, struct err *e)
{
    *ret = c->sandbox ? NULL : by_name(rt, c->pod);
    if (!*ret && !c->sandbox)
        *ret = by_network(rt, c->ns.path[OCI_NS_NET]);
    if (c->ns.pids && (*ret || !c->in_kubernetes))
        return find_pids(rt, *ret, c, e);
    if (*ret || !c->in_kubernetes)
        return 0;
    (void)err_set(e, ENOENT, "the pod '%.128s' of container '%s' has no guest", c->pod,
                  c->spec.name);
    err_hint(e, "its first container must use this runtime, and be running");
    return -ENOENT;
}

/* --- messages -------------------------------------------------------------------------------- */

static void put_mount(struct proto_writer *w, const struct spec_mount *m)
{
    bool tmpfs = m->kind == MOUNT_TMPFS;
    bool shm = tmpfs && strcmp(m->guest, "/dev/shm") == 0;
    size_t mark = proto_nest(w, F_MOUNT);
    proto_str(w, F_PATH, m->guest);
    proto_u32(w, F_OPTIONS, m->options | (tmpfs && !shm ? 0 : PROTO_MOUNT_POD));
    if (tmpfs) {
        proto_u64(w, F_SIZE, m->size);
        proto_u32(w, F_MOUNT_MODE, m->mode);
        proto_u32(w, F_MOUNT_UID, m->uid);
        proto_u32(w, F_MOUNT_GID, m->gid);
    }
    proto_nest_end(w, mark);
}

static bool add_limit(struct strlist *to, const char *file, double value, double of)
{
    char text[96];
    if (!((value > 0 && value < 9e18) || value == NO_LIMIT))
        return true;
    int n = value > 0 ? snprintf(text, sizeof(text), "%s=%" PRIu64, file, (uint64_t)value)
                      : snprintf(text, sizeof(text), "%s=max", file);
    if (of > 0)
        (void)snprintf(text + n, sizeof(text) - (size_t)n, " %" PRIu64, (uint64_t)of);
    return strlist_add(to, text) == 0;
}

bool pod_limits(const json_t *r, struct strlist *to)
{
    const json_t *cpu = json_object_get(r, "cpu");
    double quota = json_number_value(json_object_get(cpu, "quota"));
    double period = json_number_value(json_object_get(cpu, "period"));
    double shares = json_number_value(json_object_get(cpu, "shares"));
    double memory = json_number_value(json_object_get(json_object_get(r, "memory"), "limit"));
    double pids = json_number_value(json_object_get(json_object_get(r, "pids"), "limit"));
    return add_limit(to, "memory.max", memory, 0) && add_limit(to, "pids.max", pids, 0) &&
           add_limit(to, "cpu.max", quota, period > 0 ? period : 100000) &&
           (shares <= 0 || add_limit(to, "cpu.weight", group_weight(shares), 0));
}

static void put_texts(struct proto_writer *w, uint16_t tag, const struct strlist *l)
{
    for (size_t i = 0; i < l->n; i++)
        proto_str(w, tag, l->v[i]);
}

static int put_container(struct buf *out, const struct container_config *c)
{
    const struct sandbox_spec *s = &c->spec;
    AUTO_STRLIST struct strlist limits = {0};
    struct proto_writer w;
    if (!pod_limits(c->resources, &limits))
        return -ENOMEM;
    proto_begin(&w, out, PROTO_CONTAINER);
    proto_str(&w, F_NAME, s->name);
    if (s->hostname && !c->ns.path[OCI_NS_UTS])
        proto_str(&w, F_HOSTNAME, s->hostname);
    if (c->ns.pids)
        proto_u32(&w, F_PIDS_OF, c->pids_of);
    proto_u32(&w, F_OPTIONS, s->mounts[0].options);
    for (size_t i = 1; i < s->n_mounts; i++)
        put_mount(&w, &s->mounts[i]);
    put_texts(&w, F_MASK, &s->masked);
    put_texts(&w, F_FIXED, &s->fixed);
    put_texts(&w, F_SYSCTL, &s->security.sysctls);
    if (s->security.caps != SPEC_CAPS_ALL)
        proto_u64(&w, F_CAPABILITIES, s->security.caps);
    if (s->security.no_new_privs)
        proto_u32(&w, F_NO_NEW_PRIVS, 1);
    put_texts(&w, F_LIMIT, &limits);
    return proto_end(&w);
}

static int send_all(int sock, struct buf *b)
{
    while (buf_len(b)) {
        ssize_t n = send(sock, buf_head(b), buf_len(b), MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return -errno;
        buf_consume(b, n > 0 ? (size_t)n : 0);
    }
    return 0;
}

static int send_frame(int sock, uint16_t type, uint16_t tag, uint32_t value)
{
    AUTO_BUF struct buf b;
    struct proto_writer w;
    buf_init(&b, 256);
    proto_begin(&w, &b, type);
    proto_u32(&w, tag, value);
    int r = proto_end(&w);
    return r < 0 ? r : send_all(sock, &b);
}

/* Receives the next bytes from the guest; 0 at the end, or when time is up. */
static size_t receive(int sock, struct buf *in, uint64_t until)
{
    uint8_t *to = buf_reserve(in, 4096);
    ssize_t n = to && wait_readable(sock, until) ? recv(sock, to, 4096, 0) : 0;
    buf_commit(in, n > 0 ? (size_t)n : 0);
    return n > 0 ? (size_t)n : 0;
}

static int await_started(int sock, uint32_t *number, struct err *e)
{
    AUTO_BUF struct buf in;
    struct proto_frame f;
    char text[ERR_MSG_MAX / 2];
    int got;
    uint64_t until = now_ns() + JOIN_WAIT_MS * 1000000ULL;
    buf_init(&in, 2 * (size_t)ANSWER_MAX);
    while ((got = proto_peek(&in, &f)) == 0)
        if (!receive(sock, &in, until))
            return err_set(e, ECONNRESET, "the pod's guest does not answer");
    uint64_t n = got == 1 && f.type == PROTO_STARTED ? proto_find_num(&f, F_CONTAINER, 0) : 0;
    if (n > 0 && n <= PROTO_CONTAINER_MAX) {
        *number = (uint32_t)n;
        return 0;
    }
    if (got < 0 || f.type != PROTO_FAIL)
        return err_set(e, EPROTO, "the pod's guest sent an invalid answer");
    proto_find_text(&f, F_TEXT, text, sizeof(text));
    return err_set(e, EINVAL, "the pod's guest: %s", text);
}

/* --- containers ------------------------------------------------------------------------------ */

/* The number of a container in its pod's guest; 0: it has its own guest. Without a number, it would
 * be taken for the pod's first container. */
static int find_number(const struct oci_container *c, uint32_t *ret, struct err *e)
{
    uint32_t number = (uint32_t)json_number_value(json_object_get(c->j, "number"));
    if (!number && json_object_get(c->j, "pod")) {
        (void)err_set(e, EBUSY,
                      "container '%s' is not complete: it is still being created, or that was "
                      "interrupted",
                      c->id);
        err_hint(e, "delete --force removes it");
        return -EBUSY;
    }
    *ret = number;
    return 0;
}

static int change_tree(int dirfd, const char *id, int tree)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_TREE);
    proto_str(&q.w, F_NAME, id);
    int r = request_end(&q, dirfd, tree);
    return r < 0 ? r : q.answer.type == PROTO_OK ? 0 : -EINVAL;
}

int pod_join(int dirfd, const struct container_config *c, int tree, uint32_t *number, struct err *e)
{
    AUTO_BUF struct buf out;
    buf_init(&out, 2 * PROTO_HDR_LEN + PROTO_MSG_MAX);
    int r = change_tree(dirfd, c->spec.name, tree);
    if (r < 0)
        return err_sys(e, -r, "cannot hand the container's files to the pod's guest");
    AUTO_CLOSE int sock = sandbox_connect(dirfd);
    r = sock < 0 ? sock : proto_put_hello(&out);
    if (r == 0)
        r = put_container(&out, c);
    if (r == 0)
        r = send_all(sock, &out);
    if (r < 0)
        return err_sys(e, -r, "cannot reach the pod's guest");
    r = await_started(sock, number, e);
    return r < 0 ? r : steal_fd(&sock);
}

void pod_leave(int sock)
{
    AUTO_CLOSE int mine = sock;
    AUTO_BUF struct buf in;
    uint64_t until = now_ns() + LEAVE_WAIT_MS * 1000000ULL;
    buf_init(&in, ANSWER_MAX);
    if (send_frame(mine, PROTO_SIGNAL, F_SIGNAL, SIGKILL) < 0)
        return;
    while (receive(mine, &in, until))
        buf_reset(&in);
}

void pod_forget(const struct oci_runtime *rt, const char *pod, const char *id)
{
    AUTO_CLOSE int dir = dir_open_at(rt->store.sandboxes_fd, pod);
    if (dir >= 0)
        (void)change_tree(dir, id, -1);
}

static int write_setting(struct files *f, const char *path, const char *value, struct err *e)
{
    struct file_req q;
    int r = file_req_init(&q, FILE_OP_WRITE, path, 0);
    if (r == 0)
        r = files_send(f, &q, e);
    if (r == 0)
        r = files_send_data(f, value, strlen(value), e);
    if (r == 0)
        r = files_send_part(f, PROTO_FILE_END, NULL, e);
    return r < 0 ? r : files_wait(f, NULL, e);
}

/* Set through the guest's main agent: a container cannot change its own limits. */
int pod_set(const struct oci_runtime *rt, const struct oci_container *c,
            const struct strlist *settings, struct err *e)
{
    const char *pod = json_string_value(json_object_get(c->j, "pod"));
    uint32_t number = 0;
    int r = find_number(c, &number, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = dir_open_at(rt->store.sandboxes_fd, pod);
    int sock = dir < 0 ? dir : sandbox_connect(dir);
    struct files f;
    if (sock < 0)
        return err_sys(e, -sock, "cannot reach the guest of container '%s'", c->id);
    r = files_open(&f, sock, pod, "0", "/", e);
    for (size_t i = 0; r == 0 && i < settings->n; i++) {
        char path[128];
        size_t name = strcspn(settings->v[i], "=");
        (void)snprintf(path, sizeof(path), "/sys/fs/cgroup/container-%u/%.*s", number, (int)name,
                       settings->v[i]);
        r = write_setting(&f, path, settings->v[i] + name + 1, e);
    }
    files_close(&f);
    return r < 0 ? err_wrap(e, r, "container '%s'", c->id) : 0;
}

int pod_address(int sock, uint32_t number)
{
    return number ? send_frame(sock, PROTO_IN, F_CONTAINER, number) : 0;
}

int pod_connect(const struct oci_runtime *rt, const struct oci_container *c, struct err *e)
{
    const char *pod = json_string_value(json_object_get(c->j, "pod"));
    uint32_t number = 0;
    int r = find_number(c, &number, e);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = dir_open_at(rt->store.sandboxes_fd, pod ? pod : c->id);
    AUTO_CLOSE int sock = dir < 0 ? dir : sandbox_connect(dir);
    r = sock < 0 ? sock : pod_address(sock, number);
    return r < 0 ? err_sys(e, -r, "cannot reach the guest of container '%s'", c->id)
                 : steal_fd(&sock);
}
