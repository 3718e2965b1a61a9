#include "jail/reduced.h"

#include "jail/landlock.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <unistd.h>

int reduced_become(const struct jail_identity *id, struct err *e)
{
    int r = jail_drop_bounding(0, e);
    if (r < 0)
        return r;
    if (id->dropped) {
        /* Changing the user would drop what is needed to change the root. */
        if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setgroups(0, NULL) < 0 ||
            setresgid(id->gid, id->gid, id->gid) < 0 || setresuid(id->uid, id->uid, id->uid) < 0)
            return err_sys(e, errno, "cannot become the sandbox's user");
    }
    return jail_keep_caps(1ULL << CAP_SYS_CHROOT, e);
}

static int change_root(struct err *e)
{
    if (jail_has_cap(CAP_SYS_CHROOT) && (chroot(".") < 0 || chdir("/") < 0))
        return err_sys(e, errno, "cannot enter the sandbox's root");
    return 0;
}

/* If the host has no Landlock, there is nothing to enter (`msb doctor` reports this). */
static int enter_landlock(const struct landlock_grant *g, size_t n, struct err *e)
{
    int r = landlock_enter(g, n);
    return r < 0 && r != -EOPNOTSUPP ? err_sys(e, -r, "cannot restrict access to files") : 0;
}

int reduced_enter(int program_fd, struct err *e)
{
    int r = change_root(e);
    if (r < 0)
        return r;
    AUTO_CLOSE int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (here < 0)
        return err_sys(e, errno, "cannot open the sandbox's directory");
    const struct landlock_grant g[] = {{.fd = here, .write = true},
                                       {.fd = program_fd, .execute = true}};
    return enter_landlock(g, program_fd < 0 ? 1 : 2, e);
}

int reduced_close(int program_fd, struct err *e)
{
    int r = change_root(e);
    const struct landlock_grant g = {.fd = program_fd, .execute = true};
    return r < 0 ? r : enter_landlock(&g, 1, e);
}
