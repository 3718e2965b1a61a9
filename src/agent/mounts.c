#include "agent/mounts.h"

#include "agent/copyup.h"
#include "agent/env.h"
#include "agent/files.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SAFE (MS_NOSUID | MS_NODEV | MS_NOEXEC)
#define TOOLS "/.msb"
#define ASIDE "/dev/.msb"

/* --- the root --- */

static int mount_lower(const char *dev, struct err *e)
{
    if (!dev)
        return err_set(e, EPROTO, "no image device configured");
    if (mount(dev, "/mnt/lower", "erofs", MS_RDONLY, NULL) == 0)
        return 0;
    if (errno == ENOENT) { /* a kernel that does not mount devtmpfs by itself */
        (void)mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, NULL);
        if (mount(dev, "/mnt/lower", "erofs", MS_RDONLY, NULL) == 0)
            return 0;
    }
    return err_sys(e, errno, "cannot mount the image %s", dev);
}

/* From kernel headers that musl does not include. */
#define BLOCK_DEVICE_BYTES _IOR(0x12, 114, size_t)
#define EXT4_RESIZE _IOW('f', 16, uint64_t)

/* Grows the file system if the layer's disk has grown since it was created. Failure is no worse
 * than before, and is logged. */
static void grow_upper(const char *dev, int fd)
{
    struct statfs fs;
    uint64_t bytes = 0;
    AUTO_CLOSE int disk = open(dev, O_RDONLY | O_CLOEXEC);
    if (disk < 0 || fstatfs(fd, &fs) < 0 || fs.f_bsize <= 0 ||
        ioctl(disk, BLOCK_DEVICE_BYTES, &bytes) < 0) {
        dprintf(2, "msb agent: cannot read the size of the writable layer\n");
        return;
    }
    uint64_t blocks = bytes / (uint64_t)fs.f_bsize;
    if (ioctl(fd, EXT4_RESIZE, &blocks) < 0)
        dprintf(2, "msb agent: cannot grow the writable layer: %s\n", strerror(errno));
}

