#include "util/cleanup.h"
#include "util/fs.h"
#include "util/parse.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>

/* The process that owns a temporary file of file_replace_at(); 0 = it is not such a file. */
static pid_t owner_of_temporary(const char *name)
{
    static const char mark[] = ".tmp-";
    uint64_t pid;
    const char *at = name[0] == '.' ? strstr(name, mark) : NULL;
    for (const char *next = at; next; next = strstr(at + 1, mark)) /* the last one */
        at = next;
    if (!at || parse_u64(at + strlen(mark), &pid) < 0 || pid < 1 || pid > INT_MAX)
        return 0;
    return (pid_t)pid;
}

void file_replace_sweep(int dirfd)
{
    AUTO_CLOSEDIR DIR *d = dir_read_at(dirfd, ".");
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        pid_t pid = owner_of_temporary(e->d_name);
        if (pid && kill(pid, 0) < 0 && errno == ESRCH)
            (void)unlinkat(dirfd, e->d_name, 0);
    }
}
