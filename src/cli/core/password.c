#include "cli/core/password.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

void password_free(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

static void trim_newline(char *s)
{
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r'))
        s[--n] = '\0';
}

int password_from_stdin(const char *what, size_t max, char **ret, struct err *e)
{
    size_t cap = max + 3; /* a newline or two may follow */
    char *p = calloc(1, cap + 1);
    if (!p)
        return err_oom(e);
    ssize_t n = read_up_to(STDIN_FILENO, p, cap);
    bool nul = n > 0 && memchr(p, '\0', (size_t)n) != NULL; /* the rest would be lost */
    trim_newline(p);
    if (!nul && *p && strlen(p) <= max) {
        *ret = p;
        return 0;
    }
    bool empty = !nul && !*p;
    explicit_bzero(p, cap);
    free(p);
    if (nul)
        return err_set(e, EINVAL, "the %s on standard input contains a NUL byte", what);
    return empty ? err_set(e, EINVAL, "no %s on standard input", what)
                 : err_set(e, EINVAL, "the %s on standard input is too long", what);
}

static struct termios shown; /* the terminal's previous mode */

static void show_again(int sig)
{
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &shown);
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

/* One line from the terminal; without echo, a Ctrl-C turns it on again. */
static int ask(const char *question, const char *what, bool echo, size_t max, char **ret,
               struct err *e)
{
    if (tcgetattr(STDIN_FILENO, &shown) < 0)
        return err_sys(e, errno, "cannot read a %s", what);
    struct termios hidden = shown;
    if (!echo)
        hidden.c_lflag &= ~(tcflag_t)ECHO;
    static const int fatal[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP};
    struct sigaction sa = {.sa_handler = show_again}, old[ARRAY_LEN(fatal)];
    for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
        (void)sigaction(fatal[i], &sa, &old[i]);
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &hidden); /* drops earlier input */
    (void)fputs(question, stderr);
    char *line = NULL;
    size_t cap = 0;
    (void)setvbuf(stdin, NULL, _IONBF, 0); /* no second copy */
    ssize_t n = getline(&line, &cap, stdin);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &shown);
    if (!echo)
        (void)fputc('\n', stderr);
    for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
        (void)sigaction(fatal[i], &old[i], NULL);
    if (n > 0)
        trim_newline(line);
    if (n > 0 && *line && strlen(line) <= max) {
        *ret = line;
        return 0;
    }
    bool given = n > 0 && *line;
    if (line)
        explicit_bzero(line, cap);
    free(line);
    return given ? err_set(e, EINVAL, "the %s is too long", what)
                 : err_set(e, EINVAL, "no %s given", what);
}

int password_ask(const char *question, const char *what, size_t max, char **ret, struct err *e)
{
    return ask(question, what, false, max, ret, e);
}

int name_ask(const char *question, const char *what, size_t max, char **ret, struct err *e)
{
    return ask(question, what, true, max, ret, e);
}
