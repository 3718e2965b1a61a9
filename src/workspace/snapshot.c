#include "workspace/snapshot.h"

#include "copy/guest.h"
#include "copy/host.h"
#include "store/json_file.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/words.h"
#include "workspace/manifest.h"
#include "workspace/workspace.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STATE_FILE "workspace.json"

enum {
    STATE_MAX = 4096,
    COPY_TRIES = 3,      /* of a workspace that changes while it is copied */
    STALL_SECONDS = 120, /* how long a guest may send nothing */
    CONFLICTS_MAX = 100,
    ENTRY_BYTES = 256, /* counted for every name, since empty files also take space */
};

/* --- where a copy stands --------------------------------------------------------------------- */

enum stage { STAGE_NONE, STAGE_COPYING, STAGE_OUT, STAGE_REPLACING, STAGE_SAME };
static const char *const stages[] = {"none", "copying", "out", "replacing", "same"};

struct standing {
    enum stage stage;
    char base[DIGEST_TEXT_SIZE]; /* of the host's tree when it was copied in or back */
    uint64_t new_dev, new_ino;   /* replacing: the new tree */
    bool still;                  /* replacing: the sandbox keeps running */
    bool keep;                   /* replacing: the old tree, even if it has not changed */
};

static int standing_load(int dirfd, struct standing *ret)
{
    AUTO_JSON json_t *j = NULL;
    *ret = (struct standing){0};
    int r = json_file_load(dirfd, STATE_FILE, STATE_MAX, &j);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    const char *base = json_string_value(json_object_get(j, "base"));
    int stage = WORD_FIND(stages, json_string_value(json_object_get(j, "stage")));
    ret->stage = (enum stage)MAX(stage, 0);
    (void)snprintf(ret->base, sizeof(ret->base), "%s", base ? base : "");
    ret->new_dev = (uint64_t)json_integer_value(json_object_get(j, "new_dev"));
    ret->new_ino = (uint64_t)json_integer_value(json_object_get(j, "new_ino"));
    ret->still = json_is_true(json_object_get(j, "still"));
    ret->keep = json_is_true(json_object_get(j, "keep"));
    return 0;
}

static int standing_save(int dirfd, const struct standing *st, struct err *e)
{
    json_t *j = json_pack("{s:s, s:s, s:I, s:I, s:b, s:b}", "stage", stages[st->stage], "base",
                          st->base, "new_dev", (json_int_t)st->new_dev, "new_ino",
                          (json_int_t)st->new_ino, "still", st->still, "keep", st->keep);
    int r = json_file_save(dirfd, STATE_FILE, j, true);
    return r < 0 ? err_sys(e, -r, "cannot record the state of the workspace") : 0;
}

bool snapshot_is_out(int dirfd)
{
    struct standing st;
    return standing_load(dirfd, &st) == 0 && (st.stage == STAGE_OUT || st.stage == STAGE_REPLACING);
}

/* --- the host's tree ------------------------------------------------------------------------- */

struct place {
    int parent;
    char name[NAME_MAX + 1];
    char fresh[NAME_MAX + 1]; /* the new tree's name until it is moved into place */
    char path[PATH_MAX];      /* for messages */
    struct name_lock lock;
};
#define PLACE_NONE                  \
    {                               \
        .parent = -1, .lock.fd = -1 \
    }

/* The path was canonical when the sandbox was created: any link in it must be newer. */
static int open_parent(const struct store *s, const struct spec_workspace *w, char *path,
                       struct err *e)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    if (w->name)
        return workspace_dir_open(s, w->name, e);
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, dirname(path), &how, sizeof(how));
    return fd < 0 ? err_sys(e, errno, "cannot open the parent directory of workspace %s", w->path)
                  : fd;
}

/* A name that no other sandbox uses: another sandbox's unfinished tree may be the only copy, and
 * only that sandbox may finish it. */
static void name_fresh(struct place *p, const char *sandbox)
{
    char hex[DIGEST_HEX_SIZE];
    struct digest d = digest_of(sandbox, strlen(sandbox));
    digest_hex(&d, hex);
    (void)snprintf(p->fresh, sizeof(p->fresh), ".%.200s.%.12s.msb-new", p->name, hex);
}

