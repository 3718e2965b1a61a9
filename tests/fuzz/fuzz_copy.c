/* Trees from guests: whatever answers to GET, a sink hears only what the grammar of copy/tree.h
 * allows. */
#include "copy/guest.h"
#include "fuzz_tree.h"

#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 96 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checker c = {.sink.ops = &checker_ops};
    int fd[2];
    struct files f;
    struct err e = {0};
    struct tree_progress p = {0};
    if (size > INPUT_MAX || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
        return 0;
    (void)!send(fd[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd[1], SHUT_WR);
    must(files_open(&f, fd[0], "fuzz", NULL, NULL, &e) == 0);
    int r = tree_from_guest(&f, "/x", false, "first", &c.sink, &p, &e);
    must(r == 0 || e.code);
    must(r < 0 || (c.depth == 0 && !c.in_file));
    files_close(&f);
    (void)close(fd[1]);
    return 0;
}
