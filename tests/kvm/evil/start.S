/* How the evil guest starts: from where PVH leaves a CPU (32-bit mode, no paging) to C in long mode
 * with the first 4 GiB mapped one to one; the same for a second CPU, which comes from real mode.
 */
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long start32

    .text
    .code32
    .globl start32
start32:
    cld
    cli
    mov %ebx, start_info
    /* 2048 pages of 2 MiB; the first four tables of directories[] are theirs. */
    mov $directories, %edi
    mov $0x83, %eax
    mov $2048, %ecx
1:  mov %eax, (%edi)
    movl $0, 4(%edi)
    add $0x200000, %eax
    add $8, %edi
    dec %ecx
    jnz 1b
    mov $directories + 7, %eax
    mov $pointers, %edi
    mov $5, %ecx /* the fifth is the window() */
2:  mov %eax, (%edi)
    add $0x1000, %eax
    add $8, %edi
    dec %ecx
    jnz 2b
    movl $pointers + 7, root
    lgdtl gdt_pointer
    mov $boot_stack + STACK, %esp
    mov $evil_main, %ebx
    jmp to_long_mode

ap32:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %ss
    mov $ap_stack + STACK, %esp
    mov $evil_ap, %ebx
to_long_mode:
    mov %cr4, %eax
    or $0x20, %eax /* PAE */
    mov %eax, %cr4
    mov $root, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx
    rdmsr
    or $0x100, %eax /* LME */
    wrmsr
    mov %cr0, %eax
    or $0x80000001, %eax
    mov %eax, %cr0
    ljmp $8, $start64

    .code64
start64:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov %ebx, %ebx
    mov %esp, %esp
    call *%rbx
    jmp triple_fault

/* Copied below 1 MiB, where a second CPU starts. */
    .code16
    .globl ap_start, ap_end
ap_start:
    cli
    mov %cs, %ax
    mov %ax, %ds
    lgdtl ap_gdt_pointer - ap_start
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmpl $24, $ap32
    .balign 4
ap_gdt_pointer:
    .word 4 * 8 - 1
    .long gdt
ap_end:
    .code64

/* int guarded(void (*fn)(uint64_t), uint64_t arg): 0, or 1 if fn caused an exception. */
    .globl guarded
guarded:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, guard
    mov %rdi, %rax
    mov %rsi, %rdi
    call *%rax
    xor %eax, %eax
3:  movq $0, guard
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret

/* Every vector but one. */
    .globl exception
exception:
    mov guard, %rax
    test %rax, %rax
    jz 4f
    mov %rax, %rsp
    mov $1, %eax
    jmp 3b
4:  mov 8(%rsp), %rsi
    mov (%rsp), %rdi
    call evil_exception

    .globl triple_fault
triple_fault:
    lidt no_idt
    int3
    jmp triple_fault

/* The one: counts and acknowledges. */
    .globl tick
tick:
    push %rax
    incl ticks
    mov $0xfee000b0, %eax
    movl $0, (%rax)
    pop %rax
    iretq

/* What a machine may do at any time: an interrupt that was withdrawn on its way, and an NMI, which
 * some hosts' KVM hands to guests under load. */
    .globl ignore
ignore:
    iretq

    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff /* 64-bit code */
    .quad 0x00cf93000000ffff /* data */
    .quad 0x00cf9b000000ffff /* 32-bit code */
gdt_pointer:
    .word 4 * 8 - 1
    .long gdt
no_idt:
    .word 0
    .quad 0

    .bss
    .balign 4096
    .globl directories, start_info, ticks
    .set STACK, 16384
root: .skip 4096
pointers: .skip 4096
directories: .skip 5 * 4096
boot_stack: .skip STACK
ap_stack: .skip STACK
guard: .skip 8
start_info: .skip 8
ticks: .skip 8

    .section .note.GNU-stack, "", @progbits