static int mount_upper(const struct config *cfg, int *fd, struct err *e)
{
    char opts[64] = "mode=0755";
    if (cfg->upper) {
        /* Leave the inode tables unwritten, as in the template, since the layer is a sparse file.
         * noload: no journal for a layer that is never mounted again. */
#define EXT4_OPTIONS "noinit_itable,no_prefetch_block_bitmaps"
        const char *ext4 = cfg->upper_volatile ? EXT4_OPTIONS ",noload" : EXT4_OPTIONS;
        if (mount(cfg->upper, "/mnt/upper", "ext4", MS_NOATIME, ext4) < 0)
            return err_sys(e, errno, "cannot mount the writable layer %s", cfg->upper);
    } else {
        if (cfg->upper_size)
            (void)snprintf(opts, sizeof(opts), "mode=0755,size=%llu",
                           (unsigned long long)cfg->upper_size);
        if (mount("tmpfs", "/mnt/upper", "tmpfs", MS_NOATIME, opts) < 0)
            return err_sys(e, errno, "cannot mount a tmpfs as the writable layer");
    }
    *fd = open("/mnt/upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cfg->upper && cfg->upper_grow && *fd >= 0)
        grow_upper(cfg->upper, *fd);
    if ((mkdir("/mnt/upper/upper", 0755) < 0 && errno != EEXIST) ||
        (mkdir("/mnt/upper/work", 0755) < 0 && errno != EEXIST))
        return err_sys(e, errno, "cannot prepare the writable layer");
    return 0;
}

/* redirect_dir: renaming a directory of the image works instead of failing with EXDEV. xino: one
 * device number and stable inode numbers for all files, as on a single file system. uuid=null: no
 * UUID has to be written to the layer. metacopy is off, so that a chmod copies the file: the layer
 * by itself shows what changed. volatile: fsync and sync do nothing. Only for a layer that is never
 * mounted again; in any other one, what was synced must survive, and after a graceful stop,
 * everything must. */
static int mount_root(bool never_again, struct err *e)
{
#define ROOT_OPTIONS                                                         \
    "lowerdir=/mnt/lower,upperdir=/mnt/upper/upper,workdir=/mnt/upper/work," \
    "redirect_dir=on,metacopy=off,xino=on,uuid=null"
    const char *opts = never_again ? ROOT_OPTIONS ",volatile" : ROOT_OPTIONS;
    if (mount("overlay", "/newroot", "overlay", 0, opts) < 0)
        return err_sys(e, errno, "cannot mount the image and its writable layer as one");
    return 0;
}

static bool is_empty_dir(const char *path)
{
    DIR *d = dir_read_at(AT_FDCWD, path);
    bool empty = d != NULL;
    for (const struct dirent *entry; empty && (entry = readdir(d));)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (d)
        (void)closedir(d);
    return empty;
}

static bool declares_volume(const struct config *cfg, const char *path)
{
    for (size_t i = 0; i < cfg->ndirs; i++)
        if (strcmp(cfg->dirs[i], path) == 0)
            return true;
    return false;
}

/* Container engines keep their layers in their own overlay, which cannot be on top of another one:
 * if the image has an empty directory for them, or an engine that would create one, they get one on
 * the file system below. */
static void mount_container_stores(const struct config *cfg)
{
    static const struct {
        const char *name, *engine;
    } stores[] = {{"containers", "/newroot/etc/containers"},
                  {"docker", "/newroot/etc/default/docker"}};
    char to[64], from[64];
    for (size_t i = 0; i < ARRAY_LEN(stores); i++) {
        (void)snprintf(to, sizeof(to), "/newroot/var/lib/%s", stores[i].name);
        (void)snprintf(from, sizeof(from), "/mnt/upper/%s", stores[i].name);
        struct stat st;
        if (lstat(to, &st) < 0 &&
            (access(stores[i].engine, F_OK) == 0 || declares_volume(cfg, to + strlen("/newroot"))))
            (void)mkdir(to, 0710);
        if (stat(to, &st) < 0 || !is_empty_dir(to))
            continue;
        if ((mkdir(from, st.st_mode & 07777) < 0 && errno != EEXIST) ||
            mount(from, to, NULL, MS_BIND, NULL) < 0)
            dprintf(2, "msb agent: /var/lib/%s stays on the overlay: %s\n", stores[i].name,
                    strerror(errno));
    }
}

/* Keeps the tools visible: with scripts, a small tmpfs holds both; else the directory itself is
 * bind-mounted. Either is done before the change of root, while the tools disk still has a path. */
static int mount_tools(bool scripts, struct err *e)
{
    if (dir_ensure("/newroot" TOOLS, 0755) < 0)
        return err_sys(e, errno, "cannot create " TOOLS);
    if (!scripts) {
        if (mount(TOOLS, "/newroot" TOOLS, NULL, MS_BIND, NULL) < 0)
            return err_sys(e, errno, "cannot mount the tools");
        return 0;
    }
    if (mount("tmpfs", "/newroot" TOOLS, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m") < 0 ||
        mkdir("/newroot" ENV_TOOLS_DIR, 0755) < 0 || mkdir("/newroot" ENV_SCRIPTS_DIR, 0755) < 0 ||
        mount(ENV_TOOLS_DIR, "/newroot" ENV_TOOLS_DIR, NULL, MS_BIND, NULL) < 0)
        return err_sys(e, errno, "cannot mount the tools");
    return 0;
}

static int write_scripts(const struct config *cfg, struct err *e)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < cfg->nscripts; i++) {
        const struct req_script *s = &cfg->scripts[i];
        if (snprintf(path, sizeof(path), ENV_SCRIPTS_DIR "/%s", s->name) >= (int)sizeof(path))
            return err_set(e, ENAMETOOLONG, "script name too long");
        int r = file_write(path, s->body, s->len, 0755);
        if (r < 0)
            return err_sys(e, -r, "cannot write the script %s", s->name);
    }
    return 0;
}

static int change_root(struct err *e)
{
    if (chdir("/newroot") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
        chdir("/") < 0)
        return err_sys(e, errno, "cannot change to the image's root");
    return 0;
}

/* --- mounts on the root --- */

int mounts_kernel_fs(const char *type, const char *path, unsigned long flags, const char *opts,
                     struct err *e)
{
    int r = dir_ensure(path, 0755);
    if (r < 0)
        return err_sys(e, -r, "cannot create %s", path);
    if (mount(type, path, type, flags, opts) < 0)
        return err_sys(e, errno, "cannot mount %s", path);
    return 0;
}