static int open_place(const struct store *s, const struct sandbox_spec *spec, struct place *p,
                      struct err *e)
{
    const struct spec_workspace *w = &spec->workspace;
    char dir[PATH_MAX], base[PATH_MAX];
    AUTO_FREE char *named = w->name ? workspace_path(s, w->name) : NULL;
    const char *path = w->name ? named : w->path;
    if (!path || (size_t)snprintf(p->path, sizeof(p->path), "%s", path) >= sizeof(p->path))
        return err_set(e, ENAMETOOLONG, "the path of the workspace is too long");
    (void)snprintf(dir, sizeof(dir), "%s", path);
    (void)snprintf(base, sizeof(base), "%s", path);
    const char *name = basename(base);
    if (strcmp(name, "/") == 0 || strlen(name) > NAME_MAX - 40)
        return err_set(e, EINVAL, "cannot use '%s' as a workspace in mode snapshot", path);
    (void)snprintf(p->name, sizeof(p->name), "%s", name);
    name_fresh(p, spec->name);
    p->parent = open_parent(s, w, dir, e);
    return p->parent < 0 ? p->parent : workspace_lock(s, p->path, &p->lock, e);
}

static void close_place(struct place *p)
{
    name_lock_drop(&p->lock);
    close_fd(&p->parent);
}

static int look(const struct place *p, const char *name, struct manifest *ret, struct err *e)
{
    char what[PATH_MAX + 32];
    (void)snprintf(what, sizeof(what), "the workspace %.4000s", p->path);
    return manifest_of(p->parent, name, what, ret, e);
}

