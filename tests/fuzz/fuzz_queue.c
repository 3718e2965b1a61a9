/* The queue: whatever the rings say, what is popped lies inside guest memory and is bounded. */
#include "fuzz_guest.h"

static void check(const struct guest *g, const struct virtq_chain *c)
{
    size_t out = 0, in = 0;
    if (c->n_out + c->n_in == 0 || c->n_out + c->n_in > VIRTQ_CHAIN_MAX)
        abort();
    for (unsigned i = 0; i < c->n_out + c->n_in; i++) {
        const uint8_t *p = c->iov[i].iov_base;
        size_t len = c->iov[i].iov_len;
        if (len == 0 || p < g->ram || len > G_RAM || (size_t)(p - g->ram) > G_RAM - len)
            abort();
        *(i < c->n_out ? &out : &in) += len;
    }
    if (out != c->out_len || in != c->in_len)
        abort();
}

static void use(struct virtq *q, const struct virtq_chain *c, struct input *in)
{
    uint8_t copy[300];
    size_t n = virtq_chain_read(c, in_u16(in), copy, in_u8(in));
    (void)virtq_chain_write(c, in_u16(in), copy, n);
    virtq_push(q, c, (uint32_t)n);
}

static void restart(struct virtq *q, struct guest *g, struct input *in)
{
    struct virtq_config c = guest_ring(0);
    uint8_t how = in_u8(in);
    if (how & 1)
        c.size = in_u16(in);
    if (how & 2)
        c.desc = how & 4 ? in_u64(in) : G_GPA + in_u16(in);
    if (how & 8)
        c.avail = how & 4 ? in_u64(in) : G_GPA + in_u16(in);
    if (how & 16)
        c.used = how & 4 ? in_u64(in) : G_GPA + in_u16(in);
    c.event_idx = how & 32;
    c.indirect = how & 64;
    c.next_avail = how & 128 ? in_u16(in) : 0;
    if (virtq_start(q, &g->mem, &c, NULL) < 0 && q->running)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct virtq_chain chain;
    struct input in = {data, size};
    struct guest g;
    struct virtq q;
    guest_init(&g);
    struct virtq_config c = guest_ring(0);
    if (virtq_start(&q, &g.mem, &c, NULL) < 0)
        abort();
    while (in.n > 0) {
        uint8_t op = in_u8(&in) % (GUEST_OPS + 4);
        if (op < GUEST_OPS)
            guest_op(&g, &in, op, 1);
        else if (op == GUEST_OPS)
            restart(&q, &g, &in);
        else if (op == GUEST_OPS + 1)
            (void)(virtq_notify_off(&q), virtq_notify_on(&q), virtq_should_interrupt(&q));
        else if (virtq_pop(&q, &chain) > 0) {
            check(&g, &chain);
            use(&q, &chain, &in);
        }
        if (q.running && q.broken && virtq_pop(&q, &chain) >= 0)
            abort(); /* broken is for good */
    }
    guest_fini(&g);
    return 0;
}
