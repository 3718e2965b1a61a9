/* One request: copied, checked, handed to its handler, answered.
 *
 * A table says for each opcode how long its struct is, how many names follow it and whether it
 * changes anything, so that no handler sees a request that is too short, an invalid name, or a
 * write to a share that is read-only.
 */
#include "fuse/impl.h"

#include "util/cleanup.h"
#include "util/iov.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* #syscalls:fs close */

enum {
    MAX_WRITE = 1 << 20,
    MAX_PAGES = MAX_WRITE / 4096,
    MAX_READAHEAD = 1 << 20,
    BACKGROUND = 64,
};

/* A flag of a later version of the protocol than the header's. */
#define INIT_DIRECT_IO_ALLOW_MMAP (1ULL << 36)
/* A flag of our own kernel (kernel/patches/all/59-fuse-last-name.patch): see given_up() in names.c. */
#define INIT_GIVES_UP (1ULL << 62)

#define AUTO_NS 100000000ULL
#define AUTO_DIR_NS 1000000000ULL
#define ALWAYS_NS (86400ULL * 1000000000ULL)

/* --- INIT ------------------------------------------------------------------------------------ */

static int op_init(struct fuse_server *s, struct call *c)
{
    struct fuse_init_in in = {0};
    uint64_t want = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS |
                    FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
                    FUSE_HANDLE_KILLPRIV_V2 | FUSE_INIT_EXT | INIT_DIRECT_IO_ALLOW_MMAP |
                    INIT_GIVES_UP;
    memcpy(&in, c->arg, MIN(c->arg_len, sizeof(in)));
    struct fuse_init_out *out = call_reply(s, c, sizeof(*out));
    out->major = FUSE_KERNEL_VERSION;
    out->minor = FUSE_KERNEL_MINOR_VERSION;
    if (in.major > FUSE_KERNEL_VERSION)
        return 0; /* it will retry with our version */
    if (in.major < FUSE_KERNEL_VERSION || in.minor < 36)
        return -EPROTO;
    if (s->opt.cache != FUSE_CACHE_NONE)
        want |= FUSE_CACHE_SYMLINKS;
    if (s->opt.cache == FUSE_CACHE_AUTO)
        want |= FUSE_AUTO_INVAL_DATA;
    if (s->opt.cache == FUSE_CACHE_ALWAYS && !s->opt.read_only)
        want |= FUSE_WRITEBACK_CACHE;
    uint64_t flags = want & (in.flags | (uint64_t)in.flags2 << 32);
    s->ready = true;
    s->writeback = flags & FUSE_WRITEBACK_CACHE;
    out->max_readahead = MIN(in.max_readahead, MAX_READAHEAD);
    out->flags = (uint32_t)flags;
    out->flags2 = flags & FUSE_INIT_EXT ? (uint32_t)(flags >> 32) : 0;
    out->max_background = BACKGROUND;
    out->congestion_threshold = BACKGROUND * 3 / 4;
    out->max_write = MAX_WRITE;
    out->time_gran = 1;
    out->max_pages = MAX_PAGES;
    return 0;
}

static int op_destroy(struct fuse_server *s, struct call *c)
{
    fuse_reset(s);
    return 0;
}

/* Every request is finished by the time it is answered, so there is nothing to interrupt. */
static int op_nothing(struct fuse_server *s, struct call *c)
{
    return 0;
}

/* --- the table ------------------------------------------------------------------------------- */

enum {
    CHANGES = 1, /* refused where the share is read-only */
    SILENT = 2,  /* has no reply */
    EARLY = 4,   /* allowed before INIT */
    TEXT = 8,    /* its (last) string is not a name */
    DATA = 16,   /* bytes follow that are not copied */
    INSIDE = 32, /* it is about what is in a directory */
    ALWAYS = 64, /* it does not depend on what is in the tree */
};

struct op {
    op_fn *fn;
    uint16_t arg;  /* bytes of its struct, at least */
    uint8_t names; /* strings after it */
    uint8_t flags;
};

#define SIZE(type) sizeof(struct fuse_##type##_in)

