/* Declarations shared by the files of the FUSE server. */
#pragma once

#include "fuse/fuse.h"

#include <limits.h>
#include <linux/fuse.h>
#include <sys/stat.h>

enum {
    ARG_MAX_BYTES = 80 * 1024, /* a request without its data: names, or one extended attribute */
    REP_MAX_BYTES = 80 * 1024, /* a reply without file data */
    DIR_BUF = 32 * 1024,
    PATH_REF_MAX = 16 + NAME_MAX + 2, /* "FD/NAME", below /proc/self/fd */
};

/* --- inodes (inode.c) ----------------------------------------------------------------------- */

struct owner {
    uint32_t uid, gid;
    uint32_t mode; /* 07777 */
};

/* An object that the guest knows. It is found by its descriptor or, when that was closed to make
 * room, by its name in its parent, and is then checked to be the same. */
struct inode {
    uint64_t id, generation;
    uint64_t lookups; /* references that the guest holds */
    uint32_t refs;    /* ours: children that name it, open files */
    uint32_t opens;   /* open files among those */
    uint32_t type;    /* S_IFMT part of its mode */
    dev_t dev;
    ino_t ino;
    int fd;      /* O_PATH, or -1 */
    bool pinned; /* it has no known name: the descriptor stays open */
    bool here;   /* it has no mark (later.c); known while the descriptor keeps the number */
    /* Where there are several trees: */
    uint64_t trees; /* a bit for each in which it was found, unless its parent has them */
    uint64_t mount; /* of the descriptor */
    bool fixed;     /* by a mount that is read-only */
    bool gone;      /* with the last of its trees */
    uint8_t fate;   /* of inode_leave_tree() */
    struct inode *parent;
    char *name;
    struct inode *hash_next;
    struct inode *older, *newer; /* by last use of the descriptor */
    /* The file when the guest last opened it, if the guest's cache may be as old as that. */
    struct timespec seen_mtime, seen_ctime;
    off_t seen_size;
    bool seen;
    /* What was last found about its owner (owner.c). */
    struct owner owner;
    struct timespec owner_ctime, owner_at;
    uint32_t owner_mode, owner_uid, owner_gid; /* the host's, at the time */
    bool owner_known;
};

/* identity.c: fstat(), and fstatat() without following a link. Device and number in the result are
 * unique to the object. 0 or -errno. */
int stat_fd(struct fuse_server *s, int fd, struct stat *st);
int stat_at(struct fuse_server *s, int dir, const char *name, struct stat *st);
/* Whether the host gives different objects on that device the same number; also false if nothing on
 * the device was examined recently. */
bool numbers_repeat(const struct fuse_server *s, dev_t dev);
/* Whether files on that device may have extended attributes of users: the host has not refused one
 * since the device was last examined. */
bool may_have_xattrs(const struct fuse_server *s, dev_t dev);
/* The host has refused one. */
void has_no_xattrs(struct fuse_server *s, dev_t dev);
/* Forgets devices: file systems may be unmounted and their device numbers reused. */
void identity_forget(struct fuse_server *s);

/* What is known about a file system. */
struct device {
    dev_t dev;
    bool known, repeats, no_xattrs;
    time_t second; /* in which it was examined */
};
enum { DEVICES_MAX = 16 };

struct inode *inode_get(struct fuse_server *s, uint64_t id); /* NULL: there is none */
/* The one that st describes, if it is known. */
struct inode *inode_known(struct fuse_server *s, const struct stat *st);
/* Whether the guest knows an object with that number, of whatever type. */
bool inode_has_number(struct fuse_server *s, dev_t dev, ino_t ino);
/* The inode, new or known, for the object that st describes, under that name (parent NULL: it has
 * none). Adds no reference. -ENFILE, -ENOMEM. */
int inode_find(struct fuse_server *s, struct inode *parent, const char *name, const struct stat *st,
               struct inode **ret);
/* The same for a file that was just made in that directory, without a name. */
int inode_find_new(struct fuse_server *s, struct inode *dir, int fd, const struct stat *st,
                   struct inode **ret);
/* The same for the root of a tree (its bit; 0: of none), open as fd, which stays the caller's. Its
 * descriptor stays open. */
