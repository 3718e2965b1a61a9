/* Guest memory: translation, scattered buffers, and a guest that takes its memory away. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "util/iov.h"
#include "virtio/guest_map.h"
#include "virtio/guest_mem.h"

static void test_h05_translation_is_checked_as_a_whole(void **state)
{
    static uint8_t a[4096], b[4096];
    struct guest_mem m;
    guest_mem_clear(&m);
    assert_int_equal(guest_mem_add(&m, 0x1000, sizeof(a), a), 0);
    assert_int_equal(guest_mem_add(&m, 0x3000, sizeof(b), b), 0); /* a hole before it */

    assert_ptr_equal(guest_mem_ptr(&m, 0x1000, 4096), a);
    assert_ptr_equal(guest_mem_ptr(&m, 0x1fff, 1), a + 4095);
    assert_ptr_equal(guest_mem_ptr(&m, 0x3000, 1), b);
    assert_null(guest_mem_ptr(&m, 0x1000, 0));
    assert_null(guest_mem_ptr(&m, 0xfff, 1));
    assert_null(guest_mem_ptr(&m, 0x1fff, 2));      /* over the end */
    assert_null(guest_mem_ptr(&m, 0x2000, 1));      /* the hole */
    assert_null(guest_mem_ptr(&m, 0x1800, 0x2000)); /* over the hole into the next */
    assert_null(guest_mem_ptr(&m, 0x4000, 1));
    assert_null(guest_mem_ptr(&m, UINT64_MAX, 1));
    assert_null(guest_mem_ptr(&m, UINT64_MAX, 2));
    assert_null(guest_mem_ptr(&m, 0x1800, UINT64_MAX));
    assert_null(guest_mem_ptr(&m, 0x1800, UINT64_MAX - 0x1800 + 1)); /* wraps to 0 */
    assert_null(guest_mem_ptr(&m, 0x1000, UINT32_MAX));

    uint8_t x[16] = {1, 2, 3};
    assert_int_equal(guest_mem_write(&m, 0x1ff0, x, 16), 0);
    assert_int_equal(guest_mem_write(&m, 0x1ff1, x, 16), -EFAULT);
    assert_memory_equal(guest_mem_ptr(&m, 0x1ff0, 16), x, 16);
    assert_null(guest_mem_ptr(&m, 0x1fff, 2));
}

static void test_adjacent_regions_are_not_one(void **state)
{
    static uint8_t a[4096], b[4096];
    struct guest_mem m;
    guest_mem_clear(&m);
    assert_int_equal(guest_mem_add(&m, 0x1000, sizeof(a), a), 0);
    assert_int_equal(guest_mem_add(&m, 0x2000, sizeof(b), b), 0);
    assert_null(guest_mem_ptr(&m, 0x1fff, 2));
    assert_ptr_equal(guest_mem_ptr(&m, 0x2000, 4096), b);
}

static void test_bad_regions_are_refused(void **state)
{
    static uint8_t a[64];
    struct guest_mem m;
    guest_mem_clear(&m);
    assert_int_equal(guest_mem_add(&m, 0, 0, a), -EINVAL);
    assert_int_equal(guest_mem_add(&m, UINT64_MAX - 10, 64, a), -EINVAL);
    assert_int_equal(guest_mem_add(&m, 0, UINT64_MAX, a), -EINVAL);
    assert_int_equal(guest_mem_add(&m, 0, 64, NULL), -EINVAL);
    for (unsigned i = 0; i < GUEST_REGIONS_MAX; i++)
        assert_int_equal(guest_mem_add(&m, 64ULL * i, 64, a), 0);
    assert_int_equal(guest_mem_add(&m, 32, 64, a), -EINVAL); /* overlaps */
    assert_int_equal(guest_mem_add(&m, 0x10000, 64, a), -ENOSPC);
}

