/* How long the bare kernel takes from exec to its first user process, with nothing of msb around it
 * but one disk: the floor under every figure of `make bench`.
 *
 *     bare KERNEL TOOLS_DISK       prints milliseconds
 */
#include "virtio/blk.h"
#include "virtio/vhost_user.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct loop loop;
static char seen[64 * 1024];
static size_t n_seen;

static void on_console(struct loop_src *src, uint32_t events)
{
    ssize_t k = read(src->fd, seen + n_seen, sizeof(seen) - 1 - n_seen);
    if (k > 0)
        n_seen += (size_t)k;
    seen[n_seen] = '\0';
    if (k <= 0 || strstr(seen, "INIT-UP"))
        loop_stop(&loop);
}

static int listen_at(const char *path)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    return fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 1) == 0 ? fd
                                                                                            : -1;
}

int main(int argc, char **argv)
{
    char dir[] = "/dev/shm/msb-bare-XXXXXX";
    if (argc != 3 || !mkdtemp(dir))
        return 2;
    char sock[64], device[96], uml_dir[64], tmpdir[64];
    (void)snprintf(sock, sizeof(sock), "%s/blk", dir);
    (void)snprintf(device, sizeof(device), "virtio_uml.device=%s:2", sock);
    (void)snprintf(uml_dir, sizeof(uml_dir), "uml_dir=%s", dir);
    (void)snprintf(tmpdir, sizeof(tmpdir), "TMPDIR=%s", dir);
    int disk = open(argv[2], O_RDONLY | O_CLOEXEC), console[2];
    struct stat st;
    struct virtio_dev *dev;
    struct vhost_user *back_end;
    if (disk < 0 || fstat(disk, &st) < 0 || pipe2(console, O_CLOEXEC) < 0 || loop_init(&loop) < 0)
        return 1;
    struct blk_segment seg = {.fd = disk, .length = (uint64_t)st.st_size};
    if (virtio_blk_new(&dev, &seg, 1, true, "bare") < 0 ||
        vhost_user_new(&back_end, &loop, dev, listen_at(sock), NULL, NULL) < 0)
        return 1;
    struct loop_src src = {.fd = console[0], .fn = on_console};
    (void)loop_add(&loop, &src, EPOLLIN);
    uint64_t start = now_ns();
    pid_t pid = fork();
    if (pid == 0) {
        const char *const args[] = {"linux",
                                    "mem=256M",
                                    "seccomp=on",
                                    uml_dir,
                                    "quiet",
                                    "con=null",
                                    "con0=null,fd:1",
                                    "lpj=18853888",
                                    device,
                                    "root=/dev/vda",
                                    "rootfstype=erofs",
                                    "ro",
                                    "panic=-1",
                                    "init=/.msb/bin/busybox",
                                    "--",
                                    "echo",
                                    "INIT-UP",
                                    NULL};
        const char *const env[] = {tmpdir, NULL};
        (void)setpgid(0, 0);
        (void)dup2(open("/dev/null", O_RDWR), 0);
        (void)dup2(console[1], 1);
        (void)dup2(console[1], 2);
        (void)execve(argv[1], (char *const *)args, (char *const *)env);
        _exit(127);
    }
    (void)close(console[1]);
    (void)loop_run(&loop);
    uint64_t took = now_ns() - start;
    (void)kill(-pid, SIGKILL);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", dir);
    if (system(command) != 0 || !strstr(seen, "INIT-UP")) {
        (void)fprintf(stderr, "the kernel did not reach init:\n%s\n", seen);
        return 1;
    }
    (void)printf("%.3f\n", (double)took / 1e6);
    return 0;
}