int inode_find_root(struct fuse_server *s, uint64_t tree, int fd, const struct stat *st,
                    struct inode **ret);
/* From now on, inodes that are in that tree and in no other lead nowhere. */
void inode_leave_tree(struct fuse_server *s, uint64_t tree);
/* An O_PATH descriptor, good until the next call that wants one for something else. -ESTALE if the
 * host has moved it away. */
int inode_fd(struct fuse_server *s, struct inode *i);
/* The descriptor of a directory, for looking up names. */
int inode_dir_fd(struct fuse_server *s, struct inode *i);
/* Gives the inode a descriptor that the caller has opened. */
void inode_set_fd(struct fuse_server *s, struct inode *i, int fd);
/* Drops n of the guest's references; if there are fewer, all of them. */
void inode_forget(struct fuse_server *s, struct inode *i, uint64_t n);
void inode_ref(struct inode *i);
void inode_unref(struct fuse_server *s, struct inode *i);
/* A name is about to disappear: its inode, if known, keeps a descriptor. st: what the name leads
 * to. */
void inode_name_goes(struct fuse_server *s, struct inode *parent, const char *name,
                     const struct stat *st);
/* A name was added: its inode, if known, is found there from now on. */
void inode_name_came(struct fuse_server *s, struct inode *parent, const char *name);
/* Keeps its descriptor open as long as it has no name. */
void inode_pin(struct fuse_server *s, struct inode *i);
void inode_table_free(struct fuse_server *s);
int inode_table_init(struct fuse_server *s, int root_fd);

/* --- open files (handle.c) ------------------------------------------------------------------ */

struct handle {
    uint64_t id;
    int fd;
    bool dir, writable;
    bool whole;                 /* all of its content is here, as far as known */
    uint32_t ahead_of;          /* if not: the part that was read last, */
    uint32_t asked_from, asked; /* and the parts requested in a sequential read */
    struct inode *inode;
    uint8_t *buf; /* directories: entries read, not yet given out */
    size_t pos, len;
    uint64_t next; /* the offset that buf[pos] stands for */
};

/* Takes fd in any case. */
int handle_new(struct fuse_server *s, struct inode *i, int fd, bool dir, struct handle **ret);
struct handle *handle_get(struct fuse_server *s, uint64_t id, bool dir); /* NULL: there is none */
void handle_free(struct fuse_server *s, struct handle *h);
void handle_table_free(struct fuse_server *s);

/* --- owners (owner.c) ----------------------------------------------------------------------- */

struct owner_entry;

/* The owner and mode that the guest sees for the object that st describes: that name in fd, or
 * (NULL) fd itself. */
void owner_load(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                struct owner *ret);
/* The same for the reply to a change, after which the ctime proves nothing: what was found just
 * before, if the guest may still have it cached. Only then, *age is set to its age (ns), to be
 * subtracted from the time that the guest may keep it. */
bool owner_before(struct fuse_server *s, const struct stat *st, struct owner *ret, uint64_t *age);
/* Makes the guest see `want` from now on. st: its present state on the host. */
int owner_store(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                const struct owner *want);
/* The same for an object that was just created, which has no stored owner yet. 1: st is now out of
 * date; 0: it is not. */
int owner_store_new(struct fuse_server *s, int fd, const char *name, const struct stat *st,
                    const struct owner *want);
/* Caches the owner of i, which st describes. */
void owner_note(struct inode *i, const struct stat *st, const struct owner *o);
/* The cached owner of a directory, if it is recent enough. */
bool owner_recent(const struct fuse_server *s, const struct inode *i, struct owner *ret);
bool owner_same(const struct owner *a, const struct owner *b);
/* The mode that the host's file gets when the guest asks for `mode`. */
uint32_t owner_host_mode(const struct fuse_server *s, uint32_t type, uint32_t mode);
/* The last name of an object is gone. */
void owner_forget(struct fuse_server *s, const struct stat *st);
void owner_table_free(struct fuse_server *s);

/* --- quota (quota.c) ------------------------------------------------------------------------ */

