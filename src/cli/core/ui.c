#include "cli/core/ui.h"

#include "cli/core/cmd.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/fs.h"
#include "util/loop.h"
#include "util/process.h"
#include "util/progress.h"
#include "util/term.h"
#include "util/text.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { SPINNER_DELAY_MS = 150, SPINNER_STEP_MS = 80, NAME_COLUMN = 12 };

static struct {
    bool quiet;
    enum verbosity verbosity;
    bool failed;   /* an error was printed */
    bool spinning; /* a spinner may have drawn on the line we are about to write */
} ui;

void ui_set_quiet(void)
{
    ui.quiet = true;
}

bool ui_quiet(void)
{
    return ui.quiet;
}

bool ui_shows(enum verbosity v)
{
    assert(v != UI_DEFAULT);
    if (ui.quiet && (v == UI_WARN || v == UI_INFO))
        return false;
    return v <= (ui.verbosity == UI_DEFAULT ? UI_INFO : ui.verbosity);
}

/* One write per line, so that lines of parallel msb processes do not mix. */
static void say(const char *color, const char *label, const char *text)
{
    bool on = term_colors(STDERR_FILENO);
    (void)fprintf(stderr, "%s%s%s%s %s\n", ui.spinning ? "\r\x1b[K" : "", on ? color : "", label,
                  on ? SGR_RESET : "", text);
}

bool ui_failed(void)
{
    return ui.failed;
}

void ui_error(const struct err *e)
{
    ui.failed = true;
    (void)fflush(stdout);
    say(SGR_BOLD SGR_RED, "error:", e->msg[0] ? e->msg : strerror(e->code));
    for (int i = 0; i < e->hints; i++)
        (void)fprintf(stderr, "  → %s\n", e->hint[i]);
}

int ui_fail(const struct err *e)
{
    ui_error(e);
    return e->code == ERR_POLICY ? EXIT_POLICY : e->code == ETIME ? EXIT_TIMED_OUT : EXIT_FAILED;
}

int ui_usage(const struct err *e)
{
    ui_error(e);
    return EXIT_USAGE;
}

void ui_warn(const char *text)
{
    if (ui_shows(UI_WARN))
        say(SGR_BOLD SGR_YELLOW, "warn:", text);
}

void ui_note(const char *text)
{
    if (ui_shows(UI_INFO))
        (void)fprintf(stderr, "%s\n", text);
}

void ui_success(const char *did, const char *what)
{
    if (!ui_shows(UI_INFO))
        return;
    bool on = term_colors(STDERR_FILENO);
    (void)fprintf(stderr, "   %s✓%s %-*s %s\n", on ? SGR_GREEN : "", on ? SGR_RESET : "",
                  NAME_COLUMN, did, what);
}

/* The sink of diag.h. */
static void on_diag(enum diag_level level, const char *text)
{
    if (level == DIAG_WARN)
        ui_warn(text);
    else
        say(SGR_DIM, level == DIAG_DEBUG ? "debug:" : "trace:", text);
}

void ui_reset(void)
{
    ui.quiet = false;
    ui.verbosity = UI_DEFAULT;
}

void ui_set_verbosity(enum verbosity v)
{
    ui.verbosity = MAX(ui.verbosity, v);
    diag_to(on_diag, ui_shows(UI_TRACE) ? DIAG_TRACE : ui_shows(UI_DEBUG) ? DIAG_DEBUG : DIAG_WARN);
}

/* --- spinner -------------------------------------------------------------------------------- */

static volatile sig_atomic_t spinner_done;

static void on_done(int sig)
{
    spinner_done = 1;
}

/* Draws until SIGTERM, then wipes what it drew. */
static void __attribute__((noreturn)) spin(const char *doing, const char *what)
{
    static const char *const frames[] = {"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"};
    bool on = term_colors(STDERR_FILENO);
    sleep_ms(SPINNER_DELAY_MS);
    size_t i = 0;
    for (; !spinner_done; i++) {
        char far[80];
        bool known = progress_text(far, sizeof(far));
        (void)dprintf(STDERR_FILENO, "\r   %s%s%s %-*s %s%s%s\x1b[K", on ? SGR_CYAN : "",
                      frames[i % ARRAY_LEN(frames)], on ? SGR_RESET : "", NAME_COLUMN, doing, what,
                      known ? "  " : "", known ? far : "");
        sleep_ms(SPINNER_STEP_MS);
    }
    if (i > 0)
        (void)dprintf(STDERR_FILENO, "\r\x1b[K");
    _exit(0);
}

void spinner_start(struct spinner *s, const char *doing, const char *what)
{
    s->pid = 0;
    if (!ui_shows(UI_INFO) || ui_shows(UI_DEBUG) || !isatty(STDERR_FILENO))
        return;
    progress_watch();
    pid_t parent = getpid();
    sigset_t term, old;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, &old);
    pid_t pid = fork();
    if (pid != 0) {
        (void)sigprocmask(SIG_SETMASK, &old, NULL);
        s->pid = pid > 0 ? pid : 0;
        ui.spinning = pid > 0;
        return;
    }
    /* Blocked until the handler is installed: short work may be finished before that. */
    struct sigaction sa = {.sa_handler = on_done};
    (void)sigaction(SIGTERM, &sa, NULL);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    spin(doing, what);
}

void spinner_stop(struct spinner *s)
{
    if (s->pid <= 0)
        return;
    (void)kill(s->pid, SIGTERM);
    (void)process_wait(s->pid);
    s->pid = 0;
    ui.spinning = false;
}

/* --- data ----------------------------------------------------------------------------------- */

int ui_print(const struct buf *b)
{
    (void)fflush(stdout);
    int r = write_all(STDOUT_FILENO, buf_head(b), buf_len(b));
    if (r == 0)
        return EXIT_OK;
    struct err e = {0};
    err_sys(&e, -r, "cannot write to standard output");
    return ui_fail(&e);
}

int ui_print_line(const char *text)
{
    AUTO_BUF struct buf b = {.limit = SIZE_MAX / 2};
    return buf_printf(&b, "%s\n", text) < 0 ? EXIT_FAILED : ui_print(&b);
}

/* On a terminal, names chosen by images and guests must not act as control sequences: C1 controls
 * and marks that reorder text are not ASCII, and JSON can escape everything that is not. */
int ui_print_json(json_t *j)
{
    size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15);
    if (isatty(STDOUT_FILENO))
        flags |= JSON_ENSURE_ASCII;
    AUTO_FREE char *text = j ? json_dumps(j, flags) : NULL;
    json_decref(j);
    if (!text) {
        struct err e = {0};
        err_oom(&e);
        return ui_fail(&e);
    }
    return ui_print_line(text);
}
