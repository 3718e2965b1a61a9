/* The FUSE server on a real directory: whatever the requests are, nothing beside that directory
 * changes, and a read-only share does not change either. */
#include "fuzz_guest.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuse/fuse.h"
#include "util/fs.h"

enum { REQUEST_MAX = 2048, NODES = 12, HANDLES = 8 };

static char base[64];
static int base_fd = -1, share_fd = -1;

static void clean_up(void)
{
    (void)remove_tree_at(AT_FDCWD, base);
}

/* base/share is served; base/secret is not to be touched, and links lead there. */
static void make_tree(void)
{
    if (base_fd < 0) {
        /* In memory, where there is such a place: every input makes a tree of its own. */
        (void)snprintf(base, sizeof(base), "%s/fuzz-fs-XXXXXX",
                       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(base) || (base_fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            abort();
        (void)umask(0);
        (void)atexit(clean_up);
        if (chdir("/proc/self/fd") < 0)
            abort();
        int fd = openat(base_fd, "secret", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, "secret", 6) != 6 || close(fd) < 0)
            abort();
    }
    if (remove_tree_at(base_fd, "share") < 0 || mkdirat(base_fd, "share", 0755) < 0 ||
        mkdirat(base_fd, "share/d", 0755) < 0 || mkdirat(base_fd, "share/d/e", 0755) < 0 ||
        symlinkat("../secret", base_fd, "share/up") < 0 ||
        symlinkat("..", base_fd, "share/d/up") < 0 ||
        mknodat(base_fd, "share/fifo", S_IFIFO | 0666, 0) < 0)
        abort();
    int fd = openat(base_fd, "share/f", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, "0123456789", 10) != 10 || close(fd) < 0)
        abort();
    share_fd = openat(base_fd, "share", O_PATH | O_CLOEXEC);
    if (share_fd < 0)
        abort();
}

