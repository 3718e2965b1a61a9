/* What only a kernel with several CPUs may do, and no more of it than it was given: it has two. */
#include "evil.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GIVEN = 2, WARDEN = 1, NOBODY = 0x3fffff };

static char stack[8][65536] __attribute__((aligned(4096)));

/* As pthread_create() does it, which is all that is allowed. */
static int start_thread(int i)
{
    pthread_attr_t a;
    pthread_t t;
    (void)pthread_attr_init(&a);
    (void)pthread_attr_setstack(&a, stack[i], sizeof(stack[i]));
    return pthread_create(&t, &a, (void *(*)(void *))wait_for_ever, NULL);
}

/* One besides the first. */
void more_threads(void)
{
    static const long flags[] = {
        CLONE_VM | CLONE_SIGHAND | CLONE_THREAD,
        CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_FILES | CLONE_FS | CLONE_SYSVSEM,
        CLONE_VM | CLONE_FILES,
        SIGCHLD,
    };
    for (size_t i = 0; i < COUNT(flags); i++)
        if (call(SYS_clone, flags[i], 0, 0, 0, 0, 0) != -ENOSYS)
            fail("clone with other flags, %zu", i);
    if (start_thread(0) != 0)
        fail("no thread for the second CPU");
    for (int i = 1; i < (int)COUNT(stack); i++)
        if (start_thread(i) != EAGAIN)
            fail("more threads than CPUs");
}

static long move(long pid, long cpu)
{
    return CALL3(SYS_sched_setaffinity, pid, cpu, 0);
}

/* Only to those that are its own, and without a word about which of the host's they are. */
void other_cpus(void)
{
    static long mask[16] = {-1, -1, -1, -1};
    static const int signals[] = {0, SIGKILL, SIGSTOP, SIGTERM, SIGCHLD};
    for (long size = 0; size <= (long)sizeof(mask); size++)
        if (CALL3(SYS_sched_setaffinity, 0, size, mask) != -ENOSYS)
            fail("a mask of its own");
    if (CALL3(SYS_sched_setaffinity, 0, 0, 1L << 32) != -ENOSYS)
        fail("a mask at a high address");
    for (long cpu = 0; cpu < GIVEN; cpu++)
        if (move(0, cpu) != 0 || move(getpid(), cpu) != 0)
            fail("CPU %ld is not there", cpu);
    if (move(0, GIVEN) != -EINVAL || move(0, -1) != -EINVAL || move(0, 1L << 32) != -EINVAL)
        fail("further CPUs");
    if (move(WARDEN, 0) != -EINVAL || move(-1, 0) != -EINVAL || move(NOBODY, 0) != -ESRCH)
        fail("who is not its own");
    if (CALL3(SYS_sched_getaffinity, 0, sizeof(mask), mask) != -ENOSYS)
        fail("it can see where it is");
    for (size_t i = 0; i < COUNT(signals); i++)
        if (CALL3(SYS_tgkill, WARDEN, WARDEN, signals[i]) != -ENOSYS)
            fail("signal %d to a thread", signals[i]);
}
