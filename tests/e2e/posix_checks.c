/* What programs rely on of a file system, as a table: run in a directory of the host's own and in
 * the same directory through a share, the output must be the same.
 *
 *     posix_checks DIRECTORY [root]
 *
 * Each check prints its name and what came out: a number, an error's name, or a text. Times, inode
 * numbers and the like are compared within a check, never printed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *as_root;

static void say(const char *name, long r)
{
    int e = errno;
    if (r < 0)
        printf("%s: %s\n", name, strerrorname_np(e) ? strerrorname_np(e) : "?");
    else
        printf("%s: %ld\n", name, r);
}
#define CHECK(name, expr) say(name, (errno = 0, (long)(expr)))

static int make(const char *path, const char *text)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        return -1;
    return close(fd);
}

static const char *content(const char *path)
{
    static char buf[256];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return strerrorname_np(errno);
    buf[n] = '\0';
    return buf;
}

static long mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) < 0 ? -1 : (long)st.st_mode;
}

static long links_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) < 0 ? -1 : (long)st.st_nlink;
}

static long size_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) < 0 ? -1 : (long)st.st_size;
}

static bool same_inode(const char *a, const char *b)
{
    struct stat x, y;
    return lstat(a, &x) == 0 && lstat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static void opening(void)
{
    CHECK("create", make("f", "0123456789"));
    CHECK("create excl existing", open("f", O_CREAT | O_EXCL | O_RDWR, 0600));
    CHECK("open missing", open("missing", O_RDONLY));
    CHECK("open below a file", open("f/x", O_RDONLY));
    CHECK("open directory for writing", open(".", O_WRONLY));
    CHECK("O_DIRECTORY on a file", open("f", O_RDONLY | O_DIRECTORY));
    CHECK("O_NOFOLLOW on a link", (symlink("f", "l"), open("l", O_RDONLY | O_NOFOLLOW)));
    CHECK("link loop", (symlink("loop", "loop"), open("loop", O_RDONLY)));
    char name[300];
    memset(name, 'n', 255);
    name[255] = '\0';
    CHECK("name of 255", close(open(name, O_CREAT | O_RDWR, 0600)));
    CHECK("remove it", unlink(name));
    memset(name, 'n', 256);
    name[256] = '\0';
    CHECK("name of 256", open(name, O_CREAT | O_RDWR, 0600));
    umask(027);
    CHECK("umask", close(open("masked", O_CREAT | O_RDWR, 0666)));
    CHECK("its mode", mode_of("masked"));
    umask(022);
    CHECK("O_TRUNC", close(open("f", O_WRONLY | O_TRUNC)));
    CHECK("its size", size_of("f"));
    CHECK("read of a write-only file", read(open("f", O_WRONLY), name, 1));
    CHECK("write to a read-only file", write(open("f", O_RDONLY), name, 1));
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    CHECK("O_TMPFILE", fd < 0 ? -1 : 0);
    CHECK("write to it", write(fd, "tmp", 3));
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CHECK("name it", linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    printf("content: %s\n", content("named"));
    close(fd);
}

static void data(void)
{
    char buf[8192], back[8192];
    for (size_t i = 0; i < sizeof(buf); i++)
        buf[i] = (char)(i * 31);
    int fd = open("data", O_CREAT | O_RDWR, 0600);
    CHECK("write", write(fd, buf, sizeof(buf)));
    CHECK("pread in the middle", pread(fd, back, 1000, 5001));
    CHECK("the same", memcmp(back, buf + 5001, 1000));
    CHECK("read past the end", pread(fd, back, 10, 9000));
    CHECK("write far away", pwrite(fd, "end", 3, 5LL << 30));
    CHECK("size over 4 GiB", size_of("data") == (5LL << 30) + 3);
    CHECK("hole reads as zeros", (pread(fd, back, 100, 1 << 30), back[0] | back[99]));
    struct stat st;
    fstat(fd, &st);
    CHECK("it is sparse", st.st_blocks * 512 < 1 << 20);
    CHECK("seek data", lseek(fd, 1 << 30, SEEK_DATA) > (4LL << 30));
    CHECK("seek hole", lseek(fd, 0, SEEK_HOLE) < 1 << 20);
    CHECK("seek data past the end", lseek(fd, 6LL << 30, SEEK_DATA));
    CHECK("truncate", ftruncate(fd, 100));
    CHECK("size", size_of("data"));
    CHECK("grow", ftruncate(fd, 5000));
    CHECK("zeros", (pread(fd, back, 100, 4000), back[0]));
    CHECK("truncate negative", ftruncate(fd, -1));
    CHECK("fallocate", fallocate(fd, 0, 0, 100000));
    CHECK("size", size_of("data"));
    CHECK("fallocate keep size", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 200000));
    CHECK("size", size_of("data"));
    CHECK("punch hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    CHECK("zeros", (pread(fd, back, 10, 0), back[0] | back[9]));
    CHECK("fsync", fsync(fd));
    CHECK("fdatasync", fdatasync(fd));
    struct iovec iov[2] = {{buf, 10}, {buf + 20, 5}};
    CHECK("pwritev", pwritev(fd, iov, 2, 50));
    CHECK("preadv", preadv(fd, iov, 2, 50));
    int other = open("copy", O_CREAT | O_RDWR, 0600);
    loff_t a = 50, b = 7;
    CHECK("copy_file_range", copy_file_range(fd, &a, other, &b, 15, 0));
    CHECK("size of the copy", size_of("copy"));
    close(other);
    close(fd);
    fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600);
    int fd2 = open("log", O_WRONLY | O_APPEND);
    CHECK("append", write(fd, "one\n", 4));
    CHECK("append by another", write(fd2, "two\n", 4));
    CHECK("append again", write(fd, "three\n", 6));
    printf("log: %s", content("log"));
    close(fd);
    close(fd2);
}

static void mapping(void)
{
    int fd = open("map", O_CREAT | O_RDWR, 0600);
    CHECK("size", ftruncate(fd, 10000));
    char *shared = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK("shared mapping", shared == MAP_FAILED ? -1 : 0);
    CHECK("private mapping", private == MAP_FAILED ? -1 : 0);
    memcpy(shared + 5000, "mapped", 6);
    memcpy(private, "mine", 4);
    char buf[16] = {0};
    CHECK("read what was mapped", pread(fd, buf, 6, 5000));
    printf("it is: %s\n", buf);
    CHECK("private stays private", (pread(fd, buf, 4, 0), buf[0]));
    CHECK("write below the mapping", pwrite(fd, "written", 7, 9000));
    CHECK("is seen in it", memcmp(shared + 9000, "written", 7));
    CHECK("msync", msync(shared, 10000, MS_SYNC));
    munmap(shared, 10000);
    munmap(private, 10000);
    close(fd);
    CHECK("after closing", (fd = open("map", O_RDONLY), pread(fd, buf, 6, 5000)));
    printf("it is: %.6s\n", buf);
    close(fd);
}

static void names(void)
{
    mkdir("d", 0755);
    mkdir("d/sub", 0755);
    CHECK("mkdir existing", mkdir("d", 0755));
    CHECK("rmdir with entries", rmdir("d"));
    CHECK("rmdir of a file", (make("x", "x"), rmdir("x")));
    CHECK("unlink of a directory", unlink("d"));
    CHECK("links of a directory", links_of("d"));
    CHECK("link", link("x", "y"));
    CHECK("links", links_of("x"));
    CHECK("same file", same_inode("x", "y"));
    CHECK("link over existing", link("x", "y"));
    CHECK("link of a directory", link("d", "d2"));
    CHECK("rename over itself", rename("x", "y"));
    CHECK("both are there", access("x", F_OK) == 0 && access("y", F_OK) == 0);
    CHECK("rename", rename("x", "z"));
    CHECK("rename missing", rename("x", "z"));
    CHECK("rename over a file", (make("w", "W"), rename("w", "z")));
    printf("content: %s\n", content("z"));
    CHECK("rename file over directory", rename("z", "d"));
    CHECK("rename directory over file", rename("d", "z"));
    CHECK("rename into itself", rename("d", "d/sub/d"));
    CHECK("rename over a full directory", (mkdir("e", 0755), rename("e", "d")));
    CHECK("rename over an empty one", (rename("d", "e")));
    CHECK("noreplace", renameat2(AT_FDCWD, "z", AT_FDCWD, "y", RENAME_NOREPLACE));
    CHECK("exchange", renameat2(AT_FDCWD, "z", AT_FDCWD, "y", RENAME_EXCHANGE));
    printf("content: %s\n", content("y"));
    CHECK("symlink", symlink("/no/such/place", "s"));
    char to[64] = {0};
    CHECK("readlink", readlink("s", to, sizeof(to)));
    printf("it is: %s\n", to);
    CHECK("symlink over existing", symlink("a", "s"));
    CHECK("empty symlink", symlink("", "t"));
    CHECK("size of a symlink", size_of("s"));
    CHECK("stat through a dangling link", access("s", F_OK));
    CHECK("fifo", mkfifo("p", 0640));
    CHECK("mode of a fifo", mode_of("p"));
    CHECK("fifo works",
          (fork() == 0 ? (void)(write(open("p", O_WRONLY), "f", 1), _exit(0)) : (void)0,
           read(open("p", O_RDONLY), to, 1)));
    wait(NULL);
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "sock"};
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK("bind a socket", bind(sock, (struct sockaddr *)&a, sizeof(a)));
    CHECK("listen", listen(sock, 1));
    CHECK("connect", connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&a, sizeof(a)));
    CHECK("mode of a socket", mode_of("sock") & S_IFMT);
}

static void unlinked(void)
{
    char buf[16] = {0};
    int fd = open("gone", O_CREAT | O_RDWR, 0600);
    CHECK("unlink while open", unlink("gone"));
    CHECK("write", write(fd, "alive", 5));
    CHECK("read", pread(fd, buf, 5, 0));
    struct stat st;
    CHECK("fstat", fstat(fd, &st));
    CHECK("links", st.st_nlink);
    CHECK("size", st.st_size);
    CHECK("truncate", ftruncate(fd, 2));
    CHECK("chmod", fchmod(fd, 0400));
    CHECK("open it again", open("gone", O_RDWR));
    close(fd);
    mkdir("gone-dir", 0755);
    int dir = open("gone-dir", O_RDONLY | O_DIRECTORY);
    CHECK("rmdir while open", rmdir("gone-dir"));
    CHECK("create in it", openat(dir, "x", O_CREAT | O_RDWR, 0600));
    close(dir);
    fd = open("replaced", O_CREAT | O_RDWR, 0600);
    write(fd, "old", 3);
    make("new", "new");
    CHECK("replace while open", rename("new", "replaced"));
    CHECK("the old one is there", (memset(buf, 0, sizeof(buf)), pread(fd, buf, 3, 0)));
    printf("it is: %s, and the new one: %s\n", buf, content("replaced"));
    close(fd);
}

static void attributes(void)
{
    struct stat st, st2;
    make("a", "a");
    CHECK("chmod 0600", chmod("a", 0600));
    CHECK("mode", mode_of("a"));
    CHECK("chmod 0444", chmod("a", 0444));
    CHECK("mode", mode_of("a"));
    CHECK("chmod 0", chmod("a", 0));
    CHECK("mode", mode_of("a"));
    CHECK("chmod 4755", chmod("a", 04755));
    CHECK("mode", mode_of("a"));
    CHECK("sticky directory", (mkdir("sticky", 0755), chmod("sticky", 01777)));
    CHECK("mode", mode_of("sticky"));
    struct timespec ts[2] = {{1000000000, 123456789}, {1100000000, 987654321}};
    CHECK("utimensat", utimensat(AT_FDCWD, "a", ts, 0));
    stat("a", &st);
    CHECK("times", st.st_atim.tv_sec == 1000000000 && st.st_mtim.tv_nsec == 987654321);
    ts[0].tv_nsec = UTIME_OMIT;
    ts[1].tv_nsec = UTIME_NOW;
    CHECK("omit and now", utimensat(AT_FDCWD, "a", ts, 0));
    stat("a", &st2);
    CHECK("as asked", st2.st_atim.tv_sec == 1000000000 && st2.st_mtim.tv_sec > 1600000000);
    CHECK("times of a link",
          (symlink("a", "la"), utimensat(AT_FDCWD, "la", ts, AT_SYMLINK_NOFOLLOW)));
    CHECK("old times", (ts[1] = (struct timespec){-100, 0}, utimensat(AT_FDCWD, "a", ts, 0)));
    stat("a", &st);
    CHECK("before 1970", st.st_mtim.tv_sec);
    stat(".", &st);
    usleep(20000);
    make("touches", "");
    stat(".", &st2);
    CHECK("a new name touches its directory",
          st2.st_mtim.tv_nsec != st.st_mtim.tv_nsec || st2.st_mtim.tv_sec != st.st_mtim.tv_sec);
    struct statvfs v;
    CHECK("statvfs", statvfs(".", &v));
    CHECK("longest name", v.f_namemax);
    if (!as_root)
        return;
    CHECK("chown", chown("a", 1234, 5678));
    stat("a", &st);
    CHECK("uid", st.st_uid);
    CHECK("gid", st.st_gid);
    CHECK("chown takes the set-ID bit away", (chmod("a", 04755), chown("a", 1, 1), mode_of("a")));
    CHECK("lchown", lchown("la", 77, 78));
    lstat("la", &st);
    CHECK("uid", st.st_uid);
    CHECK("set-group-ID directory", (mkdir("sg", 0755), chown("sg", 0, 99), chmod("sg", 02775)));
    CHECK("a file in it", make("sg/f", ""));
    stat("sg/f", &st);
    CHECK("has its group", st.st_gid);
    CHECK("a directory in it", mkdir("sg/d", 0755));
    CHECK("inherits the bit", mode_of("sg/d"));
    pid_t pid = fork();
    if (pid == 0) { /* somebody else */
        setresgid(1000, 1000, 1000);
        setresuid(1000, 1000, 1000);
        CHECK("another user opens 0600", (open("copy", O_RDONLY)));
        CHECK("creates in 0755", open("sg/d/other", O_CREAT | O_RDWR, 0600));
        CHECK("creates in 1777", close(open("sticky/mine", O_CREAT | O_RDWR, 0644)));
        stat("sticky/mine", &st);
        CHECK("owns it", st.st_uid);
        CHECK("chmod of another's", chmod("a", 0777));
        CHECK("chown", chown("sticky/mine", 0, 0));
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    CHECK("root writes to 0444", (chmod("a", 0444), close(open("a", O_WRONLY))));
}

