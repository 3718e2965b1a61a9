#include "util/progress.h"

#include "util/parse.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

static struct progress {
    atomic_ullong done, files, bytes;
} * page;

void progress_watch(void)
{
    void *p =
        page ? page
             : mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    page = p == MAP_FAILED ? NULL : p;
    progress_begin(0);
    if (page)
        atomic_store(&page->bytes, 0);
}

void progress_begin(uint64_t files)
{
    if (!page)
        return;
    atomic_store(&page->done, 0);
    atomic_store(&page->files, files);
}

void progress_file(void)
{
    if (page)
        (void)atomic_fetch_add(&page->done, 1);
}

void progress_bytes(size_t n)
{
    if (page)
        (void)atomic_fetch_add(&page->bytes, n);
}

bool progress_text(char *out, size_t size)
{
    char bytes[32];
    unsigned long long files = page ? atomic_load(&page->files) : 0;
    if (!files)
        return false;
    format_bytes(atomic_load(&page->bytes), bytes, sizeof(bytes));
    (void)snprintf(out, size, "%llu of %llu files, %s",
                   (unsigned long long)atomic_load(&page->done), files, bytes);
    return true;
}