/* The old tree now has the temporary name. Removes it, or keeps it as a conflict. */
static int retire(const struct place *p, const char *base, bool keep, warn_fn warn, struct err *e)
{
    struct manifest m;
    char text[DIGEST_TEXT_SIZE] = "", to[NAME_MAX + 1], line[PATH_MAX + 256], when[32];
    struct err ignored = {0};
    if (!keep && look(p, p->fresh, &m, &ignored) == 0)
        digest_text(&m.digest, text);
    if (strcmp(text, base) == 0) {
        int r = remove_tree_at(p->parent, p->fresh);
        return r < 0 ? err_sys(e, -r, "cannot remove the old content of %s", p->path) : 0;
    }
    time_t now = time(NULL);
    struct tm tm;
    (void)strftime(when, sizeof(when), "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    int r = -EEXIST;
    for (int i = 0; r == -EEXIST && i < CONFLICTS_MAX; i++) {
        char more[8] = "";
        if (i)
            (void)snprintf(more, sizeof(more), "-%d", i + 1);
        (void)snprintf(to, sizeof(to), "%.200s.conflict-%s%s", p->name, when, more);
        r = renameat2(p->parent, p->fresh, p->parent, to, RENAME_NOREPLACE) < 0 ? -errno : 0;
    }
    if (r < 0)
        return err_sys(e, -r, "cannot keep the old content of %s", p->path);
    int dir = (int)(strrchr(p->path, '/') - p->path);
    (void)snprintf(line, sizeof(line), "%s; the previous content is kept as %.*s/%s",
                   keep ? "the sandbox crashed, and its workspace may be incomplete"
                        : "the workspace changed on the host since it was copied in",
                   dir, p->path, to);
    if (warn)
        warn(line);
    return 0;
}

/* Recovers from an interrupted sync: undoes it if it had not exchanged the trees yet, otherwise
 * finishes it. */
static int recover(int dirfd, const struct place *p, struct standing *st, warn_fn warn,
                   struct err *e)
{
    struct stat there;
    struct manifest m;
    if (st->stage != STAGE_REPLACING) {
        int r = remove_tree_at(p->parent, p->fresh); /* an incomplete new tree */
        return r < 0 ? err_sys(e, -r, "cannot remove the rest of an earlier sync") : 0;
    }
    bool any = fstatat(p->parent, p->fresh, &there, AT_SYMLINK_NOFOLLOW) == 0;
    bool done = !any || there.st_dev != st->new_dev || there.st_ino != st->new_ino;
    int r = done && any ? retire(p, st->base, st->keep, warn, e) : 0;
    if (r == 0 && done)
        r = look(p, p->name, &m, e);
    if (r < 0)
        return r;
    st->stage = done && !st->still ? STAGE_SAME : STAGE_OUT;
    if (done)
        digest_text(&m.digest, st->base);
    r = standing_save(dirfd, st, e); /* before the removal: a missing tree counts as done */
    if (r == 0 && any && !done && (r = remove_tree_at(p->parent, p->fresh)) < 0)
        (void)err_sys(e, -r, "cannot remove the rest of an earlier sync");
    return r;
}

static int begin(const struct store *s, int dirfd, const struct sandbox_spec *spec, struct place *p,
                 struct standing *st, warn_fn warn, struct err *e)
{
    int r = standing_load(dirfd, st);
    if (r < 0)
        return err_sys(e, -r, "cannot read the state of the workspace of '%s'", spec->name);
    r = open_place(s, spec, p, e);
    if (r == 0)
        r = recover(dirfd, p, st, warn, e);
    return r;
}

/* --- a guest that stalls --------------------------------------------------------------------- */

static int guarded = -1; /* the connection; cut after STALL_SECONDS without progress */

static void on_alarm(int sig)
{
    if (guarded >= 0)
        (void)shutdown(guarded, SHUT_RDWR);
}

static void on_tick(struct tree_progress *p)
{
    (void)alarm(STALL_SECONDS);
}

static int connect_guest(int dirfd, const char *name, struct files *f, struct err *e)
{
    int sock = sandbox_connect(dirfd);
    if (sock < 0)
        return err_sys(e, -sock, "cannot connect to sandbox '%s'", name);
    int r = files_open(f, sock, name, "0", "/", e);
    if (r < 0)
        return r;
    guarded = sock;
    (void)signal(SIGALRM, on_alarm);
    (void)alarm(STALL_SECONDS);
    return 0;
}

static void disconnect_guest(struct files *f)
{
    (void)alarm(0);
    guarded = -1;
    files_close(f);
}

/* --- in -------------------------------------------------------------------------------------- */

static int ask(struct files *f, uint32_t op, uint32_t flags, struct err *e)
{
    static struct file_req q;
    (void)file_req_init(&q, op, WORKSPACE_GUEST_PATH, flags);
    return files_ask(f, &q, NULL, e);
}

static int check_size(const struct manifest *m, uint64_t max, const char *path, struct err *e)
{
    if (m->bytes + m->entries * ENTRY_BYTES <= max)
        return 0;
    (void)err_set(e, EFBIG, "the workspace %s is larger than %llu MiB", path,
                  (unsigned long long)(max >> 20));
    err_hint(e, "allow more with --workspace-max, or use --workspace-mode fuse");
    return -EFBIG;
}

/* The names in the guest's directory, at most PROTO_LIST_MAX of them. */
static int list_guest(struct files *f, struct strlist *names, struct err *e)
{
    static struct file_req q;
    static struct file_attr a;
    struct proto_frame frame;
    (void)file_req_init(&q, FILE_OP_LIST, WORKSPACE_GUEST_PATH, 0);
    int r = files_send(f, &q, e);
    while (r == 0 && (r = files_next(f, &frame, e)) == 0 && frame.type != PROTO_FILE_OK) {
        if (frame.type != PROTO_FILE_ENTRY || file_attr_parse(&a, &frame) < 0 ||
            !(a.has & FILE_HAS_NAME) || names->n > PROTO_LIST_MAX)
            return err_set(e, EPROTO, "sandbox '%s' broke the protocol", f->name);
        r = strlist_add(names, a.name) < 0 ? err_oom(e) : 0;
    }
    return r;
}

/* Removes its content, but not the directory itself: its parent may be read-only. */
static int empty_guest(struct files *f, struct err *e)
{
    static struct file_req q;
    AUTO_STRLIST struct strlist names = {0};
    int r = ask(f, FILE_OP_MKDIR, FILE_PARENTS, e);
    if (r == 0)
        r = list_guest(f, &names, e);
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        char path[sizeof(WORKSPACE_GUEST_PATH) + PROTO_NAME_MAX + 1];
        (void)snprintf(path, sizeof(path), WORKSPACE_GUEST_PATH "/%s", names.v[i]);
        (void)file_req_init(&q, FILE_OP_REMOVE, path, FILE_RECURSIVE | FILE_FORCE);
        r = files_ask(f, &q, NULL, e);
    }
    return r;
}

/* Returns once the guest has it on disk. */
static int put_tree(const struct place *p, struct files *f, struct err *e)
{
    struct guest_sink sink;
    struct tree_progress progress = {.tick = on_tick};
    int r = empty_guest(f, e);
    if (r == 0)
        r = guest_sink_begin(&sink, f, WORKSPACE_GUEST_PATH, true, false, e);
    if (r == 0)
        r = tree_from_host(p->parent, p->name, false, "workspace", &sink.sink, &progress, e);
    if (r == 0)
        r = guest_sink_end(&sink, e);
    return r < 0 ? r : ask(f, FILE_OP_SYNC, 0, e);
}