static void xattrs(void)
{
    char buf[100] = {0};
    make("xa", "");
    CHECK("set", setxattr("xa", "user.one", "value", 5, 0));
    CHECK("create existing", setxattr("xa", "user.one", "value", 5, XATTR_CREATE));
    CHECK("replace missing", setxattr("xa", "user.two", "value", 5, XATTR_REPLACE));
    CHECK("get", getxattr("xa", "user.one", buf, sizeof(buf)));
    CHECK("size", getxattr("xa", "user.one", NULL, 0));
    CHECK("too small", getxattr("xa", "user.one", buf, 2));
    CHECK("missing", getxattr("xa", "user.none", buf, sizeof(buf)));
    CHECK("list", listxattr("xa", buf, sizeof(buf)));
    printf("it is: %s\n", buf);
    CHECK("on a directory", setxattr(".", "user.dir", "", 0, 0));
    CHECK("on a link", lsetxattr("la", "user.one", "v", 1, 0));
    CHECK("remove", removexattr("xa", "user.one"));
    CHECK("remove again", removexattr("xa", "user.one"));
}

static void locks(void)
{
    int a = open("lock", O_CREAT | O_RDWR, 0600), b = open("lock", O_RDWR);
    CHECK("flock", flock(a, LOCK_EX | LOCK_NB));
    CHECK("flock twice", flock(b, LOCK_EX | LOCK_NB));
    CHECK("unlock", flock(a, LOCK_UN));
    CHECK("flock then", flock(b, LOCK_EX | LOCK_NB));
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    CHECK("record lock", fcntl(a, F_SETLK, &l));
    fflush(stdout);
    if (fork() == 0) {
        l = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};
        CHECK("of another process", fcntl(b, F_SETLK, &l));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    struct flock o = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 20, .l_len = 1};
    CHECK("OFD lock", fcntl(a, F_OFD_SETLK, &o));
    CHECK("OFD lock of another", fcntl(b, F_OFD_SETLK, &o));
    close(a);
    close(b);
}

