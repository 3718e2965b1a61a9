/* Preloaded into msb: the time of day is off by as many seconds as a file says, from one call to
 * the next. The monitor is a fork of msb and keeps the mapping in its jail. Clocks that measure
 * durations go on as they are. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_gettime)(clockid_t, struct timespec *);
static volatile int64_t *step;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("STEPPED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    step = mmap(NULL, sizeof(*step), PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || step == MAP_FAILED)
        abort();
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int r = real_gettime(id, t);
    if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += *step;
    return r;
}

time_t time(time_t *ret)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (ret)
        *ret = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *tv, void *zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}