static int copy_in(int dirfd, const struct sandbox_spec *spec, const struct place *p,
                   struct manifest *m, struct err *e)
{
    struct files f = {0};
    struct standing st = {.stage = STAGE_COPYING};
    int r = standing_save(dirfd, &st, e);
    if (r == 0)
        r = connect_guest(dirfd, spec->name, &f, e);
    bool same = false;
    for (int i = 0; r == 0 && !same && i < COPY_TRIES; i++) {
        struct manifest after;
        r = put_tree(p, &f, e);
        if (r == 0)
            r = look(p, p->name, &after, e);
        same = r == 0 && digest_equal(&after.digest, &m->digest);
        if (r == 0)
            *m = after;
    }
    disconnect_guest(&f);
    if (r == 0 && !same)
        r = err_set(e, EBUSY, "the workspace %s keeps changing while it is copied", p->path);
    if (r < 0)
        return err_wrap(e, r, "cannot copy the workspace into sandbox '%s'", spec->name);
    st.stage = STAGE_OUT;
    digest_text(&m->digest, st.base);
    return standing_save(dirfd, &st, e);
}

int snapshot_enter(const struct store *s, int dirfd, const struct sandbox_spec *spec, warn_fn warn,
                   struct err *e)
{
    CLEANUP(close_place) struct place p = PLACE_NONE;
    struct standing st;
    struct manifest m;
    char text[DIGEST_TEXT_SIZE];
    int r = begin(s, dirfd, spec, &p, &st, warn, e);
    if (r == 0)
        r = look(&p, p.name, &m, e);
    if (r == 0)
        r = check_size(&m, spec->workspace.max, p.path, e);
    if (r == 0) {
        digest_text(&m.digest, text);
        bool have = st.stage == STAGE_SAME && strcmp(st.base, text) == 0;
        if (have) { /* from now on it may differ */
            st.stage = STAGE_OUT;
            r = standing_save(dirfd, &st, e);
        } else if (st.stage != STAGE_OUT) {
            r = copy_in(dirfd, spec, &p, &m, e);
        } else if (warn) {
            warn("the workspace has changes that were not synced; the sandbox keeps them");
        }
    }
    return r;
}

/* --- back ------------------------------------------------------------------------------------ */

/* Between the guest and the host's sink: limits the size. */
struct capped {
    struct tree_sink sink;
    struct tree_sink *to;
    uint64_t used, max;
};

static int charge(struct capped *c, uint64_t n, struct err *e)
{
    c->used += n;
    if (c->used <= c->max)
        return 0;
    (void)err_set(e, EFBIG, "the workspace in the sandbox is larger than %llu MiB",
                  (unsigned long long)(c->max >> 20));
    err_hint(e, "allow more with: msb workspace sync --max SIZE NAME");
    return -EFBIG;
}

/* Files that their owner cannot read or enter could be neither copied nor removed. */
static const struct file_attr *opened(const struct file_attr *a, uint32_t bits)
{
    static struct file_attr copy;
    if ((a->mode & bits) == bits || !(a->has & FILE_HAS_MODE))
        return a;
    copy = *a;
    copy.mode |= bits;
    return &copy;
}

static int cap_dir(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct capped *c = CONTAINER_OF(s, struct capped, sink);
    int r = charge(c, ENTRY_BYTES, e);
    return r < 0 ? r : c->to->ops->dir(c->to, opened(a, S_IRWXU), e);
}

static int cap_leave(struct tree_sink *s, struct err *e)
{
    struct capped *c = CONTAINER_OF(s, struct capped, sink);
    return c->to->ops->leave(c->to, e);
}

static int cap_file(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct capped *c = CONTAINER_OF(s, struct capped, sink);
    int r = charge(c, ENTRY_BYTES, e);
    return r < 0 ? r : c->to->ops->file(c->to, opened(a, S_IRUSR), e);
}

static int cap_data(struct tree_sink *s, const void *p, size_t n, struct err *e)
{
    struct capped *c = CONTAINER_OF(s, struct capped, sink);
    int r = charge(c, n, e);
    return r < 0 ? r : c->to->ops->data(c->to, p, n, e);
}

static int cap_done(struct tree_sink *s, struct err *e)
{
    struct capped *c = CONTAINER_OF(s, struct capped, sink);
    return c->to->ops->done(c->to, e);
}