static void check_outside(void)
{
    struct stat st;
    char text[8];
    int fd = openat(base_fd, "secret", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_nlink != 1 || (st.st_mode & 07777) != 0600 ||
        read(fd, text, sizeof(text)) != 6 || memcmp(text, "secret", 6) != 0 || close(fd) < 0)
        abort();
    unsigned n = 0;
    int dup_fd = openat(base_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = dup_fd < 0 ? NULL : fdopendir(dup_fd);
    while (d && readdir(d))
        n++;
    if (!d || n != 4 || closedir(d) < 0)
        abort();
}

/* What the server has told: numbers that a later request may use. */
struct memory {
    uint64_t node[NODES], fh[HANDLES];
    unsigned nodes, handles;
};

static void learn(struct memory *m, uint32_t op, const uint8_t *rep, size_t n)
{
    struct fuse_out_header h;
    if (n < sizeof(h))
        return;
    memcpy(&h, rep, sizeof(h));
    if (h.error)
        return;
    bool entry = op == FUSE_LOOKUP || op == FUSE_CREATE || op == FUSE_MKDIR || op == FUSE_MKNOD ||
                 op == FUSE_SYMLINK || op == FUSE_TMPFILE;
    size_t at = sizeof(h);
    if (entry && n >= at + sizeof(struct fuse_entry_out)) {
        memcpy(&m->node[m->nodes++ % NODES], rep + at, sizeof(uint64_t));
        at += sizeof(struct fuse_entry_out);
    }
    if ((op == FUSE_OPEN || op == FUSE_OPENDIR || op == FUSE_CREATE || op == FUSE_TMPFILE) &&
        n >= at + sizeof(uint64_t))
        memcpy(&m->fh[m->handles++ % HANDLES], rep + at, sizeof(uint64_t));
}

static size_t put_name(struct input *in, uint8_t *to)
{
    static const char *const names[] = {"f", "d", "e", "up", "fifo", "new", "..", "", "a/b", "x"};
    uint8_t how = in_u8(in);
    if (how & 128) {
        size_t n = in_bytes(in, to, how & 31);
        to[n] = '\0';
        return n + (how & 64 ? 0 : 1);
    }
    const char *name = names[how % 10];
    memcpy(to, name, strlen(name) + 1);
    return strlen(name) + 1;
}

static void request(struct fuse_server *s, struct memory *m, struct input *in)
{
    uint8_t buf[REQUEST_MAX] = {0}, rep[4096];
    uint32_t op = in_u8(in) % 54;
    uint8_t how = in_u8(in);
    struct fuse_in_header h = {.opcode = op,
                               .unique = 1,
                               .nodeid = how & 1 ? in_u64(in) : m->node[in_u8(in) % NODES],
                               .uid = in_u8(in),
                               .gid = in_u8(in)};
    size_t n = sizeof(h);
    /* The struct: bytes as they come, with a number that is known where there often is one. */
    size_t arg = how & 2 ? in_u8(in) : (size_t)(in_u8(in) % 12) * 8;
    (void)in_bytes(in, buf + n, arg);
    if (arg >= 8 && how & 4)
        memcpy(buf + n, how & 8 ? &m->node[in_u8(in) % NODES] : &m->fh[in_u8(in) % HANDLES], 8);
    n += arg;
    for (unsigned i = 0; i < (how >> 4 & 3); i++)
        n += put_name(in, buf + n);
    h.len = how & 64 ? in_u16(in) : (uint32_t)n;
    if (op == FUSE_COPY_FILE_RANGE || op == FUSE_FALLOCATE || op == FUSE_SETATTR ||
        op == FUSE_WRITE)
        for (size_t i = sizeof(h) + 8; i + 8 <= n && i < sizeof(h) + 40; i += 8)
            memset(buf + i + 3, 0, 5); /* not the whole disk */
    memcpy(buf, &h, sizeof(h));
    size_t room = how & 128 ? in_u16(in) % sizeof(rep) : sizeof(rep);
    struct iovec out[2] = {{buf, n / 2}, {buf + n / 2, n - n / 2}}, reply[1] = {{rep, room}};
    struct fuse_request q = {
        .out = out, .n_out = 2, .out_len = n, .in = reply, .n_in = 1, .in_len = room};
    ssize_t r = fuse_serve(s, &q);
    if (r > (ssize_t)room)
        abort();
    learn(m, op, rep, r > 0 ? (size_t)r : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct memory m = {.node = {FUSE_ROOT_ID}};
    struct fuse_server *s;
    uint8_t how = in_u8(&in);
    struct stat before, after;
    make_tree();
    struct fuse_options o = {.root_fd = share_fd,
                             .read_only = how & 1,
                             .cache = (enum fuse_cache)(how >> 1 & 3) % 3,
                             .quota = how & 8 ? 1 << 20 : 0,
                             .inodes_max = 64,
                             .files_max = 16,
                             .fds_max = 16};
    if (fstatat(base_fd, "share", &before, 0) < 0 || fuse_new(&s, &o) < 0)
        abort();
    for (unsigned i = 0; i < NODES; i++)
        m.node[i] = FUSE_ROOT_ID;
    struct {
        struct fuse_in_header h;
        struct fuse_init_in in;
    } init = {.h = {.len = sizeof(init), .opcode = FUSE_INIT},
              .in = {.major = 7, .minor = 40, .flags = UINT32_MAX, .flags2 = UINT32_MAX}};
    uint8_t rep[256];
    struct iovec out = {&init, sizeof(init)}, reply = {rep, sizeof(rep)};
    struct fuse_request q = {&out, 1, sizeof(init), &reply, 1, sizeof(rep)};
    if (fuse_serve(s, &q) < 0)
        abort();
    while (in.n > 0)
        request(s, &m, &in);
    fuse_free(s);
    if (how & 1 && (fstatat(base_fd, "share", &after, 0) < 0 ||
                    memcmp(&before.st_ctim, &after.st_ctim, sizeof(before.st_ctim)) != 0))
        abort();
    check_outside();
    return 0;
}
