/* The balloon: whatever is reported or inflated, only guest memory is touched, by whole pages. */
#include "fuzz_guest.h"

#include <sys/mman.h>

#include "virtio/balloon.h"

enum { EXTRA = 64 * 1024, PAGE = 4096 };
#define EXTRA_GPA 0x80000000ULL

/* Between two pages that must stay as they are. */
static uint8_t *extra_ram(void)
{
    static uint8_t *p;
    if (!p) {
        p = mmap(NULL, EXTRA + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            abort();
        memset(p, 0xee, PAGE);
        memset(p + PAGE + EXTRA, 0xee, PAGE);
    }
    return p + PAGE;
}

/* Page numbers, runs of them, near the ends of memory or anywhere. */
static void inflate(struct guest *g, struct input *in)
{
    unsigned n = in_u8(in) % 32 + 1;
    uint32_t pfn = (uint32_t)(EXTRA_GPA / PAGE) + in_u8(in) % 20 - 2;
    for (unsigned i = 0; i < n; i++) {
        uint8_t how = in_u8(in);
        pfn = how & 4 ? in_u32(in) : pfn + (how & 1 ? 1 : how & 2 ? -1U : 0);
        memcpy(g->ram + G_DATA + i * 4UL, &pfn, sizeof(pfn));
    }
    guest_desc(g, 0, G_GPA + G_DATA, n * 4, 0, 0);
    guest_publish(g, 0, 0);
    virtio_dev_kick(g->dev, 0);
}

static void report(struct guest *g, struct input *in)
{
    uint32_t at = in_u16(in), len = in_u16(in) + 1U;
    guest_desc(g, (size_t)2 * G_RING, EXTRA_GPA + at, len, 2, 0);
    guest_publish(g, 2, 0);
    virtio_dev_kick(g->dev, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct guest g;
    struct virtio_dev *d;
    uint8_t *extra = extra_ram();
    guest_init(&g);
    if (guest_mem_add(&g.mem, EXTRA_GPA, EXTRA, extra) < 0 || virtio_balloon_new(&d) < 0)
        abort();
    guest_attach(&g, d, (uint64_t)(in_u8(&in) & 3) << 28);
    while (in.n > 0) {
        uint8_t op = in_u8(&in) % (GUEST_OPS + 4);
        if (op < GUEST_OPS)
            guest_op(&g, &in, op, 3);
        else if (op == GUEST_OPS)
            guest_restart(&g, &in);
        else if (op == GUEST_OPS + 1)
            report(&g, &in);
        else
            inflate(&g, &in);
    }
    if (extra[-1] != 0xee || extra[-PAGE] != 0xee || extra[EXTRA] != 0xee ||
        extra[EXTRA + PAGE - 1] != 0xee)
        abort();
    virtio_dev_detach(d);
    virtio_dev_free(d);
    guest_fini(&g);
    return 0;
}