static int cap_link(struct tree_sink *s, const struct file_attr *a, struct err *e)
{
    struct capped *c = CONTAINER_OF(s, struct capped, sink);
    int r = charge(c, ENTRY_BYTES + strlen(a->target), e);
    return r < 0 ? r : c->to->ops->link(c->to, a, e);
}

static const struct tree_sink_ops capped_ops = {
    .dir = cap_dir,
    .leave = cap_leave,
    .file = cap_file,
    .data = cap_data,
    .done = cap_done,
    .link = cap_link,
};

/* Copies the tree from the guest to a place beside the workspace, and syncs it to disk. */
static int get_tree(const struct place *p, struct files *f, uint64_t max, warn_fn warn,
                    struct stat *ret, struct err *e)
{
    static struct host_sink host;
    struct capped cap = {.sink.ops = &capped_ops, .to = &host.sink, .max = max};
    struct tree_progress progress = {.tick = on_tick, .warn = warn};
    struct stat old;
    if (fstatat(p->parent, p->name, &old, AT_SYMLINK_NOFOLLOW) < 0 ||
        mkdirat(p->parent, p->fresh, 0700) < 0)
        return err_sys(e, errno, "cannot make a new tree beside %s", p->path);
    AUTO_CLOSE int fd = dir_open_at(p->parent, p->fresh);
    if (fd < 0)
        return err_sys(e, -fd, "cannot make a new tree beside %s", p->path);
    host_sink_begin(&host, fd, true, false);
    host.direct = true;
    int r = tree_from_guest(f, WORKSPACE_GUEST_PATH, false, "workspace", &cap.sink, &progress, e);
    host_sink_end(&host);
    if (r < 0)
        return r;
    if (fchmod(fd, old.st_mode & 0777) < 0 || syncfs(fd) < 0 || fstat(fd, ret) < 0)
        return err_sys(e, errno, "cannot sync the new tree beside %s to disk", p->path);
    return 0;
}

/* After the exchange, a crash leaves the new tree. */
static int replace(int dirfd, const struct place *p, struct standing *st, const struct manifest *m,
                   const struct snapshot_sync *how, struct err *e)
{
    st->stage = STAGE_REPLACING;
    int r = standing_save(dirfd, st, e);
    if (r < 0)
        return r;
    if (renameat2(p->parent, p->fresh, p->parent, p->name, RENAME_EXCHANGE) < 0) {
        int code = errno;
        (void)err_sys(e, code, "cannot replace the workspace %s", p->path);
        if (code == EBUSY)
            err_hint(e, "it is a mount: use --workspace-mode fuse");
        st->stage = STAGE_OUT;
        (void)standing_save(dirfd, st, NULL); /* before the new tree goes: see recover() */
        (void)remove_tree_at(p->parent, p->fresh);
        return -code;
    }
    (void)fsync(p->parent);
    r = retire(p, st->base, st->keep, how->warn, e);
    st->stage = how->still ? STAGE_OUT : STAGE_SAME;
    digest_text(&m->digest, st->base);
    return r < 0 ? r : standing_save(dirfd, st, e);
}

/* The guest may have changes that the host lacks. */
static int bring_back(int dirfd, const struct sandbox_spec *spec, const struct place *p,
                      struct standing *st, const struct snapshot_sync *how, struct err *e)
{
    struct files f = {0};
    struct stat made = {0};
    struct manifest m;
    int r = connect_guest(dirfd, spec->name, &f, e);
    if (r == 0)
        r = get_tree(p, &f, how->max ? how->max : spec->workspace.max, how->warn, &made, e);
    disconnect_guest(&f);
    if (r == 0)
        r = look(p, p->fresh, &m, e);
    if (r < 0) {
        (void)remove_tree_at(p->parent, p->fresh);
        return r;
    }
    st->new_dev = made.st_dev;
    st->new_ino = made.st_ino;
    st->still = how->still;
    st->keep = how->crashed;
    return replace(dirfd, p, st, &m, how, e);
}

int snapshot_leave(const struct store *s, int dirfd, const struct sandbox_spec *spec,
                   const struct snapshot_sync *how, struct err *e)
{
    CLEANUP(close_place) struct place p = PLACE_NONE;
    struct standing st;
    int r = begin(s, dirfd, spec, &p, &st, how->warn, e);
    if (r == 0 && st.stage == STAGE_OUT)
        r = bring_back(dirfd, spec, &p, &st, how, e);
    return r < 0 ? err_wrap(e, r, "cannot sync the workspace of sandbox '%s'", spec->name) : 0;
}
