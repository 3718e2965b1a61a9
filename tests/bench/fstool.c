/* What the bench of files runs in a guest, linked statically.
 *
 *     fstool time LABEL COMMAND [ARG...]   runs it, prints "LABEL SECONDS"
 *     fstool read|write FILE COUNT         so many times 4 KiB at random places of a file
 *     fstool poweroff                      for an init that is a script
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4096 };

static int timed(const char *label, char **argv)
{
    struct timespec a, b;
    int status = 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &a);
    pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)waitpid(pid, &status, 0);
    (void)clock_gettime(CLOCK_MONOTONIC, &b);
    double s = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
    (void)printf("%s %.4f%s\n", label, s, status == 0 ? "" : " failed");
    return status == 0 ? 0 : 1;
}

static int random_io(bool writing, const char *path, unsigned long count)
{
    static char buf[PIECE];
    struct stat st;
    uint64_t x = 88172645463325252ULL;
    int fd = open(path, writing ? O_WRONLY : O_RDONLY);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < PIECE)
        return 1;
    for (unsigned long i = 0; i < count; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        off_t at = (off_t)(x % (uint64_t)(st.st_size / PIECE)) * PIECE;
        ssize_t n = writing ? pwrite(fd, buf, PIECE, at) : pread(fd, buf, PIECE, at);
        if (n != PIECE)
            return 1;
    }
    return close(fd) < 0;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "time") == 0)
        return timed(argv[2], argv + 3);
    if (argc == 4 && (strcmp(argv[1], "read") == 0 || strcmp(argv[1], "write") == 0))
        return random_io(argv[1][0] == 'w', argv[2], strtoul(argv[3], NULL, 10));
    if (argc == 2 && strcmp(argv[1], "poweroff") == 0)
        return reboot(RB_POWER_OFF);
    return 2;
}