static int mount_dev(struct err *e)
{
    int r = mounts_kernel_fs("devtmpfs", "/dev", MS_NOSUID, NULL, e);
    if (r < 0)
        return r;
    const char *opts = "gid=5,mode=620,ptmxmode=666";
    r = mounts_kernel_fs("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, opts, e);
    if (r < 0)
        return r;
    /* As udev does: their effects are confined to the namespaces of the process that opens them. */
    (void)chmod("/dev/fuse", 0666);
    (void)chmod("/dev/net/tun", 0666);
    (void)!symlink("/proc/self/fd", "/dev/fd");
    (void)!symlink("/proc/self/fd/0", "/dev/stdin");
    (void)!symlink("/proc/self/fd/1", "/dev/stdout");
    (void)!symlink("/proc/self/fd/2", "/dev/stderr");
    return 0;
}

static unsigned long mount_flags(uint32_t options)
{
    unsigned long flags = 0;
    flags |= options & PROTO_MOUNT_RO ? MS_RDONLY : 0;
    flags |= options & PROTO_MOUNT_NOEXEC ? MS_NOEXEC : 0;
    flags |= options & PROTO_MOUNT_NOSUID ? MS_NOSUID : 0;
    flags |= options & PROTO_MOUNT_NODEV ? MS_NODEV : 0;
    return flags;
}

int mounts_tmpfs(const struct req_mount *m, struct err *e)
{
    char opts[96];
    struct stat st = {.st_mode = 01777};
    unsigned long flags = mount_flags(m->options);
    AUTO_CLOSE int covered =
        m->options & PROTO_MOUNT_COPY ? open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (covered >= 0 && fstat(covered, &st) < 0)
        return err_sys(e, errno, "cannot read %s", m->path);
    int n = snprintf(opts, sizeof(opts), "mode=%o,uid=%u,gid=%u",
                     m->mode ? m->mode : st.st_mode & 07777, m->uid ? m->uid : st.st_uid,
                     m->gid ? m->gid : st.st_gid);
    if (m->size)
        (void)snprintf(opts + n, sizeof(opts) - (size_t)n, ",size=%llu",
                       (unsigned long long)m->size);
    int r = mkdir_parents(m->path, 0755);
    if (r < 0)
        return err_sys(e, -r, "cannot create %s for a tmpfs", m->path);
    if (mount("tmpfs", m->path, "tmpfs", covered < 0 ? flags : flags & ~MS_RDONLY, opts) < 0)
        return err_sys(e, errno, "cannot mount a tmpfs on %s", m->path);
    if (covered < 0)
        return 0;
    AUTO_CLOSE int to = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = to < 0 ? -errno : copyup(covered, to);
    if (r == 0 && flags & MS_RDONLY && mount(NULL, m->path, NULL, MS_REMOUNT | flags, NULL) < 0)
        r = -errno;
    return r < 0 ? err_sys(e, -r, "cannot copy %s to a tmpfs", m->path) : 0;
}

int mounts_make_file(const char *path)
{
    char parent[PATH_MAX];
    if (snprintf(parent, sizeof(parent), "%s", path) >= (int)sizeof(parent))
        return -ENAMETOOLONG;
    *strrchr(parent, '/') = '\0';
    int r = *parent ? mkdir_parents(parent, 0755) : 0;
    if (r < 0)
        return r;
    /* Not for writing: what is there may be read-only, as a file of a ConfigMap is. */
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    return fd < 0 ? -errno : 0;
}

/* One file of a share: the share is temporarily mounted elsewhere. */
static int mount_file(const struct req_mount *m, unsigned long flags, struct err *e)
{
    char path[PATH_MAX];
    int r = mounts_make_file(m->path);
    if (r < 0)
        return err_sys(e, -r, "cannot create %s for a mount", m->path);
    if ((mkdir(ASIDE, 0700) < 0 && errno != EEXIST) ||
        mount(m->tag, ASIDE, "virtiofs", flags, NULL) < 0)
        return err_sys(e, errno, "cannot mount the host's file %s", m->file);
    (void)snprintf(path, sizeof(path), ASIDE "/%s", m->file);
    if (mount(path, m->path, NULL, MS_BIND, NULL) < 0)
        r = err_sys(e, errno, "cannot mount a host file on %s", m->path);
    (void)umount2(ASIDE, MNT_DETACH);
    (void)rmdir(ASIDE);
    return r;
}

/* Device nodes in a host directory are not devices of this machine. */
static int mount_share(const struct req_mount *m, struct err *e)
{
    unsigned long flags = mount_flags(m->options) | MS_NODEV;
    if (m->file)
        return mount_file(m, flags, e);
    int r = mkdir_parents(m->path, 0755);
    if (r < 0)
        return err_sys(e, -r, "cannot create %s for a mount", m->path);
    if (mount(m->tag, m->path, "virtiofs", flags, NULL) < 0)
        return err_sys(e, errno, "cannot mount a host directory on %s", m->path);
    return 0;
}

/* An unfinished journal can be replayed only on a writable disk. */
static const char *disk_options(const struct req_mount *m)
{
    if (strncmp(m->fstype, "ext", 3) != 0)
        return NULL;
    return m->options & PROTO_MOUNT_RO ? "noload" : "noinit_itable";
}

static int mount_disk(struct req_mount *m, struct err *e)
{
    unsigned long flags = mount_flags(m->options) | MS_NODEV | MS_NOATIME;
    int r = mkdir_parents(m->path, 0755);
    if (r < 0)
        return err_sys(e, -r, "cannot create %s for a disk", m->path);
    if (mount(m->device, m->path, m->fstype, flags, disk_options(m)) < 0)
        return err_sys(e, errno, "cannot mount a disk (%s) on %s", m->fstype, m->path);
    int fd = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    m->fd = fd > 0 ? fd : 0;
    return 0;
}

static int mount_one(struct req_mount *m, struct err *e)
{
    if (m->options & PROTO_MOUNT_POD)
        return 0;
    if (m->device)
        return mount_disk(m, e);
    return m->tag ? mount_share(m, e) : mounts_tmpfs(m, e);
}

static int build_image_root(const struct config *cfg, int *upper_fd, struct err *e)
{
    int r = mount_lower(cfg->lower, e);
    if (r == 0)
        r = mount_upper(cfg, upper_fd, e);
    if (r == 0)
        r = mount_root(cfg->upper_volatile, e);
    if (r == 0 && cfg->upper)
        mount_container_stores(cfg);
    return r < 0 ? r : mount_tools(cfg->nscripts > 0, e);
}

static int build_shared_root(const struct config *cfg, int *upper_fd, struct err *e)
{
    const struct req_mount *m = &cfg->mounts[0];
    bool ro = m->options & PROTO_MOUNT_RO;
    unsigned long flags = mount_flags(m->options) | MS_NODEV;
    if (mount(m->tag, ro ? "/mnt/lower" : "/newroot", "virtiofs", flags, NULL) < 0)
        return err_sys(e, errno, "cannot mount the host's directory as the root");
    int r = ro ? mount_upper(cfg, upper_fd, e) : 0;
    return r < 0 || !ro ? r : mount_root(true, e);
}

/* Mounts it below the current root, which will have no path later: containers start from there. */
static int mount_pod(struct config *cfg, const char *tag, struct err *e)
{
    if (mount(tag, "/mnt/pod", "virtiofs", MS_NODEV, NULL) < 0)
        return err_sys(e, errno, "cannot mount the share of the pod's containers");
    cfg->tools_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cfg->pod_fd = open("/mnt/pod", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return cfg->tools_fd < 0 || cfg->pod_fd < 0 ? err_sys(e, errno, "cannot open the pod") : 0;
}

int mounts_build(struct config *cfg, int *upper_fd, struct err *e)
{
    bool shared = config_shares_root(cfg);
    *upper_fd = -1;
    int r = shared ? build_shared_root(cfg, upper_fd, e) : build_image_root(cfg, upper_fd, e);
    for (size_t i = 0; r == 0 && i < cfg->nmounts; i++)
        if (cfg->mounts[i].options & PROTO_MOUNT_POD && cfg->mounts[i].tag)
            r = mount_pod(cfg, cfg->mounts[i].tag, e);
    if (r == 0)
        r = change_root(e);
    if (r == 0)
        r = mounts_kernel_fs("proc", "/proc", SAFE, NULL, e);
    if (r == 0)
        r = mount_dev(e);
    if (r == 0)
        r = write_scripts(cfg, e);
    for (size_t i = shared; r == 0 && i < cfg->nmounts; i++)
        r = mount_one(&cfg->mounts[i], e);
    return r;
}

/* Programs expect a world-writable, sticky /tmp; minimal images often have none. A symlink is left
 * alone. */
static void ensure_tmp(void)
{
    struct stat st;
    if (lstat("/tmp", &st) < 0 ? mkdir("/tmp", 01777) == 0
                               : S_ISDIR(st.st_mode) && (st.st_mode & 07777) != 01777)
        (void)chmod("/tmp", 01777);
}

/* The kernel does not trust FUSE servers: it allows few dirty pages, throttles writers accordingly,
 * and reads ahead little. This server is the host's, and trusted. */
static void trust_device(unsigned major_number, unsigned minor_number)
{
    static const struct {
        const char *file, *value;
    } knobs[] = {{"strict_limit", "0"}, {"max_ratio", "100"}, {"read_ahead_kb", "1024"}};
    char path[96];
    for (size_t i = 0; i < ARRAY_LEN(knobs); i++) {
        (void)snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/%s", major_number, minor_number,
                       knobs[i].file);
        AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
            (void)!write(fd, knobs[i].value, strlen(knobs[i].value));
    }
}

/* statfs() has a share answer, as it must have done before its settings hold. stat() would do, too,
 * and tell the device, but cache the size of a file that the host may still write before the first
 * command starts. */
static void trust_shares(const struct config *cfg)
{
    struct stat st;
    struct statfs ignored;
    unsigned numbers[2];
    char line[2 * PATH_MAX];
    for (size_t i = 0; i < cfg->nmounts; i++)
        if (cfg->mounts[i].tag)
            (void)statfs(cfg->mounts[i].path, &ignored);
    AUTO_FCLOSE FILE *f = fopen("/proc/self/mountinfo", "re");
    while (f && fgets(line, sizeof(line), f))
        if (strstr(line, " - virtiofs ") &&
            sscanf(line, "%*d %*d %u:%u", &numbers[0], &numbers[1]) == 2)
            trust_device(numbers[0], numbers[1]);
    if (cfg->pod_fd > 0 && fstat(cfg->pod_fd, &st) == 0) /* mounted nowhere */
        trust_device(major(st.st_dev), minor(st.st_dev));
}

void mounts_complete(const struct config *cfg)
{
    (void)mounts_kernel_fs("sysfs", "/sys", SAFE, NULL, NULL);
    trust_shares(cfg);
    (void)mount("cgroup2", "/sys/fs/cgroup", "cgroup2", SAFE, MOUNTS_CGROUP_OPTIONS);
    if (!config_mounts(cfg, "/dev/shm")) {
        (void)mkdir("/dev/shm", 01777);
        (void)mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    }
    (void)mkdir("/dev/mqueue", 01777);
    (void)mount("mqueue", "/dev/mqueue", "mqueue", SAFE, NULL);
    if (config_shares_root(cfg)) {
        if (cfg->mounts[0].options & PROTO_MOUNT_RO)
            (void)mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
        return;
    }
    if (!config_mounts(cfg, "/tmp"))
        ensure_tmp();
    (void)mkdir("/run", 0755);
    for (size_t i = 0; i < cfg->ndirs; i++)
        if (cfg->dirs[i][0] == '/')
            (void)mkdir_parents(cfg->dirs[i], 0755);
}

void mounts_cover(const struct config *cfg)
{
    struct stat st;
    for (size_t i = 0; i < cfg->nmasked; i++) {
        const char *path = cfg->masked[i];
        if (stat(path, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode))
            (void)mount("tmpfs", path, "tmpfs", SAFE | MS_RDONLY, "mode=0555,size=4k,nr_inodes=1");
        else
            (void)mount("/dev/null", path, NULL, MS_BIND, NULL);
    }
    for (size_t i = 0; i < cfg->nfixed; i++) {
        const char *path = cfg->fixed[i];
        if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) == 0)
            (void)mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | SAFE, NULL);
    }
}
