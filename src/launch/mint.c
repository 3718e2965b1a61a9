#include "launch/mint.h"

#include "intercept/mint.h"
#include "util/command.h"
#include "util/process.h"
#include "util/strlist.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

const char *mint_check(const char *value, size_t n)
{
    if (n == 0)
        return "is empty";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)value[i] < ' ' || value[i] == 0x7f)
            return "has a line break or control character in it, which no header can have";
    return NULL;
}

/* --- one command ----------------------------------------------------------------------------- */

static void say(struct mint_answer *a, const char *what)
{
    a->code = EIO;
    (void)snprintf(a->why, sizeof(a->why), "the command of secret %s %s", a->name, what);
}

static void mint_one(const struct mint_source *s, char **env, struct mint_answer *a)
{
    char text[64];
    size_t n = 0;
    a->ttl_s = s->ttl_s;
    int r = command_output(s->command, env, MINT_TIME_S, a->value, sizeof(a->value), &n);
    if (command_failure(r, MINT_TIME_S, text, sizeof(text))) {
        say(a, text);
        return;
    }
    a->n = (uint32_t)(n - (n > 0 && a->value[n - 1] == '\n'));
    const char *wrong = mint_check(a->value, a->n);
    (void)snprintf(text, sizeof(text), "printed a value that %.40s", wrong ? wrong : "");
    if (wrong)
        say(a, text);
}

/* --- the process ----------------------------------------------------------------------------- */

/* The environment is still needed, but must not be visible in /proc. */
static char **keep_environment(void)
{
    static struct strlist copy;
    for (char **v = environ; v && *v; v++)
        (void)strlist_add(&copy, *v);
    return copy.v;
}

static void detach(int sock)
{
    (void)setsid();
    process_default_signals();
    (void)signal(SIGPIPE, SIG_IGN);
    process_forget_caller("mint", NULL);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)process_close_stdio();
    (void)process_close_others(3, &sock, 1);
    (void)!chdir("/");
}

void mint_serve(int sock, const struct mint_source *source, size_t n)
{
    static struct mint_answer a;
    struct mint_ask ask;
    char **env = keep_environment(), *none[] = {NULL};
    detach(sock);
    for (;;) {
        ssize_t k = recv(sock, &ask, sizeof(ask), 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k != (ssize_t)sizeof(ask))
            _exit(0);
        ask.name[sizeof(ask.name) - 1] = '\0';
        size_t i = 0;
        while (i < n && strcmp(source[i].name, ask.name) != 0)
            i++;
        memcpy(a.name, ask.name, sizeof(a.name));
        if (i < n)
            mint_one(&source[i], env ? env : none, &a);
        else
            say(&a, "is not known");
        if (a.code)
            explicit_bzero(a.value, sizeof(a.value));
        if (send(sock, &a, sizeof(a), MSG_NOSIGNAL) != (ssize_t)sizeof(a))
            _exit(0);
        explicit_bzero(&a, sizeof(a));
    }
}
