#include "cli/verbs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes what we inherit from the caller irrelevant. */
static void settle(void)
{
    (void)umask(0077);
    (void)signal(SIGCHLD, SIG_DFL); /* ignored, children could not be waited for */
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error, not our death */
    /* Closed ones would be taken by the next files we open. Read-only: writing still fails. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", O_RDONLY);
}

int main(int argc, char **argv)
{
    settle();
    return cli_main(argc, argv);
}
