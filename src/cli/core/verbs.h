/* The verbs, one file each, and the entry point. */
#ifndef MSB_CLI_CORE_VERBS_H
#define MSB_CLI_CORE_VERBS_H

#include "cli/core/cmd.h"

/* All of msb; returns the exit code. */
int cli_main(int argc, char **argv);

/* A whole command line, from argv[1] on, as often as a verb needs others. */
int cli_run(int argc, char **argv);

extern const struct cmd cmd_run;
extern const struct cmd cmd_create;
extern const struct cmd cmd_start;
extern const struct cmd cmd_stop;
extern const struct cmd cmd_restart;
extern const struct cmd cmd_ping;
extern const struct cmd cmd_touch;
extern const struct cmd cmd_list;
extern const struct cmd cmd_status;
extern const struct cmd cmd_remove;
extern const struct cmd cmd_copy;
extern const struct cmd cmd_exec;
extern const struct cmd cmd_logs;
extern const struct cmd cmd_attach;
extern const struct cmd cmd_wait;
extern const struct cmd cmd_inspect;
extern const struct cmd cmd_modify;
extern const struct cmd cmd_metrics;
extern const struct cmd cmd_commit;
extern const struct cmd cmd_tag;
extern const struct cmd cmd_push;
extern const struct cmd cmd_load;
extern const struct cmd cmd_save;
extern const struct cmd cmd_image;
extern const struct cmd cmd_image_list;
extern const struct cmd cmd_image_inspect;
extern const struct cmd cmd_image_remove;
extern const struct cmd cmd_image_prune;
extern const struct cmd cmd_docker;
extern const struct cmd cmd_doctor;
extern const struct cmd cmd_pull;
extern const struct cmd cmd_registry;
extern const struct cmd cmd_registry_login;
extern const struct cmd cmd_registry_logout;
extern const struct cmd cmd_secret;
extern const struct cmd cmd_mcp;
/* Called by this name, msb is `msb oci`. */
#define OCI_PROGRAM "msb-runtime"
extern const struct cmd cmd_oci;
extern const struct cmd cmd_volume;
extern const struct cmd cmd_volume_create;
extern const struct cmd cmd_volume_prune;
extern const struct cmd cmd_system;
extern const struct cmd cmd_workspace;
extern const struct cmd cmd_workspace_create;
extern const struct cmd cmd_workspace_get;
extern const struct cmd cmd_workspace_put;
extern const struct cmd cmd_workspace_status;
extern const struct cmd cmd_workspace_checkpoint;
extern const struct cmd cmd_workspace_log;
extern const struct cmd cmd_workspace_diff;
extern const struct cmd cmd_workspace_restore;
extern const struct cmd cmd_workspace_prune;
extern const struct cmd cmd_policy;
extern const struct cmd cmd_policy_apply;
extern const struct cmd cmd_net;
extern const struct cmd cmd_net_log;
extern const struct cmd cmd_net_explain;
extern const struct cmd cmd_net_set;
extern const struct cmd cmd_net_show;
extern const struct cmd cmd_port;
extern const struct cmd cmd_port_list;
extern const struct cmd cmd_audit;
extern const struct cmd cmd_audit_verify;
extern const struct cmd cmd_install;
extern const struct cmd cmd_uninstall;
extern const struct cmd cmd_update;
extern const struct cmd cmd_downgrade;
extern const struct cmd cmd_self;
extern const struct cmd cmd_context;
extern const struct cmd cmd_completion;
extern const struct cmd cmd_help;

#endif
