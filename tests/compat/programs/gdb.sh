# shellcheck shell=sh disable=SC1091,SC2016
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1

cat >prog.c <<'END'
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

volatile int watched;

static int deeper(int depth) { return depth ? deeper(depth - 1) + 1 : watched; }

static void *thread(void *arg)
{
    watched += 1;
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t t;
    watched = 41;
    pthread_create(&t, NULL, thread, NULL);
    pthread_join(t, NULL);
    printf("sum %d\n", deeper(5));
    if (argc > 1)
        pause();
    return argv[0] == NULL;
}
END
check 'compile' gcc -g -O0 -pthread -o prog prog.c

debug() { gdb -nx -batch "$@" prog; }

gives 'breakpoint' '^#5 .*main' debug -ex 'break deeper if depth == 1' -ex run -ex bt
gives 'step over and finish' 'Value returned is .* = 47' debug -ex 'tbreak deeper' -ex run -ex finish
gives 'hardware watchpoint' 'New value = 42' debug -ex 'watch watched' -ex run -ex continue -ex continue
gives 'hardware breakpoint' 'Breakpoint 2, deeper' debug -ex 'tbreak main' -ex run -ex 'hbreak deeper' -ex continue
gives 'threads' 'thread.*at prog.c' debug -ex 'break thread' -ex run -ex 'bt 1'
gives 'change a variable' 'sum 105' debug -ex 'break deeper' -ex run -ex 'set var watched = 100' -ex 'delete' -ex continue
gives 'call a function' '= 48' debug -ex 'tbreak deeper' -ex run -ex 'print deeper(6)'
gives 'vector registers' 'v8_int32' debug -ex 'break main' -ex run -ex 'print $ymm0'
gives 'follow fork' 'exited normally' gdb -nx -batch -ex 'set follow-fork-mode child' -ex run --args sh -c 'true; (true)'
gives 'catch a system call' 'call to syscall write' debug -ex 'catch syscall write' -ex run
check 'write a core file' debug -ex 'break deeper' -ex run -ex 'generate-core-file core.gdb'
gives 'read a core file' '^#. .*main' gdb -nx -batch -ex bt prog core.gdb
./prog stay >/dev/null &
gives 'attach and detach' 'pause' debug -p $! -ex bt
kill $!

# With gdb 13, on some CPUs, the upper halves are not available, natively either: objdump shows what the kernel wrote.
cd "$(mktemp -d)" || exit 1
cat >dumped.c <<'END'
#include <pthread.h>
#include <unistd.h>

static void *wait_for_the_end(void *arg)
{
    pause();
    return arg;
}

int main(void)
{
    static const float values[] = {1, 2, 3, 4, 5, 6, 7, 8};
    pthread_t t;
    pthread_create(&t, NULL, wait_for_the_end, NULL);
    __asm__ volatile("vmovups %0, %%ymm0\n\tmovb $0, 0" : : "m"(values) : "memory");
    return 0;
}
END
check 'compile what crashes' gcc -g -O0 -pthread -o dumped dumped.c
dump() {
    prlimit --core=unlimited ./dumped
    mv core* dump
}
check 'a core file by the kernel' dump
gives 'its stack' '^#0 .* main .* at dumped.c:15' gdb -nx -batch -ex bt dumped dump
gives 'its vector registers' '= \{1, 2, 3, 4, ' gdb -nx -batch -ex 'print $ymm0.v8_float' dumped dump
gives 'their upper halves' '^ 0240 0000a040 0000c040 0000e040 00000041' objdump -s -j .reg-xstate dump
gives 'its threads' '^  2 +Thread' gdb -nx -batch -ex 'info threads' dumped dump
