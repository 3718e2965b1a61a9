#include "cli/core/verbs.h"

/* Verbs of later versions: their names are reserved, and using one reports this. */
#define LATER(id, verb, other, in_group, text) \
    static const struct cmd id = {             \
        .name = verb,                          \
        .alias = other,                        \
        .group = in_group,                     \
        .flags = CMD_LATER,                    \
        .summary = text,                       \
    }
/* Alternative spellings of those, which help does not list. */
#define LATER_HIDDEN(id, verb, other)    \
    static const struct cmd id = {       \
        .name = verb,                    \
        .alias = other,                  \
        .group = GROUP_OTHER,            \
        .flags = CMD_LATER | CMD_HIDDEN, \
        .summary = "Not available yet",  \
    }
LATER(later_ssh, "ssh", NULL, GROUP_SANDBOX, "Connect to a sandbox over SSH");
LATER(later_snapshot, "snapshot", "snap", GROUP_STORAGE, "Manage snapshots");
LATER_HIDDEN(later_snapshots, "snapshots", "snaps");

/* Other spellings that clients use. */
static const struct cmd registries = {
    .name = "registries",
    .alias = "regs",
    .group = GROUP_IMAGE,
    .flags = CMD_HIDDEN,
    .same = &cmd_registry,
    .preset = "list",
};

/* Another tool's spelling of a verb, which may be in a group, with an option that it implies. */
#define SPELLING(id, word, verb, option) \
    static const struct cmd id = {       \
        .name = word,                    \
        .group = GROUP_OTHER,            \
        .flags = CMD_HIDDEN,             \
        .same = &(verb),                 \
        .preset = option,                \
    }
SPELLING(kill_spelling, "kill", cmd_stop, "--force");
SPELLING(shell_spelling, "shell", cmd_exec, "--shell");
SPELLING(login_spelling, "login", cmd_registry_login, NULL);
SPELLING(logout_spelling, "logout", cmd_registry_logout, NULL);
SPELLING(images_spelling, "images", cmd_image_list, NULL);
SPELLING(rmi_spelling, "rmi", cmd_image_remove, NULL);
SPELLING(top_spelling, "top", cmd_metrics, "--watch");
SPELLING(stats_spelling, "stats", cmd_metrics, "--stream");
SPELLING(container_spelling, "container", root_cmd, NULL);

static const struct cmd volumes = {
    .name = "volumes",
    .alias = "vols",
    .group = GROUP_STORAGE,
    .flags = CMD_HIDDEN,
    .same = &cmd_volume,
    .preset = "list",
};

/* One a line: */
/* clang-format off */
const struct cmd *const cmd_table[] = {
    &cmd_run,
    &cmd_create,
    &cmd_start,
    &cmd_stop,
    &cmd_restart,
    &cmd_exec,
    &cmd_attach,
    &cmd_wait,
    &cmd_copy,
    &cmd_logs,
    &cmd_list,
    &cmd_status,
    &cmd_inspect,
    &cmd_modify,
    &cmd_remove,
    &cmd_ping,
    &cmd_touch,
    &cmd_doctor,
    &cmd_completion,
    &cmd_help,
    &cmd_metrics,
    &later_ssh,
    &cmd_port,
    &cmd_net,
    &cmd_audit,
    &cmd_policy,
    &cmd_secret,
    &cmd_image,
    &cmd_pull,
    &cmd_commit,
    &cmd_tag,
    &cmd_push,
    &cmd_load,
    &cmd_save,
    &cmd_registry,
    &cmd_volume,
    &later_snapshot,
    &cmd_workspace,
    &cmd_system,
    &cmd_install,
    &cmd_uninstall,
    &cmd_update,
    &cmd_downgrade,
    &cmd_self,
    &cmd_context,
    &cmd_mcp,
    &cmd_docker,
    &cmd_oci,
    &registries,
    &volumes,
    &kill_spelling,
    &shell_spelling,
    &login_spelling,
    &logout_spelling,
    &images_spelling,
    &rmi_spelling,
    &container_spelling,
    &top_spelling,
    &stats_spelling,
    &later_snapshots,
    NULL,
};
/* clang-format on */

const struct opt global_opts[] = {
    {"error", 0, NULL, "Print only errors"},
    {"warn", 0, NULL, "Print errors and warnings"},
    {"info", 0, NULL, "Also print what was done, and progress (default)"},
    {"debug", 0, NULL, "Also print decisions, and how long steps took"},
    {"trace", 0, NULL, "Also print requests, frames and files opened"},
    {"tree", 0, NULL, "Print commands and options as a tree"},
    {"help", 'h', NULL, "Print help with the common options"},
    {"help-all", 0, NULL, "Print help with all options"},
    {0},
};

const struct cmd root_cmd = {
    .name = "",
    .summary = "Sandboxes that each have their own Linux kernel",
    .opts = OPTIONS({"version", 'V', NULL, "Print the version"}),
    .subs = cmd_table,
    .examples = "  msb run -- uname -a                 one command, nothing is kept\n"
                "  msb create --name dev gcc && msb exec dev -- make\n"
                "  msb ls",
};
