/* wait: waits for a sandbox's background command to end, and returns its exit code. */
#include "cli/core/select.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "client/request.h"
#include "store/background.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

/* Exit code of a command whose own is unknown, unless its sandbox was stopped cleanly. */
enum { EXIT_KILLED = 128 + SIGKILL };

/* A sandbox that is gone after its command ended counts as stopped. */
static int reopen(const struct store *s, const char *name, struct sandbox *sb, struct err *e)
{
    sandbox_close(sb);
    int r = sandbox_open(s, name, sb, e);
    if (r != -ENOENT)
        return r;
    err_clear(e);
    *sb = (struct sandbox){.dirfd = -1, .state.status = STATUS_STOPPED};
    return 0;
}

/* How the latest command ended; without any, how the sandbox did. */
static int code_of(const struct store *s, const struct sandbox *sb)
{
    struct background b = {0};
    if (sb->dirfd >= 0)
        background_load(s, sb, &b);
    const struct background_command *c = background_latest(&b, false);
    if (c && c->exit_code != BACKGROUND_UNKNOWN)
        return c->exit_code;
    return c || sb->state.status == STATUS_CRASHED ? EXIT_KILLED : EXIT_OK;
}

static int wait_for(const struct store *s, const char *name, struct sandbox *sb, int *code,
                    struct err *e)
{
    struct background b;
    background_load(s, sb, &b);
    const struct background_command *running = background_latest(&b, true);
    bool none = background_latest(&b, false) == NULL;
    *code = -1;
    if (sb->state.pid && (running || none)) {
        int r = request_wait(sb->dirfd, running ? running->id : 0, code);
        bool gone = r == -ECONNRESET || r == -ECONNREFUSED || r == -ENOENT || r == -EPIPE;
        if (r < 0 && r != -ESRCH && !gone)
            return err_sys(e, -r, "cannot wait for '%s'", name);
        if (*code < 0 && (r = reopen(s, name, sb, e)) < 0)
            return r;
    }
    *code = *code < 0 ? code_of(s, sb) : *code;
    return 0;
}

static int wait_one(const struct store *s, const struct args *a, const char *name, struct err *e)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    char text[16];
    int code = EXIT_OK, r = sandbox_open(s, name, &sb, e);
    if (r == 0)
        r = wait_for(s, name, &sb, &code, e);
    if (r < 0)
        return r;
    (void)snprintf(text, sizeof(text), "%d", code);
    return ui_print_line(text) == EXIT_OK ? 0 : -EIO;
}

const struct cmd cmd_wait = {
    .name = "wait",
    .group = GROUP_SANDBOX,
    .summary = "Wait for a background command; print its exit code",
    .pos = SOME("NAMES", "Sandboxes to wait for"),
    .details = "The command is the latest that 'msb run -d' or 'msb exec -d' started, or that "
               "was detached from. For a sandbox without one, msb waits until the sandbox stops.",
    .examples = "  msb run -d --name job -- make && msb wait job\n"
                "  code=$(msb wait job)",
    .each = &(const struct action){.fn = wait_one},
};
