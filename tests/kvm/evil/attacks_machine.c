/* Attacks on the rest of the machine: instructions that exit, missing memory, time. */
#include "attacks.h"

enum { LAPIC = 0xfee00000, TICK = 0x40 };

extern volatile uint32_t ticks;

static volatile uint32_t *lapic(unsigned reg)
{
    return (volatile uint32_t *)(uint64_t)(LAPIC + reg);
}

void cpuid_sweep(void)
{
    static const uint32_t bases[] = {0,          0x20000000, 0x40000000, 0x80000000,
                                     0x8fffff00, 0xc0000000, 0xffffff00};
    for (unsigned b = 0; b < sizeof(bases) / sizeof(bases[0]); b++)
        for (uint32_t i = 0; i < 0x30; i++)
            for (uint32_t c = 0; c < 8; c++) {
                uint32_t eax = bases[b] + i, ecx = c == 7 ? 0xffffffff : c, ebx, edx;
                __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
            }
    check_machine();
}

static void read_msr(uint64_t n)
{
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"((uint32_t)n));
}

static void write_msr(uint64_t n)
{
    __asm__ volatile("wrmsr" ::"a"(0xa5a5a5a5), "d"(0x5a5a5a5a), "c"((uint32_t)n));
}

static void rewrite_msr(uint64_t n)
{
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"((uint32_t)n));
    __asm__ volatile("wrmsr" ::"a"(low), "d"(high), "c"((uint32_t)n));
}

void msr_sweep(void)
{
    static const struct {
        uint32_t from, to;
    } ranges[] = {{0, 0x1000},
                  {0x40000000, 0x40000200},
                  {0x4b564d00, 0x4b564d20},
                  {0xc0000000, 0xc0000400},
                  {0xc0010000, 0xc0010200},
                  {0xfffffff0, 0xffffffff}};
    for (unsigned r = 0; r < sizeof(ranges) / sizeof(ranges[0]); r++)
        for (uint32_t n = ranges[r].from; n < ranges[r].to; n++) {
            (void)guarded(read_msr, n);
            (void)guarded(rewrite_msr, n);
            /* Not those that this program depends on: paging, APIC base, clocks in memory. */
            if (n != 0xc0000080 && n != 0x1b && r != 2 && !(n >= 0x800 && n < 0x900) && n != 0x10 &&
                n != 0x3b && n != 0x11 && n != 0x12)
                (void)guarded(write_msr, n);
        }
    check_machine();
}

static bool ours(uint32_t port)
{
    return port >= 0x3f8 && port <= 0x3ff;
}

void port_sweep(void)
{
    for (uint32_t port = 0; port < 0x10000; port += port < 0x500 ? 1 : 97) {
        (void)inb((uint16_t)port);
        (void)inw((uint16_t)port);
        (void)inl((uint16_t)port);
    }
    for (uint32_t port = 0; port < 0x10000; port += port < 0x500 ? 1 : 97) {
        /* 0x64 and 0xcf9 are how a PC is reset: a machine may end there, and the sweep with it. */
        if (ours(port) || (port >= 0x60 && port <= 0x64) || (port >= 0xcf6 && port <= 0xcf9))
            continue;
        outb((uint16_t)port, 0xff);
        outw((uint16_t)port, 0xa5a5);
        outl((uint16_t)port, 0xa5a5a5a5);
    }
    for (uint16_t port = 0x3f9; port <= 0x3ff; port++)
        for (unsigned v = 0; v < 256; v += 5) {
            outb(port, (uint8_t)v);
            (void)inb(port);
        }
    check_machine();
}

/* One instruction, thousands of accesses; the kernel hands over many at once. */
void port_strings(void)
{
    static const uint16_t ports[] = {0x3f8, 0x3fd, 0x64, 0x70, 0x1234, 0xffff};
    for (unsigned i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
        uint16_t port = ports[i];
        void *p = buf;
        uint64_t n = 5000;
        __asm__ volatile("rep insb" : "+D"(p), "+c"(n) : "d"(port) : "memory");
        p = buf, n = 3000;
        __asm__ volatile("rep insw" : "+D"(p), "+c"(n) : "d"(port) : "memory");
        p = buf, n = 2000;
        __asm__ volatile("rep insl" : "+D"(p), "+c"(n) : "d"(port) : "memory");
        if (port == 0x64)
            continue; /* see port_sweep */
        for (unsigned b = 0; b < BUF; b++)
            buf[b] = 'x';
        p = buf, n = 5000;
        __asm__ volatile("rep outsb" : "+S"(p), "+c"(n) : "d"(port) : "memory");
        p = buf, n = 2000;
        __asm__ volatile("rep outsw" : "+S"(p), "+c"(n) : "d"(port) : "memory");
        p = buf, n = 1000;
        __asm__ volatile("rep outsl" : "+S"(p), "+c"(n) : "d"(port) : "memory");
    }
    say("\n");
    check_machine();
}

