/* --tmpfs, --volume and --mount-*: what is mounted in the guest, as people write it. */
#ifndef MSB_CLI_MOUNT_OPTS_H
#define MSB_CLI_MOUNT_OPTS_H

#include "spec/spec.h"

/* PATH[:SIZE][:OPTIONS] */
int tmpfs_option(struct sandbox_spec *s, const char *arg, struct err *e);
/* SOURCE:DEST[:OPTIONS]; `option` is the name of the option that it was given to. */
int mount_option(struct sandbox_spec *s, const char *option, const char *arg, struct err *e);

/* A path of the host: absolute, without symbolic links; malloc'd. */
int mount_resolve(const char *source, char **ret, struct err *e);

#endif
