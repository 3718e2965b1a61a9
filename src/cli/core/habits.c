#include "cli/core/habits.h"

#include "util/cleanup.h"

#include <string.h>

struct habit {
    const char *word;
    const char *instead; /* a sentence, no full stop */
};

static const struct habit verbs[] = {
    {"build", "msb does not build images: build it elsewhere and pipe 'docker save IMAGE' "
              "into 'msb load', or run a directory as an image: 'msb run ./rootfs'"},
    {"buildx", "msb does not build images: 'docker save IMAGE | msb load' brings one in"},
    {"cloud", "there is no cloud: sandboxes run on this machine"},
    {"compose", "msb does not support compose files: create sandboxes one by one, and publish "
                "ports (-p) for services that they use"},
    {"diff", "to see what a sandbox changed, compare files: 'msb cp NAME:/etc - | tar t'"},
    {"events", "'msb audit -f' shows what happens to sandboxes as it happens"},
    {"export", "'msb cp NAME:/ -' writes all files of a sandbox as a tar archive"},
    {"history", "'msb image inspect IMAGE' shows the layers of an image"},
    {"import", "a tar file or a directory can be booted as it is: 'msb create ./rootfs.tar'"},
    {"info", "'msb doctor' checks this host, and 'msb ls' lists its sandboxes"},
    {"network", "every sandbox has its own network: 'msb net' shows and changes its policy"},
    {"pause", "a sandbox cannot be paused: 'msb stop NAME' keeps its files, and 'msb start NAME' "
              "boots it again"},
    {"unpause", "a sandbox cannot be paused: 'msb start NAME' boots a stopped one"},
    {"rename", "a sandbox keeps its name: create another with the name you want"},
    {"search", "msb does not search registries: 'msb pull NAME' pulls any image of Docker Hub"},
    {"swarm", "msb runs sandboxes on this host only"},
    {"version", "'msb --version' prints it"},
};

static const struct habit options[] = {
    {"--add-host", "write the name into the guest's /etc/hosts, with --copy or a command"},
    {"--device", "devices of this host cannot be passed through; --mount-disk mounts a disk image"},
    {"--gpus", "a sandbox cannot use a GPU: run programs that need one on this host, and reach "
               "them over the network (--net public,host)"},
    {"--ipc", "a sandbox shares nothing with this host; for more shared memory use "
              "--shm-size"},
    {"--link",
     "publish the other sandbox's port (-p), and reach it through this host (--net host)"},
    {"--pid", "a sandbox has its own kernel and sees no process of this host: omit this option"},
    {"--privileged", "root in a sandbox may do anything to its own kernel anyway, including mounts "
                     "and containers: omit this option"},
    {"--publish-all", "name the ports: -p 0:80 publishes port 80 on a free port"},
    {"-P", "name the ports: -p 0:80 publishes port 80 on a free port"},
    {"--restart", "msb has no daemon that restarts sandboxes: run 'msb start NAME' from a service "
                  "manager"},
    {"--runtime", "--engine selects how the guest's kernel is run"},
    {"--signal", "'msb kill' ends a whole sandbox at once; for a signal to one process, use 'msb "
                 "exec NAME kill -s SIGNAL PID'"},
    {"--userns", "a sandbox has its own users: omit this option"},
    {"--volumes-from", "name the volume: -v NAME:/path in both sandboxes"},
};

static const char *find(const struct habit *h, size_t n, const char *word, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(h[i].word) == len && memcmp(h[i].word, word, len) == 0)
            return h[i].instead;
    return NULL;
}

const char *habit_of_verb(const char *word)
{
    return find(verbs, ARRAY_LEN(verbs), word, strlen(word));
}

const char *habit_of_option(const struct cmd *c, const char *word)
{
    const struct cmd *group = cmd_parent(c);
    if ((group ? group : c)->group != GROUP_SANDBOX) /* `image rm --restart` is just wrong */
        return NULL;
    return find(options, ARRAY_LEN(options), word, strcspn(word, "="));
}