static void touch(uint64_t physical)
{
    volatile uint8_t *p = window(physical);
    (void)*p;
    *p = 0xa5;
    *(volatile uint16_t *)p = 0xa5a5;
    (void)*(volatile uint32_t *)p;
    *(volatile uint64_t *)p = UINT64_MAX;
}

static void touch_across(uint64_t physical)
{
    volatile uint8_t *p = window(physical);
    (void)*(volatile uint64_t *)p;
    *(volatile uint64_t *)p = 0;
}

void mmio_sweep(void)
{
    for (uint64_t at = (ram_end() + 0x1fffff) & ~0x1fffffULL; at < 0xfec00000; at += 0x3f80000)
        (void)guarded(touch, at);
    for (uint64_t at = 0xff000000; at < 0x100000000ULL; at += 0x80000)
        (void)guarded(touch, at);
    for (unsigned bit = 32; bit < 52; bit++) /* beyond what some CPUs can address */
        (void)guarded(touch, (1ULL << bit) + 0x1000);
    struct dev *d;
    for (unsigned i = 0; (d = device_at(i)); i++) {
        (void)guarded(touch_across, (uint64_t)d->regs - 4);
        (void)guarded(touch_across, (uint64_t)d->regs + 0xffc);
    }
    for (uint64_t at = 0xfec00000; at < 0xfec00100; at += 4)
        (void)guarded(touch, at);
    /* A string instruction that runs off the end of memory. */
    volatile uint8_t *p = window(ram_end() - 4096);
    uint64_t n = 8192;
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(0x5a) : "memory");
    check_machine();
}

extern char image_end[];

void dirty_all_memory(void)
{
    for (uint64_t at = ((uint64_t)image_end + 0xfff) & ~0xfffULL; at < ram_end(); at += 4096)
        *(volatile uint64_t *)at = at;
    for (uint64_t at = ((uint64_t)image_end + 0xfff) & ~0xfffULL; at < ram_end(); at += 4096)
        if (*(volatile uint64_t *)at != at)
            fail("memory has lost its contents");
    check_machine();
}

static void storm(void (*more)(void), uint32_t enough)
{
    *lapic(0xf0) = 0x1ff;
    ticks = 0;
    __asm__ volatile("sti");
    for (uint32_t i = 0; ticks < enough && i < 100 * enough; i++)
        more();
    __asm__ volatile("cli");
    *lapic(0x380) = 0; /* no more ticks */
    if (ticks == 0)
        fail("no interrupt came");
    check_machine();
}

static void spin(void)
{
    pause_for(100);
}

void timer_storm(void)
{
    *lapic(0xf0) = 0x1ff;
    *lapic(0x3e0) = 0xb;            /* no division */
    *lapic(0x320) = 0x20000 | TICK; /* again and again */
    *lapic(0x380) = 1;              /* as soon as possible */
    storm(spin, 500);
}

static void send_ipi(void)
{
    *lapic(0x300) = 0x40000 | TICK; /* to this CPU */
}

void ipi_storm(void)
{
    storm(send_ipi, 5000);
}

void console_flood(void)
{
    for (unsigned i = 0; i < 1000; i++)
        say("\033]0;title\007\033[2J\xff\xfe no newline here ");
    say("\n");
    check_machine();
}

void triple_faults(void)
{
    triple_fault();
}

static void fault_there(void)
{
    triple_fault();
}

void end_in_io(void)
{
    struct dev *d = device(ID_BLK, 0);
    bring_up(d, 0);
    uint16_t head = blk_request(d, 0, 0, (uint64_t)buf, BUF, true);
    for (unsigned i = 0; i < RING; i++)
        put_avail(&d->q[0], head);
    kick(d, 0);
    on_other_cpu(fault_there);
    for (;;)
        set_reg(d, REG_STATUS, 0);
}

void halt_for_ever(void)
{
    for (;;)
        __asm__ volatile("cli; hlt");
}

void spin_for_ever(void)
{
    for (;;)
        __asm__ volatile("pause");
}
