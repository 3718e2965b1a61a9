/* Uses memory in ways that scatter it, and checks that every page keeps what was written to it.
 *
 *     memory_checks random MIB            every page once, in random order
 *     memory_checks processes N MIB       the same in N processes at once
 *     memory_checks fork MIB              copied on write by parent and child, in random order
 *     memory_checks holes MIB             every other page given back, then used again
 *     memory_checks protect MIB           every other page read-only for a while
 *     memory_checks small PAGES           small mappings up to that size, of nothing and of a file,
 *                                         copied on write by parent and child
 *
 * Prints "ok", or says what is wrong and exits with 1. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t) };

static uint64_t *memory;
static size_t pages;

static void fail(const char *what, size_t page)
{
    printf("%s: page %zu of %zu\n", what, page, pages);
    exit(1);
}

static void map(const char *mib)
{
    pages = strtoul(mib, NULL, 10) << 8;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap", 0);
}

/* The i-th page of a random order: an odd factor and a power of two give each number once. */
static size_t nth(size_t i, uint32_t seed)
{
    size_t span = 1;
    while (span < pages)
        span *= 2;
    size_t x = i;
    do {
        x = (x * 2654435761u + seed) & (span - 1);
        x ^= x >> 7 & (span - 1) >> 7;
    } while (x >= pages);
    return x;
}

static uint64_t value(size_t page, uint64_t round)
{
    return (page + 1) * 0x9e3779b97f4a7c15u + round;
}

static void put(size_t page, uint64_t round)
{
    memory[page * WORDS] = value(page, round);
    memory[page * WORDS + WORDS - 1] = ~value(page, round);
}

static void check(size_t page, uint64_t round, const char *what)
{
    if (memory[page * WORDS] != value(page, round) ||
        memory[page * WORDS + WORDS - 1] != ~value(page, round))
        fail(what, page);
}

static void put_all(uint64_t round, uint32_t seed)
{
    for (size_t i = 0; i < pages; i++)
        put(nth(i, seed), round);
}

static void check_all(uint64_t round, uint32_t seed, const char *what)
{
    for (size_t i = 0; i < pages; i++)
        check(nth(i, seed), round, what);
}

static void in_random_order(const char *mib)
{
    map(mib);
    for (size_t i = 0; i < pages; i++) {
        size_t p = nth(i, 1);
        if (memory[p * WORDS + 1])
            fail("a new page is not empty", p);
        put(p, 0);
    }
    check_all(0, 7, "random order");
}

static void reap(int n)
{
    for (int st; n; n--)
        if (wait(&st) < 0 || st)
            fail("a child failed", 0);
}

static void in_processes(int n, const char *mib)
{
    for (int i = 0; i < n; i++)
        if (!fork()) {
            in_random_order(mib);
            _exit(0);
        }
    reap(n);
}

static void copied_on_write(const char *mib)
{
    map(mib);
    put_all(0, 1);
    for (int child = 1; child <= 2; child++)
        if (!fork()) {
            check_all(0, 3, "inherited");
            put_all(child, 5);
            check_all(child, 9, "the child's own");
            _exit(0);
        }
    for (size_t i = 0; i < pages; i += 2)
        put(nth(i, 11), 3);
    reap(2);
    for (size_t i = 0; i < pages; i++)
        check(nth(i, 11), i % 2 ? 0 : 3, "the parent's own");
}

static void with_holes(const char *mib)
{
    map(mib);
    put_all(0, 1);
    for (size_t i = 0; i < pages; i += 2)
        if (madvise(memory + i * WORDS, PAGE, MADV_DONTNEED))
            fail("madvise", i);
    for (size_t i = 1; i < pages; i += 2)
        check(i, 0, "between holes");
    for (size_t i = 0; i < pages; i += 2) {
        if (memory[i * WORDS])
            fail("a hole is not empty", i);
        put(i, 0);
    }
    check_all(0, 13, "after the holes");
}

static volatile sig_atomic_t faults;

static void on_fault(int sig, siginfo_t *si, void *ctx)
{
    uintptr_t page = (uintptr_t)si->si_addr & ~(uintptr_t)(PAGE - 1);
    faults++;
    if (mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE))
        _exit(2);
}

/* No more than 20,000 ranges: a process may not have more than 65,530 in any kernel. */
static void protected(const char *mib)
{
    struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &sa, NULL);
    map(mib);
    put_all(0, 1);
    size_t n = 0;
    for (size_t i = 0; i + 1 < pages && n < 20000; i += 2, n++)
        if (mprotect(memory + i * WORDS, PAGE, PROT_READ))
            fail("mprotect", i);
    check_all(0, 3, "protected");
    put_all(1, 5);
    if ((size_t)faults != n)
        fail("writes to read-only pages went through", faults);
    check_all(1, 9, "after protection");
}

static void put_some(uint64_t round, size_t step)
{
    for (size_t i = 0; i < pages; i += step)
        put(nth(i, round), round);
}

static void check_some(uint64_t round, size_t step, const char *what)
{
    for (size_t i = 0; i < pages; i++)
        check(nth(i, round), i % step ? 0 : round, what);
}

/* All of the mapping in page-sized steps holds round 0, and is copied on write from here on. */
static void copied_small(size_t step)
{
    if (!fork()) {
        check_all(0, 3, "inherited, small");
        put_some(1, step);
        check_some(1, step, "the child's own, small");
        _exit(0);
    }
    put_some(2, step);
    reap(1);
    check_some(2, step, "the parent's own, small");
}

static void small_mappings(const char *most)
{
    size_t max = strtoul(most, NULL, 10);
    int fd = memfd_create("content", MFD_CLOEXEC);
    for (pages = 1; pages <= max; pages++) {
        size_t size = pages * PAGE;
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; i < size / sizeof(*memory); i++)
            if (memory[i])
                fail("a new page is not empty, small", i / WORDS);
        put_all(0, 1);
        copied_small(1 + pages % 3);
        munmap(memory, size);

        uint64_t *file = NULL;
        if (ftruncate(fd, (off_t)size) ||
            (file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
            fail("file", 0);
        memory = file;
        put_all(0, 1);
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        copied_small(1 + pages % 3);
        put_some(4, 2);
        munmap(memory, size);
        memory = file;
        check_all(0, 5, "the file");
        munmap(file, size);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 2 ? argv[1] : "";
    if (!strcmp(mode, "random"))
        in_random_order(argv[2]);
    else if (!strcmp(mode, "processes") && argc > 3)
        in_processes(atoi(argv[2]), argv[3]);
    else if (!strcmp(mode, "fork"))
        copied_on_write(argv[2]);
    else if (!strcmp(mode, "holes"))
        with_holes(argv[2]);
    else if (!strcmp(mode, "small"))
        small_mappings(argv[2]);
    else if (!strcmp(mode, "protect"))
    protected(argv[2]);
    else return 2;
    puts("ok");
    return 0;
}
