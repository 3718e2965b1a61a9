/* What the evil kernel executes: takes all the memory that it can get, and keeps it. No library. */
#include "../../rawcall.h"

#include <asm/unistd.h>
#include <sys/mman.h>

#ifdef BIG
static char room[64 << 20];
#endif

static void take(int flags)
{
    for (long step = 1L << 20; step >= 4096; step /= 4)
        for (;;) {
            long at = rawcall(__NR_mmap, 0, step, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (at < 0 && at > -4096)
                break;
            for (long i = 0; i < step; i += 4096)
                *(volatile char *)(at + i) = 1;
        }
}

void _start(void);
void _start(void)
{
    volatile char stack[16384];
    for (unsigned i = 0; i < sizeof(stack); i += 512)
        stack[i] = 1;
#ifdef BIG
    for (unsigned long i = 0; i < sizeof(room); i += 4096)
        ((volatile char *)room)[i] = 1;
#endif
    take(MAP_PRIVATE | MAP_ANONYMOUS);
    take(MAP_SHARED | MAP_ANONYMOUS);
    take(MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN);
    for (;;)
        (void)rawcall(__NR_poll, 0, 0, -1, 0, 0, 0);
}
