#include "launch/placement.h"

#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <sched.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

/* No sandbox can have this name: names start with a letter or a digit. */
#define COUNTER_FILE ".placement"

static uint32_t next_ticket(int dirfd)
{
    AUTO_CLOSE int fd =
        openat(dirfd, COUNTER_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    uint32_t n = 0;
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        return (uint32_t)getpid(); /* still spreads them */
    if (pread(fd, &n, sizeof(n), 0) != (ssize_t)sizeof(n))
        n = 0;
    uint32_t after = n + 1;
    (void)!pwrite(fd, &after, sizeof(after), 0);
    return n;
}

static unsigned usable(cpu_set_t *set)
{
    return sched_getaffinity(0, sizeof(*set), set) < 0 ? 0 : (unsigned)CPU_COUNT(set);
}

unsigned placement_cpus(void)
{
    cpu_set_t set;
    return usable(&set);
}

int placement_nth(uint32_t nth)
{
    cpu_set_t set;
    unsigned count = usable(&set);
    if (count == 0)
        return -1;
    nth %= count;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set) && nth-- == 0)
            return (int)cpu;
    return -1;
}

int placement_next(int dirfd)
{
    return placement_nth(next_ticket(dirfd));
}

static bool cores_have_threads(void)
{
    AUTO_CLOSE int fd = open("/sys/devices/system/cpu/smt/active", O_RDONLY | O_CLOEXEC);
    char c;
    return fd < 0 || read(fd, &c, 1) != 1 || c != '0'; /* as far as we can tell */
}

int placement_own_core(struct err *e)
{
    if (!cores_have_threads() ||
        prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0, PR_SCHED_CORE_SCOPE_THREAD_GROUP, 0) == 0 ||
        errno == ENODEV)
        return 0;
    int r =
        err_sys(e, errno, "--cpu-placement core: cannot keep other programs off a core's threads");
    err_hint(e, "use a host kernel with CONFIG_SCHED_CORE, or switch hardware threads off");
    return r;
}