static const struct op ops[] = {
    [FUSE_LOOKUP] = {op_lookup, 0, 1, INSIDE},
    [FUSE_FORGET] = {op_forget, SIZE(forget), 0, SILENT | ALWAYS},
    [FUSE_GETATTR] = {op_getattr, SIZE(getattr), 0, ALWAYS},
    [FUSE_SETATTR] = {op_setattr, SIZE(setattr), 0, CHANGES},
    [FUSE_READLINK] = {op_readlink, 0, 0, 0},
    [FUSE_SYMLINK] = {op_symlink, 0, 2, CHANGES | TEXT | INSIDE},
    [FUSE_MKNOD] = {op_mknod, SIZE(mknod), 1, CHANGES | INSIDE},
    [FUSE_MKDIR] = {op_mkdir, SIZE(mkdir), 1, CHANGES | INSIDE},
    [FUSE_UNLINK] = {op_unlink, 0, 1, CHANGES | INSIDE},
    [FUSE_RMDIR] = {op_rmdir, 0, 1, CHANGES | INSIDE},
    [FUSE_RENAME] = {op_rename, SIZE(rename), 2, CHANGES | INSIDE},
    [FUSE_LINK] = {op_link, SIZE(link), 1, CHANGES | INSIDE},
    [FUSE_OPEN] = {op_open, SIZE(open), 0, 0},
    [FUSE_READ] = {op_read, SIZE(read), 0, 0},
    [FUSE_WRITE] = {op_write, SIZE(write), 0, CHANGES | DATA},
    [FUSE_STATFS] = {op_statfs, 0, 0, ALWAYS},
    [FUSE_RELEASE] = {op_release, SIZE(release), 0, 0},
    [FUSE_FSYNC] = {op_fsync, SIZE(fsync), 0, 0},
    [FUSE_SETXATTR] = {op_setxattr, FUSE_COMPAT_SETXATTR_IN_SIZE, 1, CHANGES | TEXT},
    [FUSE_GETXATTR] = {op_getxattr, SIZE(getxattr), 1, TEXT},
    [FUSE_LISTXATTR] = {op_listxattr, SIZE(getxattr), 0, 0},
    [FUSE_REMOVEXATTR] = {op_removexattr, 0, 1, CHANGES | TEXT},
    [FUSE_INIT] = {op_init, 16, 0, EARLY | ALWAYS},
    [FUSE_OPENDIR] = {op_opendir, SIZE(open), 0, INSIDE},
    [FUSE_READDIR] = {op_readdir, SIZE(read), 0, 0},
    [FUSE_RELEASEDIR] = {op_releasedir, SIZE(release), 0, 0},
    [FUSE_FSYNCDIR] = {op_fsyncdir, SIZE(fsync), 0, 0},
    [FUSE_ACCESS] = {op_access, SIZE(access), 0, 0},
    [FUSE_CREATE] = {op_create, SIZE(create), 1, CHANGES | INSIDE},
    [FUSE_INTERRUPT] = {op_nothing, 0, 0, SILENT | EARLY | ALWAYS},
    [FUSE_DESTROY] = {op_destroy, 0, 0, EARLY | ALWAYS},
    [FUSE_BATCH_FORGET] = {op_batch_forget, SIZE(batch_forget), 0, SILENT | ALWAYS},
    [FUSE_FALLOCATE] = {op_fallocate, SIZE(fallocate), 0, CHANGES},
    [FUSE_READDIRPLUS] = {op_readdirplus, SIZE(read), 0, 0},
    [FUSE_RENAME2] = {op_rename2, SIZE(rename2), 2, CHANGES | INSIDE},
    [FUSE_LSEEK] = {op_lseek, SIZE(lseek), 0, 0},
    [FUSE_COPY_FILE_RANGE] = {op_copy_file_range, SIZE(copy_file_range), 0, CHANGES},
    [FUSE_TMPFILE] = {op_tmpfile, SIZE(create), 1, CHANGES | INSIDE},
};

/* FLUSH and the lock opcodes get ENOSYS like any unsupported opcode: the guest's kernel then
 * handles locks itself, and does not ask at every close. */

int check_name(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return -EINVAL;
    return n > NAME_MAX ? -ENAMETOOLONG : 0;
}

