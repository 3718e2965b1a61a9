/* Where msb starts when it is linked for old C libraries (stubs): the compiler's own start file would
 * leave the constructors to a C library that has done that itself only since 2.34. */
#include <stddef.h>
#include <stdint.h>

typedef void hook(int argc, char **argv, char **envp);

int main(int argc, char **argv, char **envp);
int __libc_start_main(int (*program)(int, char **, char **), int argc, char **argv, hook *init,
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
void start_program(void **stack, void (*rtld_fini)(void));

extern hook *__init_array_start[] __attribute__((visibility("hidden")));
extern hook *__init_array_end[] __attribute__((visibility("hidden")));

/* Whose exit handlers these are: the program's, not a library's. */
__attribute__((visibility("hidden"))) void *__dso_handle;

static void construct(int argc, char **argv, char **envp)
{
    for (hook **h = __init_array_start; h < __init_array_end; h++)
        (*h)(argc, argv, envp);
}

__attribute__((used)) void start_program(void **stack, void (*rtld_fini)(void))
{
    __libc_start_main(main, (int)(intptr_t)stack[0], (char **)&stack[1], construct, NULL, rtld_fini,
                      stack);
    __builtin_trap();
}

__asm__(".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    mov %rdx, %rsi\n"
        "    and $-16, %rsp\n"
        "    call start_program\n");
