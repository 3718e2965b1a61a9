/* The verbs, one file each, and the entry point. */
#pragma once

#include "cli/core/cmd.h"

/* All of msb; returns the exit code. */
int cli_main(int argc, char **argv);

struct sandbox_spec;

/* Runs a whole command line, from argv[1] on; may be called by verbs that need others. */
int cli_run(int argc, char **argv);
/* `run` and `create` call it, if such a verb has set it, once the sandbox exists. */
extern void (*cli_created)(const struct sandbox_spec *spec);

extern const struct cmd cmd_run, cmd_create, cmd_start, cmd_stop, cmd_restart, cmd_ping, cmd_touch,
    cmd_list, cmd_status, cmd_remove, cmd_copy, cmd_exec, cmd_logs, cmd_attach, cmd_wait,
    cmd_inspect, cmd_modify, cmd_metrics, cmd_commit, cmd_tag, cmd_push, cmd_load, cmd_save,
    cmd_docker, cmd_doctor, cmd_pull, cmd_secret, cmd_mcp, cmd_oci, cmd_system, cmd_install,
    cmd_uninstall, cmd_update, cmd_downgrade, cmd_self, cmd_context, cmd_completion, cmd_help;
extern const struct cmd cmd_image, cmd_image_list, cmd_image_inspect, cmd_image_remove,
    cmd_image_prune;
extern const struct cmd cmd_registry, cmd_registry_login, cmd_registry_logout;
extern const struct cmd cmd_volume, cmd_volume_create, cmd_volume_prune;
extern const struct cmd cmd_workspace, cmd_workspace_create, cmd_workspace_get, cmd_workspace_put,
    cmd_workspace_status, cmd_workspace_checkpoint, cmd_workspace_log, cmd_workspace_diff,
    cmd_workspace_restore, cmd_workspace_prune;
extern const struct cmd cmd_policy, cmd_policy_apply;
extern const struct cmd cmd_net, cmd_net_log, cmd_net_explain, cmd_net_set, cmd_net_show;
extern const struct cmd cmd_port, cmd_port_list;
extern const struct cmd cmd_audit, cmd_audit_verify;

/* Called by this name, msb is `msb oci`. */
#define OCI_PROGRAM "msb-runtime"
