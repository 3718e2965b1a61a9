#include "agent/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RECORD_MAX = 2048,
    RECORDS_AT_ONCE = 256, /* a guest that floods its log must not keep us from commands */
    KERNEL_LEVELS = 8,     /* priorities below are of facility 0, the kernel */
};

/* "3,1234,5678901,-;Out of memory: Killed process 42 (name) total-vm:..." */
pid_t oom_parse(const char *record)
{
    static const char killed[] = "Killed process ";
    char *end;
    errno = 0;
    unsigned long priority = strtoul(record, &end, 10);
    const char *text = strchr(record, ';');
    if (end == record || *end != ',' || priority >= KERNEL_LEVELS || !text)
        return 0;
    const char *at = strstr(text, killed);
    if (!at || !strstr(text, "ut of memory"))
        return 0;
    at += strlen(killed);
    unsigned long pid = strtoul(at, &end, 10);
    return end != at && *end == ' ' && errno == 0 && pid >= 1 && pid <= INT_MAX ? (pid_t)pid : 0;
}

void oom_look(struct oom *o)
{
    char record[RECORD_MAX];
    uint64_t before = o->kills;
    if (o->src.fd < 0)
        return;
    for (unsigned i = 0; i < RECORDS_AT_ONCE; i++) {
        ssize_t n = read(o->src.fd, record, sizeof(record) - 1);
        if (n < 0 && (errno == EPIPE || errno == EINVAL))
            continue; /* records were lost, or one is too long */
        if (n <= 0)
            break;
        record[n] = '\0';
        pid_t pid = oom_parse(record);
        if (pid)
            o->last[o->kills++ % OOM_REMEMBERED] = pid;
    }
    if (o->kills > before && o->on_kill)
        o->on_kill(o);
}

bool oom_was_killed(const struct oom *o, pid_t pid, uint64_t before)
{
    uint64_t oldest = o->kills > OOM_REMEMBERED ? o->kills - OOM_REMEMBERED : 0;
    for (uint64_t i = before > oldest ? before : oldest; i < o->kills; i++)
        if (o->last[i % OOM_REMEMBERED] == pid)
            return true;
    return false;
}

static void on_record(struct loop_src *src, uint32_t events)
{
    oom_look(CONTAINER_OF(src, struct oom, src));
}

void oom_watch(struct oom *o, struct loop *l, void (*on_kill)(struct oom *o))
{
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)lseek(fd, 0, SEEK_END);
    o->src = (struct loop_src){.fd = fd, .fn = on_record};
    o->on_kill = on_kill;
    if (loop_add(l, &o->src, EPOLLIN) < 0) {
        (void)close(fd);
        o->src.fd = -1;
    }
}