/* Adds up what the tree takes already; 0, or -errno. */
int quota_init(struct fuse_server *s);
/* Whether `more` bytes still fit: 0 or -EDQUOT. */
int quota_check(const struct fuse_server *s, uint64_t more);
/* The same for a write of len bytes at off. */
int quota_check_write(const struct fuse_server *s, int fd, uint64_t off, uint64_t len);
/* Account for a file's blocks, before and after it is changed. */
uint64_t quota_before(const struct fuse_server *s, int fd);
void quota_after(struct fuse_server *s, int fd, uint64_t before);
/* The last name of an object is gone, and no open file holds it. */
void quota_gone(struct fuse_server *s, const struct stat *st);

/* --- several trees (trees.c) ------------------------------------------------------------------ */

struct tree {
    char *name; /* NULL: a free slot */
    int fd;
};

_Static_assert(FUSE_TREES_MAX <= 64, "a bit for each");

/* The tree of that name, or NULL. */
const struct tree *tree_find(struct fuse_server *s, const char *name);
void trees_free(struct fuse_server *s);

/* --- contents that come later (later.c) ------------------------------------------------------ */

/* durable.c: a request that waits for the sync with that number; 0 = a free slot. */
struct durable {
    uint64_t unique;
    uint32_t sync;
};
enum { DURABLE_MAX = 64 };

enum { WANTED_MAX = 64 };

struct wanted {
    dev_t dev;
    ino_t ino;
    uint32_t part;   /* 0 = all of it */
    uint32_t number; /* 0 = not in use */
    unsigned asked;  /* how often */
    bool ahead;      /* no request waits for it yet */
    bool waiting;
    int error;
};

/* gate.c: call before doing anything that depends on the tree's contents. -EINPROGRESS: serve the
 * request again after fuse_gate_open(). */
int gate_pass(const struct fuse_server *s);

/* durable.c: call once the file is on disk. -EINPROGRESS: serve the request again after
 * fuse_durable_event(). */
int durable_wait(struct fuse_server *s, uint64_t unique);
/* Whether that request has called durable_wait() before. */
bool durable_waits(struct fuse_server *s, uint64_t unique);
/* Reports a change over fuse_tell_changes()'s socket. */
void tell_change(struct fuse_server *s);
/* Call before using the content of the regular file at `path`. 0: it is there. -EINPROGRESS: it is
 * on its way. empty: the file is about to be truncated. */
int later_bring(struct fuse_server *s, struct inode *i, const char *path, bool empty);
/* Whether the content may be fetched in parts, as it is read. */
bool later_in_parts(const struct fuse_server *s, const struct inode *i, const char *path);
/* Call before reading those bytes of an open file. */
int later_bring_part(struct fuse_server *s, struct handle *h, uint64_t off, uint64_t len);
/* Whether all of the file is here, so that the host's answers about data and holes are right. */
bool later_is_whole(const struct fuse_server *s, struct handle *h);
/* Like later_bring(), before anything in a directory is looked up. name: a directory in it that is
 * about to be removed or moved; it may turn out to be something else, or missing. */
int later_list(struct fuse_server *s, struct inode *dir, const char *name);

/* --- the server ----------------------------------------------------------------------------- */

struct fuse_server {
    struct fuse_options opt;
    char *file_name;
    uint32_t host_uid, host_gid;
    bool no_getxattrat; /* the host does not have that call */
    bool ready;         /* INIT was done */
    bool writeback;     /* negotiated */
    uint64_t entry_ns;  /* how long the guest may cache names and attributes */
    uint64_t dir_ns;    /* the same for directories */
    uint64_t used;      /* bytes, when there is a quota */
    int root_fd;

    struct device device[DEVICES_MAX];
    unsigned device_last; /* the one used last */
    unsigned device_next; /* the one replaced last: the one after it is next */

    struct inode **slot; /* by the lower half of its id; 0 is unused, 1 is the root */
    uint32_t n_slots, slots_used, free_slots;
    uint32_t *free_slot;
    uint64_t generation;
    struct inode **bucket;
    uint32_t n_inodes;
    struct inode *oldest, *newest; /* list of inodes whose descriptors may be closed */
    unsigned n_fds, n_pinned;

    struct handle **handle;
    unsigned n_handles, handles_used;
    uint32_t handle_serial;
    /* The directory in which names are looked up one after another; fd -1: none. */
    struct handle ahead;

