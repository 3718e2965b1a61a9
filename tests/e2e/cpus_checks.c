/* What a guest with several CPUs must get right; each check is an argument, and says how it went. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    HANDOVERS = 20000, /* on one CPU, each would take the rest of a time slice */
    LOCKINGS = 20000,
    FORKS = 300,
    THREADS = 4,
    WAKES = 100,
    PAGE = 4096,
    PAGES = 64,
    ROUNDS = 1500,
    FOREIGN = 0x5a,
};

static void *shared(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(90);
    return p;
}

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) < 0)
        exit(91);
}

static void join(pid_t pid)
{
    int st = 0;
    if (waitpid(pid, &st, 0) != pid || st != 0)
        exit(92);
}

/* Two processes hand a token to each other, and neither of them ever sleeps. */
static void together(void)
{
    volatile int *turn = shared(PAGE);
    pid_t child = fork();
    int me = child == 0;
    stay_on(me);
    for (int i = 0; i < HANDOVERS; i++) {
        while (*turn != me)
            ;
        *turn = !me;
    }
    if (child == 0)
        _exit(0);
    join(child);
    printf("%d handovers\n", 2 * HANDOVERS);
}

/* Processes on two CPUs count under locks of which the kernel changes the words: robust and with
 * inheritance of priorities. */
static void locks(void)
{
    struct {
        pthread_mutex_t lock[2];
        long count[2];
    } *s = shared(PAGE);
    for (int i = 0; i < 2; i++) {
        pthread_mutexattr_t a;
        (void)pthread_mutexattr_init(&a);
        (void)pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
        (void)pthread_mutexattr_setprotocol(&a, i ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
        if (pthread_mutex_init(&s->lock[i], &a) != 0)
            exit(93);
    }
    pid_t child = fork();
    stay_on(child == 0);
    for (int i = 0; i < LOCKINGS; i++) {
        int which = i & 1;
        if (pthread_mutex_lock(&s->lock[which]) != 0)
            _exit(94);
        s->count[which]++;
        if (pthread_mutex_unlock(&s->lock[which]) != 0)
            _exit(95);
    }
    if (child == 0)
        _exit(0);
    join(child);
    printf("%ld and %ld\n", s->count[0], s->count[1]);
}

static unsigned char *taken;
static volatile int *stop;

static void *write_on(void *arg)
{
    stay_on(1);
    while (!*stop)
        for (size_t i = 0; i < PAGES; i++)
            *(volatile unsigned char *)(taken + i * PAGE) = FOREIGN;
    return NULL;
}

/* One thread writes to pages that another takes away; nobody else may find that in theirs. */
static void take_away(void)
{
    pthread_t t;
    taken = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED || pthread_create(&t, NULL, write_on, NULL) != 0)
        _exit(96);
    stay_on(0);
    while (!*stop)
        if (madvise(taken, PAGES * PAGE, MADV_DONTNEED) < 0)
            _exit(97);
    (void)pthread_join(t, NULL);
    _exit(0);
}

static void stale(void)
{
    long found = 0;
    stop = shared(PAGE);
    pid_t child = fork();
    if (child == 0)
        take_away();
    stay_on(0);
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char *p =
            mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            exit(98);
        for (size_t k = 0; k < PAGES; k++)
            p[k * PAGE + 1] = 1;
        (void)sched_yield();
        for (size_t k = 0; k < PAGES; k++)
            found += p[k * PAGE] != 0;
        (void)munmap(p, PAGES * PAGE);
    }
    *stop = 1;
    join(child);
    printf("%ld foreign bytes\n", found);
}

/* Processes come and go on both CPUs at once, and what they end with arrives. */
static void forks(void)
{
    pid_t child = fork();
    long right = 0;
    for (int i = 0; i < FORKS; i++) {
        int st = 0;
        pid_t pid = fork();
        if (pid == 0)
            _exit(i & 63);
        if (waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == (i & 63))
            right++;
    }
    if (child == 0)
        _exit(right == FORKS ? 0 : 1);
    join(child);
    printf("%ld of %d\n", right, FORKS);
}

static void compute(void)
{
    for (volatile long n = 0; n < 10000000; n++)
        ;
}

/* In calls that are long: where the host is busy, it is between two of them that it takes its time. */
static void have_the_kernel_compute(void)
{
    static char buf[32 << 20];
    if (getrandom(buf, sizeof(buf), 0) <= 0)
        exit(89);
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* Says whose time most of it is, after half a second, in a process of its own: ticks are few where
 * the host is busy, and the kernel scales them. */
static void whose(void (*fn)(void))
{
    struct rusage now;
    double user, system;
    pid_t child = fork();
    if (child > 0) {
        join(child);
        return;
    }
    do {
        fn();
        (void)getrusage(RUSAGE_SELF, &now);
        user = seconds(now.ru_utime);
        system = seconds(now.ru_stime);
    } while (user + system < 0.5);
    printf("%s\n", user > system ? "user" : "system");
    exit(0);
}

static void times_of(void)
{
    whose(compute);
    whose(have_the_kernel_compute);
}

static void *spin(void *arg)
{
    for (;;)
        ;
}

static volatile int place;

static void *spin_and_tell(void *arg)
{
    while (!*stop)
        place = sched_getcpu();
    return NULL;
}

/* A thread wakes up, many times, while another runs: where that one is, since they take turns. */
static void wakes(void)
{
    pthread_t t;
    int same = 0;
    stop = shared(PAGE);
    if (pthread_create(&t, NULL, spin_and_tell, NULL) != 0)
        exit(99);
    for (int i = 0; i < WAKES; i++) {
        (void)usleep(1000);
        same += place == sched_getcpu();
    }
    *stop = 1;
    (void)pthread_join(t, NULL);
    printf("%s\n", same > WAKES / 2 ? "together" : "apart");
}

/* Threads that never leave user mode by themselves. */
static void threads(void)
{
    pthread_t t[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, spin, NULL) != 0)
            exit(99);
    printf("spinning\n");
    fflush(stdout);
    (void)pthread_join(t[0], NULL);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*fn)(void);
    } checks[] = {{"together", together}, {"locks", locks},    {"stale", stale}, {"forks", forks},
                  {"threads", threads},   {"times", times_of}, {"wakes", wakes}};
    for (size_t i = 0; argc == 2 && i < sizeof(checks) / sizeof(checks[0]); i++)
        if (strcmp(argv[1], checks[i].name) == 0) {
            checks[i].fn();
            return 0;
        }
    return 2;
}