static void directories(void)
{
    mkdir("many", 0755);
    for (int i = 0; i < 3000; i++) {
        char name[32];
        snprintf(name, sizeof(name), "many/%d", i);
        close(open(name, O_CREAT | O_WRONLY, 0600));
    }
    DIR *d = opendir("many");
    struct dirent *e;
    int n = 0, types = 0;
    long at = 0;
    char mark[256] = "", again[256] = "?";
    while ((e = readdir(d))) {
        n++;
        types += e->d_type == DT_REG;
        if (n == 1500) {
            at = telldir(d);
            e = readdir(d);
            strcpy(mark, e->d_name);
            n++;
            types += e->d_type == DT_REG;
        }
    }
    CHECK("entries", n);
    CHECK("with their type", types);
    seekdir(d, at);
    if ((e = readdir(d)))
        strcpy(again, e->d_name);
    CHECK("seekdir leads back", strcmp(mark, again));
    rewinddir(d);
    for (n = 0; (e = readdir(d));) /* removing while reading */
        if (e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0) == 0)
            n++;
    CHECK("removed while reading", n);
    CHECK("fsync of a directory", fsync(dirfd(d)));
    closedir(d);
    CHECK("it is empty", rmdir("many"));
    char deep[4096] = "deep";
    mkdir(deep, 0755);
    for (int i = 0; i < 200; i++) {
        strcat(deep, "/d");
        if (mkdir(deep, 0755) < 0)
            break;
    }
    CHECK("200 deep", access(deep, F_OK));
    char cwd[4096];
    CHECK("getcwd", (chdir(deep), getcwd(cwd, sizeof(cwd)) != NULL));
    for (int i = 0; i < 201; i++)
        chdir("..");
    CHECK("and back", access("deep", F_OK));
}

