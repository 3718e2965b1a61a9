/* This installation: where it came from and what to do about it; the backend that runs sandboxes. */
#include "cli/core/common_opts.h"
#include "cli/core/noun.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- update, downgrade, uninstall ------------------------------------------------------------ */

enum action_kind { ACT_UPDATE, ACT_DOWNGRADE, ACT_REMOVE };

/* What to run, depending on where the program is. Packages own /usr/bin; `make install` puts
 * kernels below PREFIX/lib/msb; anything else is a build directory. */
static void advise(enum action_kind what, struct err *e)
{
    static const char *const apt[] = {"sudo apt-get install --only-upgrade msb",
                                      "sudo apt-get install msb=VERSION",
                                      "sudo apt-get remove msb"};
    static const char *const source[] = {"git pull && make install",
                                         "git checkout VERSION && make install", "make uninstall"};
    char exe[4096], lib[4200];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (strcmp(exe, "/usr/bin/msb") == 0) {
        err_hint(e, "it was installed as a package: %s", apt[what]);
        return;
    }
    (void)snprintf(lib, sizeof(lib), "%.*s/../lib/msb", slash ? (int)(slash - exe) : 0, exe);
    if (access(lib, F_OK) == 0 && slash) {
        *slash = '\0';
        char *bin = strrchr(exe, '/');
        err_hint(e, "it was installed from source: in its directory, %s PREFIX=%.*s", source[what],
                 bin ? (int)(bin - exe) : 0, exe);
    } else if (what == ACT_REMOVE) {
        err_hint(e, "it runs from a build directory: remove that directory");
    } else {
        err_hint(e, "it runs from a build directory: there, git %s && make",
                 what == ACT_UPDATE ? "pull" : "checkout VERSION");
    }
}

static int refuse_run(const struct args *a)
{
    struct err e = {0};
    enum action_kind what = a->cmd == &cmd_update      ? ACT_UPDATE
                            : a->cmd == &cmd_downgrade ? ACT_DOWNGRADE
                                                       : ACT_REMOVE;
    err_set(&e, ENOTSUP, "msb does not %s itself", what == ACT_REMOVE ? "remove" : a->cmd->name);
    advise(what, &e);
    if (what == ACT_REMOVE)
        err_hint(&e, "sandboxes, images and volumes are in $MSB_HOME, and stay there");
    return ui_fail(&e);
}

/* Options of programs that do it themselves. */
static const struct opt self_opts[] = {
    {"force", 'f', NULL, "Ignored", OPT_HIDDEN},
    {"yes", 'y', NULL, "Ignored", OPT_HIDDEN},
    {"keep-cache", 0, NULL, "Ignored", OPT_HIDDEN},
    {"no-backup", 0, NULL, "Ignored", OPT_HIDDEN},
    {0},
};

const struct cmd cmd_update = {
    .name = "update",
    .alias = "upgrade",
    .group = GROUP_INSTALL,
    .summary = "Show how to update msb",
    .opts = self_opts,
    .details =
        "msb is updated in the way it was installed. This command shows how, and changes nothing.",
    .examples = "  msb update",
    .run = refuse_run,
};

const struct cmd cmd_downgrade = {
    .name = "downgrade",
    .group = GROUP_INSTALL,
    .summary = "Show how to install an older msb",
    .opts = self_opts,
    .pos = ONE("VERSION", "Version to go back to"),
    .details = "An older msb can read data that a newer one stored if it knows the format.",
    .examples = "  msb downgrade 0.1.0",
    .run = refuse_run,
};

static const struct cmd cmd_self_uninstall = {
    .name = "uninstall",
    .flags = CMD_DESTROYS,
    .summary = "Show how to remove msb",
    .opts = self_opts,
    .examples = "  msb self uninstall",
    .run = refuse_run,
};

static const struct cmd check_spelling = {
    .name = "check",
    .group = GROUP_INSTALL,
    .flags = CMD_HIDDEN,
    .same = &cmd_doctor,
};

const struct cmd cmd_self = {
    .name = "self",
    .group = GROUP_INSTALL,
    .summary = "Manage this installation",
    .subs = VERBS(&cmd_doctor, &cmd_update, &cmd_downgrade, &cmd_self_uninstall, &check_spelling),
    .examples = "  msb self doctor\n"
                "  msb self update",
};

/* --- context --------------------------------------------------------------------------------- */

/* Scripts that ask for another place to run sandboxes must not get this one. */
static int context_run(const struct args *a)
{
    struct err e = {0};
    const char *backend = getenv("MSB_BACKEND");
    const char *source = backend && *backend ? "MSB_BACKEND" : "default";
    if (store_check_backend(&e) < 0)
        return ui_fail(&e);
    if (wants_json(a))
        return ui_print_json(json_pack("{s:s, s:s}", "kind", "local", "source", source));
    static const char *const headers[] = {"FIELD", "VALUE"};
    AUTO_TABLE struct table t;
    table_init(&t, 2, headers);
    TABLE_ROW(&t, "Backend", "local", "Source", source);
    return show_table(&t, 0);
}

const struct cmd cmd_context = {
    .name = "context",
    .alias = "ctx",
    .group = GROUP_OTHER,
    .summary = "Show where sandboxes run",
    .opts = OPTIONS(FORMAT_OPTION),
    .details = "Sandboxes always run on this machine.",
    .examples = "  msb context --format json",
    .run = context_run,
};
