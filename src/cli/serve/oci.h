/* Shared by the verbs of `msb oci`: the options before the verb, and how it fails. */
#pragma once

#include "cli/core/args.h"
#include "oci/runtime.h"

enum { OCI_EXEC_FAILED = 255 }; /* as callers expect from exec */

extern struct oci_globals oci_globals;

/* Prints it, and appends it to --log. Returns `code`. */
int oci_fail(const struct err *e, int code);

extern const struct cmd cmd_oci_create, cmd_oci_start, cmd_oci_state, cmd_oci_kill, cmd_oci_delete,
    cmd_oci_exec, cmd_oci_run, cmd_oci_list, cmd_oci_ps, cmd_oci_pause, cmd_oci_resume,
    cmd_oci_update, cmd_oci_events, cmd_oci_features, cmd_oci_spec;
