#include "virtio/guest_map.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* #syscalls:monitor,fs,net fstat newfstatat mmap munmap rt_sigaction rt_sigreturn futex */

enum { MAPS_MAX = 64 };

struct guest_map {
    unsigned refs; /* 0: free */
    bool lost;
    dev_t dev;
    ino_t ino;
    uint64_t offset, size;
    uint8_t *host;
    /* Used by the handler: whole pages; base is set last and cleared first. */
    uintptr_t base;
    size_t len;
};

static struct guest_map maps[MAPS_MAX];
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;
static uintptr_t page_size = 4096;

/* Async-signal-safe: atomics and one system call. */
static bool patch_page(uintptr_t addr)
{
    for (unsigned i = 0; i < MAPS_MAX; i++) {
        uintptr_t base = __atomic_load_n(&maps[i].base, __ATOMIC_ACQUIRE);
        if (base == 0 || addr - base >= maps[i].len)
            continue;
        void *page = (void *)(addr & ~(page_size - 1));
        __atomic_store_n(&maps[i].lost, true, __ATOMIC_RELAXED);
        return mmap(page, page_size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    if (info->si_code <= 0 || !patch_page((uintptr_t)info->si_addr)) {
        struct sigaction dfl = {.sa_handler = SIG_DFL};
        (void)sigaction(sig, &dfl, NULL); /* the access is repeated, and kills us */
    }
    errno = saved;
}

static void install_guard(void)
{
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)sigaction(SIGBUS, &sa, NULL);
}

static struct guest_map *find_map(const struct stat *st, uint64_t offset, uint64_t size)
{
    struct guest_map *free_slot = NULL;
    for (unsigned i = 0; i < MAPS_MAX; i++) {
        struct guest_map *m = &maps[i];
        if (m->refs == 0)
            free_slot = free_slot ? free_slot : m;
        else if (m->dev == st->st_dev && m->ino == st->st_ino && m->offset == offset &&
                 m->size == size)
            return m;
    }
    return free_slot;
}

static int map_file(struct guest_map *m, int fd, const struct stat *st, uint64_t offset,
                    uint64_t size)
{
    uint64_t skip = offset & (page_size - 1); /* mmap wants whole pages */
    size_t len = (size_t)(size + skip);
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (p == MAP_FAILED)
        return -errno;
    *m = (struct guest_map){
        .dev = st->st_dev, .ino = st->st_ino, .offset = offset, .size = size, .len = len};
    m->host = (uint8_t *)p + skip;
    __atomic_store_n(&m->base, (uintptr_t)p, __ATOMIC_RELEASE);
    return 0;
}

int guest_map_get(struct guest_map **ret, int fd, uint64_t offset, uint64_t size)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || size == 0 || offset > (uint64_t)INT64_MAX - size ||
        offset + size > (uint64_t)st.st_size)
        return -EINVAL;

    (void)pthread_once(&guard_once, install_guard);
    (void)pthread_mutex_lock(&maps_lock);
    struct guest_map *m = find_map(&st, offset, size);
    int r = m ? 0 : -ENOSPC;
    if (m && m->refs == 0)
        r = map_file(m, fd, &st, offset, size);
    if (r == 0) {
        m->refs++;
        *ret = m;
    }
    (void)pthread_mutex_unlock(&maps_lock);
    return r;
}

void *guest_map_host(const struct guest_map *m)
{
    return m->host;
}

bool guest_map_lost(const struct guest_map *m)
{
    return __atomic_load_n(&m->lost, __ATOMIC_RELAXED);
}

void guest_map_put(struct guest_map *m)
{
    if (!m)
        return;
    (void)pthread_mutex_lock(&maps_lock);
    if (--m->refs == 0) {
        void *p = (void *)m->base;
        __atomic_store_n(&m->base, 0, __ATOMIC_RELEASE);
        (void)munmap(p, m->len);
    }
    (void)pthread_mutex_unlock(&maps_lock);
}