/* How often readdir() gives that name from here on. */
static int listed(DIR *d, const char *name)
{
    int n = 0;
    const struct dirent *e;
    while ((e = readdir(d)))
        n += strcmp(e->d_name, name) == 0;
    return n;
}

/* What a client was told before anybody asked for it must not outlive a change. */
static void known_in_advance(void)
{
    char name[] = "k0";
    mkdir("known", 0755);
    CHECK("mkdir of what is there", mkdir("known", 0755));
    CHECK("chdir", chdir("known"));
    for (; name[1] <= '9'; name[1]++)
        make(name, "0123");
    int written = open("k7", O_RDWR), other = open("k8", O_RDWR);
    for (int i = 0; i < 2; i++) {
        usleep(200000); /* all is forgotten by now, and the others come with the second */
        CHECK("one after another", size_of("k0") + size_of("k1"));
        CHECK("write", pwrite(written, "0123456789", 10, i));
        CHECK("its size", size_of("k7"));
        CHECK("fchmod", fchmod(other, i ? 0640 : 0600));
        CHECK("its mode", mode_of("k8"));
        CHECK("unlink", unlink(i ? "k2" : "k5"));
        CHECK("it is gone", size_of(i ? "k2" : "k5"));
        CHECK("rename", rename(i ? "k3" : "k6", i ? "m3" : "m6"));
        CHECK("it is no longer there", size_of(i ? "k3" : "k6"));
        CHECK("but here", size_of(i ? "m3" : "m6"));
    }
    usleep(200000);
    DIR *d = opendir(".");
    CHECK("unlink after opendir", unlink("k4"));
    (void)listed(d, "k4");
    CHECK("nothing brings it back", size_of("k4"));
    make("k4", "");
    rewinddir(d);
    CHECK("rewinddir finds a new one", listed(d, "k4"));
    CHECK("and no more at the end", listed(d, "k4"));
    closedir(d);
    d = opendir("..");
    CHECK("opened and not read", closedir(d));
    CHECK("back", chdir(".."));
}

