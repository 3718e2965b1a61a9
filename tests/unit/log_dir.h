/* A directory for log files, in which nothing but log files may be left. */
#pragma once

#include "util/cleanup.h"
#include "util/fs.h"

#include <stdio.h>

static char log_dir[64];
static int logs_fd;

static int log_dir_setup(void **state)
{
    (void)snprintf(log_dir, sizeof(log_dir), "/tmp/msb-test-XXXXXX");
    if (!mkdtemp(log_dir))
        return -1;
    logs_fd = dir_open_at(AT_FDCWD, log_dir);
    return logs_fd < 0 ? -1 : 0;
}

static int log_dir_teardown(void **state)
{
    static const char *const names[] = {"exec.log",   "exec.log.1",   "exec.log.2",
                                        "system.log", "system.log.1", "system.log.2"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)unlinkat(logs_fd, names[i], 0);
    (void)close(logs_fd);
    return rmdir(log_dir);
}
