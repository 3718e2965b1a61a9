/* Which names sandboxes, volumes, workspaces and secrets may have. */
#pragma once

#include "util/err.h"

#include <stdbool.h>

enum { SPEC_NAME_MAX = 128, VOLUME_NAME_MAX = 100, SECRET_NAME_MAX = 128 };

int spec_check_name(const char *name, struct err *e);
int volume_check_name(const char *name, struct err *e);
int placement_check_name(const char *name, struct err *e); /* of a placement profile */
int workspace_check_name(const char *name, struct err *e); /* at most VOLUME_NAME_MAX */
/* A secret is named after the environment variable that it becomes. */
int secret_check_name(const char *name, struct err *e);
bool variable_name(const char *s);
