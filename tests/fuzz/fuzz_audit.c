/* The audit log: whatever is in the file, it can be verified, and records can be appended.
 *
 * The input is the file. A repair and the records after it must link to each other: the last of them
 * is the head's, unless somebody has changed the file. */
#include "fuzz_require.h"
#include "store/audit_chain.h"
#include "store/audit_verify.h"
#include "util/cleanup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int home = -1;

static void open_home(void)
{
    static char path[] = "/tmp/msb-fuzz-audit-XXXXXX";
    if (home >= 0)
        return;
    REQUIRE(mkdtemp(path));
    home = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(home >= 0);
}

static void forget(void)
{
    (void)unlinkat(home, AUDIT_NAME, 0);
    (void)unlinkat(home, AUDIT_HEAD_NAME, 0);
}

static void remove_home(void)
{
    char link[64], path[256] = "";
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", home);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    forget();
    if (n > 0)
        (void)rmdir(path);
}

static void read_lines(int fd, size_t size)
{
    struct audit_reader r;
    uint64_t total = 0;
    REQUIRE(audit_reader_open(&r, fd, 0, (off_t)size) == 0);
    while (audit_reader_next(&r) == 1) {
        struct audit_mark m;
        total += r.n + r.whole;
        REQUIRE(strlen(r.hash) == DIGEST_HEX_SIZE - 1);
        if (audit_link_parse(r.text, (size_t)r.n, &m))
            REQUIRE(m.seq > 0 && strlen(m.hash) == DIGEST_HEX_SIZE - 1);
    }
    REQUIRE(total == size);
    audit_reader_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char body[] = "{\"t\":\"x\"}";
    struct audit_check before = {0}, after = {0};
    struct audit_head head;
    struct err e = {0};
    if (home < 0) {
        open_home();
        (void)atexit(remove_home);
    }
    forget();
    int fd = openat(home, AUDIT_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    read_lines(fd, size);
    (void)close(fd);
    REQUIRE(audit_verify(home, &before, &e) == 0);
    REQUIRE(audit_chain_append(home, body, sizeof(body) - 1, NULL) == 0);
    REQUIRE(audit_chain_append(home, body, sizeof(body) - 1, NULL) == 0);
    REQUIRE(audit_head_load(home, &head) == 0);
    REQUIRE(audit_verify(home, &after, &e) == 0);
    if (before.last.seq >= 1ULL << 61) /* no writer goes on from there */
        return 0;
    /* What a file that was tampered with says of its own end proves nothing, but it stays so. (That the
     * head is missing is one problem where there are records, and nobody's fault.) */
    if (before.problems > (before.last.seq > 0)) {
        REQUIRE(after.problems > 0);
        return 0;
    }
    REQUIRE(after.last.seq == head.mark.seq && strcmp(after.last.hash, head.mark.hash) == 0);
    REQUIRE(after.last.seq >= before.last.seq + 2);
    return 0;
}