    struct owner_entry **owners;
    unsigned n_owners;

    struct tree trees[FUSE_TREES_MAX];
    int later_sock;  /* -1: none */
    int gate;        /* -EINPROGRESS: the tree is not complete yet (gate.c); -EIO: it will not be */
    int change_sock; /* -1: none */
    uint64_t told_ns;
    bool fsync_far; /* an fsync waits for a sync, whose end is reported on change_sock */
    int sync_error; /* of the last completed sync */
    uint32_t sync_asked, sync_done;
    struct durable durable[DURABLE_MAX];
    uint32_t later_number;
    struct wanted wanted[WANTED_MAX];

    _Alignas(16) uint8_t arg[ARG_MAX_BYTES];
    _Alignas(16) uint8_t rep[REP_MAX_BYTES];
    struct iovec io[1024];
};

/* The directory around a single file, or around several trees: it exists only for the guest. */
static inline bool is_made_up(const struct fuse_server *s, const struct inode *i)
{
    return (s->opt.file || s->opt.many) && i->id == FUSE_ROOT_ID;
}

/* One request, for its handler. */
struct call {
    const struct fuse_request *q;
    struct fuse_in_header h;
    const void *arg;     /* the opcode's struct, copied */
    size_t arg_len;      /* including what follows it */
    const char *name[2]; /* the strings after it */
    struct inode *inode; /* h.nodeid */
    size_t rep_len;      /* bytes in s->rep, or placed in the reply directly */
    bool direct;         /* the reply was placed directly */
    bool silent;         /* no reply at all */
};

typedef int op_fn(struct fuse_server *s, struct call *c);

int check_name(const char *name); /* one component: 0, -EINVAL, -ENAMETOOLONG */
void *call_reply(struct fuse_server *s, struct call *c, size_t n);  /* n zeroed bytes of reply */
void path_of(char out[PATH_REF_MAX], int dir_fd, const char *name); /* name NULL: dir_fd itself */
/* Appends, if there is room, the attributes of the directory in which something was made. */
void put_dir_attr(struct fuse_server *s, struct call *c);
/* The inode number shown to the guest. */
uint64_t shown_number(const struct fuse_server *s, dev_t dev, ino_t ino);
void fill_attr(const struct fuse_server *s, const struct stat *st, const struct owner *o,
               struct fuse_attr *a);
/* Looks up a name and fills in the entry; the guest then holds one more reference. */
int make_entry(struct fuse_server *s, struct inode *parent, const char *name,
               struct fuse_entry_out *e);
/* The same for an object whose attributes are known already; o: its owner, NULL: not known. */
int fill_entry(struct fuse_server *s, struct inode *parent, const char *name, const struct stat *st,
               const struct owner *o, struct fuse_entry_out *e);
/* The owner and mode of a new object in that directory; returns the directory's descriptor. */
int new_owner(struct fuse_server *s, struct inode *parent, const struct fuse_in_header *h,
              uint32_t mode, bool dir, struct owner *ret);
int reply_new_entry(struct fuse_server *s, struct call *c, struct inode *parent, const char *name,
                    const struct owner *o);
int kill_set_id(struct fuse_server *s, int fd, const struct stat *st);
/* Appends entries near the one that c asked for, as many as there is room for (dir.c). */
void put_entries_ahead(struct fuse_server *s, struct call *c);
void ahead_close(struct fuse_server *s);
bool may_keep_cache(struct inode *i, const struct stat *st);

/* Handlers, by file. */
op_fn op_lookup, op_forget, op_batch_forget, op_getattr, op_setattr, op_readlink, op_statfs,
    op_access;
op_fn op_mknod, op_mkdir, op_symlink, op_unlink, op_rmdir, op_rename, op_rename2, op_link;
op_fn op_opendir, op_readdir, op_readdirplus, op_releasedir, op_fsyncdir;
op_fn op_open, op_create, op_tmpfile, op_read, op_write, op_release, op_fsync, op_fallocate,
    op_lseek, op_copy_file_range;
op_fn op_setxattr, op_getxattr, op_listxattr, op_removexattr;