static int as_somebody(int (*fn)(void))
{
    pid_t pid = fork();
    int status = 0;
    if (pid == 0)
        _exit(setuid(12345) < 0 ? 99 : fn() < 0 ? errno : 0);
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
}

static int chmod_same(void)
{
    return chmod("same", 0644);
}

/* Owners and modes that are set to what they are. */
static void no_change(void)
{
    make("same", "x");
    CHECK("same mode, just made", chmod("same", 0644));
    CHECK("same owner, just made", chown("same", getuid(), getgid()));
    CHECK("another mode, just made", chmod("same", 0600));
    CHECK("is set", mode_of("same"));
    CHECK("and back", chmod("same", 0644));
    CHECK("is set, too", mode_of("same"));
    usleep(100000);
    CHECK("same mode, later", chmod("same", 0644));
    CHECK("with a set-ID bit", chmod("same", 04755));
    CHECK("same owner", chown("same", getuid(), getgid()));
    CHECK("takes it away", mode_of("same"));
    if (as_root) {
        make("same", "x");
        chmod("same", 0644);
        CHECK("nobody else may", as_somebody(chmod_same));
    }
}

/* What has lost its name, and is still used in ways that no server of files is told about. */
static void removed_but_used(void)
{
    struct stat st;
    char proc[32];
    make("held", "abc");
    int held = open("held", O_PATH);
    CHECK("unlink what is only held", unlink("held"));
    CHECK("it is there", fstat(held, &st) == 0 ? st.st_size * 10 + (long)st.st_nlink : -1);
    snprintf(proc, sizeof(proc), "/proc/self/fd/%d", held);
    make("held", "another one");
    int fd = open(proc, O_RDONLY);
    CHECK("it can be read", read(fd, proc, sizeof(proc)));
    close(fd);
    close(held);
    make("linked", "abc");
    CHECK("link", link("linked", "linked too"));
    CHECK("unlink one of two", unlink("linked"));
    CHECK("links", stat("linked too", &st) < 0 ? -1 : (long)st.st_nlink);
    CHECK("unlink the other", unlink("linked too"));
    make("mapped", "abc");
    fd = open("mapped", O_RDWR);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    CHECK("unlink what is mapped", unlink("mapped"));
    CHECK("it is there, too", map == MAP_FAILED ? -1 : map[2]);
    map[0] = 'x';
    CHECK("msync", msync(map, 4096, MS_SYNC));
    munmap(map, 4096);
    mkdir("inside", 0755);
    CHECK("chdir", chdir("inside"));
    CHECK("rmdir from inside", rmdir("../inside"));
    CHECK("where it was", stat(".", &st));
    CHECK("a file in it", open("f", O_RDWR | O_CREAT, 0644));
    CHECK("and back", chdir(".."));
    mkdir("full", 0755);
    make("full/f", "abc");
    CHECK("rmdir of what is not empty", rmdir("full"));
    CHECK("it is still known", size_of("full/f"));
    CHECK("and can go", unlink("full/f"));
    CHECK("with all that was in it", rmdir("full"));
    CHECK("the same name", mkdir("full", 0755));
    CHECK("is another one", rmdir("full"));
}

