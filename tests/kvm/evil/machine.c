/* The machine that the evil guest runs on: console, exceptions, memory, a second CPU. */
#include "evil.h"

enum { COM1 = 0x3f8, AP_VECTOR = 0x08, LAPIC = 0xfee00000 };

struct start_info {
    uint32_t magic, version, flags, nr_modules;
    uint64_t modules, cmdline, rsdp, memmap;
    uint32_t memmap_entries, reserved;
};
struct memmap_entry {
    uint64_t addr, size;
    uint32_t type, reserved;
};
struct gate {
    uint16_t low, selector, flags, middle;
    uint32_t high, reserved;
};

extern uint64_t directories[5][512];
extern uint32_t start_info;
extern char ap_start[], ap_end[], image_end[];
void exception(void);
void tick(void);
void ignore(void);
void evil_main(void);
void evil_ap(void);
void evil_exception(uint64_t a, uint64_t b) __attribute__((noreturn));
void run_attack(const char *name);
void *memset(void *p, int c, size_t n);
void *memcpy(void *to, const void *from, size_t n);

enum { NMI = 2, SPURIOUS = 0xff };
static struct gate idt[256];
static char args[2048];
static uint64_t end_of_ram;
static void (*volatile ap_work)(void);
static bool ap_runs;

void *memset(void *p, int c, size_t n)
{
    for (volatile uint8_t *q = p; n--; q++)
        *q = (uint8_t)c;
    return p;
}

void *memcpy(void *to, const void *from, size_t n)
{
    volatile uint8_t *t = to;
    for (const uint8_t *f = from; n--;)
        *t++ = *f++;
    return to;
}

void say(const char *text)
{
    for (; *text; text++)
        outb(COM1, (uint8_t)*text);
}

void say_number(const char *text, uint64_t n)
{
    say(text);
    for (int shift = 60; shift >= 0; shift -= 4)
        outb(COM1, (uint8_t) "0123456789abcdef"[n >> shift & 15]);
    say("\n");
}

void fail(const char *text)
{
    say("evil: FAILED: ");
    say(text);
    say("\n");
    triple_fault();
}

void evil_exception(uint64_t a, uint64_t b)
{
    say_number("evil: exception, stack: ", a);
    say_number("evil: exception, stack: ", b);
    fail("an unexpected exception");
}

volatile uint8_t *window(uint64_t physical)
{
    uint64_t base = physical & ~0x1fffffULL;
    volatile uint8_t *p = (volatile uint8_t *)0x100000000ULL; /* NOLINT: the fifth GiB */
    for (unsigned i = 0; i < 2; i++) {
        directories[4][i] = (base + i * 0x200000ULL) | 0x83;
        __asm__ volatile("invlpg (%0)" ::"r"(p + i * 0x200000ULL) : "memory");
    }
    return p + (physical - base);
}

uint64_t ram_end(void)
{
    return end_of_ram;
}

const char *cmdline(void)
{
    return args;
}

void pause_for(unsigned spins)
{
    while (spins--)
        __asm__ volatile("pause");
}

static void set_gate(unsigned vector, void (*fn)(void))
{
    uint64_t at = (uint64_t)fn;
    idt[vector] = (struct gate){.low = (uint16_t)at,
                                .selector = 8,
                                .flags = 0x8e00,
                                .middle = (uint16_t)(at >> 16),
                                .high = (uint32_t)(at >> 32)};
}

static void load_idt(void)
{
    struct {
        uint16_t limit;
        uint64_t base;
    } __attribute__((packed)) p = {sizeof(idt) - 1, (uint64_t)idt};
    __asm__ volatile("lidt %0" ::"m"(p));
}

static void read_start_info(void)
{
    const struct start_info *info = (const struct start_info *)(uint64_t)start_info;
    const char *from = (const char *)info->cmdline;
    for (size_t i = 0; i + 1 < sizeof(args) && from[i]; i++)
        args[i] = from[i];
    const struct memmap_entry *e = (const struct memmap_entry *)info->memmap;
    for (uint32_t i = 0; i < info->memmap_entries; i++)
        if (e[i].type == 1 && e[i].addr < 0x100000000ULL && e[i].addr + e[i].size > end_of_ram)
            end_of_ram = e[i].addr + e[i].size;
    if (end_of_ram <= (uint64_t)image_end)
        fail("no memory map");
}

void evil_main(void)
{
    for (unsigned i = 0; i < 256; i++)
        set_gate(i, exception);
    set_gate(0x40, tick);
    set_gate(NMI, ignore);
    set_gate(SPURIOUS, ignore);
    load_idt();
    read_start_info();
    const char *name = args;
    while (*name && !(name[0] == 'i' && name[1] == 'n' && name[2] == 'i' && name[3] == 't' &&
                      name[4] == '='))
        name++;
    if (!*name)
        fail("no init= on the command line");
    run_attack(name + 5 + (name[5] == '/'));
    say("evil: survived\n");
    triple_fault();
}

void evil_ap(void)
{
    load_idt();
    for (;;) {
        void (*fn)(void) = ap_work;
        if (fn) {
            ap_work = NULL;
            fn();
        }
        __asm__ volatile("pause");
    }
}

void on_other_cpu(void (*fn)(void))
{
    volatile uint32_t *lapic = (volatile uint32_t *)(uint64_t)LAPIC;
    ap_work = fn;
    if (ap_runs)
        return;
    ap_runs = true;
    memcpy((void *)(AP_VECTOR * 0x1000ULL), ap_start, (size_t)(ap_end - ap_start));
    lapic[0xf0 / 4] = 0x1ff;
    lapic[0x300 / 4] = 0xc4500; /* INIT, all but this one */
    pause_for(20000);
    for (unsigned i = 0; i < 2 && ap_work; i++) {
        lapic[0x300 / 4] = 0xc4600 | AP_VECTOR;
        pause_for(20000);
    }
    for (unsigned i = 0; i < 10000 && ap_work; i++)
        pause_for(1000);
    if (ap_work)
        fail("the second CPU does not start");
}