static int take_names(struct call *c, const struct op *op, uint32_t opcode)
{
    const char *p = (const char *)c->arg + op->arg, *end = (const char *)c->arg + c->arg_len;
    for (unsigned i = 0; i < op->names; i++) {
        const char *nul = p < end ? memchr(p, '\0', (size_t)(end - p)) : NULL;
        if (!nul)
            return -EINVAL;
        c->name[i] = p;
        p = nul + 1;
        bool text = op->flags & TEXT && i + 1U == op->names;
        /* The kernel gives a file without a name the name "/". */
        int r = text || opcode == FUSE_TMPFILE ? 0 : check_name(c->name[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Copies what the handler will use, and checks it. */
static int read_request(struct fuse_server *s, struct call *c, const struct op *op)
{
    const struct fuse_request *q = c->q;
    size_t len = q->out_len - sizeof(c->h);
    if (len < op->arg)
        return -EINVAL;
    if (!(op->flags & DATA) && len > ARG_MAX_BYTES)
        return -E2BIG;
    c->arg = s->arg;
    c->arg_len = iov_read(q->out, q->n_out, sizeof(c->h), s->arg, op->flags & DATA ? op->arg : len);
    if (c->arg_len < op->arg)
        return -EINVAL;
    if (op->flags & EARLY)
        return 0;
    if (!s->ready)
        return -EPROTO;
    if (op->flags & CHANGES && s->opt.read_only)
        return -EROFS;
    if (c->h.opcode != FUSE_BATCH_FORGET && !(c->inode = inode_get(s, c->h.nodeid)))
        return -ESTALE;
    return take_names(c, op, c->h.opcode);
}

void *call_reply(struct fuse_server *s, struct call *c, size_t n)
{
    assert(n <= sizeof(s->rep));
    memset(s->rep, 0, n);
    c->rep_len = n;
    return s->rep;
}

static ssize_t send_reply(struct fuse_server *s, const struct call *c, int r)
{
    const struct fuse_request *q = c->q;
    struct fuse_out_header out = {.unique = c->h.unique, .error = r};
    size_t len = r < 0 ? 0 : c->rep_len;
    if (len > q->in_len - sizeof(out)) { /* the guest left no room for what it asked for */
        len = 0;
        out.error = -EIO;
    }
    out.len = (uint32_t)(sizeof(out) + len);
    if (!c->direct)
        (void)iov_write(q->in, q->n_in, sizeof(out), s->rep, len);
    (void)iov_write(q->in, q->n_in, 0, &out, sizeof(out));
    return (ssize_t)out.len;
}

/* Holds the inode until the request is done: the guest may have forgotten it, and what else holds
 * it may go away. */
static int perform(struct fuse_server *s, struct call *c, const struct op *op)
{
    struct inode *held = c->inode;
    int r = op->flags & ALWAYS ? 0 : gate_pass(s);
    if (held)
        inode_ref(held);
    if (r == 0 && held && s->opt.later && op->flags & INSIDE && S_ISDIR(held->type))
        r = later_list(s, held, NULL);
    if (r == 0)
        r = op->fn(s, c);
    if (held)
        inode_unref(s, held);
    return r;
}

ssize_t fuse_serve(struct fuse_server *s, const struct fuse_request *q)
{
    struct call c = {.q = q};
    if (iov_read(q->out, q->n_out, 0, &c.h, sizeof(c.h)) != sizeof(c.h))
        return -EPROTO;
    const struct op *op = c.h.opcode < ARRAY_LEN(ops) ? &ops[c.h.opcode] : NULL;
    bool known = op && op->fn, silent = known && op->flags & SILENT;
    if (!silent && q->in_len < sizeof(struct fuse_out_header))
        return -EPROTO;
    int r = known ? 0 : -ENOSYS;
    if (c.h.len != q->out_len)
        r = -EINVAL;
    if (r == 0)
        r = read_request(s, &c, op);
    if (r == 0)
        r = perform(s, &c, op);
    if (r == -EINPROGRESS)
        return r;
    if (r == 0 && op->flags & CHANGES) {
        if (op->flags & INSIDE)
            s->ahead.len = 0; /* it is read again at the next look-up */
        if (s->change_sock >= 0)
            tell_change(s);
    }
    return silent ? 0 : send_reply(s, &c, r);
}

/* --- life ------------------------------------------------------------------------------------ */

static void set_defaults(struct fuse_server *s, const struct fuse_options *o)
{
    s->opt = *o;
    s->opt.file = s->file_name;
    s->opt.inodes_max = o->inodes_max ? o->inodes_max : FUSE_INODES_MAX;
    s->opt.fds_max = MAX(o->fds_max ? o->fds_max : FUSE_FDS_MAX, 16U);
    s->opt.files_max = o->files_max ? o->files_max : FUSE_FILES_MAX;
    s->root_fd = o->root_fd;
    s->host_uid = geteuid();
    s->host_gid = getegid();
    s->later_sock = s->change_sock = s->ahead.fd = -1;
    s->entry_ns = o->cache == FUSE_CACHE_AUTO     ? AUTO_NS
                  : o->cache == FUSE_CACHE_ALWAYS ? ALWAYS_NS
                                                  : 0;
    s->dir_ns = o->cache == FUSE_CACHE_AUTO ? AUTO_DIR_NS : s->entry_ns;
}

int fuse_new(struct fuse_server **ret, const struct fuse_options *o)
{
    struct fuse_server *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    int r = 0;
    if (o->file && !(s->file_name = strdup(o->file)))
        r = -ENOMEM;
    set_defaults(s, o);
    if (r == 0 && o->file)
        r = check_name(o->file);
    if (r == 0)
        r = inode_table_init(s, o->root_fd);
    if (r == 0)
        r = quota_init(s);
    if (r < 0) {
        s->root_fd = -1;
        fuse_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

void fuse_reset(struct fuse_server *s)
{
    ahead_close(s);
    handle_table_free(s);
    inode_table_free(s);
    s->ready = s->writeback = false;
    memset(s->durable, 0, sizeof(s->durable));
    /* If memory is short even for a table of one, every request fails until the next try. */
    (void)inode_table_init(s, s->root_fd);
}

void fuse_free(struct fuse_server *s)
{
    if (!s)
        return;
    ahead_close(s);
    handle_table_free(s);
    inode_table_free(s);
    trees_free(s);
    owner_table_free(s);
    close_fd(&s->root_fd);
    close_fd(&s->later_sock);
    close_fd(&s->change_sock);
    free(s->file_name);
    free(s);
}