static int changed_since(struct timespec *since)
{
    struct stat st;
    struct timespec was = *since;
    if (stat("times", &st) < 0)
        return -1;
    *since = st.st_mtim;
    return st.st_mtim.tv_sec != was.tv_sec || st.st_mtim.tv_nsec != was.tv_nsec;
}

/* Looked at after each change, and not. */
static void times_of_a_directory(void)
{
    struct timespec last = {0};
    char name[] = "times/f0";
    mkdir("times", 0755);
    changed_since(&last);
    for (; name[7] < '6'; name[7]++) {
        usleep(20000); /* longer than a tick of the clock that files have */
        int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
        if (name[7] != '3')
            CHECK("changed by a file", changed_since(&last));
        CHECK("not by what is written", write(fd, name, 8) < 0 ? -1 : changed_since(&last));
        close(fd);
    }
    usleep(20000);
    CHECK("mkdir", mkdir("times/d", 0755));
    CHECK("changed by a directory", changed_since(&last));
    struct stat st;
    CHECK("links", stat("times", &st) < 0 ? -1 : (long)st.st_nlink);
    CHECK("create", make("times/d/f", ""));
    CHECK("not by what is deeper", changed_since(&last));
    usleep(20000);
    CHECK("unlink", unlink("times/f1"));
    CHECK("changed by what goes", changed_since(&last));
    CHECK("not created", open("times/f2", O_RDWR | O_CREAT | O_EXCL, 0644));
    CHECK("not changed", changed_since(&last));
}

int main(int argc, char **argv)
{
    if (argc < 2 || chdir(argv[1]) < 0)
        return 1;
    as_root = argc > 2 ? argv[2] : NULL;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    umask(022);
    static void (*const parts[])(void) = {opening,
                                          data,
                                          mapping,
                                          names,
                                          unlinked,
                                          attributes,
                                          xattrs,
                                          locks,
                                          directories,
                                          known_in_advance,
                                          no_change,
                                          removed_but_used,
                                          times_of_a_directory};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        printf("--- %zu\n", i);
        parts[i]();
        fflush(stdout);
    }
    return 0;
}
