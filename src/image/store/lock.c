#include "image/store/lock.h"

#include "util/fs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

int lock_take(int dirfd, const char *name, bool wait)
{
    return lock_file_at(dirfd, name, O_CREAT, LOCK_EX | (wait ? 0 : LOCK_NB));
}

void lock_drop(int dirfd, const char *name, int fd)
{
    (void)unlinkat(dirfd, name, 0);
    (void)close(fd);
}
