#include "cli/core/verbs.h"
#include "util/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* Whether the next argument is a variable: -e, --env, or -e after other letters. */
static bool takes_variable(const char *arg)
{
    size_t n = strlen(arg);
    return strcmp(arg, "--env") == 0 ||
           (n >= 2 && arg[0] == '-' && arg[1] != '-' && arg[n - 1] == 'e');
}

/* Anyone on the host can read the command line of a process. The name of a variable stays. */
static void hide_variables(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *from = "";
        if (takes_variable(argv[i - 1]))
            from = argv[i];
        else if (strncmp(argv[i], "--env=", 6) == 0)
            from = argv[i] + 6;
        else if (strncmp(argv[i], "-e", 2) == 0)
            from = argv[i] + 2;
        const char *value = strchr(from, '=');
        if (value)
            process_hide_argument(i, (size_t)(value + 1 - argv[i]));
    }
}

/* Called by another name, msb is one of its verbs. */
static int verb_main(const char *verb, int argc, char **argv)
{
    char **more = calloc((size_t)argc + 2, sizeof(char *));
    if (!more)
        return 1;
    more[0] = argv[0];
    more[1] = (char *)(uintptr_t)verb;
    for (int i = 1; i < argc; i++)
        more[i + 1] = argv[i];
    int code = cli_main(argc + 1, more);
    free(more);
    return code;
}

int main(int argc, char **argv)
{
    settle();
    char **own = process_own_arguments(argc, argv);
    hide_variables(argc, own);
    const char *slash = argc > 0 ? strrchr(own[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? own[0] : "";
    if (strcmp(name, "docker") == 0)
        return verb_main("docker", argc, own);
    if (strcmp(name, OCI_PROGRAM) == 0)
        return verb_main("oci", argc, own);
    return cli_main(argc, own);
}
