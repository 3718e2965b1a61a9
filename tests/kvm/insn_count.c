/* A QEMU (TCG) plugin: counts the instructions of a booting kernel, from its entry to the first one
 * of user space, prints the number and ends QEMU.
 *
 *     -plugin insn_count.so,entry=0x1a8d5b0,low=0x1000000,high=0x2000000
 *
 * entry is the physical address of the PVH entry; low and high enclose the kernel in physical
 * memory, where it runs before it has page tables of its own. Every round of a string instruction
 * counts as one instruction, which real hardware does faster.
 *
 * Distributions ship no header for plugins: the few functions used are declared here, as of version
 * 1 of that interface, which later versions still accept.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL_SPACE 0xffffffff80000000ULL
#define USER_SPACE_END 0x800000000000ULL

struct qemu_plugin_tb;
struct block {
    uint64_t at, insns;
};

extern int qemu_plugin_version;
int qemu_plugin_version = 1;

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*fn)(uint64_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
                                          void (*fn)(unsigned cpu, void *data), int flags,
                                          void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv);

static uint64_t entry, low, high, count;
static bool counting, in_kernel;

static void on_block(unsigned cpu, void *data)
{
    const struct block *b = data;
    (void)cpu;
    if (!counting && b->at != entry)
        return;
    counting = true;
    if (b->at >= KERNEL_SPACE) {
        in_kernel = true;
    } else if (in_kernel && b->at < USER_SPACE_END && (b->at < low || b->at >= high)) {
        printf("%" PRIu64 "\n", count);
        (void)fflush(stdout);
        _Exit(0);
    }
    count += b->insns;
}

static void on_translated(uint64_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    struct block *b = malloc(sizeof(*b)); /* lives as long as QEMU may run the block */
    if (!b)
        abort();
    *b = (struct block){qemu_plugin_tb_vaddr(tb), qemu_plugin_tb_n_insns(tb)};
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, 0, b);
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        uint64_t n = value ? strtoull(value + 1, NULL, 0) : 0;
        if (strncmp(argv[i], "entry=", 6) == 0)
            entry = n;
        else if (strncmp(argv[i], "low=", 4) == 0)
            low = n;
        else if (strncmp(argv[i], "high=", 5) == 0)
            high = n;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
    return 0;
}