static void test_iov_copies_stop_at_the_end(void **state)
{
    char *p = malloc(3), *q = malloc(5), out[16] = {0};
    struct iovec v[] = {{p, 3}, {NULL, 0}, {q, 5}}, w[4];
    assert_int_equal(iov_total(v, 3), 8);
    assert_int_equal(iov_write(v, 3, 0, "abcdefghij", 10), 8);
    assert_int_equal(iov_read(v, 3, 2, out, sizeof(out)), 6);
    assert_memory_equal(out, "cdefgh", 6);
    assert_int_equal(iov_read(v, 3, 8, out, 1), 0);
    assert_int_equal(iov_read(v, 3, 1000, out, 1), 0);
    assert_int_equal(iov_write(v, 3, 7, "XY", 2), 1);
    assert_int_equal(iov_slice(w, 4, v, 3, 2, 3), 2);
    assert_int_equal(w[0].iov_len, 1);
    assert_int_equal(w[1].iov_len, 2);
    assert_int_equal(iov_slice(w, 1, v, 3, 0, 8), 1);
    assert_int_equal(iov_slice(w, 4, v, 3, 8, 8), 0);
    assert_int_equal(iov_zero(v, 3, 2, 100), 6);
    assert_int_equal(p[1], 'b');
    assert_int_equal(q[4], 0);
    struct iovec d[] = {{out, 2}, {out + 4, 2}};
    (void)iov_write(v, 3, 0, "12345678", 8);
    assert_int_equal(iov_move(d, 2, 1, v, 3, 2, 100), 3);
    assert_int_equal(out[1], '3');
    assert_memory_equal(out + 4, "45", 2);
    free(p);
    free(q);
}

static int ram_file(size_t size)
{
    int fd = memfd_create("ram", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    return fd;
}

static void test_mappings_are_shared_and_checked(void **state)
{
    struct guest_map *a, *b, *c;
    int fd = ram_file(16384), pipe_fd[2];
    assert_int_equal(guest_map_get(&a, fd, 4096, 8192), 0);
    assert_int_equal(guest_map_get(&b, fd, 4096, 8192), 0);
    assert_ptr_equal(a, b);
    assert_int_equal(guest_map_get(&c, fd, 100, 16000), 0); /* not on a page */
    *((uint8_t *)guest_map_host(c) + 4096 - 100) = 42;
    assert_int_equal(*(uint8_t *)guest_map_host(a), 42);
    guest_map_put(c);
    assert_int_equal(guest_map_get(&c, fd, 0, 16385), -EINVAL);
    assert_int_equal(guest_map_get(&c, fd, 16384, 1), -EINVAL);
    assert_int_equal(guest_map_get(&c, fd, UINT64_MAX, 2), -EINVAL);
    assert_int_equal(guest_map_get(&c, fd, 0, 0), -EINVAL);
    assert_int_equal(pipe(pipe_fd), 0);
    assert_int_equal(guest_map_get(&c, pipe_fd[0], 0, 1), -EINVAL);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    guest_map_put(a);
    *(uint8_t *)guest_map_host(b) = 1; /* one reference is left */
    guest_map_put(b);
    close(fd);
}

/* cmocka takes SIGBUS for itself while tests run, so these two run before it, in processes of their
 * own; the tests look at how they ended. */

static int truncated_file(void)
{
    struct guest_map *m;
    int fd = ram_file(3 * 4096);
    if (guest_map_get(&m, fd, 0, 3 * 4096) < 0)
        return 1;
    volatile uint8_t *p = guest_map_host(m);
    p[0] = 7;
    if (ftruncate(fd, 4096) < 0 || guest_map_lost(m))
        return 2;
    if (p[4096] != 0) /* SIGBUS, caught */
        return 3;
    p[8192 + 5] = 9;
    if (p[8192 + 5] != 9 || p[0] != 7 || !guest_map_lost(m))
        return 4;
    guest_map_put(m);
    close(fd);
    return 0;
}

static int other_sigbus(void)
{
    struct guest_map *m;
    int fd = ram_file(4096), other = ram_file(4096);
    if (guest_map_get(&m, fd, 0, 4096) < 0)
        return 1;
    volatile uint8_t *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 0);
    if (p == MAP_FAILED || ftruncate(other, 0) < 0)
        return 2;
    return p[0];
}

static int run_alone(int (*fn)(void))
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(fn());
    int status = -1;
    (void)waitpid(pid, &status, 0);
    return status;
}

static int truncated_status, other_status;

static void test_a_truncated_memory_file_does_not_kill_us(void **state)
{
    assert_true(WIFEXITED(truncated_status));
    assert_int_equal(WEXITSTATUS(truncated_status), 0);
}

static void test_another_sigbus_still_kills(void **state)
{
    assert_true(WIFSIGNALED(other_status));
    assert_int_equal(WTERMSIG(other_status), SIGBUS);
}

int main(void)
{
    truncated_status = run_alone(truncated_file);
    other_status = run_alone(other_sigbus);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_h05_translation_is_checked_as_a_whole),
        cmocka_unit_test(test_adjacent_regions_are_not_one),
        cmocka_unit_test(test_bad_regions_are_refused),
        cmocka_unit_test(test_iov_copies_stop_at_the_end),
        cmocka_unit_test(test_mappings_are_shared_and_checked),
        cmocka_unit_test(test_a_truncated_memory_file_does_not_kill_us),
        cmocka_unit_test(test_another_sigbus_still_kills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
